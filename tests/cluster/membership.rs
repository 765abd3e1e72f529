//! What is lost, how soon that is known, and that it comes back by itself.

use std::time::{Duration, Instant};

use super::{COMPLETIONS, SLOW, assert_there, completion, served_by, until_kv_is_known};
use crate::harness::cluster::Cluster;
use crate::harness::http::Raw;
use crate::harness::node::{Node, SESSIONS};
use crate::harness::wait_for;

const NODES: &str = "actor_node_cluster_nodes";
const ANNOUNCED: &str = "actor_node_cluster_announced_actors";
const LOST: &str = "actor_node_cluster_lost_nodes_total";
/// Silence is waited for longer than any test: whoever is lost was seen to go.
const PATIENT: (&str, &str) = ("CLUSTER__SUSPECT_AFTER", "5m");

/// Losses that a node has counted, by how it knew of them (`closed`, `silent`).
fn lost(node: &Node, why: &str) -> f64 {
    node.figure_where(LOST, &format!("why=\"{why}\""))
}

fn ready_nodes(node: &Node) -> f64 {
    node.figure_where(NODES, "state=\"ready\"")
}

fn wait_for_ready_nodes(cluster: &Cluster, watchers: &[&str], count: f64) {
    for watcher in watchers {
        wait_for(&format!("{watcher} to count {count} nodes"), || {
            (ready_nodes(&cluster[*watcher]) == count).then_some(())
        });
    }
}

/// B81: a killed process is lost everywhere at once, without waiting for its silence; started again it is back in a new
/// life and serves.
#[test]
fn b81_a_killed_node_is_lost_at_once() {
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1"], &[PATIENT]);
    for (victim, others) in [("w1", ["c1", "g1"]), ("g1", ["c1", "w1"]), ("c1", ["g1", "w1"])] {
        let life = cluster.incarnation(victim);
        let before = others.map(|other| lost(&cluster[other], "closed"));
        cluster[victim].kill();
        cluster.until_lost(&others, victim, life, Instant::now());
        for (other, before) in others.into_iter().zip(before) {
            assert_eq!(lost(&cluster[other], "closed"), before + 1.0, "{victim} at {other}");
        }
        wait_for_ready_nodes(&cluster, &others, 2.0);
        cluster[victim].restart();
        cluster.until_whole();
        assert!(cluster.incarnation(victim) > life);
        wait_for_ready_nodes(&cluster, &others, 3.0);
        assert_eq!(served_by(&cluster, "g1"), "w1");
    }
}

/// B81: a stopped process keeps its connections; its silence is noticed (how soon is tested in virtual time). When it
/// goes on it is back by itself.
#[test]
fn b81_a_frozen_node_is_lost_by_its_silence() {
    let mut cluster = Cluster::of(&["c1", "g1", "w1"]);
    for (victim, others) in [("w1", ["c1", "g1"]), ("g1", ["c1", "w1"]), ("c1", ["g1", "w1"])] {
        let life = cluster.incarnation(victim);
        let before = others.map(|other| lost(&cluster[other], "silent"));
        cluster[victim].pause();
        cluster.until_lost(&others, victim, life, Instant::now());
        for (other, before) in others.into_iter().zip(before) {
            assert!(lost(&cluster[other], "silent") > before, "{victim} at {other}");
        }
        wait_for_ready_nodes(&cluster, &others, 2.0);
        cluster[victim].resume();
        // It may take a moment until it knows that it was away.
        wait_for("a new life", || (cluster.incarnation(victim) > life).then_some(()));
        cluster.until_whole();
        wait_for_ready_nodes(&cluster, &others, 3.0);
        assert_eq!(served_by(&cluster, "g1"), "w1");
    }
}

/// The times can be set: nobody is lost sooner.
#[test]
fn b81_the_limit_is_configurable() {
    let keys = [("CLUSTER__HEARTBEAT", "200ms"), ("CLUSTER__SUSPECT_AFTER", "6s")];
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1"], &keys);
    let life = cluster.incarnation("w1");
    let frozen = Instant::now();
    cluster["w1"].pause();
    let took = cluster.until_lost(&["c1", "g1"], "w1", life, frozen);
    // The default is 3 s. It works to nine tenths of the limit, counted from the beat before.
    assert!(took > Duration::from_secs(5), "lost after {took:?}");
    cluster["w1"].resume();
    cluster.until_whole();
    assert_eq!(served_by(&cluster, "g1"), "w1");
}

/// A worker that no direct link leads to, beside a controller and a gateway that have one.
fn with_worker_behind_proxies(keys: &[(&str, &str)]) -> Cluster {
    let mut cluster = Cluster::behind_proxies(keys);
    cluster.controller("c1");
    cluster.gateway("g1");
    let seed = cluster.proxied("c1");
    cluster.node("w1", "worker", &["--engine", "fake", "--seed", &seed], &[]);
    cluster.until_whole();
    cluster
}

/// The worker is cut off, everybody notices as they should, nobody else is lost, and it is back when the network is.
fn cut_off_and_back(mut cluster: Cluster, cut: fn(&Cluster), why: &str) {
    let lives = ["c1", "g1", "w1"].map(|name| cluster.incarnation(name));
    assert_there(&cluster, &["c1", "g1", "w1"], &["c1", "g1", "w1"]);
    let since = Instant::now();
    cut(&cluster);
    cluster.until_lost(&["c1", "g1"], "w1", lives[2], since);
    for (other, life) in [("c1", lives[0]), ("g1", lives[1])] {
        cluster.until_lost(&["w1"], other, life, since);
    }
    for (watcher, count) in [("c1", 1.0), ("g1", 1.0), ("w1", 2.0)] {
        assert_eq!(lost(&cluster[watcher], why), count, "{watcher}: {}", cluster[watcher].log());
        assert_eq!(cluster[watcher].figure(LOST), count, "{watcher}");
    }
    wait_for_ready_nodes(&cluster, &["c1", "g1"], 2.0);
    assert_there(&cluster, &["c1", "g1"], &["c1", "g1"]);
    // The worker has nobody to work for, and says so.
    let (status, reason) = cluster.readiness("w1");
    assert_eq!(status, 503, "{reason}");
    cluster.heal();
    cluster.until_whole();
    assert!(cluster.incarnation("w1") > lives[2], "what it did for the others was given up");
    assert_eq!([cluster.incarnation("c1"), cluster.incarnation("g1")], [lives[0], lives[1]]);
    for watcher in ["c1", "g1"] {
        until_kv_is_known(&cluster, watcher, "w1");
    }
    assert_eq!(served_by(&cluster, "g1"), "w1");
}

/// B81: a black hole, as when a cable is pulled: nothing ends, nothing arrives.
#[test]
fn b81_a_node_in_a_black_hole_is_lost_by_its_silence() {
    cut_off_and_back(with_worker_behind_proxies(&[]), Cluster::freeze, "silent");
}

/// B81: connections that are cut, while none can be made.
#[test]
fn b81_a_node_that_is_cut_off_is_lost_at_once() {
    cut_off_and_back(with_worker_behind_proxies(&[PATIENT]), Cluster::cut, "closed");
}

/// A connection that breaks in a network that works is made again at once.
#[test]
fn a_broken_connection_is_made_again() {
    let mut cluster = with_worker_behind_proxies(&[]);
    for _ in 0..3 {
        let life = cluster.incarnation("w1");
        cluster.cut();
        cluster.heal();
        wait_for("the worker's new life", || (cluster.incarnation("w1") > life).then_some(()));
        cluster.until_whole();
    }
    assert_eq!(served_by(&cluster, "g1"), "w1");
}

/// A slow network is no broken one.
#[test]
fn a_slow_network_loses_nobody() {
    // Ten times what the network takes, and more than a busy machine may.
    let mut cluster = Cluster::behind_proxies(&[("CLUSTER__SUSPECT_AFTER", "20s")]);
    cluster.controller("c1");
    cluster.gateway("g1");
    let seed = cluster.proxied("c1");
    for name in ["c1", "g1"] {
        cluster.proxy(name).delay(Duration::from_millis(50));
    }
    cluster.node("w1", "worker", &["--engine", "fake", "--seed", &seed], &[]);
    cluster.until_whole();
    let lives = ["c1", "g1", "w1"].map(|name| cluster.incarnation(name));
    for _ in 0..5 {
        assert_eq!(served_by(&cluster, "g1"), "w1");
    }
    assert_eq!(["c1", "g1", "w1"].map(|name| cluster.incarnation(name)), lives);
    assert_eq!(cluster["g1"].figure(LOST), 0.0);
}

/// B84: what happened while two nodes were parted is known when they meet again.
#[test]
fn b84_what_was_missed_during_a_cut_is_known_after_it() {
    let mut cluster = Cluster::behind_proxies(&[]);
    cluster.worker("w1");
    let worker = cluster.direct("w1");
    cluster.node("c1", "controller", &["--seed", &worker], &[]);
    // The links of these two with the worker do not pass a proxy where they have made them, and before they hear of each
    // other, which is through the worker.
    cluster.until_whole();
    cluster.node("g1", "gateway", &["--seed", &worker], &[]);
    cluster.until_whole();
    let life = cluster.incarnation("c1");
    cluster.cut();
    cluster.until_lost(&["g1"], "c1", life, Instant::now());
    assert_there(&cluster, &["g1"], &["g1", "w1"]);
    assert_there(&cluster, &["c1"], &["c1", "w1"]);

    cluster["w1"].kill();
    let seeds = [cluster.direct("g1"), cluster.direct("c1")];
    let args = ["--engine", "fake", "--seed", &seeds[0], "--seed", &seeds[1]];
    cluster.node("w3", "worker", &args, &[]);
    wait_for("both halves to see the new worker", || {
        let sees = |name| cluster.row(name, "w3").is_some_and(|row| row["state"] == "ready");
        (sees("g1") && sees("c1")).then_some(())
    });
    assert_eq!(served_by(&cluster, "g1"), "w3", "each half serves for itself");
    cluster.heal();
    cluster.until_whole();
    assert_there(&cluster, &["g1", "c1", "w3"], &["c1", "g1", "w3"]);
    assert_eq!(cluster.view("g1")["leader"], "c1");
    assert_eq!(served_by(&cluster, "g1"), "w3");
}

/// B82: sessions are nobody else's business: what a node announces does not grow with them.
#[test]
fn b82_sessions_announce_nothing() {
    let cluster = Cluster::of_with(&["c1", "g1", "w1"], &[SLOW]);
    let names = ["c1", "g1", "w1"];
    let announced = || names.map(|name| cluster[name].figure(ANNOUNCED));
    let before = announced();
    assert!(before.iter().all(|count| (1.0..=4.0).contains(count)), "a few doors a node: {before:?}");
    let mut request = completion("Many at once", 2000);
    request["stream"] = true.into();
    let sessions: Vec<Raw> = (0..50).map(|_| Raw::post(&cluster["g1"].base, COMPLETIONS, &request)).collect();
    cluster["g1"].wait_for_figure(SESSIONS, 50.0);
    // The figure is renewed with the view.
    let sees = || cluster.row("c1", "g1").is_some_and(|row| row["sessions"] == 50);
    wait_for("the controller to hear of the sessions", || sees().then_some(()));
    assert_eq!(announced(), before);
    drop(sessions);
    cluster["g1"].wait_for_figure(SESSIONS, 0.0);
    assert_eq!(announced(), before);
}

/// B82: twenty lives of a worker leave no trace, whether they were killed or left.
#[test]
fn b82_no_ghosts_after_many_restarts() {
    let keys = [("CLUSTER__FORGET_AFTER", "3s")];
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1"], &keys);
    let names = ["c1", "g1", "w1"];
    let announced = names.map(|name| cluster[name].figure(ANNOUNCED));
    for life in 0..20 {
        cluster.worker("w2");
        cluster.until_whole();
        let mut w2 = cluster.take("w2");
        if life % 2 == 0 {
            w2.kill();
        } else {
            w2.signal("TERM");
            assert_eq!(w2.wait().code(), Some(0), "{}", w2.log());
        }
    }
    cluster.until_whole();
    wait_for_ready_nodes(&cluster, &names, 3.0);
    for name in names {
        wait_for("w2 to be forgotten", || cluster.row(name, "w2").is_none().then_some(()));
        assert_eq!(cluster[name].figure(NODES), 3.0, "in any state");
    }
    assert_eq!(names.map(|name| cluster[name].figure(ANNOUNCED)), announced);
    assert_eq!(served_by(&cluster, "g1"), "w1");
}
