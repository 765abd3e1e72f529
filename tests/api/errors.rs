//! Whatever is wrong with a request is said in OpenAI's shape, before anything is streamed.

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, chat, completion, node, with};

/// Something a client wrote that no error may show back.
const SECRET: &str = "xyzzy4711";

/// B09: broken bodies, wrong types and wrong routes.
#[test]
fn b09_malformed_requests_get_openai_errors() {
    let client = node().client();
    let json_type = Some("application/json");
    let good = chat(SECRET, 2).to_string();
    let utf16: Vec<u8> = good.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut invalid = good.clone().into_bytes();
    invalid[20] = 0xff;
    let secret = |text: &str| text.replace("SECRET", SECRET).into_bytes();
    for (body, content_type, status) in [
        (secret(r#"{"model":"SECRET","#), json_type, 400),
        (b"[]".to_vec(), json_type, 400),
        (secret(r#""SECRET""#), json_type, 400),
        (b"7".to_vec(), json_type, 400),
        (b"null".to_vec(), json_type, 400),
        (Vec::new(), json_type, 400),
        (b"  \n".to_vec(), json_type, 400),
        (format!("{good} {SECRET}").into_bytes(), json_type, 400),
        (format!("{good}{good}").into_bytes(), json_type, 400),
        (utf16, json_type, 400),
        (invalid, json_type, 400),
        (vec![b'['; 100_000], json_type, 400),
        (format!("{{\"x\":{}", "[".repeat(100_000)).into_bytes(), json_type, 400),
        (format!("{{\"messages\":{}", "[".repeat(100_000)).into_bytes(), json_type, 400),
        (secret(r#"{"model":"default","SECRET":1,"messages":[]}"#), json_type, 400),
        (good.clone().into_bytes(), Some("text/plain"), 415),
        (good.clone().into_bytes(), Some("application/x-www-form-urlencoded"), 415),
        (good.clone().into_bytes(), None, 415),
    ] {
        for path in [CHAT, COMPLETIONS, "/v1/tokenize", "/v1/detokenize"] {
            let headers: Vec<_> = content_type.iter().map(|t| ("content-type", *t)).collect();
            let response = client.send("POST", path, &headers, body.clone());
            let error = response.error(status);
            assert_eq!(error["type"], "invalid_request_error", "{path} {error}");
            let named = body.windows(6).any(|w| w == b"xyzzy4") && error["param"] == SECRET;
            assert!(named || !response.text().contains(SECRET), "shown back: {error}");
        }
    }
    for content_type in ["application/json; charset=utf-8", "Application/JSON"] {
        let answer = client.send("POST", CHAT, &[("content-type", content_type)], good.clone().into_bytes());
        assert_eq!(answer.status, 200, "{content_type}: {}", answer.text());
    }
    for (method, path, status) in [
        ("GET", "/v1/nope", 404),
        ("POST", "/v1/nope", 404),
        ("GET", "/", 404),
        ("GET", "/v1/chat/completions/x", 404),
        ("DELETE", "/v1/models", 405),
        ("GET", CHAT, 405),
        ("PUT", COMPLETIONS, 405),
        ("POST", "/health", 405),
    ] {
        let error = client.send(method, path, &[], Vec::new()).error(status);
        assert_eq!(error["type"], "invalid_request_error", "{method} {path}");
    }
}

/// B09: a wrong field is named.
#[test]
fn b09_wrong_fields_are_named() {
    let client = node().client();
    for (name, value) in [
        ("temperature", json!("hot")),
        ("temperature", json!(-0.1)),
        ("temperature", json!([1])),
        ("top_p", json!(0)),
        ("top_p", json!(1.01)),
        ("top_k", json!(1.5)),
        ("min_p", json!(2)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!(2.5)),
        ("frequency_penalty", json!(-3)),
        ("logit_bias", json!([1])),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"1": 101})),
        ("logit_bias", json!({"1": "much"})),
        ("seed", json!("x")),
        ("seed", json!(0.5)),
        ("stop", json!(7)),
        ("stop", json!([7])),
        ("n", json!(0)),
        ("n", json!(-1)),
        ("n", json!("2")),
        ("stream", json!("yes")),
        ("stream_options", json!(true)),
        ("props", json!(1)),
    ] {
        for (path, request) in [(CHAT, chat("hi", 2)), (COMPLETIONS, completion("hi", 2))] {
            let mut request = request;
            request[name] = value.clone();
            let error = client.post(path, &request).error(400);
            assert_eq!(error["param"], name, "{value}: {error}");
            assert!(error["message"].as_str().unwrap().contains(name), "{error}");
        }
    }
    for (path, field, value, param) in [
        (CHAT, "messages", json!({}), "messages"),
        (CHAT, "messages", json!("x"), "messages"),
        (CHAT, "messages", json!([7]), "messages"),
        (CHAT, "messages", json!([{"content": "x"}]), "messages"),
        (CHAT, "messages", json!([{"role": "user"}]), "messages"),
        (CHAT, "messages", json!([{"role": "user", "content": 7}]), "messages"),
        (CHAT, "max_tokens", json!(0), "max_tokens"),
        (CHAT, "max_completion_tokens", json!("x"), "max_completion_tokens"),
        (CHAT, "logprobs", json!(2), "logprobs"),
        (CHAT, "prompt", json!("x"), "prompt"),
        (COMPLETIONS, "prompt", json!({}), "prompt"),
        (COMPLETIONS, "prompt", json!(7), "prompt"),
        (COMPLETIONS, "prompt", json!(["x", 7]), "prompt"),
        (COMPLETIONS, "prompt", json!([[1], "x", {}]), "prompt"),
        (COMPLETIONS, "prompt", json!([1.5]), "prompt"),
        (COMPLETIONS, "logprobs", json!(true), "logprobs"),
        (COMPLETIONS, "echo", json!(1), "echo"),
        (COMPLETIONS, "messages", json!([]), "messages"),
    ] {
        let request = if path == CHAT { chat("hi", 2) } else { completion("hi", 2) };
        let mut request = request;
        request[field] = value.clone();
        assert_eq!(client.post(path, &request).error(400)["param"], param, "{field} = {value}");
    }
    let twice = r#"{"model":"default","messages":[{"role":"user","content":"a"}],"n":1,"n":2}"#;
    let response =
        client.send("POST", CHAT, &[("content-type", "application/json")], twice.as_bytes().to_vec());
    assert_eq!(response.error(400)["param"], "n");
}

/// B01: what can be known before the first byte is an error of the request, not of the stream.
#[test]
fn b01_a_stream_is_not_opened_for_a_wrong_request() {
    let client = node().client();
    for (path, request) in [(CHAT, chat("ping", 4)), (COMPLETIONS, completion("ping", 4))] {
        for wrong in
            [json!({"n": 0}), json!({"model": "no-such"}), json!({"temperature": 9}), json!({"tools": [1]})]
        {
            let request = with(&with(&request, wrong), json!({"stream": true}));
            let response = client.post(path, &request);
            assert!(response.status == 400 || response.status == 404, "{}", response.text());
            response.error(response.status);
        }
    }
}

/// B18: what would change the answer and cannot be done is refused by name; what changes nothing is taken.
#[test]
fn b18_unsupported_fields_are_refused_by_name() {
    let client = node().client();
    let tool =
        json!({"type": "function", "function": {"name": "get_tide", "parameters": {"type": "object"}}});
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}});
    for (fields, param) in [
        (json!({"tools": [tool], "tool_choice": "auto"}), "tools"),
        (json!({"tools": [tool], "tool_choice": "required"}), "tools"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "get_tide"}}}), "tool_choice"),
        (json!({"functions": [{"name": "get_tide"}]}), "functions"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"response_format": schema}), "response_format"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"web_search_options": {}}), "web_search_options"),
        (json!({"store": true}), "store"),
        (json!({"guided_regex": "a*"}), "guided_regex"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"max_tokns": 5}), "max_tokns"),
    ] {
        for stream in [false, true] {
            let request = with(&with(&chat("hi", 2), fields.clone()), json!({"stream": stream}));
            assert_eq!(client.post(CHAT, &request).error(400)["param"], param, "{fields}");
        }
    }
    for (fields, param) in [
        (json!({"best_of": 3, "n": 2}), "best_of"),
        (json!({"suffix": "end"}), "suffix"),
        (json!({"tools": [tool]}), "tools"),
        (json!({"response_format": {"type": "text"}}), "response_format"),
    ] {
        let request = with(&completion("hi", 2), fields.clone());
        assert_eq!(client.post(COMPLETIONS, &request).error(400)["param"], param, "{fields}");
    }
    let harmless = json!({
        "user": "u1", "metadata": {"a": "b"}, "tools": [], "tool_choice": "none", "parallel_tool_calls": true,
        "response_format": {"type": "text"}, "modalities": ["text"], "store": false, "service_tier": "auto",
        "temperature": null, "stop": null, "logit_bias": {}, "presence_penalty": null, "seed": null, "n": null,
        "stream": null, "stream_options": null, "logprobs": null, "top_logprobs": null, "functions": null,
    });
    client.ok(CHAT, &with(&chat("hi", 2), harmless));
    let harmless = json!({"best_of": 2, "n": 2, "suffix": "", "user": "u1", "logprobs": null, "echo": null});
    client.ok(COMPLETIONS, &with(&completion("hi", 2), harmless));
}

/// Values that are read, not only accepted: each of them changes the answer or is an error.
#[test]
fn sampling_is_counter_based_on_the_seed() {
    let client = node().client();
    let text = |fields: Value| {
        let request = with(&completion("Once upon a time", 24), json!({"temperature": 1}));
        super::choices(&client.ok(COMPLETIONS, &with(&request, fields)))
    };
    assert_eq!(text(json!({"seed": 1})), text(json!({"seed": 1})));
    assert_ne!(text(json!({"seed": 1})), text(json!({"seed": 2})));
    assert_ne!(
        text(json!({"seed": null})),
        text(json!({"seed": null})),
        "without a seed each request has its own"
    );
    assert_eq!(text(json!({"seed": -5})), text(json!({"seed": -5})));
    let two = text(json!({"seed": 1, "n": 2}));
    assert_eq!(two[0], text(json!({"seed": 1}))[0], "a choice does not depend on how many there are");
    let forced = text(json!({"logit_bias": {"65": 100}}));
    assert_eq!(forced[0].text, "A".repeat(24));
}
