//! A worker is lost in the middle of its streams, in every way: each stream goes on elsewhere, and its whole answer is
//! that of a run which nothing disturbed.

use std::time::Instant;

use serde_json::{Value, json};

use super::streams::{
    COMPLETIONS, Kind, LEAST_LOADED, REQUESTS, Stream, assert_idle, completion, kinds, open_at, reference,
    with,
};
use crate::harness::cluster::Cluster;
use crate::harness::wait_for;

const TOKENS: u32 = 60;

/// Slow enough that a loss comes in the middle: a token in 20 ms, a prompt in some 100 ms.
const PACE: [(&str, &str); 3] = [
    ("ENGINE__FAKE__STEP_OVERHEAD", "20ms"),
    ("ENGINE__FAKE__PREFILL_PER_TOKEN", "3ms"),
    // Streams of one prompt have to be had at both workers.
    LEAST_LOADED,
];

const LOST_NODES: &str = "actor_node_cluster_lost_nodes_total";

const FAKE: [&str; 2] = ["--engine", "fake"];

/// Silence is waited for longer than any test: whoever is lost was seen to go.
const PATIENT: (&str, &str) = ("CLUSTER__SUSPECT_AFTER", "5m");

/// How a worker is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// kill -9.
    Killed,
    /// SIGSTOP: its connections stay open.
    Frozen,
    /// The link between it and the gateway breaks; to the controller it is there as before.
    Cut,
    /// That link becomes a black hole.
    Silent,
}

/// A cluster where `w1` can be lost, whole.
fn cluster(fault: Fault) -> Cluster {
    let mut cluster = match fault {
        Fault::Cut | Fault::Silent => Cluster::behind_proxies(&PACE),
        _ => Cluster::new(&PACE),
    };
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.worker("w2");
    // It hears of the gateway from the controller: their link passes a proxy, whoever dials.
    let seed = cluster.direct("c1");
    cluster.node("w1", "worker", &["--engine", "fake", "--seed", &seed], &[]);
    cluster.until_whole();
    cluster
}

/// Loses `w1` after `chunks` chunks of a stream of each kind, and compares all of them.
fn streams_survive(fault: Fault, chunks: usize) {
    let mut cluster = cluster(fault);
    let kinds = kinds(&reference().client(), TOKENS);
    let mut streams = open_all(&cluster, &kinds);
    let first = streams.iter_mut().find(|(kind, stream)| kind.name == "greedy" && stream.worker == "w1");
    first.expect("each kind has one there").1.read(chunks);
    match fault {
        Fault::Killed => cluster["w1"].kill(),
        Fault::Frozen => cluster["w1"].pause(),
        Fault::Cut => cluster.cut(),
        Fault::Silent => cluster.freeze(),
    }
    compare(streams);
    assert!(cluster["g1"].figure_where(LOST_NODES, "why") >= 1.0, "nothing was lost");
    match fault {
        Fault::Killed => cluster["w1"].restart(),
        Fault::Frozen => cluster["w1"].resume(),
        Fault::Cut | Fault::Silent => cluster.heal(),
    }
    cluster.until_whole();
    assert_idle(&cluster, &["c1", "g1", "w1", "w2"]);
    assert_eq!(cluster["g1"].figure_where(REQUESTS, "outcome=\"worker_lost\""), 0.0);
    // It is back, and serves.
    for stream in open_at(&cluster["g1"].base, COMPLETIONS, &kinds[0].body, "w1") {
        assert_eq!(stream.answer(), kinds[0].answer);
    }
}

/// At least one stream of each kind that `w1` serves.
fn open_all<'a>(cluster: &Cluster, kinds: &'a [Kind]) -> Vec<(&'a Kind, Stream)> {
    let base = &cluster["g1"].base;
    let of = |kind: &'a Kind| open_at(base, kind.path, &kind.body, "w1").into_iter().map(move |s| (kind, s));
    kinds.iter().flat_map(of).collect()
}

fn compare(streams: Vec<(&Kind, Stream)>) {
    for (kind, stream) in streams {
        let worker = stream.worker.clone();
        assert_eq!(stream.answer(), kind.answer, "{} of {worker}: {}", kind.name, kind.body);
    }
}

/// B60, B61.
#[test]
fn b60_b61_a_worker_is_killed_before_it_says_anything() {
    streams_survive(Fault::Killed, 0);
}

#[test]
fn b60_b61_a_worker_is_killed_after_one_chunk() {
    streams_survive(Fault::Killed, 1);
}

#[test]
fn b60_b61_a_worker_is_killed_after_ten_chunks() {
    streams_survive(Fault::Killed, 10);
}

/// B60, B61, B62: the worker comes back with what it did for the streams, and changes nothing.
#[test]
fn b60_b61_a_worker_freezes_before_it_says_anything() {
    streams_survive(Fault::Frozen, 0);
}

#[test]
fn b60_b61_a_worker_freezes_after_one_chunk() {
    streams_survive(Fault::Frozen, 1);
}

#[test]
fn b60_b61_a_worker_freezes_after_ten_chunks() {
    streams_survive(Fault::Frozen, 10);
}

/// B60, B61: the gateway alone cannot reach the worker, which goes on for nobody.
#[test]
fn b60_b61_a_link_breaks_before_a_worker_says_anything() {
    streams_survive(Fault::Cut, 0);
}

#[test]
fn b60_b61_a_link_breaks_after_one_chunk() {
    streams_survive(Fault::Cut, 1);
}

#[test]
fn b60_b61_a_link_breaks_after_ten_chunks() {
    streams_survive(Fault::Cut, 10);
}

#[test]
fn b60_b61_a_link_falls_silent() {
    streams_survive(Fault::Silent, 5);
}

/// B60, B61, B96: the engine of `w1` fails in a step, and the stream of each kind goes on.
fn an_engine_fails(key: &str, step: &str) {
    let mut cluster = Cluster::new(&PACE);
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.worker("w2");
    cluster.node("w1", "worker", &FAKE, &[(key, step), ("ENGINE__STALL_AFTER", "1s")]);
    cluster.until_whole();
    let kinds = kinds(&reference().client(), TOKENS);
    let base = &cluster["g1"].base;
    // Two of each: one goes to either worker.
    let twice = kinds.iter().chain(&kinds);
    let streams: Vec<(&Kind, Stream)> =
        twice.map(|kind| (kind, Stream::open(base, kind.path, &kind.body))).collect();
    assert!(streams.iter().any(|(_, stream)| stream.worker == "w1"));
    compare(streams);
    assert_idle(&cluster, &["c1", "g1", "w2"]);
    let log = cluster["w1"].log();
    assert!(log.contains("the engine is lost") || log.contains("step does not end"), "{log}");
}

#[test]
fn b60_b61_an_engine_panics_before_it_says_anything() {
    an_engine_fails("ENGINE__FAKE__PANIC_AT_STEP", "2");
}

#[test]
fn b60_b61_an_engine_panics_after_a_token_or_two() {
    an_engine_fails("ENGINE__FAKE__PANIC_AT_STEP", "6");
}

#[test]
fn b60_b61_an_engine_panics_in_the_middle() {
    an_engine_fails("ENGINE__FAKE__PANIC_AT_STEP", "25");
}

#[test]
fn b60_b61_an_engine_stalls_before_it_says_anything() {
    an_engine_fails("ENGINE__FAKE__STALL_AT_STEP", "2");
}

#[test]
fn b60_b61_an_engine_stalls_in_the_middle() {
    an_engine_fails("ENGINE__FAKE__STALL_AT_STEP", "25");
}

/// B62: a stream moves from `w1` to `w2`, and `w1` comes back while it runs: what it says and frees late counts for
/// nothing, the booking on `w2` stays, and the stream is right.
#[test]
fn b62_a_late_worker_frees_nothing() {
    let mut cluster = Cluster::new(&PACE);
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.worker("w1");
    // Slow enough for the stream to last until the other one is back.
    cluster.node("w2", "worker", &FAKE, &[("ENGINE__FAKE__STEP_OVERHEAD", "60ms")]);
    cluster.until_whole();
    let request = completion("A long one that moves", 400);
    let expected = reference().client().ok(COMPLETIONS, &request);
    let mut streams = open_at(&cluster["g1"].base, COMPLETIONS, &request, "w1");
    let mut moved = streams.pop().unwrap();
    drop(streams);
    moved.read(5);
    cluster["c1"].wait_for_figure("actor_node_controller_booked", 1.0);
    let life = cluster.incarnation("w1");
    cluster["w1"].pause();
    cluster.until_lost(&["c1", "g1"], "w1", life, Instant::now());
    cluster["w2"].wait_for_figure("vllm:num_requests_running", 1.0);
    cluster["w1"].resume();
    cluster.until_whole();
    cluster["w1"].wait_for_figure("vllm:num_requests_running", 0.0);
    // Bookings are shown every 100 ms; had the late one been taken for ours, this would be 0 for good.
    cluster["c1"].wait_for_figure("actor_node_controller_booked", 1.0);
    assert_eq!(cluster["w2"].figure("vllm:num_requests_running"), 1.0, "the stream still runs");
    assert_eq!(moved.answer()["choices"][0]["text"], expected["choices"][0]["text"]);
    assert_idle(&cluster, &["c1", "g1", "w1", "w2"]);
}

/// B35: a request that is on its way to a worker which dies then is placed again.
#[test]
fn b35_a_request_sent_to_a_dying_worker_is_placed_again() {
    let mut cluster = Cluster::new(&[&PACE[..], &[PATIENT]].concat());
    for (name, roles) in [("c1", "controller"), ("g1", "gateway"), ("w1", "worker"), ("w2", "worker")] {
        cluster.node(name, roles, &FAKE, &[]);
    }
    cluster.until_whole();
    let request = completion("On its way", 20);
    let expected = reference().client().ok(COMPLETIONS, &request);
    // Frozen, it takes no request and is not known to be lost.
    cluster["w1"].pause();
    std::thread::scope(|scope| {
        let answers: Vec<_> = (0..6)
            .map(|_| {
                let (client, request) = (cluster["g1"].client(), &request);
                scope.spawn(move || client.post(COMPLETIONS, request))
            })
            .collect();
        // Those that are booked at the frozen one wait for it; the other one's may have ended.
        wait_for("requests at the frozen worker", || {
            let rows = cluster["c1"].client().get("/v1/workers").ok()?.json();
            let frozen = |row: &&Value| row["id"].as_str().is_some_and(|id| id.starts_with("w1#"));
            let row = rows["data"].as_array()?.iter().find(frozen)?.clone();
            (row["booked"].as_u64()? > 0).then_some(())
        });
        cluster["w1"].signal("KILL");
        for answer in answers {
            let answer = answer.join().unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.header("x-served-by"), Some("w2"));
            assert_eq!(answer.json()["choices"][0]["text"], expected["choices"][0]["text"]);
        }
    });
    assert_idle(&cluster, &["c1", "g1", "w2"]);
}

/// B11, B35: without retries a loss is an error at once: an event and `[DONE]` in a stream, a 503 otherwise; and it is
/// counted as what it was.
#[test]
fn b11_without_retries_a_loss_is_an_error() {
    let mut cluster = Cluster::new(&[PACE[0], PATIENT, ("GATEWAY__RETRY_LIMIT", "0")]);
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.worker("w1");
    cluster.until_whole();
    let request = completion("More tokens than the worker has time for", 3000);
    let expected = reference().client().ok(COMPLETIONS, &request);
    let mut stream = Stream::open(&cluster["g1"].base, COMPLETIONS, &request);
    stream.read(10);
    std::thread::scope(|scope| {
        let (client, asked) = (cluster["g1"].client(), &request);
        let whole = scope.spawn(move || client.post(COMPLETIONS, asked));
        cluster["w1"].wait_for_figure("vllm:num_requests_running", 2.0);
        cluster["w1"].signal("KILL");
        let events = stream.events();
        let error = whole.join().unwrap().error(503);
        assert_eq!(error["code"], "worker_lost");
        let (last, chunks) = events.split_last().unwrap();
        assert_eq!(last["error"]["code"], "worker_lost", "{last}");
        assert!(last["error"]["message"].is_string() && last["error"]["type"].is_string(), "{last}");
        let text: String = chunks.iter().map(|c| c["choices"][0]["text"].as_str().unwrap()).collect();
        assert!(text.len() >= 10 && expected["choices"][0]["text"].as_str().unwrap().starts_with(&text));
    });
    assert_eq!(cluster["g1"].figure_where(REQUESTS, "outcome=\"worker_lost\""), 2.0);
    assert_eq!(cluster["g1"].figure_where(REQUESTS, "outcome=\"success\""), 0.0);
    assert_idle(&cluster, &["c1", "g1"]);
}

/// B11: all workers keep dying: after the limit the client hears of it, and what it got until then is right.
#[test]
fn b11_the_retry_limit_ends_a_stream_with_an_error() {
    let mut cluster = Cluster::new(&[PACE[0], ("GATEWAY__RETRY_LIMIT", "2")]);
    cluster.controller("c1");
    cluster.gateway("g1");
    for name in ["w1", "w2"] {
        cluster.node(name, "worker", &FAKE, &[("ENGINE__FAKE__PANIC_AT_STEP", "5")]);
    }
    cluster.until_whole();
    let request = completion("Three lives", 60);
    let expected = reference().client().ok(COMPLETIONS, &request);
    let events = Stream::open(&cluster["g1"].base, COMPLETIONS, &request).events();
    let (last, chunks) = events.split_last().unwrap();
    assert_eq!(last["error"]["code"], "worker_lost", "{last}");
    let text: String = chunks.iter().map(|c| c["choices"][0]["text"].as_str().unwrap()).collect();
    // Four steps in each of three lives. The news of a life's end may overtake its last token, which is then drawn again.
    assert!((9..=12).contains(&text.len()), "{text}");
    assert!(expected["choices"][0]["text"].as_str().unwrap().starts_with(&text));
    let error = cluster["g1"].client().post(COMPLETIONS, &request).error(503);
    assert_eq!(error["code"], "worker_lost");
    assert_eq!(cluster["g1"].figure_where(REQUESTS, "outcome=\"worker_lost\""), 2.0);
    assert_idle(&cluster, &["c1", "g1", "w1", "w2"]);
    // What fits between two deaths is served: the limit is the request's, not the worker's.
    let short = with(&request, json!({"max_tokens": 3}));
    wait_for("a short request to be served", || {
        let answer = cluster["g1"].client().post(COMPLETIONS, &short);
        (answer.status == 200).then_some(())
    });
}
