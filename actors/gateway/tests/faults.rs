//! What goes wrong behind the gateway, and how its clients hear of it.

use std::sync::Arc;

use policies::batch::Refusal;
use policies::placement::Rejection;
use policies::time::Span;
use ractor::SupervisionEvent;
use serde_json::json;

use super::fixture::{Script, Seen, Setup, bytes, card, eventually, rig, rig_with};
use crate::doors::GatewayMsg;
use crate::gateway::session::SessionMsg;

fn abc(_: u32) -> Vec<u32> {
    bytes("abcdefgh")
}

#[tokio::test]
async fn what_is_known_before_the_first_byte_is_a_plain_error_in_streams_too() {
    let rig = rig().await;
    let rejections = [
        (Rejection::QueueFull { queued: 5 }, 429),
        (Rejection::Timeout(Span::from_secs(1)), 503),
        (Rejection::NoWorker("m".into()), 503),
        (Rejection::UnknownModel("m".into()), 404),
    ];
    for stream in [true, false] {
        for (reason, status) in &rejections {
            *rig.world.rejection.lock().unwrap() = Some(reason.clone());
            let answer = rig.chat(json!({"stream": stream})).await;
            assert_eq!(answer.status, *status, "{reason:?}: {answer:?}");
            assert_eq!(answer.header("retry-after").is_some(), *status != 404, "{reason:?}");
            assert!(answer.json()["error"]["message"].is_string());
        }
        *rig.world.rejection.lock().unwrap() = None;
        rig.world.play(Script::Refuse(Refusal::NeverFits { needed: 9, pages: 4, page_tokens: 16 }));
        let answer = rig.chat(json!({"stream": stream})).await;
        assert_eq!((answer.status, answer.header("content-type")), (400, Some("application/json")));
        rig.world.play(Script::Refuse(Refusal::QueueFull { waiting: 4 }));
        assert_eq!(rig.chat(json!({"stream": stream})).await.status, 429);
    }
    assert_eq!(rig.chat(json!({"stream": true, "n": 0})).await.status, 400);
    eventually(|| rig.gateway.sessions() == 0).await;
}

#[tokio::test]
async fn a_late_failure_is_one_event_then_the_end() {
    let rig = rig().await;
    rig.world.play(Script::Fail(abc, 3));
    let events = rig.chat(json!({"stream": true})).await.events();
    let errors: Vec<_> = events.iter().filter(|e| e.get("error").is_some()).collect();
    assert_eq!((errors.len(), &errors[0]["error"]["code"]), (1, &json!("engine_error")));
    assert_eq!(events.last(), errors.last().copied());
    let whole = rig.chat(json!({})).await;
    assert_eq!((whole.status, &whole.json()["error"]["code"]), (500, &json!("engine_error")));
}

#[tokio::test]
async fn a_stream_goes_on_when_its_worker_is_lost() {
    let rig = rig().await;
    // The second worker says everything: its script ends after the tokens that the first one sent.
    rig.world.play(Script::Die(abc, 4));
    let request = rig.chat(json!({"stream": true}));
    let world = rig.world.clone();
    let change = async move {
        eventually(|| world.count(|s| matches!(s, Seen::Submitted(_))) >= 1).await;
        world.play(Script::Say(abc));
    };
    let (answer, ()) = tokio::join!(request, change);
    let events = answer.events();
    let text: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    if events.iter().any(|e| e.get("error").is_some()) {
        // All retries were used up before the script changed.
        assert_eq!(rig.world.count(|s| *s == Seen::Placed), 4);
        assert_eq!(text, "abcd");
    } else {
        assert_eq!(text, "abcdefgh");
    }
    let (placed, released) =
        (rig.world.count(|s| *s == Seen::Placed), rig.world.count(|s| *s == Seen::Released));
    assert!(placed >= 2);
    eventually(|| rig.gateway.sessions() == 0).await;
    eventually(|| rig.world.count(|s| *s == Seen::Released) == placed).await;
    assert!(released <= placed);
}

#[tokio::test]
async fn a_lost_worker_without_retries_is_told() {
    let mut setup = Setup::default();
    setup.gateway.retry_limit = 0;
    let rig = rig_with(setup).await;
    rig.world.play(Script::Die(abc, 4));
    let events = rig.chat(json!({"stream": true})).await.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "worker_lost");
    assert_eq!(rig.chat(json!({})).await.status, 503);
}

#[tokio::test]
async fn a_session_that_panics_ends_alone_and_gives_everything_back() {
    let rig = rig().await;
    rig.world.play(Script::Stall(abc, 2));
    let request = rig.chat(json!({"stream": true}));
    let world = rig.world.clone();
    let shared = Arc::clone(&rig.gateway.shared);
    let crash = async move {
        eventually(|| world.count(|s| matches!(s, Seen::Submitted(_))) == 1).await;
        shared.sessions.broadcast(|| SessionMsg::Crash);
    };
    let (answer, ()) = tokio::join!(request, crash);
    let error = if answer.status == 200 { answer.events().pop().unwrap() } else { answer.json() };
    assert_eq!(error["error"]["type"], "server_error", "{answer:?}");
    eventually(|| rig.world.count(|s| *s == Seen::Cancelled) == 1).await;
    eventually(|| rig.world.count(|s| *s == Seen::Released) == 1).await;
    assert_eq!(rig.gateway.sessions(), 0);
    rig.world.play(Script::Say(abc));
    assert_eq!(rig.chat(json!({})).await.status, 200);
}

#[tokio::test]
async fn a_door_that_fails_is_restarted() {
    let rig = rig().await;
    rig.world.play(Script::Stall(abc, 2));
    let request = rig.chat(json!({"stream": true}));
    let world = rig.world.clone();
    let shared = Arc::clone(&rig.gateway.shared);
    let crash = async move {
        eventually(|| world.count(|s| matches!(s, Seen::Submitted(_))) == 1).await;
        let door = shared.door().unwrap();
        door.kill_and_wait(None).await.unwrap();
        // It is another one that stands there now.
        eventually(|| shared.door().is_some_and(|new| new.get_id() != door.get_id())).await;
    };
    let (answer, ()) = tokio::join!(request, crash);
    let error = if answer.status == 200 { answer.events().pop().unwrap() } else { answer.json() };
    assert_eq!(error["error"]["type"], "server_error", "{answer:?}");
    eventually(|| rig.world.count(|s| *s == Seen::Released) == 1).await;
    rig.world.play(Script::Say(abc));
    assert_eq!(rig.chat(json!({})).await.status, 200);
    // Named so that a change of ractor's events is noticed here.
    let _: fn(ractor::ActorCell) -> SupervisionEvent = SupervisionEvent::ActorStarted;
}

#[tokio::test]
async fn nothing_is_ready_before_a_model_is_and_nothing_after_a_drain() {
    let rig = rig_with(Setup { ready: false, ..Setup::default() }).await;
    assert_eq!(rig.get("/liveness").await.status, 200);
    for path in ["/health", "/readiness", "/ready"] {
        let answer = rig.get(path).await;
        assert_eq!((answer.status, &answer.json()["status"]), (503, &json!("loading")), "{path}");
    }
    assert_eq!(rig.get("/v1/models").await.json()["data"], json!([]));
    for model in ["m", "default"] {
        let answer = rig.chat(json!({"model": model})).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{model}");
    }
    let ready = || rig.world.offer(card(false));
    ready();
    eventually(|| !rig.gateway.shared.models.usable().is_empty()).await;
    assert_eq!(rig.get("/ready").await.json()["status"], "ok");
    assert_eq!(rig.chat(json!({})).await.status, 200);
    assert_eq!(rig.chat(json!({"model": "other"})).await.status, 404);
    rig.world.doors.to_own_gateways(|| GatewayMsg::Offers(Vec::new()));
    eventually(|| rig.gateway.shared.models.usable().is_empty()).await;
    assert_eq!(rig.chat(json!({})).await.status, 503, "known, but nobody serves it");
    ready();
    eventually(|| !rig.gateway.shared.models.usable().is_empty()).await;
    rig.gateway.drain();
    let answer = rig.get("/ready").await;
    assert_eq!((answer.status, &answer.json()["status"]), (503, &json!("draining")));
    assert_eq!(rig.chat(json!({})).await.status, 503);
    assert_eq!(rig.get("/liveness").await.status, 200);
}

#[tokio::test]
async fn requests_in_work_are_limited() {
    let mut setup = Setup::default();
    setup.http.max_concurrent_requests = 1;
    let rig = rig_with(setup).await;
    rig.world.play(Script::Stall(abc, 1));
    let world = rig.world.clone();
    let second = async {
        eventually(|| world.count(|s| matches!(s, Seen::Submitted(_))) == 1).await;
        let answer = rig.chat(json!({})).await;
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
        rig.gateway.abort_sessions("the node is being stopped");
    };
    let (first, ()) = tokio::join!(rig.chat(json!({"stream": true})), second);
    let events = first.events();
    assert_eq!(events.last().unwrap()["error"]["message"], "the node is being stopped");
}

#[tokio::test]
async fn a_request_has_a_deadline() {
    let rig = rig().await;
    rig.world.play(Script::Stall(abc, 0));
    let answer = rig.chat(json!({"props": {"deadline-ms": 30}})).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (504, &json!("timeout")));
    eventually(|| rig.world.count(|s| *s == Seen::Cancelled) == 1).await;
    eventually(|| rig.world.count(|s| *s == Seen::Released) == 1).await;
}

#[tokio::test]
async fn stopping_waits_for_answers_under_way() {
    let rig = rig().await;
    rig.world.play(Script::Stall(abc, 1));
    let address = rig.gateway.address();
    let world = rig.world.clone();
    let super::fixture::Rig { gateway, world: _ } = rig;
    let shared = Arc::clone(&gateway.shared);
    let client = async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let body = super::fixture::chat_body(&json!({"stream": true})).to_string();
        let request =
            super::fixture::message("POST", "/v1/chat/completions", super::fixture::JSON, body.as_bytes());
        stream.write_all(&request).await.unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).await.unwrap();
        all
    };
    let stop = async {
        eventually(|| world.count(|s| matches!(s, Seen::Submitted(_))) == 1).await;
        let stopping = gateway.stop();
        let abort = async {
            eventually(|| shared.draining.load(std::sync::atomic::Ordering::Relaxed)).await;
            shared.sessions.abort_all(&policies::session::Failure::Unavailable("stopping".into()));
        };
        tokio::join!(stopping, abort);
    };
    let (all, ()) = tokio::join!(client, stop);
    assert!(all.contains("stopping") && all.contains("data: [DONE]"), "{all}");
}

#[tokio::test]
async fn connections_are_limited() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut setup = Setup::default();
    setup.http.max_connections = 1;
    let rig = rig_with(setup).await;
    let mut first = rig.open().await;
    first.write_all(b"GET /liveness HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("alive") {
        first.read_buf(&mut seen).await.unwrap();
    }
    let second = rig.get("/liveness");
    tokio::pin!(second);
    let early = tokio::time::timeout(std::time::Duration::from_millis(100), &mut second).await;
    assert!(early.is_err(), "it waits while the first connection is open");
    drop(first);
    assert_eq!(second.await.status, 200);
}

#[tokio::test]
async fn stopping_does_not_wait_for_connections_without_a_request() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let rig = rig().await;
    // One that says nothing, one that has its answer, one that stays in the middle of its request.
    let _silent = rig.open().await;
    let mut answered = rig.open().await;
    answered.write_all(b"GET /liveness HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("alive") {
        answered.read_buf(&mut seen).await.unwrap();
    }
    let mut halfway = rig.open().await;
    halfway.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: te").await.unwrap();
    let super::fixture::Rig { gateway, world: _ } = rig;
    tokio::time::timeout(std::time::Duration::from_secs(60), gateway.stop()).await.expect("it stops");
}
