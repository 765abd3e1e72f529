//! B35: workers come and go under steady traffic, and no client sees anything of it.

use std::sync::Mutex;
use std::thread::Scope;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::streams::{
    COMPLETIONS, REQUESTS, Stream, assert_idle, completion, joined, kinds, reference, with,
};
use crate::harness::cluster::Cluster;

/// Overrides how long it lasts, in seconds.
const LENGTH: &str = "ACTOR_NODE_TEST_CHURN_SECONDS";

/// A worker is killed and started again this often.
const EVERY: Duration = Duration::from_secs(2);
/// A request is sent this often: 20 a second.
const PAUSE: Duration = Duration::from_millis(50);
/// How much a node may grow during the second half: allocator slack and connections, not a leak a request.
const GROWTH: u64 = 24 << 20;

#[expect(clippy::disallowed_methods, reason = "a switch of this test, not a setting of a node")]
fn length() -> Duration {
    let text = std::env::var(LENGTH).unwrap_or_else(|_| "60".to_owned());
    Duration::from_secs(text.parse().unwrap_or_else(|e| panic!("{LENGTH}={text}: {e}")))
}

/// Greedy and sampled requests with their answers.
fn requests() -> Vec<(&'static str, Value, Value)> {
    let client = reference().client();
    let one = |i: u32| {
        let body = completion(&format!("Request {i} of a busy minute"), 40 + i % 20);
        let body = match i % 3 {
            0 => with(&body, json!({"temperature": 1, "seed": i})),
            1 => with(&body, json!({"logprobs": 1})),
            _ => body,
        };
        let body = with(&body, json!({"stream_options": {"include_usage": true}}));
        let answer = joined(&client.stream(COMPLETIONS, &body));
        (COMPLETIONS, body, answer)
    };
    (0..40).map(one).collect()
}

/// Requests sent at a steady rate, and what went wrong with any of them.
struct Load<'a> {
    base: &'a str,
    requests: &'a [(&'static str, Value, Value)],
    start: Instant,
    sent: usize,
    failures: &'a Mutex<Vec<String>>,
}

impl<'a> Load<'a> {
    /// Sends the next one when it is due.
    fn next<'scope>(&mut self, scope: &'scope Scope<'scope, '_>)
    where
        'a: 'scope,
    {
        let due = self.start + PAUSE * self.sent as u32;
        std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
        let (path, body, answer) = &self.requests[self.sent % self.requests.len()];
        let (base, failures) = (self.base, self.failures);
        self.sent += 1;
        scope.spawn(move || {
            let run = std::panic::catch_unwind(|| {
                let stream = Stream::open(base, path, body);
                let worker = stream.worker.clone();
                (worker, stream.answer())
            });
            let failure = match run {
                Ok((_, got)) if got == *answer => return,
                Ok((worker, got)) => format!("{worker}: {got} for {body}"),
                Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
            };
            failures.lock().unwrap().push(failure);
        });
    }
}

/// Asserts that all requests ended as they should, once, and that nothing is held anywhere.
fn assert_unharmed(cluster: &mut Cluster, names: &[&str], sent: usize, failures: Mutex<Vec<String>>) {
    let failures = failures.into_inner().unwrap();
    let some = &failures[..failures.len().min(5)];
    assert!(failures.is_empty(), "{} of {sent} requests: {some:#?}", failures.len());
    cluster.until_whole();
    assert_idle(cluster, names);
    assert_eq!(cluster["g1"].figure_where(REQUESTS, "outcome=\"success\""), sent as f64);
    assert_eq!(cluster["g1"].figure(REQUESTS), sent as f64, "every request ended, once");
}

#[test]
fn b35_requests_survive_churn() {
    let names = ["c1", "g1", "w1", "w2", "w3"];
    let mut cluster = Cluster::of_with(&names, &[("ENGINE__FAKE__STEP_OVERHEAD", "20ms")]);
    let (requests, length) = (requests(), length());
    let (base, failures) = (cluster["g1"].base.clone(), Mutex::default());
    let start = Instant::now();
    let mut load = Load { base: &base, requests: &requests, start, sent: 0, failures: &failures };
    let mut sizes = [0; 2];
    std::thread::scope(|scope| {
        let mut kills = 0;
        while start.elapsed() < length {
            load.next(scope);
            if start.elapsed() >= EVERY * (kills + 1) {
                cluster[names[2 + kills as usize % 3]].restart();
                kills += 1;
                if sizes == [0; 2] && start.elapsed() > length / 2 {
                    sizes = ["g1", "c1"].map(|name| cluster[name].resident());
                }
            }
        }
        assert!(kills >= 2, "{kills} kills in {length:?}");
    });
    let sent = load.sent;
    assert_unharmed(&mut cluster, &names, sent, failures);
    for (name, before) in ["g1", "c1"].into_iter().zip(sizes) {
        let now = cluster[name].resident();
        assert!(now < before + GROWTH, "{name} grew from {before} to {now}");
    }
}

/// B35, B60, B61, B83: losses of all sorts, one after the other, under requests of every kind, with little memory and
/// little credit: workers are killed, frozen for longer than a node may be silent, and stopped; controllers are killed
/// and frozen. Every answer is right.
#[test]
fn b35_requests_survive_losses_of_all_sorts() {
    let names = ["c1", "c2", "g1", "w1", "w2", "w3"];
    let keys = [
        ("ENGINE__FAKE__STEP_OVERHEAD", "15ms"),
        ("ENGINE__KV_PAGES", "64"),
        ("GATEWAY__STREAM_CREDIT", "8"),
        ("GATEWAY__RETRY_LIMIT", "10"),
        ("NODE__DRAIN_TIMEOUT", "300ms"),
        ("CLUSTER__HEARTBEAT", "300ms"),
        ("CLUSTER__SUSPECT_AFTER", "1500ms"),
    ];
    let mut cluster = Cluster::of_with(&names, &keys);
    let requests: Vec<_> = kinds(&reference().client(), 50)
        .into_iter()
        .map(|kind| (kind.path, kind.body, kind.answer))
        .collect();
    let (base, failures) = (cluster["g1"].base.clone(), Mutex::default());
    let (start, length) = (Instant::now(), length() / 2);
    let mut load = Load { base: &base, requests: &requests, start, sent: 0, failures: &failures };
    std::thread::scope(|scope| {
        let (mut losses, mut frozen, mut next) = (0, None, start + EVERY);
        while start.elapsed() < length {
            load.next(scope);
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + EVERY;
            if let Some(name) = frozen.take() {
                cluster[name].resume();
                continue;
            }
            match losses % 5 {
                0 => cluster[names[3 + losses % 3]].restart(),
                1 => frozen = Some(names[3 + losses % 3]),
                2 => cluster[names[losses % 2]].restart(),
                3 => {
                    let worker = &mut cluster[names[3 + losses % 3]];
                    worker.signal("TERM");
                    assert_eq!(worker.wait().code(), Some(0), "{}", worker.log());
                    worker.restart();
                }
                _ => frozen = Some(names[losses % 2]),
            }
            if let Some(name) = frozen {
                cluster[name].pause();
            }
            losses += 1;
        }
        if let Some(name) = frozen {
            cluster[name].resume();
        }
    });
    let sent = load.sent;
    assert_unharmed(&mut cluster, &names, sent, failures);
}
