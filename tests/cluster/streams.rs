//! Requests of every kind, what they answer when nothing disturbs them, and streams that are compared with that.

use serde_json::{Map, Value, json};

use crate::harness::cluster::Cluster;
use crate::harness::http::{Client, Raw};
use crate::harness::node::{BROKEN_INVARIANTS, Node, PAGES_USED, RUNNING, SESSIONS, TASK_PANICS, WAITING};
use crate::harness::wait_for;

pub(crate) use crate::harness::node::REQUESTS;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// Requests booked, and those that wait, at a controller.
pub(crate) const BOOKED: &str = "actor_node_controller_booked";
pub(crate) const QUEUED: &str = "actor_node_controller_queued";
const WIRE_FAILURES: &str = "actor_node_wire_failures_total";

/// A request with its undisturbed answer.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) body: Value,
    /// As [`joined`].
    pub(crate) answer: Value,
}

/// A greedy completion.
pub(crate) fn completion(prompt: &str, max_tokens: u32) -> Value {
    json!({"model": "default", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 7})
}

/// `request` with more fields, or with others.
pub(crate) fn with(request: &Value, fields: Value) -> Value {
    let mut request = request.clone();
    for (name, value) in fields.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// One request of each kind whose state is more than its tokens, the greedy one first; answered by `reference` alone.
pub(crate) fn kinds(reference: &Client, tokens: u32) -> Vec<Kind> {
    let base = completion("What is kept when a worker dies", tokens);
    let sampled = json!({"temperature": 1, "seed": 7});
    let solo = reference.ok(COMPLETIONS, &base)["choices"][0]["text"].as_str().unwrap().to_owned();
    let ascii = solo.is_ascii() && solo.len() > 24;
    // A stop string that comes after a while, and one that begins alike and does not.
    let (stop, near) = match ascii {
        true => (solo[1..22].to_owned(), format!("{}\u{1}", &solo[1..16])),
        false => ("\n".to_owned(), "\u{1}".to_owned()),
    };
    let talk = json!([{"role": "user", "content": "Tell me what you keep"}]);
    let chat =
        json!({"model": "default", "messages": talk, "max_tokens": tokens, "temperature": 0, "seed": 7});
    let penalties = json!({"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2});
    // Bytes that never become a whole character: a tail of them is always held back.
    let bytes = json!({"logit_bias": {"195": 100}});
    let all = [
        ("greedy", COMPLETIONS, base.clone()),
        ("sampled", COMPLETIONS, with(&base, sampled.clone())),
        ("penalties", COMPLETIONS, with(&with(&base, sampled.clone()), penalties)),
        ("logprobs", COMPLETIONS, with(&base, json!({"logprobs": 3}))),
        ("choices", COMPLETIONS, with(&with(&base, sampled), json!({"n": 2, "logprobs": 1}))),
        ("stop", COMPLETIONS, with(&base, json!({"stop": [stop]}))),
        ("almost a stop", COMPLETIONS, with(&base, json!({"stop": [near]}))),
        ("bytes", COMPLETIONS, with(&base, bytes)),
        ("echo", COMPLETIONS, with(&base, json!({"echo": true, "logprobs": 1}))),
        ("chat", CHAT, with(&chat, json!({"logprobs": true, "top_logprobs": 2}))),
    ];
    all.map(|(name, path, body)| {
        let body = with(&body, json!({"stream_options": {"include_usage": true}}));
        let answer = joined(&reference.stream(path, &body));
        Kind { name, path, body, answer }
    })
    .into()
}

/// A stream as one answer: what each choice says, why it ended and its log-probabilities, and the tokens counted. What
/// was cached is left out, for it depends on what ran before.
pub(crate) fn joined(events: &[Value]) -> Value {
    let mut choices: Vec<Map<String, Value>> = Vec::new();
    let mut usage = Value::Null;
    for event in events {
        assert!(event.get("error").is_none(), "{event}");
        if let Some(counts) = event["usage"].as_object() {
            usage = json!([counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]]);
        }
        for choice in event["choices"].as_array().expect("choices") {
            let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
            if choices.len() <= index {
                choices.resize(index + 1, Map::new());
            }
            let all = &mut choices[index];
            assert!(!all.contains_key("finish"), "a chunk after the choice's end: {event}");
            let text = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
            let before = all.get("text").and_then(Value::as_str).unwrap_or_default();
            all.insert("text".into(), format!("{before}{}", text.unwrap_or_default()).into());
            for (name, list) in choice["logprobs"].as_object().into_iter().flatten() {
                let Some(list) = list.as_array() else { continue };
                let known = all.entry(name.clone()).or_insert_with(|| json!([]));
                known.as_array_mut().unwrap().extend(list.iter().cloned());
            }
            if let Some(reason) = choice["finish_reason"].as_str() {
                all.insert("finish".into(), reason.into());
            }
        }
    }
    assert!(
        choices.iter().all(|choice| choice.contains_key("finish")),
        "a choice without an end: {events:?}"
    );
    json!({"choices": choices, "usage": usage})
}

/// A stream under way.
pub(crate) struct Stream {
    raw: Raw,
    /// `x-served-by`.
    pub(crate) worker: String,
    seen: Vec<String>,
}

impl Stream {
    /// Sends a request as a stream and waits until a worker has taken it.
    pub(crate) fn open(base: &str, path: &str, body: &Value) -> Self {
        let mut raw = Raw::post(base, path, &with(body, json!({"stream": true})));
        let (status, head) = raw.head();
        assert_eq!(status, 200, "{head:?}\n{body}");
        let worker = head.iter().find_map(|line| line.strip_prefix("x-served-by: ")).expect("x-served-by");
        let worker = worker.to_owned();
        Self { raw, worker, seen: Vec::new() }
    }

    /// Reads until `count` events have come, all in all.
    pub(crate) fn read(&mut self, count: usize) {
        let more = count.saturating_sub(self.seen.len());
        self.seen.extend(self.raw.read_events(more));
    }

    /// Reads to the end: all events, without the `[DONE]` that has to be the last line.
    pub(crate) fn events(mut self) -> Vec<Value> {
        self.seen.extend(self.raw.remaining());
        let (done, events) = self.seen.split_last().expect("a stream has lines");
        assert_eq!(done, "[DONE]", "{events:?}");
        events.iter().map(|line| parsed(line)).collect()
    }

    /// Reads to the end: the whole answer.
    pub(crate) fn answer(self) -> Value {
        joined(&self.events())
    }
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"))
}

/// No policies: a prompt that was seen before goes to whoever has least to do.
pub(crate) const LEAST_LOADED: (&str, &str) = ("CLUSTER__CLUSTER_POLICIES", "");

/// Opens streams of `request` until `worker` serves one: that one comes last.
pub(crate) fn open_at(base: &str, path: &str, body: &Value, worker: &str) -> Vec<Stream> {
    let mut all = Vec::new();
    while all.last().is_none_or(|stream: &Stream| stream.worker != worker) {
        assert!(all.len() < 12, "{worker} gets no request");
        all.push(Stream::open(base, path, body));
    }
    all
}

/// Waits until nothing is held anywhere: no session, no sequence, no page, no booking; and asserts that nothing broke.
pub(crate) fn assert_idle(cluster: &Cluster, names: &[&str]) {
    for name in names {
        let node = &cluster[*name];
        for figure in [RUNNING, WAITING, PAGES_USED, SESSIONS, BOOKED, QUEUED] {
            wait_for(&format!("{figure} of {name} to be 0"), || (node.figure(figure) == 0.0).then_some(()));
        }
        for figure in [BROKEN_INVARIANTS, TASK_PANICS, WIRE_FAILURES] {
            assert_eq!(node.figure(figure), 0.0, "{figure} of {name}\n{}", node.log());
        }
    }
}

/// A node alone with the same engine, which nothing disturbs.
pub(crate) fn reference() -> &'static Node {
    static NODE: std::sync::OnceLock<Node> = std::sync::OnceLock::new();
    NODE.get_or_init(|| Node::fake(&[]))
}

/// Says stop to the threads of a scope when the test goes on or fails: without it a failure would wait for them for ever.
pub(crate) struct Stop<'a>(pub(super) &'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
