//! Engines that panic, stall or are busy for long, seen from other processes.

use std::time::Duration;

use super::streams::{COMPLETIONS, Stream, assert_idle, completion, joined, open_at, reference};
use crate::harness::cluster::Cluster;
use crate::harness::wait_for;

const SLOW: (&str, &str) = ("ENGINE__FAKE__STEP_OVERHEAD", "10ms");
/// Nobody is taken for lost who is only slow.
const PATIENT: (&str, &str) = ("CLUSTER__SUSPECT_AFTER", "5m");
const LOST_NODES: &str = "actor_node_cluster_lost_nodes_total";

/// `NAME#INCARNATION` of a node's worker, as another node sees it.
fn worker(cluster: &Cluster, watcher: &str, name: &str) -> Option<String> {
    cluster.row(watcher, name)?["worker"]["id"].as_str().map(str::to_owned)
}

fn life(id: &str) -> u64 {
    u64::from_str_radix(id.rsplit_once('#').unwrap().1, 16).unwrap()
}

/// B96: an engine that panics is loaded again by its supervisor, as a worker with a higher incarnation, while the node
/// stays; with no other worker its stream waits for it and goes on.
#[test]
fn b96_an_engine_that_panics_comes_back_as_another() {
    let mut cluster = Cluster::new(&[SLOW, PATIENT]);
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.node("w1", "worker", &["--engine", "fake"], &[("ENGINE__FAKE__PANIC_AT_STEP", "20")]);
    cluster.until_whole();
    let (node, before) = (cluster.incarnation("w1"), worker(&cluster, "g1", "w1").unwrap());
    let request = completion("Through three lives of one engine", 50);
    let answer = joined(&reference().client().stream(COMPLETIONS, &request));
    assert_eq!(Stream::open(&cluster["g1"].base, COMPLETIONS, &request).answer(), answer);
    cluster.until_whole();
    assert_eq!(cluster.incarnation("w1"), node, "the process lives on");
    for watcher in ["c1", "g1"] {
        let now = wait_for("the worker", || worker(&cluster, watcher, "w1"));
        assert!(life(&now) > life(&before), "{before} is {now} now");
        assert_eq!(cluster[watcher].figure(LOST_NODES), 0.0);
    }
    assert!(cluster["w1"].figure("actor_node_actor_restarts_total") >= 2.0);
    assert!(cluster["w1"].log().contains("panic-at-step"), "{}", cluster["w1"].log());
    assert_idle(&cluster, &["c1", "g1", "w1"]);
}

/// B96: a step that does not end makes the worker unready, and its sessions go elsewhere; the node answers as before.
#[test]
fn b96_a_stalled_engine_is_noticed_everywhere() {
    let keys = [("ENGINE__FAKE__STALL_AT_STEP", "10"), ("ENGINE__STALL_AFTER", "500ms")];
    let mut cluster = Cluster::new(&[SLOW, PATIENT]);
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.worker("w2");
    cluster.node("w1", "worker", &["--engine", "fake"], &keys);
    cluster.until_whole();
    let request = completion("Elsewhere", 100);
    let answer = joined(&reference().client().stream(COMPLETIONS, &request));
    for stream in open_at(&cluster["g1"].base, COMPLETIONS, &request, "w1") {
        assert_eq!(stream.answer(), answer);
    }
    let (status, reason) = cluster.readiness("w1");
    assert_eq!(status, 503);
    assert!(reason.contains("500"), "{reason}");
    assert_eq!(cluster["w1"].client().get("/liveness").unwrap().status, 200);
    for watcher in ["c1", "g1"] {
        wait_for("the worker to be taken out", || worker(&cluster, watcher, "w1").is_none().then_some(()));
        assert_eq!(cluster[watcher].figure(LOST_NODES), 0.0);
    }
    assert_eq!(cluster["g1"].client().get("/readiness").unwrap().status, 200);
    let next = cluster["g1"].client().post(COMPLETIONS, &completion("next", 2));
    assert_eq!(next.header("x-served-by"), Some("w2"), "{}", next.text());
    assert_idle(&cluster, &["c1", "g1", "w2"]);
}

/// B96: where the only engine stalls, requests get errors and not silence.
#[test]
fn b96_with_the_only_engine_stalled_requests_get_errors() {
    let keys = [
        SLOW,
        ("ENGINE__FAKE__STALL_AT_STEP", "10"),
        ("ENGINE__STALL_AFTER", "500ms"),
        ("CONTROLLER__QUEUE_TIMEOUT", "500ms"),
    ];
    let cluster = Cluster::of_with(&["c1", "g1", "w1"], &keys);
    let stream = Stream::open(&cluster["g1"].base, COMPLETIONS, &completion("Silence?", 100));
    let events = stream.events();
    let last = events.last().unwrap();
    assert!(last["error"]["code"].is_string(), "{last}");
    let (status, _) = cluster.readiness("g1");
    assert_eq!(status, 503, "no worker serves");
    let answer = cluster["g1"].client().post(COMPLETIONS, &completion("next", 2));
    assert!(answer.header("retry-after").is_some(), "{}", answer.text());
    answer.error(503);
    assert_idle(&cluster, &["c1", "g1"]);
}

/// B92: a worker is busy in one step for longer than a node may be silent: nobody takes it for lost, and it answers.
#[test]
fn b92_a_busy_worker_is_not_declared_dead() {
    let mut cluster = Cluster::new(&[("CLUSTER__SUSPECT_AFTER", "4s")]);
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.node("w1", "worker", &["--engine", "fake"], &[("ENGINE__FAKE__STEP_OVERHEAD", "10s")]);
    cluster.until_whole();
    let before = worker(&cluster, "g1", "w1").unwrap();
    std::thread::scope(|scope| {
        let client = cluster["g1"].client();
        let long = scope.spawn(move || client.ok(COMPLETIONS, &completion("a step of ten seconds", 1)));
        cluster["w1"].wait_for_figure("vllm:num_requests_running", 1.0);
        let mut probes = 0;
        while !long.is_finished() {
            for path in ["/liveness", "/readiness", "/metrics"] {
                assert_eq!(cluster["w1"].client().get(path).unwrap().status, 200, "{path}");
            }
            for watcher in ["c1", "g1"] {
                assert_eq!(worker(&cluster, watcher, "w1").as_ref(), Some(&before));
            }
            probes += 1;
            std::thread::park_timeout(Duration::from_millis(100));
        }
        assert!(probes > 5, "{probes}");
        long.join().unwrap();
    });
    for watcher in ["c1", "g1"] {
        assert_eq!(cluster[watcher].figure(LOST_NODES), 0.0);
    }
    assert_idle(&cluster, &["c1", "g1", "w1"]);
}
