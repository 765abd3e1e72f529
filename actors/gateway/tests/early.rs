//! Answers before the request's body was read: the client gets them whatever it is still sending, and knows whether the
//! connection goes on.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fixture::{Rig, Setup, rig, rig_with};

/// More than all buffers on the way hold.
const LARGE: usize = 48 << 20;
const CHAT: &str = "/v1/chat/completions";

fn head(path: &str, kind: &str, length: usize, more: &str) -> Vec<u8> {
    let lines = format!("host: test\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{more}");
    format!("POST {path} HTTP/1.1\r\n{lines}\r\n").into_bytes()
}

/// Reads one answer with a length: its status, its head in lower case, its body.
async fn answer(stream: &mut TcpStream) -> (u16, String, String) {
    let mut seen = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&seen).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() == length.expect("a length").parse::<usize>().unwrap() {
                let status = head.split(' ').nth(1).unwrap().parse().unwrap();
                return (status, head, body.to_owned());
            }
        }
        assert_ne!(stream.read_buf(&mut seen).await.expect("no reset"), 0, "it ended after {text:?}");
    }
}

fn closes(head: &str) -> bool {
    head.lines().any(|line| line == "connection: close")
}

/// Refusals for several reasons, each with this much of a body.
async fn refusals(rig: &Rig, length: usize) -> Vec<(u16, bool)> {
    let mut all = Vec::new();
    for (path, kind) in
        [(CHAT, "text/plain"), ("/v1/no-such", "application/json"), ("/v1/models", "application/json")]
    {
        let mut stream = rig.open().await;
        stream.write_all(&head(path, kind, length, "")).await.expect("the head is sent");
        // A client that reads only when it has sent everything.
        stream.write_all(&vec![b' '; length]).await.expect("the body is sent");
        let (status, head, body) = answer(&mut stream).await;
        assert!(body.contains("\"error\""), "{body}");
        let closed = closes(&head);
        if closed {
            assert_eq!(stream.read(&mut [0]).await.expect("an orderly end"), 0);
        } else {
            stream.write_all(b"GET /liveness HTTP/1.1\r\nhost: test\r\n\r\n").await.expect("it goes on");
            assert_eq!(answer(&mut stream).await.0, 200);
        }
        all.push((status, closed));
    }
    all
}

#[tokio::test]
async fn a_refusal_with_a_small_body_leaves_the_connection_open() {
    let rig = rig().await;
    for length in [1, 1000, 100_000] {
        assert_eq!(refusals(&rig, length).await, [(415, false), (404, false), (405, false)], "{length}");
    }
}

#[tokio::test]
async fn a_client_that_sends_a_large_body_gets_its_refusal_and_an_orderly_end() {
    let rig = rig().await;
    assert_eq!(refusals(&rig, LARGE).await, [(415, true), (404, true), (405, true)]);
    // Declared as too large, and found to be.
    let mut setup = Setup::default();
    setup.http.body_limit = config::Size::kib(64);
    let rig = rig_with(setup).await;
    let mut declared = rig.open().await;
    declared.write_all(&head(CHAT, "application/json", LARGE, "")).await.unwrap();
    let chunked = "content-type: application/json\r\ntransfer-encoding: chunked";
    let chunked = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\n{chunked}\r\n\r\n{LARGE:x}\r\n");
    let mut found = rig.open().await;
    found.write_all(chunked.as_bytes()).await.unwrap();
    for mut stream in [declared, found] {
        stream.write_all(&vec![b' '; LARGE]).await.expect("the body is sent");
        let (status, head, body) = answer(&mut stream).await;
        assert_eq!((status, closes(&head)), (413, true), "{body}");
        assert_eq!(stream.read(&mut [0]).await.expect("an orderly end"), 0);
    }
}

/// A client that asks whether it may send hears that it may not, and is not asked for its body.
#[tokio::test]
async fn a_client_that_asks_first_is_refused_at_once() {
    let rig = rig().await;
    let mut stream = rig.open().await;
    stream.write_all(&head(CHAT, "text/plain", LARGE, "expect: 100-continue\r\n")).await.unwrap();
    let (status, head, _) = answer(&mut stream).await;
    assert_eq!((status, closes(&head)), (415, true), "{head}");
}

/// A client that stops in the middle of its body is not waited for.
#[tokio::test]
async fn a_body_that_does_not_go_on_is_not_waited_for() {
    let rig = rig().await;
    let mut stream = rig.open().await;
    stream.write_all(&head(CHAT, "text/plain", 100, "")).await.unwrap();
    stream.write_all(b"half of it").await.unwrap();
    let (status, head, _) = answer(&mut stream).await;
    assert_eq!((status, closes(&head)), (415, true), "{head}");
    assert_eq!(stream.read(&mut [0]).await.expect("an orderly end"), 0);
}

/// A head that is longer than anything a connection reads at once is refused too, and the client hears it.
#[tokio::test]
async fn a_head_without_an_end_is_refused_in_order() {
    let rig = rig().await;
    let mut stream = rig.open().await;
    stream.write_all(b"GET /liveness HTTP/1.1\r\nx-long: ").await.unwrap();
    stream.write_all(&vec![b'x'; 4 << 20]).await.expect("all of it is sent");
    let mut seen = Vec::new();
    stream.read_to_end(&mut seen).await.expect("an orderly end");
    assert!(seen.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&seen));
}

/// Whoever says nothing, stops in the middle of a head, or asks nothing more is given up; who waits for an answer is not.
#[tokio::test]
async fn a_client_that_does_not_ask_loses_its_place() {
    let mut setup = Setup::default();
    setup.http.request_timeout = config::Dur::from_millis(300);
    let rig = rig_with(setup).await;
    let mut silent = rig.open().await;
    let mut halfway = rig.open().await;
    halfway.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: te").await.unwrap();
    let mut done = rig.open().await;
    for _ in 0..3 {
        done.write_all(b"GET /liveness HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        assert_eq!(answer(&mut done).await.0, 200);
    }
    for stream in [&mut silent, &mut halfway, &mut done] {
        let end = tokio::time::timeout(std::time::Duration::from_secs(60), stream.read(&mut [0])).await;
        assert!(matches!(end.expect("it is closed"), Ok(0) | Err(_)));
    }
}
