//! Where requests go, and why: policies of the controller over a cluster of real processes, what is told about their
//! decisions, and how they are changed while requests run.

// A prefix goes to its holder, unless that one is busy.
mod prefix;
// What the directory promises is what the worker finds.
mod hits;
// Conversations stay where they are, while that is possible.
mod sessions;
// Workers that come and go leave nothing behind.
mod churn;
// Policies that are only watched.
mod shadow;
// New settings for nodes that run.
mod reload;
// What a client and an operator are told.
mod stages;
// The real model: how much need not be computed.
mod saved;
// The simulator and live nodes agree.
mod parity;
// Other routers are told what is cached.
mod zmq;

use std::ops::{Deref, DerefMut};

use serde_json::{Value, json};

use crate::harness::cluster::Cluster;
use crate::harness::http::Client;
use crate::harness::node::{PREFILLED_TOKENS, RUNNING, WAITING};
use crate::harness::wait_for;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// Pages that hold reusable content and that nobody holds: of an idle worker, all that can be found there.
const CACHED: &str = "actor_node_kv_pages_cached";
const MISPREDICTED: &str = "actor_node_mispredicted_hits_total";
/// Tokens of a page.
const PAGE: u64 = 16;
/// On a busy machine an opinion may be later than 20 ms; what is tested here is the choice, not the machine.
const PATIENT: (&str, &str) = ("CONTROLLER__OPINION_DEADLINE", "60s");

/// A cluster with one controller, `c1`, that the gateways follow.
struct Routed(Cluster);

impl Deref for Routed {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.0
    }
}

impl DerefMut for Routed {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.0
    }
}

impl Routed {
    /// Nodes by name as [`Cluster::of_with`], each with these settings.
    fn of(names: &[&str], keys: &[(&str, &str)]) -> Self {
        Self::from(Cluster::of_with(names, &[&[PATIENT], keys].concat()))
    }

    /// A cluster whose nodes run. Returns when the gateways ask `c1`, and nobody else.
    fn from(mut cluster: Cluster) -> Self {
        cluster.until_whole();
        let routed = Self(cluster);
        wait_for("c1 to lead", || {
            let view = routed.view("c1");
            let gateways = view["nodes"].as_array()?.iter().filter_map(|row| row["name"].as_str());
            let mut gateways = gateways.filter(|name| name.starts_with('g'));
            gateways.all(|name| routed.view(name)["leader"] == "c1").then_some(())
        });
        routed
    }

    /// Names of the workers that `c1` places on.
    fn workers(&self) -> Vec<String> {
        self.rows().iter().map(name_of).collect()
    }

    /// The workers as `c1` places by.
    fn rows(&self) -> Vec<Value> {
        self.rows_at("c1")
    }

    fn rows_at(&self, controller: &str) -> Vec<Value> {
        let answer = self[controller].client().get("/v1/workers").unwrap().json();
        answer["data"].as_array().unwrap_or_else(|| panic!("workers in {answer}")).clone()
    }

    /// Waits until the controller knows what each worker does and holds, and nothing else.
    fn settle(&self) {
        self.settle_with(&[]);
    }

    /// As [`Routed::settle`], while these workers have so many requests.
    fn settle_with(&self, busy: &[(&str, u64)]) {
        self.settle_at("c1", busy);
    }

    /// As [`Routed::settle_with`], of another controller.
    fn settle_at(&self, controller: &str, busy: &[(&str, u64)]) {
        wait_for("the controller to know its workers", || {
            let holds = self.directory_at(controller);
            for row in self.rows_at(controller) {
                let name = name_of(&row);
                let requests = busy.iter().find(|(of, _)| *of == name).map_or(0, |(_, n)| *n);
                let known = row["booked"] == requests
                    && row["foreign"] == 0
                    && row["running"] == requests
                    && row["queued_prefill_tokens"] == 0;
                if !known {
                    return None;
                }
                // What running requests hold is not counted as cached by the worker.
                let pages = holds.iter().find(|row| name_of(row) == name)?;
                let all = pages["current"] == true && pages["pages"].as_f64()? == self[&name].figure(CACHED);
                if requests == 0 && !all {
                    return None;
                }
            }
            Some(())
        });
    }

    /// Rows of the directory of `c1`.
    fn directory(&self) -> Vec<Value> {
        self.directory_at("c1")
    }

    fn directory_at(&self, controller: &str) -> Vec<Value> {
        let answer = self[controller].client().get("/v1/directory").unwrap().json();
        answer["workers"].as_array().unwrap_or_else(|| panic!("workers in {answer}")).clone()
    }

    /// Prompt tokens that these workers have computed.
    fn prefilled(&self, workers: &[&str]) -> f64 {
        workers.iter().map(|name| self[name].figure(PREFILLED_TOKENS)).sum()
    }

    /// Waits until nothing runs at the workers.
    fn until_idle(&self, workers: &[&str]) {
        for name in workers {
            self[name].wait_for_figure(RUNNING, 0.0);
            self[name].wait_for_figure(WAITING, 0.0);
        }
    }
}

/// The node of a row whose id is `NAME#LIFE`.
fn name_of(row: &Value) -> String {
    let id = row["id"].as_str().unwrap_or_else(|| panic!("an id in {row}"));
    id.split('#').next().unwrap_or(id).to_owned()
}

/// An answer and where it came from.
#[derive(Debug)]
struct Served {
    worker: String,
    body: Value,
}

impl Served {
    /// Prompt tokens that were found in the worker's cache.
    fn cached(&self) -> u64 {
        let usage = &self.body["usage"];
        usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or_else(|| panic!("cached_tokens in {usage}"))
    }

    fn prompt(&self) -> u64 {
        self.body["usage"]["prompt_tokens"].as_u64().expect("prompt_tokens")
    }

    /// What a policy, or `placement`, said when the first prompt was placed first.
    fn stage(&self, policy: &str) -> &Value {
        stage(&self.body["stages"][0], policy)
    }

    /// What `policy` did.
    fn action(&self, policy: &str) -> &str {
        self.stage(policy)["action"].as_str().expect("an action")
    }

    /// Prompt tokens that the chosen worker was taken to hold.
    fn predicted(&self) -> u64 {
        self.stage("placement")["numbers"]["hit-tokens"].as_f64().expect("hit-tokens") as u64
    }
}

/// What was said about one placement.
fn stage<'a>(placement: &'a Value, policy: &str) -> &'a Value {
    let all = placement["stages"].as_array().unwrap_or_else(|| panic!("stages in {placement:#}"));
    all.iter().find(|s| s["policy"] == policy).unwrap_or_else(|| panic!("no {policy} in {placement:#}"))
}

/// A request with its stages; answered.
fn ask(client: &Client, body: &Value) -> Served {
    ask_with(client, COMPLETIONS, &[], body)
}

/// As [`ask`], with a path and headers.
fn ask_with(client: &Client, path: &str, headers: &[(&str, &str)], body: &Value) -> Served {
    let body = with(body, json!({"include_stages": true}));
    let headers = [&[("content-type", "application/json")], headers].concat();
    let answer = client.send("POST", path, &headers, body.to_string().into_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let worker = answer.header("x-served-by").expect("x-served-by").to_owned();
    Served { worker, body: answer.json() }
}

/// A greedy completion.
fn completion(prompt: &str, max_tokens: u32) -> Value {
    json!({"model": "default", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 7})
}

/// `request` with more fields, or with others.
fn with(request: &Value, fields: Value) -> Value {
    let mut request = request.clone();
    for (name, value) in fields.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// A text of `tokens` tokens of the fake engine that no other name's begins like.
fn text(name: &str, tokens: usize) -> String {
    let mut text = format!("{name}: ");
    while text.len() < tokens {
        text.push_str(&format!("and {} goes on with {name}; ", text.len()));
    }
    text.truncate(tokens);
    text
}

/// How often each of `names` is among them.
fn counts(all: &[String], names: &[&str]) -> Vec<usize> {
    names.iter().map(|name| all.iter().filter(|one| one == name).count()).collect()
}

/// Numbers that look like chance and are the same in every run (xorshift64*).
struct Dice(u64);

impl Dice {
    /// Less than `n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
