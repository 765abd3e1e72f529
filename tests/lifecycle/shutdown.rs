//! How a node ends: it drains, it is told twice, its limit passes.

use serde_json::Value;

use super::{CHAT, COMPLETIONS, chunk_text, completion, solo, streamed};
use crate::harness::http::Raw;
use crate::harness::node::{Node, PAGES_USED, RUNNING, SESSIONS, STEPS};
use crate::harness::wait_for;

/// Keys of a node whose long answers take longer than any test: a token in 20 ms.
const SLOW: (&str, &str) = ("ENGINE__FAKE__STEP_OVERHEAD", "20ms");

fn wait_for_unready(node: &Node) {
    wait_for("readiness to say 503", || {
        let response = node.client().get("/readiness").ok()?;
        (response.status == 503).then_some(())
    });
}

/// B90, B91: streams go on to their ends while a node drains, new requests are turned away, and the exit code is 0.
#[test]
fn b90_a_drain_lets_streams_finish() {
    let mut node = Node::fake_with(&[], &[SLOW]);
    let request = completion("Goes on to its end", 500);
    let expected = solo(&Node::fake(&[]).client(), &request);
    let mut stream = Raw::post(&node.base, COMPLETIONS, &streamed(&request));
    let mut text: String = stream.read_events(3).iter().map(|data| chunk_text(data)).collect();
    node.signal("TERM");
    wait_for_unready(&node);
    let client = node.client();
    assert_eq!(client.get("/liveness").unwrap().status, 200, "it lives until it is empty");
    let response = client.get("/readiness").unwrap();
    assert_eq!(response.json()["status"], "draining");
    for path in [CHAT, COMPLETIONS] {
        let response = client.post(path, &completion("late", 2));
        assert!(response.header("retry-after").is_some());
        response.error(503);
    }
    let lines = stream.remaining();
    let (done, chunks) = lines.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    text.extend(chunks.iter().map(|data| chunk_text(data)));
    assert_eq!(text, expected.text);
    assert_eq!(node.wait().code(), Some(0), "{}", node.log());
}

/// B01, B90: at the limit what still runs gets an error, then the end of its stream.
#[test]
fn b90_the_drain_limit_ends_streams_with_an_error() {
    let mut node = Node::fake_with(&[], &[SLOW, ("NODE__DRAIN_TIMEOUT", "300ms")]);
    let endless = completion("Endless", 8000);
    let mut stream = Raw::post(&node.base, COMPLETIONS, &streamed(&endless));
    stream.read_events(2);
    let whole = Raw::post(&node.base, COMPLETIONS, &endless);
    node.wait_for_figure(RUNNING, 2.0);
    node.signal("TERM");
    let lines = stream.remaining();
    let [chunks @ .., error, done] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(done, "[DONE]");
    let error: Value = serde_json::from_str(error).unwrap();
    for key in ["message", "type", "code"] {
        assert!(error["error"][key].is_string(), "{error}");
    }
    assert!(chunks.iter().all(|data| !data.contains("error")), "one error: {chunks:?}");
    let (status, body) = whole.response();
    assert_eq!(status, 503, "{body}");
    assert_eq!(node.wait().code(), Some(0), "{}", node.log());
}

/// An idle node ends at once, on either signal.
#[test]
fn b90_an_idle_node_ends() {
    for signal in ["TERM", "INT"] {
        let mut node = Node::fake_with(&[], &[("NODE__DRAIN_TIMEOUT", "1h")]);
        node.signal(signal);
        assert_eq!(node.wait().code(), Some(0), "{}", node.log());
    }
}

/// Connections that are open and idle do not hold a node back.
#[test]
fn b90_idle_connections_do_not_hold_a_node() {
    let mut node = Node::fake(&[]);
    let client = node.client();
    client.ok(COMPLETIONS, &completion("kept alive", 2));
    let silent = Raw::bytes(&node.base, &[]);
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0), "{}", node.log());
    drop((client, silent));
}

/// A second signal ends a node that drains.
#[test]
fn b90_a_second_signal_stops_now() {
    let mut node = Node::fake_with(&[], &[SLOW, ("NODE__DRAIN_TIMEOUT", "1h")]);
    let mut stream = Raw::post(&node.base, COMPLETIONS, &streamed(&completion("Endless", 8000)));
    stream.read_events(1);
    node.signal("TERM");
    wait_for_unready(&node);
    node.signal("TERM");
    let status = node.wait();
    assert!(!status.success(), "{status}");
    assert!(node.log().contains("second signal"), "{}", node.log());
    // The connection has ended too: this returns.
    stream.rest(crate::harness::DEADLINE);
}

/// SIGHUP is no reason to end.
#[test]
fn a_hangup_is_survived() {
    let node = Node::fake(&[]);
    node.signal("HUP");
    wait_for("the log to say so", || node.log().contains("SIGHUP").then_some(()));
    solo(&node.client(), &completion("still here", 2));
    node.assert_idle();
}

/// B96: an engine that hangs makes the node unready, its requests get errors and not silence, and it comes back.
#[test]
fn b96_a_hanging_engine_is_noticed() {
    let keys = [("ENGINE__FAKE__STEP_OVERHEAD", "6s"), ("ENGINE__STALL_AFTER", "500ms")];
    let node = Node::fake_with(&[], &keys);
    let client = node.client();
    let error = client.post(COMPLETIONS, &completion("waits for ever", 1)).error(503);
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()));
    let health = client.get("/health").unwrap();
    assert_eq!(health.status, 503, "{}", health.text());
    assert!(health.json()["reason"].as_str().unwrap().contains("500"), "{}", health.text());
    assert_eq!(client.get("/liveness").unwrap().status, 200);
    let response = client.post(COMPLETIONS, &completion("while it hangs", 1));
    assert!(response.header("retry-after").is_some());
    response.error(503);
    wait_for("the step to end and the node to be ready again", || {
        (client.get("/health").unwrap().status == 200).then_some(())
    });
    assert!(node.log().contains("does not end"), "{}", node.log());
    for figure in [RUNNING, PAGES_USED, SESSIONS] {
        node.wait_for_figure(figure, 0.0);
    }
}

/// B92: the node answers during the longest step; a client that leaves is forgotten without waiting for it.
#[test]
fn b92_probes_are_answered_during_a_step() {
    let keys = [("ENGINE__FAKE__STEP_OVERHEAD", "60s"), ("ENGINE__STALL_AFTER", "1h")];
    let node = Node::fake_with(&[], &keys);
    let client = node.client();
    let waiting = Raw::post(&node.base, COMPLETIONS, &completion("a step of a minute", 8));
    node.wait_for_figure(SESSIONS, 1.0);
    for _ in 0..20 {
        for path in ["/health", "/liveness", "/readiness", "/metrics", "/v1/models"] {
            assert_eq!(client.get(path).unwrap().status, 200, "{path}");
        }
    }
    drop(waiting);
    node.wait_for_figure(SESSIONS, 0.0);
    assert_eq!(node.figure(STEPS), 0.0, "all of this happened during the first step");
}
