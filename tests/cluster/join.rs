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
    let good = cluster.direct("c1").replace("127.0.0.1", "localhost");
    let nameless = "no-such-host.invalid:7001";
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

/// Each knows one other node when it starts; in the end all know all.
#[test]
fn a_chain_of_seeds_becomes_a_whole() {
    let mut cluster = Cluster::new(&[]);
    let mut last: Option<String> = None;
    for (name, role) in [
        ("w1", "worker"),
        ("g1", "gateway"),
        ("w2", "worker"),
        ("c1", "controller"),
        ("w3", "worker"),
        ("g2", "gateway"),
        ("c2", "controller"),
        ("w4", "worker"),
    ] {
        let mut args = vec!["--engine", "fake"];
        if let Some(last) = &last {
            args.extend(["--seed", last]);
        }
        last = cluster.node(name, role, &args, &[]).cluster.clone();
    }
    cluster.until_whole();
    for gateway in ["g1", "g2"] {
        served_by(&cluster, gateway);
        assert_eq!(cluster.view(gateway)["leader"], "c1");
    }
}

/// A node that waits for its seeds can be stopped.
#[test]
fn a_node_that_is_joining_can_be_stopped() {
    let mut cluster = Cluster::new(&[]);
    let dead = cluster.reserve();
    for role in ["gateway", "controller", "worker"] {
        let node = cluster.node("n1", role, &["--engine", "fake", "--seed", &dead], &[]);
        node.signal("TERM");
        assert_eq!(node.wait().code(), Some(0), "{}", node.log());
    }
}

/// Nodes without names get some that differ.
#[test]
fn unnamed_nodes_join_too() {
    let mut cluster = Cluster::of(&["c1", "g1"]);
    for worker in ["first", "second"] {
        cluster.node(worker, "worker", &["--engine", "fake", "--name", "auto"], &[]);
    }
    let names = wait_for("two more names", || {
        let view = cluster.view("g1");
        let rows = view["nodes"].as_array().unwrap().iter();
        let names: Vec<String> = rows
            .filter(|row| row["state"] == "ready")
            .map(|row| row["name"].as_str().unwrap().to_owned())
            .filter(|name| name.starts_with("worker-"))
            .collect();
        (names.len() == 2).then_some(names)
    });
    assert_ne!(names[0], names[1]);
}

/// The cluster's port on IPv6.
#[test]
fn ipv6_links_nodes() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        // A machine without IPv6 has nothing to listen on.
        return;
    }
    let mut cluster = Cluster::new(&[]);
    let listen = ["--listen", "[::1]:0", "--engine", "fake"];
    for (name, role) in [("c1", "controller"), ("g1", "gateway"), ("w1", "worker")] {
        let node = cluster.node(name, role, &listen, &[]);
        assert!(node.cluster.as_ref().unwrap().starts_with("[::1]:"));
    }
    cluster.until_whole();
    assert_eq!(served_by(&cluster, "g1"), "w1");
}
