//! Clients that leave.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fixture::{JSON, Rig, Script, Seen, bytes, chat_body, eventually, message, rig};

fn abc(_: u32) -> Vec<u32> {
    bytes("abcdefgh")
}

async fn start(rig: &Rig, fields: Value) -> TcpStream {
    let mut stream = rig.open().await;
    let body = chat_body(&fields).to_string();
    stream.write_all(&message("POST", "/v1/chat/completions", JSON, body.as_bytes())).await.unwrap();
    stream
}

/// Reads until `wanted` has come.
async fn read_until(stream: &mut TcpStream, wanted: &str) {
    let mut seen = Vec::new();
    let mut buffer = [0; 1024];
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        let n = stream.read(&mut buffer).await.unwrap();
        assert!(n > 0, "the stream ended before {wanted:?}");
        seen.extend_from_slice(&buffer[..n]);
    }
}

async fn all_given_back(rig: &Rig, requests: usize) {
    eventually(|| rig.world.count(|s| *s == Seen::Cancelled) == requests).await;
    eventually(|| rig.world.count(|s| *s == Seen::Released) == requests).await;
    eventually(|| rig.gateway.sessions() == 0).await;
    let shared = &rig.gateway.shared;
    let all = shared.http.max_concurrent_requests;
    eventually(|| shared.in_work.available_permits() == all).await;
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_cancels_its_request() {
    let rig = rig().await;
    rig.world.play(Script::Stall(abc, 3));
    for round in 1..=20 {
        let mut stream = start(&rig, json!({"stream": true, "n": 2})).await;
        read_until(&mut stream, "\"content\":\"c\"").await;
        // A reset rather than a close.
        stream.set_zero_linger().unwrap();
        drop(stream);
        all_given_back(&rig, round).await;
    }
    rig.world.play(Script::Say(abc));
    assert_eq!(rig.chat(json!({})).await.json()["choices"][0]["message"]["content"], "abcdefgh");
}

#[tokio::test]
async fn a_client_that_leaves_a_whole_answer_cancels_its_request() {
    let rig = rig().await;
    rig.world.play(Script::Stall(abc, 1));
    for round in 1..=5 {
        let stream = start(&rig, json!({"max_tokens": 400})).await;
        eventually(|| rig.world.count(|s| matches!(s, Seen::Submitted(_))) == round).await;
        drop(stream);
        all_given_back(&rig, round).await;
    }
}

#[tokio::test]
async fn cancelling_one_request_leaves_the_others() {
    let rig = rig().await;
    rig.world.play(Script::Stall(abc, 2));
    let mut first = start(&rig, json!({"stream": true})).await;
    let mut second = start(&rig, json!({"stream": true, "n": 3})).await;
    read_until(&mut first, "\"content\":\"b\"").await;
    read_until(&mut second, "\"content\":\"b\"").await;
    drop(second);
    eventually(|| rig.gateway.sessions() == 1).await;
    eventually(|| rig.world.count(|s| *s == Seen::Cancelled) == 1).await;
    drop(first);
    all_given_back(&rig, 2).await;
}
