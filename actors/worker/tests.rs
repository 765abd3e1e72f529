//! The worker's door while its engine does not answer.

use cluster::wire::ToGateway;

use super::*;
use crate::testing::{listener, request};

fn submit(to: &WorkerId, number: u64) -> Msg {
    let spec = request(number, 4);
    Msg::Door(WorkerMsg::Wire(ToWorker::Submit {
        to: to.clone(),
        gateway: "g".into(),
        spec: Box::new(spec),
        prefill: None,
        fetch: None,
    }))
}

/// B96: whoever placed a request on a worker whose engine hangs had not heard of it yet. The request is turned away: it
/// would wait for ever, since the news of the loss may have reached its session before it was placed there.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_engine_hangs_turns_requests_away() {
    let mut config = Config::default();
    config.engine.kind = config::EngineKind::Fake;
    config.engine.fake.stall_at_step = 1;
    config.engine.stall_after = Dur::from_millis(1);
    let doors = Doors::default();
    let mut told = listener(&doors, "g").await;
    let (health, mut watching) = watch::channel(WorkerHealth::Loading);
    let id = WorkerId::new("w".into(), 1);
    let args = WorkerArgs {
        node: id.node.clone(),
        incarnation: 1,
        doors,
        config: Arc::new(config),
        reloader: None,
        health,
        kv: None,
        kv_events: None,
        step_log: None,
    };
    let (worker, _) = Actor::spawn(None, Worker, args).await.unwrap();
    let limit = Duration::from_secs(60);
    let ready = watching.wait_for(|h| *h == WorkerHealth::Ready);
    tokio::time::timeout(limit, ready).await.expect("it gets ready").unwrap();
    worker.cast(submit(&id, 1)).unwrap();
    let stalled = watching.wait_for(|h| matches!(h, WorkerHealth::Stalled(_)));
    tokio::time::timeout(limit, stalled).await.expect("the watchdog sees it").unwrap();
    worker.cast(submit(&id, 2)).unwrap();
    let mut answers = Vec::new();
    while answers.len() < 2 {
        let next = tokio::time::timeout(limit, told.recv()).await.expect("both are answered").unwrap();
        if matches!(next, ToGateway::Admission { .. } | ToGateway::WorkerLost(_)) {
            answers.push(next);
        }
    }
    assert!(matches!(&answers[0], ToGateway::Admission { result: Ok(()), .. }), "{answers:?}");
    assert_eq!(answers[1], ToGateway::WorkerLost(id));
}
