//! Credits: a client that does not read stops its own generation, and nobody else's.

use serde_json::json;

use super::streams::{COMPLETIONS, Stream, assert_idle, completion, joined, reference, with};
use crate::harness::cluster::Cluster;
use crate::harness::node::{PAGES_USED, RUNNING, SESSIONS};
use crate::harness::wait_for;

/// The worker pauses what nobody reads, although it could go on; others run to their ends; who reads on gets all of it.
#[test]
fn a_client_that_stops_reading_stops_only_itself() {
    let cluster = Cluster::of_with(&["c1", "g1", "w1"], &[("GATEWAY__STREAM_CREDIT", "32")]);
    let base = &cluster["g1"].base;
    // Large chunks, so that little of the answer fits into the buffers on the way.
    let long = with(&completion("Read by nobody", 8000), json!({"logprobs": 20}));
    let mut stalled = Stream::open(base, COMPLETIONS, &long);
    stalled.read(1);
    wait_for("its generation to pause", || {
        let worker = &cluster["w1"];
        (worker.figure(RUNNING) == 0.0 && worker.figure(PAGES_USED) > 0.0).then_some(())
    });
    assert_eq!(cluster["g1"].figure(SESSIONS), 1.0, "it has not ended");
    let other = completion("Read at once", 2000);
    let answer = joined(&reference().client().stream(COMPLETIONS, &other));
    for _ in 0..3 {
        assert_eq!(joined(&cluster["g1"].client().stream(COMPLETIONS, &other)), answer);
    }
    assert_eq!(cluster["g1"].figure(SESSIONS), 1.0, "the stalled one has not ended");
    cluster["w1"].wait_for_figure(RUNNING, 0.0);
    assert_eq!(stalled.answer(), joined(&reference().client().stream(COMPLETIONS, &long)));
    assert_idle(&cluster, &["c1", "g1", "w1"]);
}

/// One that never reads again and leaves gives back what it held.
#[test]
fn a_stalled_client_that_leaves_gives_its_pages_back() {
    let cluster = Cluster::of_with(&["c1", "g1", "w1"], &[("GATEWAY__STREAM_CREDIT", "32")]);
    let long = with(&completion("Left for good", 8000), json!({"logprobs": 20}));
    let mut stalled = Stream::open(&cluster["g1"].base, COMPLETIONS, &long);
    stalled.read(1);
    wait_for("its generation to pause", || {
        let worker = &cluster["w1"];
        (worker.figure(RUNNING) == 0.0 && worker.figure(PAGES_USED) > 0.0).then_some(())
    });
    drop(stalled);
    assert_idle(&cluster, &["c1", "g1", "w1"]);
}

/// A stalled stream whose worker is lost goes on elsewhere when it is read again, and is right.
#[test]
fn a_stalled_stream_survives_its_worker() {
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1", "w2"], &[("GATEWAY__STREAM_CREDIT", "32")]);
    let long = with(&completion("Read later", 8000), json!({"logprobs": 20}));
    let mut stalled = Stream::open(&cluster["g1"].base, COMPLETIONS, &long);
    stalled.read(1);
    let (worker, other) = if stalled.worker == "w1" { ("w1", "w2") } else { ("w2", "w1") };
    wait_for("its generation to pause", || {
        let worker = &cluster[worker];
        (worker.figure(RUNNING) == 0.0 && worker.figure(PAGES_USED) > 0.0).then_some(())
    });
    cluster[worker].kill();
    assert_eq!(stalled.answer(), joined(&reference().client().stream(COMPLETIONS, &long)));
    assert_idle(&cluster, &["c1", "g1", other]);
}
