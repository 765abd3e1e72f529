//! The OpenAI API on the fake engine, whose tokens are bytes: a prompt has as many tokens as bytes, an answer as many as
//! letters, and both depend on every token before them.

mod chat;
mod completions;
mod errors;
mod limits;
mod meta;
mod record;
mod streams;

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::http::{Choice, Client, choices, join};
use crate::harness::node::Node;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// Window of the shared nodes, in tokens.
const WINDOW: usize = 4096;

/// A node that most tests share. It is never idle, so whoever looks at its figures starts one of their own.
fn node() -> &'static Node {
    static NODE: OnceLock<Node> = OnceLock::new();
    NODE.get_or_init(|| Node::fake(&["--max-context", "4096"]))
}

/// A shared node whose answers end by themselves after eight tokens on average.
fn ending_node() -> &'static Node {
    static NODE: OnceLock<Node> = OnceLock::new();
    NODE.get_or_init(|| Node::fake_with(&["--max-context", "4096"], &[("ENGINE__FAKE__EOS_EVERY", "8")]))
}

/// A greedy completion of `max_tokens` tokens.
fn completion(prompt: impl Into<Value>, max_tokens: u32) -> Value {
    json!({
        "model": "default", "prompt": prompt.into(), "max_tokens": max_tokens, "temperature": 0, "seed": 7,
    })
}

/// A greedy chat of one message.
fn chat(text: &str, max_tokens: u32) -> Value {
    let messages = json!([{"role": "user", "content": text}]);
    json!({"model": "default", "messages": messages, "max_tokens": max_tokens, "temperature": 0, "seed": 7})
}

/// `request` with these fields set.
fn with(request: &Value, fields: Value) -> Value {
    let mut request = request.clone();
    for (name, value) in fields.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// `request` without a field.
fn without(request: &Value, field: &str) -> Value {
    let mut request = request.clone();
    request.as_object_mut().expect("an object").remove(field);
    request
}

/// The answer whole and streamed, which have to be the same.
fn both(client: &Client, path: &str, request: &Value) -> (Value, Vec<Choice>) {
    let whole = client.ok(path, request);
    let expected = choices(&whole);
    let streamed =
        join(&client.stream(path, &with(request, json!({"stream_options": {"include_usage": true}}))));
    assert_eq!(streamed.choices, expected, "stream and whole answer of {request}");
    let usage = streamed.usage.expect("a usage chunk");
    for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(usage[key], whole["usage"][key], "{key} of {request}");
    }
    (whole, expected)
}

/// A prompt whose greedy answer on the ending node is `least` to 63 tokens and ends by itself, with that answer's text
/// and its count of tokens, the end token included.
fn ending_prompt(least: u64) -> (String, String, u32) {
    let client = ending_node().client();
    for i in 0..500 {
        let prompt = format!("Prompt number {i}");
        let answer = client.ok(COMPLETIONS, &completion(prompt.as_str(), 64));
        let choice = crate::harness::http::only(&answer);
        let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
        if choice.finish == "stop" && (least..64).contains(&tokens) {
            assert_eq!(tokens, choice.text.len() as u64 + 1, "letters and the end token");
            return (prompt, choice.text, u32::try_from(tokens).unwrap());
        }
    }
    panic!("no prompt's answer ends");
}
