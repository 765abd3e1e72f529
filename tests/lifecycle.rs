//! Clients that leave, floods, memory pressure, drains, engines that hang: on nodes of the fake engine, whose tokens
//! change with any mistake in pages.

mod clients;
mod pool;
mod pressure;
mod shutdown;
mod start;

use serde_json::{Value, json};

use crate::harness::http::{Choice, Client, only};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A greedy completion.
fn completion(prompt: &str, max_tokens: u32) -> Value {
    json!({"model": "default", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 7})
}

/// The same as a stream.
fn streamed(request: &Value) -> Value {
    let mut request = request.clone();
    request["stream"] = true.into();
    request
}

/// The answer when nothing disturbs it.
fn solo(client: &Client, request: &Value) -> Choice {
    only(&client.ok(COMPLETIONS, request))
}

/// Text of a chunk of a completion stream.
fn chunk_text(data: &str) -> String {
    let chunk: Value = serde_json::from_str(data).unwrap_or_else(|e| panic!("{e} in {data}"));
    chunk["choices"][0]["text"].as_str().unwrap_or_default().to_owned()
}
