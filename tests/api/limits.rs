//! What one request, one body or one burst may take, and that the node outlives all of them.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{CHAT, COMPLETIONS, chat, completion, with};
use crate::harness::http::{Raw, only};
use crate::harness::node::{HTTP_REQUESTS, Node, RUNNING, SESSIONS, WAITING};
use crate::harness::wait_for;

const MIB: usize = 1024 * 1024;
/// Keys of a node whose answers take longer than any test.
const SLOW: (&str, &str) = ("ENGINE__FAKE__STEP_OVERHEAD", "50ms");

/// B19: absurd values are refused with the limit named, before anything is allocated for them.
#[test]
fn b19_unbounded_parameters() {
    let node = Node::fake(&["--max-context", "4096"]);
    let client = node.client();
    let canary = only(&client.ok(CHAT, &chat("canary", 8)));
    let big: Map<String, Value> = (0..1_000_000_u32).map(|id| (id.to_string(), json!(1))).collect();
    let cases: [(&str, Value, &str, &str); 16] = [
        (CHAT, json!({"n": 5_000_000}), "n", "16"),
        (CHAT, json!({"logprobs": true, "top_logprobs": 1_000_000_000}), "top_logprobs", "20"),
        (COMPLETIONS, json!({"logprobs": 1_000_000_000}), "logprobs", "20"),
        (COMPLETIONS, json!({"prompt": [999_999_999]}), "prompt", "259"),
        (COMPLETIONS, json!({"prompt": [-1]}), "prompt", "0"),
        (COMPLETIONS, json!({"prompt": vec!["x"; 10_000]}), "prompt", "64"),
        (CHAT, json!({"temperature": 1e9}), "temperature", "2"),
        (CHAT, json!({"top_p": -1}), "top_p", "0"),
        (CHAT, json!({"max_tokens": 2_147_483_647}), "max_tokens", "4096"),
        (COMPLETIONS, json!({"max_tokens": 2_147_483_647}), "max_tokens", "4096"),
        (COMPLETIONS, json!({"max_tokens": 18_446_744_073_709_551_615_u64}), "max_tokens", "4294967295"),
        (CHAT, json!({"logit_bias": big}), "logit_bias", "1024"),
        (CHAT, json!({"logit_bias": {"999999999": 1}}), "logit_bias", "259"),
        (CHAT, json!({"stop": vec!["s"; 10_000]}), "stop", "16"),
        (CHAT, json!({"stop": ["s".repeat(100_000)]}), "stop", "1024"),
        (CHAT, json!({"best_of": 5_000_000}), "best_of", ""),
    ];
    let before = node.resident();
    for (path, fields, param, limit) in cases {
        let base = if path == CHAT { chat("hi", 4) } else { completion("hi", 4) };
        for stream in [false, true] {
            let request = with(&with(&base, fields.clone()), json!({"stream": stream}));
            let error = client.post(path, &request).error(400);
            assert_eq!(error["param"], param, "{error}");
            assert!(error["message"].as_str().unwrap().contains(limit), "{error} lacks {limit}");
        }
        assert_eq!(only(&client.ok(CHAT, &chat("canary", 8))), canary, "after {param}");
    }
    let mut seed = chat("hi", 4).to_string().into_bytes();
    seed.truncate(seed.len() - 2);
    seed.extend(b"1e400}");
    client.send("POST", CHAT, &[("content-type", "application/json")], seed).error(400);
    client.ok(CHAT, &with(&chat("hi", 4), json!({"presence_penalty": null})));
    assert_eq!(only(&client.ok(CHAT, &chat("canary", 8))), canary);
    let grown = node.resident().saturating_sub(before);
    // A body of 14 MB, which each thread of the node may have had once, and its allocator keeps for the next.
    assert!(grown < 100 * MIB as u64, "resident memory grew by {grown} bytes");
    node.assert_idle();
}

/// B22: a body up to the limit reaches the handler, a larger one is a 413 in OpenAI's shape, counted.
#[test]
fn b22_body_limit() {
    let node = Node::fake(&["--max-context", "4096"]);
    let client = node.client();
    for size in [19 * MIB / 10, 21 * MIB / 10, 8 * MIB] {
        let error = client.post(CHAT, &chat(&"w ".repeat(size / 2), 4)).error(400);
        assert_eq!(error["code"], "context_length_exceeded", "{size} bytes");
    }
    let ids = vec![119; 300_000];
    assert_eq!(client.post(COMPLETIONS, &completion(ids, 4)).error(400)["code"], "context_length_exceeded");

    let huge = chat(&"w ".repeat(32 * MIB), 4).to_string().into_bytes();
    let head = |rest: &str| {
        format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n{rest}\r\n\r\n")
            .into_bytes()
    };
    let length = head(&format!("content-length: {}", huge.len()));
    // Once with a length, once in chunks without one.
    let chunked = head("transfer-encoding: chunked");
    let mut parts: Vec<Vec<u8>> = vec![chunked];
    for chunk in huge.chunks(MIB) {
        parts.push(format!("{:x}\r\n", chunk.len()).into_bytes());
        parts.push(chunk.to_vec());
        parts.push(b"\r\n".to_vec());
    }
    parts.push(b"0\r\n\r\n".to_vec());
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let requests: [&[&[u8]]; 2] = [&[length.as_slice(), huge.as_slice()], &parts];
    for (i, request) in requests.into_iter().enumerate() {
        let (status, body) = Raw::bytes(&node.base, request).response();
        assert_eq!(status, 413, "{body}");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("http.body-limit") && message.contains("16777216"), "{message}");
        wait_for("the refusal to be counted", || {
            (node.figure_where(HTTP_REQUESTS, "status=\"413\"") == i as f64 + 1.0).then_some(())
        });
    }
    assert!(node.log().contains("413"), "a refusal is logged: {}", node.log());
    client.ok(CHAT, &chat("still here", 4));
    node.assert_idle();
}

/// B22: the limit is a setting.
#[test]
fn b22_the_body_limit_can_be_set() {
    let node = Node::fake_with(&["--max-context", "4096"], &[("HTTP__BODY_LIMIT", "64KiB")]);
    let client = node.client();
    // Over one connection where it goes on, over another where the node has said that it ends.
    for size in [64 * 1024, 300 * 1024, 8 * MIB] {
        client.post(CHAT, &chat(&"w".repeat(size), 4)).error(413);
        client.post(CHAT, &chat(&"w".repeat(60 * 1024), 4)).error(400);
    }
}

/// Headers have a limit of their own.
#[test]
fn the_header_limit_is_said_in_openai_s_shape() {
    let node = Node::fake(&[]);
    let refused = |size: usize| {
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\nx-request-id: {}\r\n\
             content-length: 2\r\n\r\n{{}}",
            "x".repeat(size)
        );
        Raw::bytes(&node.base, &[head.as_bytes()])
    };
    let (status, body) = refused(70 * 1024).response();
    assert_eq!((status, &body["error"]["type"]), (431, &json!("invalid_request_error")), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("http.header-limit"), "{body}");
    // A head that fills the connection's buffer is refused before it is a request.
    let rest = refused(2 * MIB).rest(Duration::from_secs(60));
    assert!(rest.starts_with("HTTP/1.1 431"), "{rest:?}");
    node.client().ok(CHAT, &chat("still here", 4));
}

/// More requests than `http.max-concurrent-requests` are answered 429 at once, and the place of one that left is free.
#[test]
fn too_many_requests_at_once_are_429() {
    let node = Node::fake_with(&[], &[SLOW, ("HTTP__MAX_CONCURRENT_REQUESTS", "2")]);
    let client = node.client();
    let endless = with(&completion("endless", 4000), json!({"stream": true}));
    let mut open: Vec<Raw> = (0..2).map(|_| Raw::post(&node.base, COMPLETIONS, &endless)).collect();
    for stream in &mut open {
        stream.read_events(1);
    }
    for path in [CHAT, COMPLETIONS] {
        let request = if path == CHAT { chat("hi", 1) } else { completion("hi", 1) };
        let response = client.post(path, &request);
        assert!(response.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
        assert_eq!(response.error(429)["type"], "rate_limit_error");
    }
    assert_eq!(client.get("/readiness").unwrap().status, 200, "busy is not unready");
    assert_eq!(
        client.ok("/v1/tokenize", &json!({"prompt": "x"}))["count"],
        1,
        "what generates nothing goes on"
    );
    open.pop();
    wait_for("a place", || (client.post(CHAT, &chat("hi", 1)).status == 200).then_some(()));
    drop(open);
    node.assert_idle();
}

/// When worker and queue are full the next request is answered 429; those that wait are served in the end.
#[test]
fn a_full_queue_is_429() {
    let keys = [
        SLOW,
        ("RUNTIME__MAX_RUNNING", "1"),
        ("RUNTIME__MAX_WAITING", "1"),
        ("CONTROLLER__QUEUE_LIMIT", "1"),
        ("CONTROLLER__QUEUE_TIMEOUT", "10m"),
    ];
    let node = Node::fake_with(&[], &keys);
    let mut running =
        Raw::post(&node.base, COMPLETIONS, &with(&completion("running", 4000), json!({"stream": true})));
    running.read_events(1);
    let short = completion("short", 2);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| node.client().post(COMPLETIONS, &short).status);
        node.wait_for_figure(WAITING, 1.0);
        // One of these two takes the only place in the queue.
        let others: Vec<_> =
            (0..2).map(|_| scope.spawn(|| node.client().post(COMPLETIONS, &short))).collect();
        wait_for("one refusal", || others.iter().any(|other| other.is_finished()).then_some(()));
        node.wait_for_figure(SESSIONS, 3.0);
        drop(running);
        let mut statuses = vec![waiting.join().unwrap()];
        for other in others {
            let response = other.join().unwrap();
            statuses.push(response.status);
            if response.status == 429 {
                assert!(response.header("retry-after").is_some());
                response.error(429);
            }
        }
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 429]);
    });
    node.assert_idle();
}

/// A request that waits too long for a worker is answered 503 with Retry-After.
#[test]
fn waiting_too_long_is_503() {
    let keys = [
        SLOW,
        ("RUNTIME__MAX_RUNNING", "1"),
        ("RUNTIME__MAX_WAITING", "1"),
        ("CONTROLLER__QUEUE_TIMEOUT", "200ms"),
    ];
    let node = Node::fake_with(&[], &keys);
    let endless = with(&completion("endless", 4000), json!({"stream": true}));
    let mut running = Raw::post(&node.base, COMPLETIONS, &endless);
    running.read_events(1);
    let waiting = Raw::post(&node.base, COMPLETIONS, &endless);
    node.wait_for_figure(WAITING, 1.0);
    let response = node.client().post(COMPLETIONS, &completion("late", 2));
    assert!(response.header("retry-after").is_some());
    assert_eq!(response.error(503)["type"], "server_error");
    drop((running, waiting));
    node.assert_idle();
}

/// `http.request-timeout` ends a request with an error: 504 before the first byte, an event in a stream.
#[test]
fn the_request_timeout_ends_requests() {
    let node = Node::fake_with(&[], &[SLOW, ("HTTP__REQUEST_TIMEOUT", "4s")]);
    let endless = completion("endless", 4000);
    let streamed = Raw::post(&node.base, COMPLETIONS, &with(&endless, json!({"stream": true})));
    assert_eq!(node.client().post(COMPLETIONS, &endless).error(504)["code"], "timeout");
    let lines = streamed.remaining();
    let [.., error, done] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(done, "[DONE]");
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"]["code"], "timeout", "{error}");
    node.assert_idle();
    assert_eq!(node.figure_where(crate::harness::node::REQUESTS, "outcome=\"timeout\""), 2.0);
}

/// A client that connects and says nothing, or stops in the middle, keeps nobody else from being served.
#[test]
fn silent_connections_harm_nobody() {
    let node = Node::fake_with(&[], &[("HTTP__MAX_CONNECTIONS", "64")]);
    let half = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{{"
    );
    let silent: Vec<Raw> = (0..20).map(|_| Raw::bytes(&node.base, &[])).collect();
    let stuck: Vec<Raw> = (0..20).map(|_| Raw::bytes(&node.base, &[half.as_bytes()])).collect();
    let client = node.client();
    client.ok(CHAT, &chat("still here", 4));
    assert_eq!(node.figure(RUNNING), 0.0);
    drop((silent, stuck));
    let rest = Raw::bytes(&node.base, &[b"NONSENSE\r\n\r\n"]).rest(Duration::from_secs(60));
    assert!(rest.starts_with("HTTP/1.1 400"), "{rest:?}");
    node.assert_idle();
}
