//! Who is turned away, with the reason on both sides and without harm to anybody: names, cookies, page sizes, ports.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use super::{COMPLETIONS, SLOW, Traffic, assert_there, completion, served_by};
use crate::harness::cluster::Cluster;
use crate::harness::node::Node;
use crate::harness::wait_for;

const LOST: &str = "actor_node_cluster_lost_nodes_total";
/// Nobody is taken for lost who is only slow.
const PATIENT: (&str, &str) = ("CLUSTER__SUSPECT_AFTER", "5m");
const REFUSED: &str = "actor_node_cluster_refused_nodes_total";
/// Roles and what starts them.
const ROLES: [(&str, &[&str]); 3] =
    [("gateway", &[]), ("controller", &[]), ("worker", &["--engine", "fake"])];

/// Waits until the log of one of these nodes has all `parts` in one line.
fn until_one_logs(cluster: &Cluster, names: &[&str], parts: &[&str]) {
    wait_for(&format!("one of {names:?} to log {parts:?}"), || {
        names
            .iter()
            .any(|name| {
                let log = cluster[*name].log();
                log.lines().any(|line| parts.iter().all(|part| line.contains(part)))
            })
            .then_some(())
    });
}

/// Asserts that these nodes are as they were.
fn assert_undisturbed(cluster: &Cluster, names: &[&str]) {
    assert_there(cluster, names, names);
    for name in names {
        assert_eq!(cluster[*name].figure(LOST), 0.0, "{}", cluster[*name].log());
    }
}

/// B86: the second of a name is turned away while the first is alive, which notices nothing.
#[test]
fn b86_the_name_of_a_live_node_is_taken() {
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1"], &[SLOW, PATIENT]);
    let traffic = Traffic::start(&cluster, "g1");
    for (name, role, args) in
        [("w1", "worker", &["--engine", "fake"][..]), ("g1", "gateway", &[]), ("c1", "controller", &[])]
    {
        let life = cluster.incarnation(name);
        let (status, log) = cluster.refused(name, role, args, &[]);
        assert!(!status.success(), "{status}");
        let said = format!("name `{name}` in use by {}", cluster.direct(name));
        assert!(log.contains(&said), "{said}\n{log}");
        until_one_logs(&cluster, &["c1", "g1", "w1"], &["turned away", &said]);
        assert_eq!(cluster.incarnation(name), life);
    }
    traffic.goes_on(&cluster, "g1");
    traffic.end();
    assert_undisturbed(&cluster, &["c1", "g1", "w1"]);
}

/// B86: the name of a node that is dead is free at once; that of one that stands still after a few heartbeats.
#[test]
fn b86_the_name_of_a_dead_or_frozen_node_is_free() {
    let mut cluster = Cluster::of(&["c1", "g1", "w1"]);
    cluster.take("w1").kill();
    cluster.worker("w1");
    cluster.until_whole();
    assert_eq!(served_by(&cluster, "g1"), "w1");

    let mut former = cluster.take("w1");
    former.pause();
    cluster.worker("w1");
    cluster.until_whole();
    assert_eq!(served_by(&cluster, "g1"), "w1");
    // The former one is back: its name is taken, it is kept out and lives on; nobody is disturbed.
    let life = cluster.incarnation("w1");
    former.resume();
    wait_for("the former one to be told", || former.log().contains("in use by").then_some(()));
    assert_eq!(cluster.incarnation("w1"), life);
    for name in ["c1", "g1"] {
        assert!(cluster.sees(name, "w1", life));
    }
    assert_eq!(served_by(&cluster, "g1"), "w1");
    assert!(former.is_alive());
}

/// B86: a wrong cookie is turned away by every role, and whatever the newcomer is.
#[test]
fn b86_a_wrong_cookie_is_refused() {
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1"], &[SLOW, PATIENT]);
    let traffic = Traffic::start(&cluster, "g1");
    for (role, args) in ROLES {
        for door in ["c1", "g1", "w1"] {
            let seed = cluster.direct(door);
            let args = [args, &["--seed", &seed]].concat();
            let before = cluster[door].figure_where(REFUSED, "wrong-cookie");
            let (status, log) = cluster.refused("stranger", role, &args, &[("COOKIE", "another secret")]);
            assert!(!status.success(), "{status}");
            assert!(log.contains("wrong cookie"), "{log}");
            assert!(!log.contains("another secret"), "a cookie is never logged: {log}");
            until_one_logs(&cluster, &[door], &["turned away", "wrong cookie"]);
            assert!(cluster[door].figure_where(REFUSED, "wrong-cookie") > before);
        }
    }
    traffic.goes_on(&cluster, "g1");
    traffic.end();
    assert_undisturbed(&cluster, &["c1", "g1", "w1"]);
}

/// B86: a cookie that is empty, not there or readable by others ends every role before it does anything.
#[test]
fn b86_a_cookie_that_is_none_is_an_error() {
    let mut cluster = Cluster::new(&[]);
    let file = |name: &str, text: &str, mode: u32| {
        let path = cluster.dir().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let (empty, open) = (file("empty", "\n", 0o600), file("open", "hush-hush\n", 0o644));
    let missing = cluster.dir().join("missing").display().to_string();
    for (role, args) in ROLES {
        for (path, what) in [(&empty, "is empty"), (&open, "chmod 600"), (&missing, "No such file")] {
            let (status, log) = cluster.refused("n1", role, &[args, &["--cookie-file", path]].concat(), &[]);
            assert!(!status.success(), "{status}");
            assert!(log.contains(path) && log.contains(what), "{log}");
            assert!(!log.contains("hush-hush") && !log.contains("panicked"), "{log}");
        }
        let (status, log) = cluster.refused("n1", role, args, &[("COOKIE", "")]);
        assert!(!status.success(), "{status}");
        assert!(log.contains("ACTOR_NODE_COOKIE is empty"), "{log}");
    }
    assert!(!cluster.dir().join("actor-node").exists(), "no other cookie was made in place of a wrong one");
}

/// B86: who can be reached from other machines needs a cookie on purpose.
#[test]
fn b86_listening_beyond_loopback_demands_a_cookie() {
    let mut cluster = Cluster::new(&[]);
    let listen = ["--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:0"];
    for (role, args) in ROLES {
        let (status, log) = cluster.refused("n1", role, &[args, &listen].concat(), &[]);
        assert!(!status.success(), "{status}");
        assert!(log.contains("--cookie-file") && log.contains("ACTOR_NODE_COOKIE"), "{log}");
    }
    let cookie = [("COOKIE", "a secret of ours")];
    cluster.node("c1", "controller", &listen, &cookie);
    cluster.node("g1", "gateway", &listen, &cookie);
    cluster.node("w1", "worker", &[&["--engine", "fake"], &listen[..]].concat(), &cookie);
    cluster.until_whole();
    assert_eq!(served_by(&cluster, "g1"), "w1");
}

/// An address that listens everywhere is none that another node could dial.
#[test]
fn listening_on_every_address_demands_one_to_be_reached_at() {
    let mut cluster = Cluster::new(&[("COOKIE", "a secret of ours")]);
    for (role, args) in ROLES {
        let (status, log) = cluster.refused("n1", role, &[args, &["--listen", "0.0.0.0:0"]].concat(), &[]);
        assert!(!status.success(), "{status}");
        assert!(log.contains("cluster.listen") && log.contains("--advertise"), "{log}");
    }
}

/// As Erlang does: the first node makes a cookie that only its user can read, the next one uses it.
#[test]
fn a_cookie_is_made_on_first_use() {
    let mut cluster = Cluster::of(&["c1"]);
    let path = cluster.dir().join("actor-node/cookie");
    let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "{mode:o}");
    let cookie = fs::read_to_string(&path).unwrap();
    assert!(cookie.trim().len() >= 32, "not to be guessed");
    cluster.gateway("g1");
    cluster.until_whole();
    assert_eq!(fs::read_to_string(&path).unwrap(), cookie);
    for name in ["c1", "g1"] {
        assert!(!cluster[name].log().contains(cookie.trim()), "a cookie is never logged");
    }
}

/// B37: a worker whose pages have another size is turned away, with the reason at both ends.
#[test]
fn b37_another_page_size_is_refused() {
    let mut cluster = Cluster::of_with(&["c1", "g1", "w1"], &[PATIENT]);
    for door in ["c1", "g1", "w1"] {
        let seed = cluster.direct(door);
        let args = ["--engine", "fake", "--page-tokens", "32", "--seed", &seed];
        let (status, log) = cluster.refused("w2", "worker", &args, &[]);
        assert!(!status.success(), "{status}");
        assert!(log.contains("pages of 32 tokens here, of 16 there"), "{log}");
        until_one_logs(&cluster, &[door], &["turned away", "w2", "pages of 16 tokens here, of 32 there"]);
    }
    assert_undisturbed(&cluster, &["c1", "g1", "w1"]);
    assert_eq!(served_by(&cluster, "g1"), "w1");
}

/// B94: a taken cluster port is found before anything is loaded, and named with its option; 0 takes a free one.
#[test]
fn b94_a_taken_cluster_port_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut cluster = Cluster::new(&[]);
    for role in ["gateway", "controller", "worker"] {
        // The model does not exist: which of the two is looked at first shows.
        let args = ["--model", "file:no-such.gguf", "--listen", &address];
        let (status, log) = cluster.refused("n1", role, &args, &[]);
        assert!(!status.success(), "{status}");
        assert!(log.contains(&address) && log.contains("--listen"), "{log}");
        assert!(!log.contains("no-such.gguf") && !log.contains("panicked"), "{log}");
    }
    let node = cluster.controller("c1");
    let (host, port) = node.cluster.as_ref().unwrap().rsplit_once(':').unwrap();
    assert_eq!(host, "127.0.0.1");
    assert_ne!(port.parse::<u16>().unwrap(), 0);
}

/// Whatever else comes to the port of the cluster is no harm.
#[test]
fn strangers_at_the_cluster_port_are_no_harm() {
    let cluster = Cluster::of_with(&["c1", "g1", "w1"], &[PATIENT]);
    for name in ["c1", "g1", "w1"] {
        let base = format!("http://{}", cluster.direct(name));
        let parts: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", &[0; 64], &[0xff; 1 << 16], b""];
        let silent: Vec<_> =
            (0..100).map(|i| crate::harness::http::Raw::bytes(&base, &[parts[i % parts.len()]])).collect();
        cluster["g1"].client().ok(COMPLETIONS, &completion("undisturbed", 3));
        drop(silent);
    }
    assert_undisturbed(&cluster, &["c1", "g1", "w1"]);
}

/// A name that cannot be one is an error of the command line.
#[test]
fn a_name_that_is_none_is_an_error() {
    let (status, log) = Node::refused(&["--role", "controller", "--name", "a b"], &[]);
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(log.contains("cluster.name"), "{log}");
}
