//! Joining: any order, any seeds, any number of restarts.

use super::served_by;
use crate::harness::cluster::Cluster;
use crate::harness::wait_for;

#[test]
fn nodes_of_all_roles_form_a_cluster_and_serve() {
    let cluster = Cluster::of(&["c1", "g1", "w1"]);
    assert_eq!(served_by(&cluster, "g1"), "w1");
    for name in ["c1", "g1", "w1"] {
        assert_eq!(cluster.view(name)["leader"], "c1");
        assert_eq!(cluster.view(name)["node"], name);
    }
}

/// B85: workers that are first wait and say what for; they join when somebody is there.
#[test]
fn b85_workers_wait_for_the_first_seed() {
    let mut cluster = Cluster::new(&[]);
    let seed = cluster.reserve();
    for name in ["w1", "w2"] {
        cluster.node(name, "worker", &["--engine", "fake", "--seed", &seed], &[]);
    }
    for name in ["w1", "w2"] {
        let reason = wait_for("the only thing that is missing to be the seed", || {
            let (status, reason) = cluster.readiness(name);
            assert_eq!(status, 503);
            reason.contains("joining").then_some(reason)
        });
        assert!(reason.contains("seed"), "{reason}");
        assert_eq!(cluster.view(name)["joined"], false);
    }
    // A controller whose only seed is itself begins the cluster.
    cluster.node("c1", "controller", &["--listen", &seed, "--seed", &seed], &[]);
    cluster.node("g1", "gateway", &["--seed", &format!("tcp://{seed}")], &[]);
    cluster.until_whole();
    served_by(&cluster, "g1");
    let log = cluster["w1"].log();
    let tries = log.lines().filter(|line| line.contains("cannot reach a node")).count();
    assert_eq!(tries, 1, "one line, however often it tried\n{log}");
}

/// B85: seeds where nobody is, where somebody else is, and that have no address do not keep a node from a good one.
#[test]
fn b85_one_good_seed_is_enough() {
    let mut cluster = Cluster::of(&["c1", "g1"]);
    let dead = cluster.reserve();
    let http = cluster["c1"].base.strip_prefix("http://").unwrap().to_owned();
    let (nameless, good) = ("no-such-host.invalid:7001", cluster.direct("c1"));
    let bad = [dead.as_str(), &http, nameless];
    let mut args = vec!["--engine", "fake"];
    for seed in [bad[0], bad[1], bad[2], &good] {
        args.extend(["--seed", seed]);
    }
    cluster.node("w1", "worker", &args, &[]);
    cluster.until_whole();
    assert_eq!(served_by(&cluster, "g1"), "w1");
    for seed in bad {
        wait_for("the log to name each seed that is of no use", || {
            cluster["w1"].log().lines().any(|l| l.contains("cannot reach") && l.contains(seed)).then_some(())
        });
    }
}

/// B85: a node that is back on its old port at once is taken in at once, in its new life.
#[test]
fn b85_quick_restarts_on_the_same_port() {
    let mut cluster = Cluster::of(&["c1", "g1", "w1"]);
    let address = cluster.direct("w1");
    for _ in 0..5 {
        let life = cluster.incarnation("w1");
        cluster["w1"].restart();
        cluster.until_whole();
        assert!(cluster.incarnation("w1") > life);
        assert_eq!(cluster.direct("w1"), address);
        assert_eq!(served_by(&cluster, "g1"), "w1");
    }
}

/// B85: all seeds are gone at once and come back while the others live.
#[test]
fn b85_all_seeds_restart_at_once() {
    let mut cluster = Cluster::of(&["c1", "c2"]);
    let seeds = [cluster.direct("c1"), cluster.direct("c2")];
    let args = ["--seed", &seeds[0], "--seed", &seeds[1]];
    cluster.node("g1", "gateway", &args, &[]);
    cluster.node("w1", "worker", &[&args[..], &["--engine", "fake"]].concat(), &[]);
    cluster.until_whole();
    let lives = [cluster.incarnation("g1"), cluster.incarnation("w1")];
    for name in ["c1", "c2"] {
        cluster[name].kill();
    }
    cluster.until_whole();
    assert_eq!(served_by(&cluster, "g1"), "w1");
    for name in ["c1", "c2"] {
        cluster[name].restart();
    }
    cluster.until_whole();
    assert_eq!(served_by(&cluster, "g1"), "w1");
    assert_eq!([cluster.incarnation("g1"), cluster.incarnation("w1")], lives, "they were never alone");
}

/// B85: once joined, a node needs its seed no more, and others join through it.
#[test]
fn b85_a_lost_seed_is_no_harm() {
    let mut cluster = Cluster::of(&["c1", "g1", "w1"]);
    let gateway = cluster.direct("g1");
    cluster["c1"].kill();
    cluster.node("w2", "worker", &["--engine", "fake", "--seed", &gateway], &[]);
    cluster.until_whole();
    assert!(cluster.row("w1", "w2").is_some_and(|row| row["state"] == "ready"), "the workers met by gossip");
    served_by(&cluster, "g1");
}

/// `controller` and `gateways` are seeds too.
#[test]
fn the_keys_controller_and_gateways_are_seeds() {
    let mut cluster = Cluster::of(&["c1", "g1"]);
    let controller = format!("tcp://{}", cluster.direct("c1"));
    let dead = cluster.reserve();
    let gateways = format!("{dead},{}", cluster.direct("g1"));
    let args = ["--engine", "fake", "--seed", &dead];
    cluster.node("w1", "worker", &args, &[("CLUSTER__CONTROLLER", &controller)]);
    cluster.node("w2", "worker", &args, &[("CLUSTER__GATEWAYS", &gateways)]);
    cluster.until_whole();
}

/// A node with all roles joins like any other.
#[test]
fn whole_nodes_join_each_other() {
    let mut cluster = Cluster::new(&[]);
    for name in ["n1", "n2", "n3"] {
        cluster.node(name, "gateway,controller,worker", &["--engine", "fake"], &[]);
    }
    cluster.until_whole();
    for name in ["n1", "n2", "n3"] {
        served_by(&cluster, name);
        assert_eq!(cluster.view(name)["leader"], "n1", "the oldest controller leads");
    }
}
