//! B35: workers come and go under steady traffic, and no client sees anything of it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::streams::{COMPLETIONS, REQUESTS, Stream, assert_idle, completion, joined, reference, with};
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
fn requests() -> Vec<(Value, Value)> {
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
        (body, answer)
    };
    (0..40).map(one).collect()
}

#[test]
fn b35_requests_survive_churn() {
    let keys = [("ENGINE__FAKE__STEP_OVERHEAD", "20ms")];
    let workers = ["w1", "w2", "w3"];
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1", "w2", "w3"], &keys);
    let (requests, length) = (requests(), length());
    let base = cluster["g1"].base.clone();
    let failures: Mutex<Vec<String>> = Mutex::default();
    let mut sent = 0;
    let mut sizes = [0; 2];
    std::thread::scope(|scope| {
        let start = Instant::now();
        let (mut next_kill, mut kills) = (start + EVERY, 0);
        while start.elapsed() < length {
            let (body, answer) = &requests[sent % requests.len()];
            let (base, failures) = (&base, &failures);
            scope.spawn(move || {
                let run = std::panic::catch_unwind(|| {
                    let stream = Stream::open(base, COMPLETIONS, body);
                    let worker = stream.worker.clone();
                    (worker, stream.answer())
                });
                match run {
                    Ok((_, got)) if got == *answer => {}
                    Ok((worker, got)) => failures.lock().unwrap().push(format!("{worker}: {got} for {body}")),
                    Err(panic) => {
                        let why = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                        failures.lock().unwrap().push(format!("{why} for {body}"));
                    }
                }
            });
            sent += 1;
            if Instant::now() >= next_kill {
                cluster[workers[kills % workers.len()]].restart();
                kills += 1;
                next_kill = start + EVERY * (kills as u32 + 1);
                if sizes == [0; 2] && start.elapsed() > length / 2 {
                    sizes = ["g1", "c1"].map(|name| cluster[name].resident());
                }
            }
            let due = start + PAUSE * sent as u32;
            std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
        }
        assert!(kills >= 2, "{kills} kills in {length:?}");
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {sent} requests: {:#?}",
        failures.len(),
        &failures[..failures.len().min(5)]
    );
    cluster.until_whole();
    assert_idle(&cluster, &["c1", "g1", "w1", "w2", "w3"]);
    assert_eq!(cluster["g1"].figure_where(REQUESTS, "outcome=\"success\""), sent as f64);
    assert_eq!(cluster["g1"].figure(REQUESTS), sent as f64, "every request ended, once");
    for (name, before) in ["g1", "c1"].into_iter().zip(sizes) {
        let now = cluster[name].resident();
        assert!(now < before + GROWTH, "{name} grew from {before} to {now}");
    }
}
