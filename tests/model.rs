//! The real model through the HTTP API: the reference texts, equality whatever runs beside, both engines, the files that
//! a node cannot serve.

mod engines;
mod files;
mod pressure;
mod reference;

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::harness::node::Node;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// What `tests/fixtures/smollm2_reference.json` holds: ids of another implementation's tokenizer, logits computed in
/// float64 from the file's weights.
#[derive(Debug, Deserialize)]
struct Reference {
    texts: Vec<Text>,
    tokenize: Vec<Tokens>,
    greedy: Vec<Greedy>,
}

/// A text with the five largest logits after each of its tokens.
#[derive(Debug, Deserialize)]
struct Text {
    text: String,
    /// Control tokens in the text are control tokens.
    special: bool,
    ids: Vec<u32>,
    top5: Vec<Vec<(u32, f64)>>,
}

/// A text with its ids, as ordinary text and with control tokens.
#[derive(Debug, Deserialize)]
struct Tokens {
    text: String,
    ids: Vec<u32>,
    ids_special: Vec<u32>,
}

/// A greedy continuation of 24 tokens, end tokens included.
#[derive(Debug, Deserialize)]
struct Greedy {
    prompt: String,
    ids: Vec<u32>,
}

fn reference() -> &'static Reference {
    static REFERENCE: OnceLock<Reference> = OnceLock::new();
    REFERENCE.get_or_init(|| {
        serde_json::from_str(include_str!("fixtures/smollm2_reference.json"))
            .expect("the reference is well-formed")
    })
}

/// A node with the default model, shared by the tests that do not look at its figures.
fn node() -> &'static Node {
    static NODE: OnceLock<Node> = OnceLock::new();
    NODE.get_or_init(|| Node::ready(&["--kv-pages", "512", "--max-context", "2048"]))
}

/// A greedy completion.
fn completion(prompt: impl Into<Value>, max_tokens: u32) -> Value {
    json!({"model": "default", "prompt": prompt.into(), "max_tokens": max_tokens, "temperature": 0, "seed": 7})
}

/// A greedy chat.
fn chat(text: &str, max_tokens: u32) -> Value {
    let messages = json!([{"role": "user", "content": text}]);
    json!({"model": "default", "messages": messages, "max_tokens": max_tokens, "temperature": 0, "seed": 7})
}

fn with(request: &Value, fields: Value) -> Value {
    let mut request = request.clone();
    for (name, value) in fields.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// Ids of a text, by the node.
fn tokenize(node: &Node, text: &str) -> Vec<u32> {
    let answer = node.client().ok("/v1/tokenize", &json!({"prompt": text}));
    serde_json::from_value(answer["tokens"].clone()).expect("ids")
}

/// Text of ids, by the node.
fn detokenize(node: &Node, ids: &[u32]) -> String {
    let answer = node.client().ok("/v1/detokenize", &json!({"tokens": ids}));
    answer["prompt"].as_str().expect("text").to_owned()
}
