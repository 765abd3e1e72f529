//! What nodes tell: readiness, the view of the cluster, `actor-node status`.

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use serde_json::Value;

use super::served_by;
use crate::harness::cluster::Cluster;
use crate::harness::node::binary;
use crate::harness::wait_for;

fn status(args: &[&str]) -> Output {
    binary().arg("status").args(args).output().unwrap()
}

/// B91: a gateway without workers is not ready, and is when there is one.
#[test]
fn b91_a_gateway_without_workers_is_not_ready() {
    let mut cluster = Cluster::of(&["c1", "g1"]);
    let (status, reason) = cluster.readiness("g1");
    assert_eq!(status, 503);
    assert!(reason.contains("no model"), "{reason}");
    assert_eq!(cluster.readiness("c1").0, 200, "a controller needs none");
    let client = cluster["g1"].client();
    assert_eq!(client.get("/v1/models").unwrap().json()["data"], serde_json::json!([]));
    let early = client.post(super::COMPLETIONS, &super::completion("early", 2));
    assert!(early.header("retry-after").is_some());
    early.error(503);
    cluster.worker("w1");
    cluster.until_whole();
    assert_eq!(served_by(&cluster, "g1"), "w1");
    assert_eq!(client.get("/v1/models").unwrap().json()["data"][0]["id"], "fake");
    let life = cluster.incarnation("w1");
    cluster["w1"].kill();
    cluster.until_lost(&["g1"], "w1", life, std::time::Instant::now());
    wait_for("the gateway to say so", || (cluster.readiness("g1").0 == 503).then_some(()));
}

/// A node without gateway has an HTTP side for those who look after it, and nothing else there.
#[test]
fn a_node_without_gateway_answers_to_its_keepers() {
    let cluster = Cluster::of(&["c1", "g1", "w1"]);
    for name in ["c1", "w1"] {
        let client = cluster[name].client();
        for path in ["/health", "/readiness", "/ready", "/liveness"] {
            assert_eq!(client.get(path).unwrap().status, 200, "{name} {path}");
        }
        let figures = client.get("/metrics").unwrap();
        assert!(figures.header("content-type").unwrap().starts_with("text/plain"));
        assert!(figures.text().contains("actor_node_cluster_nodes{state=\"ready\"} 3"), "{}", figures.text());
        assert_eq!(client.get("/v1/cluster").unwrap().json()["node"], name);
        for path in ["/v1/models", "/", "/no/such/path"] {
            let error = client.get(path).unwrap().error(404);
            assert!(error["message"].as_str().unwrap().contains("gateway"), "{error}");
        }
        client.post(super::COMPLETIONS, &super::completion("wrong door", 2)).error(404);
    }
    // The gateway has the view too.
    assert_eq!(cluster["g1"].client().get("/v1/cluster").unwrap().json()["node"], "g1");
}

/// From any node: all nodes with roles, state, load and models.
#[test]
fn status_shows_the_cluster_from_any_node() {
    let cluster = Cluster::of(&["c1", "g1", "w1", "w2"]);
    for name in ["c1", "g1", "w1"] {
        for worker in ["w1", "w2"] {
            super::until_kv_is_known(&cluster, name, worker);
        }
    }
    for name in ["c1", "g1", "w1"] {
        let base = cluster[name].base.clone();
        for at in [base.as_str(), base.strip_prefix("http://").unwrap()] {
            let out = status(&["--at", at]);
            let text = String::from_utf8(out.stdout).unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            for (node, parts) in [
                ("c1", &["controller", "ready"][..]),
                ("g1", &["gateway", "ready"]),
                ("w1", &["worker", "ready", "fake", "0% of "]),
                ("w2", &["worker", "ready", "fake", "0% of "]),
            ] {
                let line = text.lines().find(|line| line.starts_with(&format!("{node} ")));
                let line = line.unwrap_or_else(|| panic!("no line of {node} in\n{text}"));
                let address = cluster.direct(node);
                assert!(parts.iter().chain(&[address.as_str()]).all(|part| line.contains(part)), "{text}");
            }
            assert!(text.contains(&format!("seen from {name}")) && text.contains("placed by c1"), "{text}");
        }
        let out = status(&["--json", "--at", &base]);
        assert!(out.status.success());
        let view: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(view["node"], name);
        assert_eq!(view["nodes"].as_array().unwrap().len(), 4);
        let worker = view["nodes"].as_array().unwrap().iter().find(|row| row["name"] == "w2").unwrap();
        assert!(worker["worker"]["kv_pages_total"].as_u64().unwrap() > 0, "{worker}");
    }
}

/// A node that is not there, or something else: one line that says what to do.
#[test]
fn status_of_nobody_says_what_to_do() {
    let mut cluster = Cluster::of(&["c1"]);
    let (nobody, no_http) = (cluster.reserve(), cluster.direct("c1"));
    for at in [nobody.as_str(), &no_http, "no-such-host.invalid:80"] {
        let out = status(&["--at", at]);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(text.contains(at) && !text.contains("panicked"), "{text}");
        assert!(out.stdout.is_empty());
    }
    let out = status(&["--at", &nobody]);
    assert!(String::from_utf8(out.stderr).unwrap().contains("--at HOST:PORT"));
}

/// `--watch` goes on until nobody reads it.
#[test]
fn status_watch_ends_with_its_reader() {
    let cluster = Cluster::of(&["c1"]);
    let mut child = binary()
        .args(["status", "--watch", "--at", &cluster["c1"].base])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut tables = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        tables += usize::from(line.unwrap().starts_with("seen from c1"));
        if tables == 2 {
            break;
        }
    }
    assert_eq!(tables, 2, "it shows the cluster again");
    // Its reader is gone now.
    let status = wait_for("the command to end", || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
