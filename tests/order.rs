//! Inside a worker: whose turn it is, what is kept, whose requests are taken, and how that is changed.

// Tenants share a worker by weight.
mod fair;
// Priorities and deadlines.
mod urgent;
// Conversations between their turns.
mod keep;
// API keys, and what tenants find of each other.
mod identity;
// Prompts that another worker computes.
mod offload;
// The real model.
mod real;
// New policies for a worker that runs.
mod swap;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::http::Raw;
use crate::harness::node::{Node, REQUESTS, RUNNING, WAITING};

const COMPLETIONS: &str = "/v1/completions";
const RELOADS: &str = "actor_node_reloads_total";
/// Requests that have ended.
const ENDED: &str = REQUESTS;

/// A node with a configuration file, and the folder that it is in.
struct Filed {
    node: Node,
    dir: TempDir,
}

impl Filed {
    fn start(text: &str, keys: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::start_in(dir, text, keys)
    }

    fn start_in(dir: TempDir, text: &str, keys: &[(&str, &str)]) -> Self {
        let file = file(dir.path());
        std::fs::write(&file, text).unwrap();
        let node = Node::fake_with(&["--config", file.to_str().unwrap()], keys);
        Self { node, dir }
    }

    fn write(&self, text: &str) {
        std::fs::write(file(self.dir.path()), text).unwrap();
    }

    /// Reads the file again: the report.
    fn reload(&self) -> Value {
        self.node.client().post("/v1/reload", &json!({})).json()
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("node.toml")
}

/// A prompt of `len` tokens of the fake model, which nobody else's begins like.
fn text(name: &str, len: usize) -> String {
    name.chars().chain(" abcdefghijklmnopqrstuvwxyz".chars().cycle()).take(len).collect()
}

fn ask(prompt: &str, max_tokens: u32) -> Value {
    json!({"model": "default", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0})
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Waits until nothing runs or waits; conversations may have pages.
fn wait_for_idle(node: &Node) {
    node.wait_for_figure(RUNNING, 0.0);
    node.wait_for_figure(WAITING, 0.0);
}

/// The text of what is left of a stream.
fn rest_of(raw: Raw) -> String {
    let events = raw.remaining();
    let read = |line: &String| serde_json::from_str::<Value>(line).ok();
    let texts = events.iter().filter_map(read);
    texts.filter_map(|event| Some(event["choices"][0]["text"].as_str()?.to_owned())).collect()
}
