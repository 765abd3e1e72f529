//! What is not generation: models, health, figures, tokens, headers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, WINDOW, chat, completion, node, with};
use crate::harness::http::{Client, only};
use crate::harness::node::Node;

#[test]
fn models_are_listed_and_found() {
    let client = node().client();
    let list = client.get("/v1/models").unwrap().json();
    assert_eq!(list["object"], "list");
    let data = list["data"].as_array().unwrap();
    assert_eq!(data.len(), 1, "{list}");
    let id = data[0]["id"].as_str().unwrap();
    assert_eq!(data[0]["object"], "model");
    assert!(data[0]["created"].is_u64() && data[0]["owned_by"].is_string(), "{list}");
    let one = client.get(&format!("/v1/models/{id}")).unwrap();
    assert_eq!((one.status, one.json()), (200, data[0].clone()));
    let error = client.get("/v1/models/no-such").unwrap().error(404);
    assert_eq!(error["code"], "model_not_found");
}

/// B20: a bogus name is never answered, and an answer says which model gave it.
#[test]
fn b20_unknown_models_are_not_answered() {
    let client = node().client();
    let id = client.get("/v1/models").unwrap().json()["data"][0]["id"].as_str().unwrap().to_owned();
    for (path, request) in [(CHAT, chat("hi", 4)), (COMPLETIONS, completion("hi", 4))] {
        for name in [id.as_str(), "default"] {
            assert_eq!(client.ok(path, &with(&request, json!({"model": name})))["model"], id.as_str());
        }
        for name in ["no-such", &id.to_uppercase(), &format!("{id} ")] {
            for stream in [false, true] {
                let request = with(&request, json!({"model": name, "stream": stream}));
                let error = client.post(path, &request).error(404);
                assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
            }
        }
        for request in [super::without(&request, "model"), with(&request, json!({"model": ""}))] {
            assert_eq!(client.post(path, &request).error(400)["param"], "model");
        }
        let request = with(&request, json!({"model": 7}));
        assert_eq!(client.post(path, &request).error(400)["param"], "model");
    }
}

#[test]
fn a_model_can_be_named() {
    let node = Node::fake(&["--model-name", "org/name-1"]);
    let client = node.client();
    assert_eq!(client.get("/v1/models").unwrap().json()["data"][0]["id"], "org/name-1");
    let named = with(&chat("hi", 4), json!({"model": "org/name-1"}));
    assert_eq!(client.ok(CHAT, &named)["model"], "org/name-1");
    client.post(CHAT, &with(&named, json!({"model": "fake"}))).error(404);
}

#[test]
fn health_and_figures_answer() {
    let client = node().client();
    client.ok(CHAT, &chat("hi", 4));
    for path in ["/health", "/liveness", "/readiness"] {
        assert_eq!(client.get(path).unwrap().status, 200, "{path}");
    }
    let figures = client.get("/metrics").unwrap();
    assert_eq!(figures.status, 200);
    assert!(figures.header("content-type").unwrap().starts_with("text/plain"));
    let text = figures.text();
    for name in
        ["vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds"]
    {
        for comment in ["# HELP", "# TYPE"] {
            assert!(text.contains(&format!("{comment} {name} ")), "{comment} {name} in {text}");
        }
    }
    assert!(text.contains("vllm:time_to_first_token_seconds_bucket{"), "histograms have buckets: {text}");
}

/// Counters of tokens and requests say what was done, by outcome.
#[test]
fn figures_count_what_was_done() {
    use crate::harness::node::{GENERATION_TOKENS, HTTP_REQUESTS, PREFILLED_TOKENS, PROMPT_TOKENS, REQUESTS};
    let node = Node::fake(&[]);
    let client = node.client();
    client.ok(COMPLETIONS, &completion("0123456789", 5));
    client.ok(COMPLETIONS, &with(&completion("9876543210", 6), json!({"n": 2})));
    client.post(COMPLETIONS, &completion(Vec::<u32>::new(), 5)).error(400);
    node.assert_idle();
    for (figure, value) in [(PROMPT_TOKENS, 20.0), (PREFILLED_TOKENS, 20.0), (GENERATION_TOKENS, 17.0)] {
        node.wait_for_figure(figure, value);
    }
    assert_eq!(node.figure_where(REQUESTS, "outcome=\"success\""), 2.0);
    assert_eq!(node.figure_where(HTTP_REQUESTS, "status=\"400\""), 1.0);
}

#[test]
fn tokenize_and_detokenize_are_inverse() {
    let client = node().client();
    for text in ["hello", "  two  spaces ", "<|im_en|>", "你好 👩\u{200d}🚀 𓂀 ď", "\u{0}\n\t"] {
        let answer = client.ok("/v1/tokenize", &json!({"model": "default", "prompt": text}));
        let tokens: Vec<u64> =
            answer["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
        assert_eq!(
            tokens,
            text.bytes().map(u64::from).collect::<Vec<_>>(),
            "a user's text never is a control token"
        );
        assert_eq!(answer["count"], text.len());
        assert_eq!(answer["max_model_len"], WINDOW);
        let back = client.ok("/v1/detokenize", &json!({"model": "default", "tokens": tokens}));
        assert_eq!(back["prompt"], text);
    }
    let control = client.ok("/v1/tokenize", &json!({"prompt": "a<|im_end|>"}));
    assert_eq!(control["tokens"], json!([97, 257]), "the caller's own prompt may have control tokens");
    assert_eq!(client.ok("/v1/detokenize", &json!({"tokens": [97, 257]}))["prompt"], "a<|im_end|>");
    let empty = client.ok("/v1/tokenize", &json!({"prompt": ""}));
    assert_eq!((&empty["count"], &empty["tokens"]), (&json!(0), &json!([])));
    assert_eq!(client.ok("/v1/detokenize", &json!({"tokens": []}))["prompt"], "");
    for (path, body, param) in [
        ("/v1/tokenize", json!({}), "prompt"),
        ("/v1/tokenize", json!({"prompt": 7}), "prompt"),
        ("/v1/tokenize", json!({"prompt": "x", "messages": []}), "prompt"),
        ("/v1/tokenize", json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages"),
        ("/v1/detokenize", json!({}), "tokens"),
        ("/v1/detokenize", json!({"tokens": "x"}), "tokens"),
        ("/v1/detokenize", json!({"tokens": [-1]}), "tokens"),
        ("/v1/detokenize", json!({"tokens": [999_999_999]}), "tokens"),
    ] {
        assert_eq!(client.post(path, &body).error(400)["param"], param, "{path} {body}");
    }
    client.post("/v1/tokenize", &json!({"model": "no-such", "prompt": "x"})).error(404);
}

/// The tokens of a chat are those that its prompt is made of, on both ways in.
#[test]
fn tokenize_renders_chats() {
    let client = node().client();
    let request = chat("How are you?", 8);
    let tokens = client.ok("/v1/tokenize", &json!({"messages": request["messages"]}));
    let answer = client.ok(CHAT, &request);
    assert_eq!(answer["usage"]["prompt_tokens"], tokens["count"]);
    let same = client.ok(COMPLETIONS, &completion(tokens["tokens"].clone(), 8));
    assert_eq!(only(&same), only(&answer), "the chat is the completion of its tokens");
}

/// B21: a client's id is shown back and never an identity of ours.
#[test]
fn b21_request_ids_are_echoed_and_never_collide() {
    let client = node().client();
    let prompts = ["The first of two", "and quite another"];
    let solo = prompts.map(|p| only(&client.ok(COMPLETIONS, &completion(p, 300))));
    let bodies = prompts.map(|p| completion(p, 300).to_string().into_bytes());
    let headers = [("content-type", "application/json"), ("x-request-id", "same-1")];
    for _ in 0..10 {
        let answers = std::thread::scope(|scope| {
            let started =
                bodies.clone().map(|body| scope.spawn(|| client.send("POST", COMPLETIONS, &headers, body)));
            started.map(|thread| thread.join().unwrap())
        });
        for (answer, solo) in answers.iter().zip(&solo) {
            assert_eq!(answer.header("x-request-id"), Some("same-1"));
            assert_eq!(only(&answer.json()), *solo);
        }
    }
    let mut seen = BTreeSet::new();
    for _ in 0..20 {
        let answer = client.post(CHAT, &chat("hi", 1));
        assert!(seen.insert(answer.header("x-request-id").expect("an id of ours").to_owned()));
        assert!(seen.insert(answer.json()["id"].as_str().unwrap().to_owned()));
    }
    let id = |client: &Client| client.ok(CHAT, &chat("hi", 1))["id"].clone();
    assert_ne!(id(&Node::fake(&[]).client()), id(&Node::fake(&[]).client()), "ids differ between processes");
}

/// B21: an id of any length or content harms nobody, and errors have one too.
#[test]
fn b21_strange_request_ids_are_cut_or_refused() {
    let client = node().client();
    let body = || chat("hi", 1).to_string().into_bytes();
    for id in ["x".repeat(1000), "x".repeat(30_000)] {
        let headers = [("content-type", "application/json"), ("x-request-id", id.as_str())];
        let answer = client.send("POST", CHAT, &headers, body());
        match answer.status {
            200 => assert!(answer.header("x-request-id").unwrap().len() <= 256, "cut"),
            _ => drop(answer.error(400)),
        }
    }
    let answer = client.get("/v1/nope").unwrap();
    assert!(answer.header("x-request-id").is_some());
    answer.error(404);
}

#[test]
fn answers_say_who_served_them() {
    let node = Node::fake(&["--name", "somewhere-1"]);
    let client = node.client();
    for stream in [false, true] {
        let answer = client.post(CHAT, &with(&chat("hi", 4), json!({"stream": stream})));
        let served_by = answer.header("x-served-by").expect("x-served-by");
        assert!(served_by.contains("somewhere-1"), "{served_by}");
    }
}

/// Hints are taken from the body and from headers, typed, and refused by name when they are not what they should be.
#[test]
fn props_are_checked() {
    let client = node().client();
    let request = chat("hi", 2);
    let expected = only(&client.ok(CHAT, &request));
    let hinted =
        with(&request, json!({"props": {"priority": 5, "deadline-ms": 60000, "tag": "x", "flag": true}}));
    assert_eq!(only(&client.ok(CHAT, &hinted)), expected);
    for (props, param) in [
        (json!({"priority": "high"}), "props.priority"),
        (json!({"deadline-ms": -1}), "props.deadline-ms"),
        (json!({"x": [1]}), "props"),
        (json!("x"), "props"),
    ] {
        let error = client.post(CHAT, &with(&request, json!({"props": props}))).error(400);
        assert_eq!(error["param"], param);
    }
    let headers = [("content-type", "application/json"), ("x-prop-priority", "low")];
    let answer = client.send("POST", CHAT, &headers, request.to_string().into_bytes());
    assert_eq!(answer.error(400)["param"], "props.priority");
}

/// B59: fields that only nodes may set are not read from a client's body.
#[test]
fn b59_internal_fields_are_refused() {
    let client = node().client();
    let transfer = json!({
        "remote_host": "127.0.0.1", "remote_port": 22, "tp_size": 1_000_000_000, "remote_block_ids": [0, 1, 2],
    });
    for (name, value) in [
        ("kv_transfer_params", transfer),
        ("prefill_worker", json!("w1")),
        ("session_state", json!({"a": 1})),
        ("attempt", json!(3)),
        ("resumed", json!([[1, 2]])),
    ] {
        for (path, request) in [(CHAT, chat("hi", 2)), (COMPLETIONS, completion("hi", 2))] {
            let mut request: Value = request;
            request[name] = value.clone();
            assert_eq!(client.post(path, &request).error(400)["param"], name);
        }
    }
}
