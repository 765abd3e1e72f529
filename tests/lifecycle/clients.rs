//! Clients that leave at every moment: the work stops, the pages are free, nobody else notices.

use serde_json::json;

use super::{COMPLETIONS, chunk_text, completion, solo, streamed};
use crate::harness::http::{Raw, choices};
use crate::harness::node::{GENERATION_TOKENS, Node, REQUESTS, RUNNING};
use crate::harness::wait_for;

/// Keys of a node whose long answers take longer than any test: a token in 5 ms.
const PACED: (&str, &str) = ("ENGINE__FAKE__STEP_OVERHEAD", "5ms");

/// B24: twenty clients vanish after three chunks, others before the first one and in the last.
#[test]
fn b24_disconnects_do_not_stop_the_engine() {
    let node = Node::fake_with(&[], &[PACED]);
    let client = node.client();
    let short = completion("A normal request", 3);
    let expected = solo(&client, &short);
    let endless = streamed(&completion("Endless", 8000));
    for round in 0..20 {
        let mut stream = Raw::post(&node.base, COMPLETIONS, &endless);
        stream.read_events(3);
        // Closing with unread data resets the connection.
        drop(stream);
        assert_eq!(solo(&client, &short), expected, "round {round}");
    }
    for _ in 0..10 {
        drop(Raw::post(&node.base, COMPLETIONS, &endless));
        assert_eq!(solo(&client, &short), expected);
    }
    let mut ending = streamed(&completion("Ending", 4));
    ending["stream_options"] = json!({"include_usage": true});
    for _ in 0..10 {
        let mut stream = Raw::post(&node.base, COMPLETIONS, &ending);
        stream.read_events(4);
        drop(stream);
        assert_eq!(solo(&client, &short), expected);
    }
    node.assert_idle();
    assert!(node.figure_where(REQUESTS, "outcome=\"cancelled\"") >= 20.0);
}

/// B26: requests without a stream stop too when their client is gone.
#[test]
fn b26_whole_answers_are_cancelled_too() {
    let node = Node::fake_with(&[], &[PACED]);
    let mut open: Vec<Raw> = (0..10)
        .map(|i| Raw::post(&node.base, COMPLETIONS, &completion(&format!("Endless {i}"), 8000)))
        .collect();
    node.wait_for_figure(RUNNING, 10.0);
    open.truncate(1);
    node.wait_for_figure(RUNNING, 1.0);
    drop(open);
    node.assert_idle();
    assert!(node.figure(GENERATION_TOKENS) < 80_000.0, "the answers were not computed to their ends");
}

/// B27: what an abandoned turn left behind changes nothing in the next one.
#[test]
fn b27_an_aborted_turn_poisons_nothing() {
    let node = Node::fake_with(&[], &[("ENGINE__FAKE__STEP_OVERHEAD", "1ms")]);
    let fresh = Node::fake(&[]);
    let (client, oracle) = (node.client(), fresh.client());
    for round in 0..50 {
        let prompt =
            format!("Session {round}: a first turn that fills more than one page of sixteen tokens.");
        let mut stream = Raw::post(&node.base, COMPLETIONS, &streamed(&completion(&prompt, 8000)));
        let seen: String = stream.read_events(5).iter().map(|data| chunk_text(data)).collect();
        drop(stream);
        let next = completion(&format!("{prompt}{seen} And a second turn."), 20);
        assert_eq!(solo(&client, &next), solo(&oracle, &next), "round {round}");
    }
    node.assert_idle();
}

/// B28: aborts at every stage of a request under memory pressure leave nothing behind; those who stay are served right.
#[test]
fn b28_aborts_under_pressure_leak_nothing() {
    let node = Node::fake_with(&["--kv-pages", "64"], &[("ENGINE__FAKE__STEP_OVERHEAD", "200us")]);
    let roomy = Node::fake(&[]);
    let requests: Vec<_> = (0..30)
        .map(|i| completion(&format!("{i:02} {}", "some prompt of five pages ".repeat(3)), 48))
        .collect();
    let expected: Vec<_> = requests.iter().map(|request| solo(&roomy.client(), request)).collect();
    for round in 0..12_usize {
        std::thread::scope(|scope| {
            for (i, (request, expected)) in requests.iter().zip(&expected).enumerate() {
                let (node, client) = (&node, node.client());
                // A third stays, a third leaves before anything has come, the others after some of it.
                match (i + round) % 3 {
                    0 => scope.spawn(move || assert_eq!(solo(&client, request), *expected, "round {round}")),
                    1 => scope.spawn(move || drop(Raw::post(&node.base, COMPLETIONS, &streamed(request)))),
                    _ => scope.spawn(move || {
                        let mut stream = Raw::post(&node.base, COMPLETIONS, &streamed(request));
                        stream.read_events(1 + (i * 7 + round * 5) % 40);
                    }),
                };
            }
        });
        node.assert_idle();
    }
}

/// B29: one client's leaving ends its own request and no other with a similar name, and all choices of it.
#[test]
fn b29_only_the_client_s_own_request_is_cancelled() {
    let node = Node::fake_with(&[], &[PACED]);
    let (one, two) = (completion("first job", 150), completion("second job", 150));
    let expected = [&one, &two].map(|request| solo(&Node::fake(&[]).client(), request));
    let mut cancelled = completion("cancelled job", 8000);
    cancelled["n"] = json!(3);
    let mut job = Raw::post_with(&node.base, COMPLETIONS, &streamed(&cancelled), &[("x-request-id", "job")]);
    let others = [("job-1", &one), ("job-12", &two)]
        .map(|(id, request)| Raw::post_with(&node.base, COMPLETIONS, request, &[("x-request-id", id)]));
    job.read_events(3);
    node.wait_for_figure(RUNNING, 5.0);
    drop(job);
    for (other, expected) in others.into_iter().zip(expected) {
        let (status, body) = other.response();
        assert_eq!((status, choices(&body)), (200, vec![expected]));
    }
    node.assert_idle();
    assert_eq!(node.figure_where(REQUESTS, "outcome=\"cancelled\""), 1.0);
}

/// A client that reads nothing stops only itself.
#[test]
fn a_stalled_reader_stops_only_itself() {
    let node = Node::fake(&[]);
    let client = node.client();
    let stalled = Raw::post(&node.base, COMPLETIONS, &streamed(&completion("Nobody reads this", 8000)));
    let expected = solo(&client, &completion("A normal request", 50));
    for _ in 0..20 {
        assert_eq!(solo(&client, &completion("A normal request", 50)), expected);
    }
    // Its tokens are computed and kept for it; the worker is free.
    node.wait_for_figure(RUNNING, 0.0);
    let lines = stalled.remaining();
    let text: String = lines[..lines.len() - 1].iter().map(|data| chunk_text(data)).collect();
    assert_eq!(text.len(), 8000, "nothing was lost");
    wait_for("its end", || (node.figure_where(REQUESTS, "outcome=\"success\"") >= 22.0).then_some(()));
    node.assert_idle();
}
