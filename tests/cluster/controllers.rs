//! Controllers: one leads; none is needed; one that stalls or dies is no reason for anybody to fail.

use std::time::Instant;

use super::{SLOW, Traffic, served_by};
use crate::harness::cluster::Cluster;
use crate::harness::wait_for;

const WITHOUT_CONTROLLER: &str = "actor_node_without_controller";
const STAND_IN: &str = "actor_node_stand_in_placements_total";

fn wait_for_leader(cluster: &Cluster, watchers: &[&str], leader: Option<&str>) {
    for watcher in watchers {
        wait_for(&format!("{watcher} to follow {leader:?}"), || {
            (cluster.view(watcher)["leader"].as_str() == leader).then_some(())
        });
    }
}

/// B83: a controller that stands still for longer than `suspect-after` fails no request; it is back by itself, and who
/// came meanwhile has waited.
#[test]
fn b83_a_frozen_controller_fails_nothing() {
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1", "w2"], &[SLOW]);
    let traffic = Traffic::start(&cluster, "g1");
    let (life, seed) = (cluster.incarnation("c1"), cluster.direct("c1"));
    cluster["c1"].pause();
    cluster.node("w3", "worker", &["--engine", "fake", "--seed", &seed], &[]);
    cluster.until_lost(&["g1", "w1", "w2"], "c1", life, Instant::now());
    traffic.goes_on(&cluster, "g1");
    let (status, reason) = cluster.readiness("w3");
    assert_eq!(status, 503);
    assert!(reason.contains("joining"), "{reason}");
    cluster["c1"].resume();
    cluster.until_whole();
    traffic.goes_on(&cluster, "g1");
    traffic.end();
    wait_for_leader(&cluster, &["g1", "w1", "w2", "w3"], Some("c1"));
}

/// B83: the same for one that is killed and started again.
#[test]
fn b83_a_restarted_controller_fails_nothing() {
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1", "w2"], &[SLOW]);
    let traffic = Traffic::start(&cluster, "g1");
    for _ in 0..3 {
        cluster["c1"].kill();
        wait_for_leader(&cluster, &["g1"], None);
        traffic.goes_on(&cluster, "g1");
        cluster["c1"].restart();
        cluster.until_whole();
        wait_for_leader(&cluster, &["g1", "w1", "w2"], Some("c1"));
        traffic.goes_on(&cluster, "g1");
    }
    traffic.end();
    for worker in ["w1", "w2"] {
        cluster[worker].assert_idle();
    }
}

/// Two controllers: the older one leads. Its loss harms no stream, the other one takes over, and it follows when it is back.
#[test]
fn a_lost_leader_is_followed_by_the_other_controller() {
    let mut cluster = Cluster::of_with(&["c1", "c2", "g1", "w1", "w2"], &[SLOW]);
    let others = ["c2", "g1", "w1", "w2"];
    wait_for_leader(&cluster, &others, Some("c1"));
    let traffic = Traffic::start(&cluster, "g1");
    cluster["c1"].kill();
    wait_for_leader(&cluster, &others, Some("c2"));
    traffic.goes_on(&cluster, "g1");
    assert_eq!(cluster["g1"].figure(WITHOUT_CONTROLLER), 0.0);
    cluster["c1"].restart();
    cluster.until_whole();
    wait_for_leader(&cluster, &["c1", "c2", "g1", "w1", "w2"], Some("c2"));
    traffic.goes_on(&cluster, "g1");
    traffic.end();
    let placed = cluster["g1"].figure(STAND_IN);
    served_by(&cluster, "g1");
    assert_eq!(cluster["g1"].figure(STAND_IN), placed, "the new leader places");
}

/// Without any controller a gateway places by itself and says so; one that joins takes over.
#[test]
fn a_gateway_without_controller_serves() {
    let mut cluster = Cluster::of(&["g1", "w1"]);
    assert_eq!(served_by(&cluster, "g1"), "w1");
    assert_eq!(cluster["g1"].figure(WITHOUT_CONTROLLER), 1.0);
    assert_eq!(cluster["g1"].figure(STAND_IN), 1.0);
    assert!(cluster.view("g1")["leader"].is_null());
    cluster.controller("c1");
    cluster.until_whole();
    wait_for_leader(&cluster, &["g1", "w1"], Some("c1"));
    cluster["g1"].wait_for_figure(WITHOUT_CONTROLLER, 0.0);
    wait_for("the controller to place", || {
        let before = cluster["g1"].figure(STAND_IN);
        assert_eq!(served_by(&cluster, "g1"), "w1");
        (cluster["g1"].figure(STAND_IN) == before).then_some(())
    });
    cluster["c1"].kill();
    wait_for_leader(&cluster, &["g1"], None);
    cluster["g1"].wait_for_figure(WITHOUT_CONTROLLER, 1.0);
    assert_eq!(served_by(&cluster, "g1"), "w1");
}

/// B83: a controller that has just started or is cut off from the workers knows none; a gateway that sees some goes by its
/// own choice and does not take that for the truth.
#[test]
fn a_controller_that_meets_no_worker_is_no_reason_to_fail() {
    let mut cluster = Cluster::behind_proxies(&[SLOW]);
    cluster.gateway("g1");
    let gateway = cluster.direct("g1");
    cluster.node("c1", "controller", &["--seed", &gateway], &[]);
    cluster.node("w1", "worker", &["--engine", "fake", "--seed", &gateway], &[]);
    cluster.until_whole();
    let traffic = Traffic::start(&cluster, "g1");
    let life = cluster.incarnation("w1");
    cluster.cut();
    cluster.until_lost(&["c1"], "w1", life, Instant::now());
    traffic.goes_on(&cluster, "g1");
    assert_eq!(cluster.view("g1")["leader"], "c1");
    // One that never met a worker does not even know the model.
    cluster["c1"].restart();
    wait_for_leader(&cluster, &["g1"], None);
    wait_for_leader(&cluster, &["g1"], Some("c1"));
    traffic.goes_on(&cluster, "g1");
    assert!(cluster.row("c1", "w1").is_none_or(|row| row["state"] != "ready"));
    let unknown = cluster["g1"].client().post(
        super::COMPLETIONS,
        &serde_json::json!({"model": "no-such-model", "prompt": "x", "max_tokens": 1}),
    );
    unknown.error(404);
    cluster.heal();
    cluster.until_whole();
    traffic.goes_on(&cluster, "g1");
    traffic.end();
}
