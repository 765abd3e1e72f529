//! The log of requests (`log.record`): a line of JSON for each that ends, without its text, for `actor-node sim` to
//! replay: yesterday's traffic, tomorrow's policy.
//!
//! A line is one of the public Mooncake traces with more keys:
//!
//! | key | |
//! |---|---|
//! | `timestamp` | ms from the log's first moment to the request's arrival |
//! | `unix_us` | microseconds from 1970 to that: what a node writes after a restart, or another one, goes by the same clock |
//! | `input_length`, `output_length` | tokens of the prompt; tokens generated for its longest choice |
//! | `hash_ids` | one for each full page of the prompt: equal where the page and all before it are |
//! | `answer_hash_ids` | one for each page after those that prompt and longest answer fill together: what a next turn finds |
//! | `block_size` | tokens of such a page |
//! | `session_id`, `tenant` | where the request has them |
//! | `props` | its hints; texts among them as ids |
//! | `max_tokens`, `n` | what it asked for |
//! | `outcome`, `ttft_ms`, `e2e_ms`, `cached_tokens`, `worker` | what became of it |
//!
//! Ids are keyed hashes of a key that is drawn when the log is opened and kept nowhere: who has the file can tell what is
//! equal, and cannot try out what it might be. They have 53 bits, which every reader of JSON keeps.

use std::path::Path;
use std::sync::Arc;

use policies::kv::{Fingerprint, PageHash, page_hashes_after};
use policies::request::{Prop, RequestSpec, Token};
use policies::time::{Span, Time};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tracing::info;

use super::session::Measured;
use crate::clock;
use crate::lines::Lines;

/// A JSON number keeps as many bits in every reader.
const BITS: u32 = 53;

/// Writes the log of requests of one node.
#[derive(Debug)]
pub struct Recorder {
    opened: Time,
    key: [u8; 32],
    lines: Lines<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    timestamp: f64,
    unix_us: u64,
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    answer_hash_ids: Vec<u64>,
    block_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    props: Map<String, Value>,
    max_tokens: u32,
    #[serde(skip_serializing_if = "is_one")]
    n: usize,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<f64>,
    e2e_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
const fn is_one(n: &usize) -> bool {
    *n == 1
}

/// What became of a request.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) spec: &'a RequestSpec,
    pub(crate) page_tokens: u32,
    /// What its pages are hashed with.
    pub(crate) fingerprint: Fingerprint,
    /// The longest choice.
    pub(crate) answer: &'a [Token],
    pub(crate) outcome: &'static str,
    pub(crate) measured: &'a Measured,
    pub(crate) cached: Option<u32>,
    /// Where it was last, if it was placed.
    pub(crate) worker: Option<String>,
}

impl Ended<'_> {
    /// Hashes of the pages after the full ones of the prompt, which the answer has filled.
    fn answered(&self) -> Vec<PageHash> {
        let Self { spec, page_tokens, fingerprint, answer, .. } = self;
        let full = spec.hashes.len() * *page_tokens as usize;
        let rest = spec.prompt.get(full..).unwrap_or_default();
        let tokens = [rest, answer].concat();
        page_hashes_after(fingerprint, *page_tokens, spec.hashes.last().copied(), &tokens)
    }
}

impl Recorder {
    /// Opens the file, or makes it; what it has stays. One recorder outlives the gateways of a node that are restarted.
    ///
    /// # Errors
    /// A file that cannot be opened for writing, or no randomness for the key.
    pub async fn open(path: &Path) -> std::io::Result<Arc<Self>> {
        let lines = Lines::open("log.record", path).await?;
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|e| std::io::Error::other(e.to_string()))?;
        info!(path = %path.display(), "requests are recorded, without their texts");
        Ok(Arc::new(Self { opened: clock::now(), key, lines }))
    }

    /// Adds a request that has ended.
    pub(crate) fn add(&self, ended: &Ended<'_>) {
        self.lines.add(self.line(ended));
    }

    fn line(&self, ended: &Ended<'_>) -> Line {
        let Ended { spec, measured, .. } = ended;
        let mut props = Map::new();
        for (name, value) in spec.props.iter() {
            let value = match value {
                Prop::Int(n) => json!(n),
                Prop::Float(x) => json!(x),
                Prop::Bool(yes) => json!(yes),
                // Where a length of time is wanted, a whole number is one in milliseconds.
                Prop::Duration(span) => json!(span.0.div_ceil(1_000_000)),
                Prop::Text(text) => json!(self.name("prop", text)),
            };
            props.insert(name.clone(), value);
        }
        Line {
            timestamp: milliseconds(measured.started.since(self.opened)),
            unix_us: clock::unix_us(measured.started),
            input_length: spec.prompt.len(),
            output_length: ended.answer.len(),
            hash_ids: self.pages(&spec.hashes),
            answer_hash_ids: self.pages(&ended.answered()),
            block_size: ended.page_tokens,
            session_id: spec.session.as_ref().map(|session| self.name("session", session.as_str())),
            tenant: spec.tenant.as_ref().map(|tenant| self.name("tenant", tenant.as_str())),
            props,
            max_tokens: spec.max_tokens,
            n: spec.choices(),
            outcome: ended.outcome,
            ttft_ms: measured.ttft.map(milliseconds),
            e2e_ms: milliseconds(measured.whole),
            cached_tokens: ended.cached,
            worker: ended.worker.clone(),
        }
    }

    fn pages(&self, hashes: &[PageHash]) -> Vec<u64> {
        hashes.iter().map(|PageHash(hash)| self.id("page", hash)).collect()
    }

    fn name(&self, kind: &str, text: &str) -> String {
        format!("{:014x}", self.id(kind, text.as_bytes()))
    }

    fn id(&self, kind: &str, what: &[u8]) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[kind.len() as u8]).update(kind.as_bytes()).update(what);
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first) >> (u64::BITS - BITS)
    }
}

/// To a microsecond.
fn milliseconds(span: Span) -> f64 {
    (span.0 / 1000) as f64 / 1e3
}

#[cfg(test)]
mod tests;
