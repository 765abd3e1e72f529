//! SIGTERM to each kind of node of a cluster: new work goes elsewhere, what runs finishes or goes on elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use super::streams::{COMPLETIONS, Stop, Stream, assert_idle, completion, joined, open_at, reference, with};
use crate::harness::cluster::Cluster;
use crate::harness::node::SESSIONS;
use crate::harness::wait_for;

const SLOW: (&str, &str) = ("ENGINE__FAKE__STEP_OVERHEAD", "20ms");
const NAMES: [&str; 4] = ["c1", "g1", "w1", "w2"];
const FAKE: [&str; 2] = ["--engine", "fake"];

fn expected(request: &Value) -> Value {
    joined(&reference().client().stream(COMPLETIONS, request))
}

/// Waits until `watchers` show that `name` has left.
fn until_left(cluster: &Cluster, watchers: &[&str], name: &str) {
    for watcher in watchers {
        wait_for(&format!("{watcher} to see {name} leave"), || {
            let row = cluster.row(watcher, name)?;
            (row["state"] == "left").then_some(())
        });
    }
}

/// B90: streams of a worker that drains go on to their ends; whatever comes meanwhile is served by the other one, also
/// what was on its way when the signal came.
#[test]
fn b90_a_draining_worker_finishes_its_streams() {
    let mut cluster = Cluster::of_with(&["c1", "g1", "w2"], &[SLOW]);
    // Its streams last until everybody knows that it drains.
    cluster.node("w1", "worker", &FAKE, &[("ENGINE__FAKE__STEP_OVERHEAD", "50ms")]);
    cluster.until_whole();
    let request = completion("Goes on to its end", 300);
    let answer = expected(&request);
    let base = cluster["g1"].base.clone();
    let mut streams: Vec<Stream> = (0..5).flat_map(|_| open_at(&base, COMPLETIONS, &request, "w1")).collect();
    // The other one has more to do, so that new requests go to the one that is to drain.
    streams.extend((0..4).flat_map(|_| open_at(&base, COMPLETIONS, &request, "w2")));
    streams.iter_mut().for_each(|stream| stream.read(1));
    let short = completion("Comes meanwhile", 3);
    let late = expected(&short);
    let (answered, at_w1) = (AtomicU32::new(0), AtomicU32::new(0));
    let (client, stop) = (cluster["g1"].client(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut served = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let answer = client.post(COMPLETIONS, &short);
                        assert_eq!(answer.status, 200, "{}", answer.text());
                        assert_eq!(answer.json()["choices"][0]["text"], late["choices"][0]["text"]);
                        let worker = answer.header("x-served-by").unwrap().to_owned();
                        answered.fetch_add(1, Ordering::Relaxed);
                        at_w1.fetch_add(u32::from(worker == "w1"), Ordering::Relaxed);
                        served.push((Instant::now(), worker));
                    }
                    served
                })
            })
            .collect();
        wait_for("requests served by the one to drain", || {
            assert!(clients.iter().all(|client| !client.is_finished()), "a client failed; see its panic");
            (at_w1.load(Ordering::Relaxed) > 3).then_some(())
        });
        cluster["w1"].signal("TERM");
        wait_for("its readiness to say 503", || (cluster.readiness("w1").0 == 503).then_some(()));
        for watcher in ["c1", "g1"] {
            wait_for("the others to know", || {
                cluster.row(watcher, "w1").filter(|row| row["draining"] == true).map(drop)
            });
        }
        let (known, before) = (Instant::now(), answered.load(Ordering::Relaxed));
        wait_for("requests after that", || (answered.load(Ordering::Relaxed) > before + 20).then_some(()));
        drop(stopping);
        for client in clients {
            let served = client.join().unwrap();
            // The first one may have been under way.
            let after: Vec<_> = served.iter().filter(|(at, _)| *at > known).skip(1).collect();
            assert!(after.iter().all(|(_, worker)| worker == "w2"), "{after:?}");
        }
    });
    assert_eq!(cluster["g1"].client().get("/readiness").unwrap().status, 200);
    for stream in streams {
        assert_eq!(stream.answer(), answer);
    }
    assert_eq!(cluster["w1"].wait().code(), Some(0), "{}", cluster["w1"].log());
    until_left(&cluster, &["c1", "g1", "w2"], "w1");
    assert_idle(&cluster, &["c1", "g1", "w2"]);
}

/// B90: when the limit passes, the streams go on elsewhere.
#[test]
fn b90_at_the_drain_limit_streams_go_on_elsewhere() {
    let mut cluster = Cluster::of_with(&NAMES, &[SLOW, ("NODE__DRAIN_TIMEOUT", "300ms")]);
    let request = completion("Outlives its worker", 150);
    let answer = expected(&request);
    let base = cluster["g1"].base.clone();
    let mut streams: Vec<Stream> = (0..5).flat_map(|_| open_at(&base, COMPLETIONS, &request, "w1")).collect();
    streams.iter_mut().for_each(|stream| stream.read(1));
    cluster["w1"].signal("TERM");
    assert_eq!(cluster["w1"].wait().code(), Some(0), "{}", cluster["w1"].log());
    for stream in streams {
        assert_eq!(stream.answer(), answer);
    }
    until_left(&cluster, &["c1", "g1", "w2"], "w1");
    assert_idle(&cluster, &["c1", "g1", "w2"]);
}

/// B01, B90: where nobody else has the model, the streams end with an error event and `[DONE]`.
#[test]
fn b90_at_the_drain_limit_of_the_last_worker_streams_end_with_an_error() {
    let keys = [SLOW, ("NODE__DRAIN_TIMEOUT", "300ms"), ("CONTROLLER__QUEUE_TIMEOUT", "500ms")];
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1"], &keys);
    let request = completion("Nowhere to go", 300);
    let mut stream = Stream::open(&cluster["g1"].base, COMPLETIONS, &request);
    stream.read(3);
    cluster["w1"].signal("TERM");
    wait_for("a new request to be turned away", || {
        let answer = cluster["g1"].client().post(COMPLETIONS, &completion("late", 1));
        (answer.status == 503 && answer.header("retry-after").is_some()).then_some(())
    });
    let events = stream.events();
    let (last, chunks) = events.split_last().unwrap();
    for key in ["message", "type", "code"] {
        assert!(last["error"][key].is_string(), "{last}");
    }
    assert!(chunks.iter().all(|chunk| chunk.get("error").is_none()));
    assert_eq!(cluster["w1"].wait().code(), Some(0), "{}", cluster["w1"].log());
    assert_idle(&cluster, &["c1", "g1"]);
}

/// B90: nodes of any role that are idle end at once, and are seen to have left, not to be lost.
#[test]
fn b90_idle_nodes_leave_at_once() {
    // Longer than the test waits for anything; and nobody is taken for lost who is only slow.
    let keys = [("NODE__DRAIN_TIMEOUT", "1h"), ("CLUSTER__SUSPECT_AFTER", "5m")];
    let mut cluster = Cluster::of_with(&NAMES, &keys);
    let mut live = NAMES.to_vec();
    for name in ["w1", "g1", "c1"] {
        live.retain(|other| *other != name);
        cluster[name].signal("TERM");
        assert_eq!(cluster[name].wait().code(), Some(0), "{}", cluster[name].log());
        until_left(&cluster, &live, name);
        for other in &live {
            let lost = cluster[*other].figure("actor_node_cluster_lost_nodes_total");
            let goodbyes =
                cluster[*other].figure_where("actor_node_cluster_lost_nodes_total", "why=\"goodbye\"");
            assert_eq!(lost, goodbyes, "{other} took {name} for lost");
        }
    }
}

/// B90: a second signal ends a node that drains, and its streams go on elsewhere.
#[test]
fn b90_a_second_signal_ends_a_worker_now() {
    let mut cluster = Cluster::of_with(&["c1", "g1", "w2"], &[("NODE__DRAIN_TIMEOUT", "1h")]);
    // Nothing ends there before the second signal.
    cluster.node("w1", "worker", &FAKE, &[("ENGINE__FAKE__STEP_OVERHEAD", "200ms")]);
    cluster.until_whole();
    let request = completion("Not for an hour", 200);
    let mut streams = open_at(&cluster["g1"].base, COMPLETIONS, &request, "w1");
    streams.iter_mut().for_each(|stream| stream.read(1));
    cluster["w1"].signal("TERM");
    wait_for("its readiness to say 503", || (cluster.readiness("w1").0 == 503).then_some(()));
    assert!(cluster["w1"].is_alive());
    cluster["w1"].signal("TERM");
    let status = cluster["w1"].wait();
    assert!(!status.success(), "{status}");
    let answer = expected(&request);
    for stream in streams {
        assert_eq!(stream.answer(), answer);
    }
    assert_idle(&cluster, &["c1", "g1", "w2"]);
}

/// B90: a gateway that drains finishes its streams and turns new requests away.
#[test]
fn b90_a_draining_gateway_finishes_its_streams() {
    let mut cluster = Cluster::of_with(&NAMES, &[SLOW]);
    let request = completion("Through a gateway that ends", 500);
    let answer = expected(&request);
    let base = cluster["g1"].base.clone();
    let mut streams: Vec<Stream> = (0..6).map(|_| Stream::open(&base, COMPLETIONS, &request)).collect();
    streams.iter_mut().for_each(|stream| stream.read(1));
    cluster["g1"].signal("TERM");
    wait_for("its readiness to say 503", || (cluster.readiness("g1").0 == 503).then_some(()));
    let late = cluster["g1"].client().post(COMPLETIONS, &completion("late", 1));
    assert!(late.header("retry-after").is_some());
    late.error(503);
    for stream in streams {
        assert_eq!(stream.answer(), answer);
    }
    assert_eq!(cluster["g1"].wait().code(), Some(0), "{}", cluster["g1"].log());
    until_left(&cluster, &["c1", "w1", "w2"], "g1");
    assert_idle(&cluster, &["c1", "w1", "w2"]);
}

/// B90: a controller may go at any time: the gateway places by itself, streams are unharmed, and nothing fails.
#[test]
fn b90_a_controller_that_leaves_harms_nobody() {
    let mut cluster = Cluster::of_with(&NAMES, &[SLOW]);
    let request = completion("Nobody in control", 150);
    let answer = expected(&request);
    let base = cluster["g1"].base.clone();
    let mut streams: Vec<Stream> = (0..6).map(|_| Stream::open(&base, COMPLETIONS, &request)).collect();
    streams.iter_mut().for_each(|stream| stream.read(1));
    let short = with(&request, json!({"max_tokens": 5}));
    let (client, stop) = (cluster["g1"].client(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let asking = scope.spawn(|| {
            let mut served = 0;
            while !stop.load(Ordering::Relaxed) {
                client.ok(COMPLETIONS, &short);
                served += 1;
            }
            served
        });
        cluster["c1"].signal("TERM");
        wait_for("the gateway to place by itself", || {
            (cluster["g1"].figure("actor_node_without_controller") == 1.0).then_some(())
        });
        wait_for("requests placed so", || {
            (cluster["g1"].figure("actor_node_stand_in_placements_total") > 2.0).then_some(())
        });
        drop(stopping);
        assert!(asking.join().unwrap() > 0);
    });
    assert_eq!(cluster["c1"].wait().code(), Some(0), "{}", cluster["c1"].log());
    for stream in streams {
        assert_eq!(stream.answer(), answer);
    }
    cluster["g1"].wait_for_figure(SESSIONS, 0.0);
    assert_idle(&cluster, &["g1", "w1", "w2"]);
}
