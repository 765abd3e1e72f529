//! Requests that are in a hurry.

use serde_json::json;

use super::{COMPLETIONS, Filed, ask, text, with};
use crate::harness::http::{Raw, only};
use crate::harness::node::{PREEMPTIONS, RUNNING};
use crate::harness::wait_for;

/// B109: with all places taken by long requests, one of a higher priority is served at once, and the one that made room
/// goes on as if nothing had happened.
#[test]
fn b109_a_high_priority_overtakes_running_requests() {
    let config = "[runtime]\nworker-policy = \"priority\"\nmax-running = 4\n";
    let filed = Filed::start(config, &[("ENGINE__FAKE__STEP_OVERHEAD", "2ms")]);
    let client = filed.node.client();
    let long = |n: usize| ask(&text(&format!("long {n}"), 40), 2000);
    let mut running: Vec<Raw> = (0..4)
        .map(|n| Raw::post(&filed.node.base, COMPLETIONS, &with(long(n), json!({"stream": true}))))
        .collect();
    for raw in &mut running {
        assert_eq!(raw.head().0, 200);
        raw.read_events(1);
    }
    filed.node.wait_for_figure(RUNNING, 4.0);
    assert_eq!(filed.node.figure(PREEMPTIONS), 0.0);
    let high = with(ask(&text("high", 20), 5), json!({"priority": 10}));
    only(&client.ok(COMPLETIONS, &high));
    assert_eq!(filed.node.figure(super::ENDED), 1.0, "none of the four has ended");
    // Figures of a worker come a moment later.
    filed.node.wait_for_figure(PREEMPTIONS, 1.0);
    // An equal one does not.
    let equal = with(ask(&text("equal", 20), 5), json!({"priority": 0}));
    only(&client.ok(COMPLETIONS, &equal));
    let texts: Vec<String> = running.into_iter().map(super::rest_of).collect();
    for (n, streamed) in texts.iter().enumerate() {
        // What comes after the first event, since that was read before.
        let alone = only(&client.ok(COMPLETIONS, &long(n))).text;
        assert!(!streamed.is_empty() && alone.ends_with(streamed), "{n}");
    }
    filed.node.assert_idle();
    assert_eq!(filed.node.figure(PREEMPTIONS), 1.0, "equals never push each other out");
}

#[test]
fn hopeless_requests_are_refused_at_once() {
    let config = "[runtime]\nworker-policy = [\"deadline\", \"keep-session\"]\n";
    let filed = Filed::start(config, &[("ENGINE__FAKE__PREFILL_PER_TOKEN", "1ms")]);
    let client = filed.node.client();
    client.ok(COMPLETIONS, &ask(&text("to measure by", 200), 1));
    // Four seconds of work for one that has half of one. Before the speed is known it runs out of time.
    let mut round = 0;
    let error = wait_for("it to be refused", || {
        round += 1;
        let body = ask(&text(&format!("hopeless {round}"), 4000), 1);
        let answer = client.post(COMPLETIONS, &with(body, json!({"props": {"deadline-ms": "500ms"}})));
        Some(answer.error(504)).filter(|error| error["code"] == "deadline_exceeded")
    });
    assert!(error["message"].as_str().unwrap().contains("deadline-ms"), "{error}");
    // One that can be done is done.
    let body = with(ask(&text("possible", 100), 1), json!({"props": {"deadline-ms": 60_000}}));
    client.ok(COMPLETIONS, &body);
    for (props, param) in
        [(json!({"deadline-ms": "soon"}), "props.deadline-ms"), (json!({"priority": "x"}), "props.priority")]
    {
        let error = client.post(COMPLETIONS, &with(ask("x", 1), json!({"props": props}))).error(400);
        assert_eq!(error["param"], param);
    }
}
