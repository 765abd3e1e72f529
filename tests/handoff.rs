//! Prompts that are computed on one worker and generated from on another, over real processes: the answer is what one
//! node gives, whatever becomes of either, and nothing is left behind.

// Every kind and length, computed elsewhere.
mod equal;
// Workers and links that are lost in the middle.
mod lost;
// Who computes what, and what is said about it.
mod routes;
// Clients that leave.
mod aborts;
// Streams that move to another worker.
mod migrate;
// Workers that change their roles.
mod roles;
// The start of a prompt that another worker holds.
mod fetch;
// The real model.
mod real;

use std::ops::{Deref, DerefMut};

use serde_json::{Value, json};

use crate::cluster::streams::{REQUESTS, assert_idle, completion, reference, with};
use crate::harness::cluster::Cluster;
use crate::harness::node::{Node, PREFILLED_TOKENS};
use crate::harness::wait_for;

pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const FAKE: [&str; 2] = ["--engine", "fake"];

/// Tokens of a page, and of a step.
const PAGE: usize = 16;
const CHUNK: usize = 64;

const TRANSFERS: &str = "actor_node_kv_transfers_total";
const BYTES: &str = "actor_node_kv_transfer_bytes_total";
const FALLBACKS: &str = "actor_node_pd_fallback_total";
const HELD: &str = "actor_node_kv_pages_held";
const RECEIVING: &str = "actor_node_kv_pages_receiving";
const COMMITTED: &str = "outcome=\"committed\"";

/// Prompts of 32 tokens and more are worth sending, and steps are short.
const SMALL: [(&str, &str); 6] = [
    ("POLICY__DISAGGREGATE__MIN_REMOTE_TOKENS", "32"),
    ("POLICY__DISAGGREGATE__EFFECTIVE_TOKENS", "32"),
    ("RUNTIME__MAX_BATCH_TOKENS", "64"),
    ("RUNTIME__MAX_RUNNING", "64"),
    // A busy machine is slow to give opinions, and to answer a worker that asks for pages.
    ("CONTROLLER__OPINION_DEADLINE", "60s"),
    ("POLICY__DISAGGREGATE__ACCEPT_WITHIN", "60s"),
];

/// A cluster with a controller, a gateway, prefill workers `p…`, decode workers `d…` and unified ones `u…`.
pub(crate) struct Pd(Cluster);

impl Deref for Pd {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.0
    }
}

impl DerefMut for Pd {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.0
    }
}

impl Pd {
    pub(crate) fn of(workers: &[&str], keys: &[(&str, &str)]) -> Self {
        Self::with_engine(workers, &FAKE, &[&SMALL, keys].concat())
    }

    fn with_engine(workers: &[&str], engine: &[&str], keys: &[(&str, &str)]) -> Self {
        let mut cluster = Cluster::new(keys);
        cluster.controller("c1");
        cluster.gateway("g1");
        let mut pd = Self(cluster);
        for name in workers {
            pd.worker(name, engine);
        }
        pd.until_whole();
        pd.until_known(workers);
        pd
    }

    pub(crate) fn worker(&mut self, name: &str, engine: &[&str]) {
        let role = match name.as_bytes()[0] {
            b'p' => "prefill",
            b'd' => "decode",
            _ => "unified",
        };
        let args = [engine, &["--worker-role", role]].concat();
        self.node(name, "worker", &args, &[]);
    }

    /// Waits until the controller places on these workers.
    pub(crate) fn until_known(&self, workers: &[&str]) {
        wait_for("the controller to know the workers", || {
            let rows = self["c1"].client().get("/v1/workers").ok()?.json();
            let rows = rows["data"].as_array()?.clone();
            let is = |name: &&str| {
                rows.iter().any(|row| row["id"].as_str().is_some_and(|id| id.starts_with(*name)))
            };
            (rows.len() == workers.len() && workers.iter().all(is)).then_some(())
        });
    }

    fn committed(&self, name: &str) -> f64 {
        self[name].figure_where(TRANSFERS, COMMITTED)
    }

    pub(crate) fn prefilled(&self, name: &str) -> f64 {
        self[name].figure(PREFILLED_TOKENS)
    }

    /// Nothing is held anywhere, not for another worker either, and nothing broke.
    pub(crate) fn assert_idle(&self, names: &[&str]) {
        assert_idle(self, names);
        for name in names.iter().filter(|name| !name.starts_with(['c', 'g'])) {
            for figure in [HELD, RECEIVING] {
                self[*name].wait_for_figure(figure, 0.0);
            }
        }
    }
}

/// Tokens that no other prompt begins with.
pub(crate) fn prompt(salt: usize, tokens: usize) -> Vec<u32> {
    let mut state = u32::try_from(salt).unwrap() + 1;
    (0..tokens)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            33 + (state >> 16) % 90
        })
        .collect()
}

pub(crate) fn asked(prompt: &[u32], max_tokens: u32) -> Value {
    with(&completion("", max_tokens), json!({"prompt": prompt}))
}

/// What a node alone answers, without what depends on what it saw before.
fn answer_of(node: &Node, request: &Value) -> Value {
    let answer = node.client().ok(COMPLETIONS, request);
    let usage = &answer["usage"];
    json!({
        "choices": answer["choices"],
        "usage": [usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]],
    })
}

pub(crate) fn cached_of(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}
