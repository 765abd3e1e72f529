//! Requests and answers.

use policies::request::Prop;
use serde_json::{Value, json};

use super::fixture::{BEGIN, JSON, Script, Setup, VOCAB, bytes, chat_body, rig, rig_with};

#[tokio::test]
async fn a_chat_is_answered() {
    let rig = rig().await;
    let answer = rig.chat(json!({"temperature": 0})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-served-by"), Some("w1"));
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "m");
    let choice = &body["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "Hi", "refusal": null}));
    assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("stop"), &json!(0)));
    let prompt = "<user>hello<assistant>".len();
    // Two tokens of text and the end token.
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3,
               "prompt_tokens_details": {"cached_tokens": 3}})
    );
    let spec = rig.world.specs.lock().unwrap()[0].clone();
    assert_eq!(&*spec.prompt, bytes("<user>hello<assistant>").as_slice());
    assert_eq!(spec.hashes.len(), prompt / 16);
    assert_eq!(spec.sampling.temperature, 0.0);
}

#[tokio::test]
async fn the_default_name_is_answered_with_the_real_one() {
    let rig = rig().await;
    assert_eq!(rig.chat(json!({"model": "default"})).await.json()["model"], "m");
    for (model, status) in [("no-such", 404), ("M", 404), ("", 400)] {
        let answer = rig.chat(json!({"model": model})).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.json()["error"]["param"], "model");
    }
    assert_eq!(rig.chat(json!({"model": "no-such"})).await.json()["error"]["code"], "model_not_found");
    assert_eq!(rig.chat(json!({"model": null})).await.status, 400);
}

#[tokio::test]
async fn content_parts_and_the_same_text_make_the_same_prompt() {
    let rig = rig().await;
    let part = |text: &str| json!({"type": "text", "text": text});
    for content in
        [json!("tell me a tale"), json!([part("tell me "), part("a tale")]), json!([part("tell me a tale")])]
    {
        let answer = rig.chat(json!({"messages": [{"role": "user", "content": content}]})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let specs = rig.world.specs.lock().unwrap().clone();
    assert!(specs.iter().all(|s| s.prompt == specs[0].prompt));
}

#[tokio::test]
async fn every_malformed_request_is_answered_in_openais_shape() {
    let rig = rig().await;
    let chat = "/v1/chat/completions";
    let utf16: Vec<u8> = "{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let cases: Vec<(&str, &str, &str, Vec<u8>, u16)> = vec![
        ("POST", chat, JSON, b"{\"model\":\"m\",".to_vec(), 400),
        ("POST", chat, JSON, b"[]".to_vec(), 400),
        ("POST", chat, JSON, b"\"x\"".to_vec(), 400),
        ("POST", chat, JSON, b"{} trailing".to_vec(), 400),
        ("POST", chat, JSON, utf16, 400),
        ("POST", chat, JSON, Vec::new(), 400),
        ("POST", chat, JSON, b"{\"model\":\"m\",\"seed\":1e400}".to_vec(), 400),
        ("POST", chat, JSON, b"{\"model\":\"m\",\"temperature\":NaN}".to_vec(), 400),
        ("POST", chat, JSON, b"{\"model\":\"m\",\"model\":\"m\"}".to_vec(), 400),
        ("POST", chat, JSON, [b"{\"x\":".to_vec(), vec![b'['; 100_000]].concat(), 400),
        ("POST", chat, "content-type: text/plain\r\n", b"{}".to_vec(), 415),
        ("POST", chat, "", b"{}".to_vec(), 415),
        ("GET", "/v1/nope", "", Vec::new(), 404),
        ("GET", "/v1/models/nope", "", Vec::new(), 404),
        ("DELETE", "/v1/models", "", Vec::new(), 405),
        ("GET", chat, "", Vec::new(), 405),
    ];
    for (method, path, headers, body, status) in cases {
        let answer = rig.send(method, path, headers, &body).await;
        let shown = String::from_utf8_lossy(&body).chars().take(40).collect::<String>();
        assert_eq!(answer.status, status, "{method} {path} {shown}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{method} {path}");
        let error = answer.json()["error"].clone();
        assert_eq!(error["type"], "invalid_request_error", "{error}");
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty() && !m.contains("trailing")));
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{error}");
    }
    assert_eq!(rig.chat(json!({})).await.status, 200, "and the gateway is well");
}

#[tokio::test]
async fn bad_fields_are_named_and_the_next_request_is_served() {
    let rig = rig().await;
    let big: serde_json::Map<String, Value> = (0..2000).map(|i| (i.to_string(), json!(1))).collect();
    let many: Vec<String> = (0..10_000).map(|i| i.to_string()).collect();
    for (field, value) in [
        ("temperature", json!("hot")),
        ("temperature", json!(1e9)),
        ("top_p", json!(-1)),
        ("top_p", json!(0)),
        ("n", json!(0)),
        ("n", json!(5_000_000)),
        ("max_tokens", json!(2_147_483_647_u32)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1.5)),
        ("logit_bias", Value::Object(big)),
        ("logit_bias", json!({ VOCAB.to_string(): 1 })),
        ("logit_bias", json!({"1": 101})),
        ("stop", json!(many)),
        ("stop", json!([1])),
        ("messages", json!({})),
        ("messages", json!([])),
        ("messages", json!([{"role": "wizard", "content": "x"}])),
        ("messages", json!([{"role": "user", "content": null}])),
        ("messages", json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])),
        ("tools", json!([{"type": "function"}])),
        ("response_format", json!({"type": "json_object"})),
        ("stream_options", json!({"include_usage": true})),
        ("kv_transfer_params", json!({})),
        ("session_state", json!(1)),
        ("cache_salt", json!("x")),
        ("props.priority", json!(null)),
    ] {
        let body = if field == "props.priority" {
            json!({"props": {"priority": "high"}})
        } else {
            json!({ field: value })
        };
        let answer = rig.chat(body).await;
        assert_eq!(answer.status, 400, "{field}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], field, "{answer:?}");
    }
    let answer = rig.chat(json!({"logprobs": true, "top_logprobs": 1_000_000_000})).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("top_logprobs")));
    assert_eq!(rig.chat(json!({"top_logprobs": 2})).await.status, 400);
    assert_eq!(rig.chat(json!({})).await.status, 200);
    assert_eq!(rig.world.specs.lock().unwrap().len(), 1, "nothing bad reached a worker");
}

#[tokio::test]
async fn what_changes_nothing_is_accepted() {
    let rig = rig().await;
    let answer = rig
        .chat(
            json!({"user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "tools": [],
            "tool_choice": "none", "parallel_tool_calls": true, "response_format": {"type": "text"},
            "modalities": ["text"], "presence_penalty": null, "stop": null, "seed": -1, "logit_bias": {},
            "max_completion_tokens": 5}),
        )
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn hints_come_from_the_body_and_from_headers() {
    let rig = rig().await;
    let headers = format!("{JSON}x-prop-deadline-ms: 60000\r\nx-prop-priority: 1\r\nx-prop-colour: blue\r\n");
    let body =
        chat_body(&json!({"props": {"keep-ms": 5, "share": 0.5, "flag": true}, "priority": 7})).to_string();
    let answer = rig.send("POST", "/v1/chat/completions", &headers, body.as_bytes()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let props = rig.world.specs.lock().unwrap()[0].props.clone();
    let expected = [
        ("colour", Prop::Text("blue".into())),
        ("deadline-ms", Prop::Int(60_000)),
        ("flag", Prop::Bool(true)),
        ("keep-ms", Prop::Int(5)),
        ("priority", Prop::Int(7)),
        ("share", Prop::Float(0.5)),
    ];
    assert_eq!(*props, expected.into_iter().map(|(k, v)| (k.to_owned(), v)).collect());
}

#[tokio::test]
async fn prompts_beyond_the_window_are_refused_and_answers_are_cut_to_it() {
    let rig = rig().await;
    for (prompt, stream) in [(513, true), (513, false), (512, true), (512, false)] {
        let answer = rig.complete(json!({"prompt": vec![97; prompt], "stream": stream})).await;
        assert_eq!(answer.status, 400);
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], "context_length_exceeded");
        let text = error["message"].as_str().unwrap();
        assert!(text.contains("512") && text.contains(&prompt.to_string()), "{text}");
    }
    rig.world.play(Script::Say(|_| vec![98; 600]));
    for fields in [json!({"max_tokens": 100}), json!({"max_tokens": 12})] {
        let mut fields = fields;
        fields["prompt"] = json!(vec![97; 500]);
        let body = rig.complete(fields).await.json();
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["usage"]["completion_tokens"], 12);
    }
    let body = rig.chat(json!({})).await.json();
    assert_eq!(body["usage"]["total_tokens"], 512, "a chat without a limit fills the window");
}

#[tokio::test]
async fn completions_take_all_forms_of_prompts() {
    let rig = rig().await;
    for (prompt, count) in [
        (json!("abc"), 1),
        (json!([97, 98, 99]), 1),
        (json!(["abc", "abc"]), 2),
        (json!([[97, 98, 99], "abc", [97, 98, 99]]), 3),
    ] {
        rig.world.specs.lock().unwrap().clear();
        let answer = rig.complete(json!({"prompt": prompt, "n": 2, "seed": 1})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = answer.json();
        let choices = body["choices"].as_array().unwrap();
        assert_eq!(choices.len(), count * 2);
        for (i, choice) in choices.iter().enumerate() {
            assert_eq!(*choice, json!({"index": i, "text": "Hi", "logprobs": null, "finish_reason": "stop"}));
        }
        assert_eq!(body["usage"]["prompt_tokens"], 3 * count);
        assert_eq!(body["usage"]["completion_tokens"], 6 * count);
        let specs = rig.world.specs.lock().unwrap();
        assert!(specs.iter().all(|s| *s.prompt == [97, 98, 99] && s.choices() == 2 && s.max_tokens == 16));
    }
    for prompt in [
        json!(7),
        json!([-1]),
        json!([999_999_999]),
        json!([1.5]),
        json!([97, "a"]),
        json!(["a", 97]),
        json!({}),
    ] {
        let answer = rig.complete(json!({"prompt": prompt})).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("prompt")), "{prompt}");
    }
    let many: Vec<&str> = vec!["x"; 65];
    assert_eq!(rig.complete(json!({"prompt": many})).await.status, 400);
}

#[tokio::test]
async fn empty_prompts_start_from_the_begin_token_where_there_is_one() {
    let without = rig().await;
    let with = rig_with(Setup { add_bos: true, ..Setup::default() }).await;
    for prompt in [json!(""), json!([]), json!([[]]), json!(["", "x"])] {
        let answer = without.complete(json!({"prompt": prompt})).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("prompt")), "{prompt}");
        let answer = with.complete(json!({"prompt": prompt})).await;
        assert_eq!(answer.status, 200, "{prompt}: {answer:?}");
    }
    assert!(with.world.specs.lock().unwrap().iter().all(|s| s.prompt[0] == BEGIN));
    assert_eq!(without.complete(json!({"prompt": "\u{0}"})).await.status, 200);
}

#[tokio::test]
async fn echo_and_counts_of_nothing() {
    let rig = rig().await;
    for logprobs in [json!(null), json!(0), json!(1)] {
        for echo in [true, false] {
            for max in [json!(0), json!(null), json!(1)] {
                let fields = json!({"echo": echo, "max_tokens": max, "logprobs": logprobs, "prompt": ["abc", "de", "f"]});
                let answer = rig.complete(fields).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                let body = answer.json();
                let said = match max.as_i64() {
                    Some(0) => "",
                    Some(_) => "H",
                    None => "Hi",
                };
                for (choice, prompt) in body["choices"].as_array().unwrap().iter().zip(["abc", "de", "f"]) {
                    let text = if echo { format!("{prompt}{said}") } else { said.to_owned() };
                    assert_eq!(choice["text"], text);
                    assert_eq!(choice["finish_reason"], if said == "Hi" { "stop" } else { "length" });
                    check_logprobs(choice, &text, echo, logprobs.as_u64());
                }
                let drawn = 3 * if said == "Hi" { 3 } else { said.len() };
                assert_eq!(body["usage"]["completion_tokens"], drawn);
            }
        }
    }
}

/// Four lists of equal length whose offsets agree with the text.
fn check_logprobs(choice: &Value, text: &str, echo: bool, asked: Option<u64>) {
    let Some(asked) = asked else { return assert!(choice["logprobs"].is_null()) };
    let list = |name: &str| choice["logprobs"][name].as_array().unwrap().clone();
    let (tokens, own, top, offsets) =
        (list("tokens"), list("token_logprobs"), list("top_logprobs"), list("text_offset"));
    assert!([own.len(), top.len(), offsets.len()].iter().all(|n| *n == tokens.len()));
    assert_eq!(tokens.iter().map(|t| t.as_str().unwrap()).collect::<String>(), text);
    for (i, offset) in offsets.iter().enumerate() {
        assert_eq!(offset.as_u64(), Some(i as u64), "one byte a token");
        assert_eq!(own[i].is_null(), echo && i == 0, "the first token of a prompt has none");
        if !own[i].is_null() {
            assert_eq!(top[i].as_object().unwrap().len() as u64, asked + 1);
        }
    }
}

#[tokio::test]
async fn chat_logprobs_have_bytes_and_no_infinity() {
    let rig = rig().await;
    rig.world.play(Script::Say(|_| bytes("é!")));
    let body = rig.chat(json!({"logprobs": true, "top_logprobs": 2})).await.json();
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 3);
    assert_eq!(content[0]["token"], "\\xc3");
    assert_eq!(content[0]["bytes"], json!([0xc3]));
    assert_eq!(content[2]["token"], "!");
    let top = content[0]["top_logprobs"].as_array().unwrap();
    assert_eq!((top.len(), &top[1]["logprob"]), (2, &json!(-9999.0)));
    let body = rig.chat(json!({"logprobs": true})).await.json();
    assert_eq!(body["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[tokio::test]
async fn request_ids_are_echoed_and_never_used_inside() {
    let rig = rig().await;
    let body = chat_body(&json!({})).to_string();
    for (given, shown) in [("same-1".to_owned(), "same-1".to_owned()), ("y".repeat(1000), "y".repeat(128))] {
        let headers = format!("{JSON}x-request-id: {given}\r\n");
        for _ in 0..2 {
            let answer = rig.send("POST", "/v1/chat/completions", &headers, body.as_bytes()).await;
            assert_eq!((answer.status, answer.header("x-request-id")), (200, Some(shown.as_str())));
        }
    }
    let ids: std::collections::BTreeSet<_> = rig.world.specs.lock().unwrap().iter().map(|s| s.id).collect();
    assert_eq!(ids.len(), 4);
    assert!(rig.get("/liveness").await.header("x-request-id").is_some_and(|id| id.starts_with("req-")));
}

#[tokio::test]
async fn bodies_and_heads_have_limits() {
    let mut setup = Setup::default();
    setup.http.body_limit = config::Size::kib(64);
    setup.http.header_limit = config::Size::kib(8);
    let rig = rig_with(setup).await;
    let long = chat_body(&json!({"messages": [{"role": "user", "content": "x".repeat(70_000)}]})).to_string();
    let answer = rig.send("POST", "/v1/chat/completions", JSON, long.as_bytes()).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (413, &json!("request_too_large")));
    // The same without a declared length.
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\n{JSON}transfer-encoding: chunked\r\n\r\n"
    );
    let chunk = format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    let answer = rig.raw(format!("{head}{chunk}").as_bytes()).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (413, &json!("request_too_large")));
    let answer = rig.send("GET", "/health", &format!("x-long: {}\r\n", "h".repeat(9000)), b"").await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (431, &json!("request_too_large")));
    let near = chat_body(&json!({"messages": [{"role": "user", "content": "x".repeat(60_000)}]})).to_string();
    let answer = rig.send("POST", "/v1/chat/completions", JSON, near.as_bytes()).await;
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded", "a body below the limit is read");
}

#[tokio::test]
async fn models_and_text_routes() {
    let rig = rig().await;
    let list = rig.get("/v1/models").await.json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("m")));
    assert_eq!(rig.get("/v1/models/m").await.json()["max_model_len"], 512);
    let tokens = rig
        .post("/v1/tokenize", &json!({"model": "m", "prompt": "é<|end|>", "return_token_strs": true}))
        .await;
    assert_eq!(tokens.status, 200, "{tokens:?}");
    let tokens = tokens.json();
    assert_eq!((&tokens["tokens"], &tokens["count"]), (&json!([0xc3, 0xa9, 256]), &json!(3)));
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    assert_eq!(rig.post("/v1/tokenize", &chat).await.json()["count"], "<user>a<assistant>".len());
    let text = rig.post("/v1/detokenize", &json!({"tokens": [0xc3, 0xa9, 256]})).await.json();
    assert_eq!(text, json!({"prompt": "é<|end|>"}));
    assert_eq!(rig.post("/v1/detokenize", &json!({"tokens": [VOCAB]})).await.status, 400);
    assert_eq!(rig.post("/v1/detokenize", &json!({"tokens": "x"})).await.status, 400);
    let metrics = rig.get("/metrics").await;
    assert_eq!((metrics.status, metrics.body.as_str()), (200, "some_metric 1\n"));
}
