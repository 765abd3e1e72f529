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

/// What the node and what the reference have at a position: names with log-probabilities, ids with logits.
type Alternatives = (Vec<(String, f64)>, &'static [(u32, f64)]);

/// Alternatives of each token of the reference's texts after the first, as the node has them, beside the reference's own
/// after the token before.
fn alternatives(node: &Node, top: u32) -> Vec<Alternatives> {
    let mut all = Vec::new();
    for text in &reference().texts {
        let request = with(&completion(json!(text.ids), 1), json!({"logprobs": top, "echo": true}));
        let answer = node.client().ok(COMPLETIONS, &request);
        let lists = answer["choices"][0]["logprobs"]["top_logprobs"].as_array().expect("top_logprobs");
        assert_eq!(lists.len(), text.ids.len() + 1, "the prompt's tokens and the answer's");
        // The alternatives of a token are what the reference has after the token before it.
        for (expected, got) in text.top5.iter().zip(&lists[1..]) {
            let got = got.as_object().expect("alternatives").iter();
            all.push((
                got.map(|(name, value)| (name.clone(), value.as_f64().expect("a number"))).collect(),
                &expected[..],
            ));
        }
    }
    assert_eq!(all.len(), 339);
    all
}

/// At how many positions the node's likeliest token is the reference's, and at how many that can be told: a token that is
/// not whole characters has no name to compare.
fn top_agreement(node: &Node, alternatives: &[Alternatives]) -> (usize, usize) {
    let (mut agree, mut compared) = (0, 0);
    for (got, expected) in alternatives {
        let name = detokenize(node, &[expected[0].0]);
        if !name.contains('\u{fffd}') {
            let best = got.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("alternatives");
            agree += usize::from(best.0 == name);
            compared += 1;
        }
    }
    assert!(compared > 300, "{compared}");
    (agree, compared)
}
