//! Configuration that is read again while requests run: whole, or not at all.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{COMPLETIONS, PATIENT, Routed, ask, ask_with, completion, text};
use crate::harness::cluster::Cluster;
use crate::harness::http::{Client, join};
use crate::harness::node::Node;
use crate::harness::wait_for;

const RELOADS: &str = "actor_node_reloads_total";
const DECISIONS: &str = "actor_node_policy_decisions_total";

/// What can be reloaded into a controller.
const GOOD: [&str; 5] = [
    "",
    "[cluster]\ncluster-policies = [\"session-affinity\", \"cache-aware\"]\n",
    "[cluster]\ncluster-policies = []\n[policy.cache-aware]\nweight = 3\n",
    "[policy.cache-aware]\nmode = \"shadow\"\ncache-threshold = 0.5\n[policy.session-affinity]\nidle-timeout = \"5m\"\n",
    "[policy.cache-aware]\nmode = \"prod\"\nweight = 2.5\n[policy.session-affinity]\nmode = \"off\"\n",
];
/// What cannot, and what has to be said about it.
const BAD: [(&str, [&str; 2]); 6] = [
    (
        "[cluster]\ncluster-policies = [\"cache-aware\", \"clairvoyant\"]\n",
        ["cluster.cluster-policies", "clairvoyant"],
    ),
    (
        "[cluster]\ncluster-policies = [\"cache-aware\", \"cache-aware\"]\n",
        ["cluster.cluster-policies", "cache-aware"],
    ),
    ("[policy.cache-aware]\ncache-threshold = 1.5\n", ["policy.cache-aware.cache-threshold", "use 0 to 1"]),
    (
        "[policy.session-affinity]\nidle-timeout = \"0s\"\n",
        ["policy.session-affinity.idle-timeout", "use more than 0s"],
    ),
    ("[policy.cache-aware]\nmode = \"sometimes\"\n", ["mode", "sometimes"]),
    ("[policy.cache-aware\n", ["node.toml", "1"]),
];

/// A cluster whose controller and gateway have a file each.
struct Filed {
    cluster: Routed,
    dir: TempDir,
}

impl Filed {
    fn start(workers: &[&str], keys: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::new(&[&[PATIENT], keys].concat());
        for (name, roles) in [("c1", "controller"), ("g1", "gateway")] {
            let file = file(dir.path(), name);
            std::fs::create_dir(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "").unwrap();
            cluster.node(name, roles, &["--config", file.to_str().unwrap()], &[]);
        }
        for name in workers {
            cluster.worker(name);
        }
        Self { cluster: Routed::from(cluster), dir }
    }

    fn write(&self, node: &str, text: &str) {
        std::fs::write(file(self.dir.path(), node), text).unwrap();
    }

    /// Asks by HTTP: status and report.
    fn post(&self, node: &str) -> (u16, Value) {
        let answer = self.cluster[node].client().post("/v1/reload", &json!({}));
        (answer.status, answer.json())
    }

    /// Asks by signal, and waits until the figures say what came of it.
    fn signal(&self, node: &str) -> bool {
        let count = |result: &str| self.cluster[node].figure_where(RELOADS, &format!("result=\"{result}\""));
        let (good, bad) = (count("reloaded"), count("refused"));
        self.cluster[node].signal("HUP");
        wait_for("the reload to end", || match (count("reloaded") > good, count("refused") > bad) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        })
    }

    /// The policies in effect: name, mode, weight.
    fn policies(&self) -> Value {
        policies(&self.cluster["c1"])
    }
}

fn file(dir: &Path, node: &str) -> PathBuf {
    dir.join(node).join("node.toml")
}

fn policies(node: &Node) -> Value {
    let view = node.client().get("/v1/policies").unwrap().json();
    let of = |row: &Value| json!([row["name"], row["mode"], row["weight"]]);
    view["data"].as_array().unwrap_or_else(|| panic!("policies in {view}")).iter().map(of).collect()
}

/// Clients that stream until they are told to stop.
fn stream_until(stop: &AtomicBool, served: &AtomicU32, client: &Client, name: &str) {
    let expected = join(&client.stream(COMPLETIONS, &completion(&text(name, 200), 20))).choices;
    while !stop.load(Ordering::Relaxed) {
        let got = join(&client.stream(COMPLETIONS, &completion(&text(name, 200), 20)));
        assert_eq!(got.choices, expected, "{name}");
        served.fetch_add(1, Ordering::Relaxed);
    }
}

/// Stops the streams when the test goes on or fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn reloads_under_load_fail_no_request() {
    let filed = Filed::start(&["w1", "w2", "w3"], &[("ENGINE__FAKE__STEP_OVERHEAD", "2ms")]);
    let (stop, served) = (AtomicBool::new(false), AtomicU32::new(0));
    let client = filed.cluster["g1"].client();
    std::thread::scope(|scope| {
        let names: Vec<String> = (0..8).map(|i| format!("client {i}")).collect();
        let clients: Vec<_> = names
            .into_iter()
            .map(|name| {
                let (stop, served, client) = (&stop, &served, &client);
                scope.spawn(move || stream_until(stop, served, client, &name))
            })
            .collect();
        let stopped = Stop(&stop);
        for round in 0..20 {
            let before = (filed.policies(), served.load(Ordering::Relaxed));
            let good = round % 2 == 0;
            if good {
                filed.write("c1", GOOD[(round / 2) % GOOD.len()]);
            } else {
                filed.write("c1", BAD[(round / 2) % BAD.len()].0);
            }
            let done =
                if round % 3 == 0 { filed.signal("c1") } else { filed.post("c1").1["reloaded"] == true };
            assert_eq!(done, good, "round {round}");
            if !good {
                assert_eq!(filed.policies(), before.0, "a refused file changes nothing");
            }
            // A gateway reloads as well: its limits, and the streams that it has go on.
            filed.write("g1", &format!("[gateway]\nmax-n = {}\n", 1 + round % 7));
            assert_eq!(filed.post("g1").0, 200);
            wait_for("requests between two reloads", || {
                assert!(clients.iter().all(|c| !c.is_finished()), "a client failed; see its panic");
                (served.load(Ordering::Relaxed) >= before.1 + 8).then_some(())
            });
        }
        drop(stopped);
        for client in clients {
            client.join().expect("no request fails");
        }
    });
    let requests = filed.cluster["g1"].figure("actor_node_requests_total");
    assert_eq!(
        filed.cluster["g1"].figure_where("actor_node_requests_total", "outcome=\"success\""),
        requests
    );
    assert_eq!(requests, f64::from(served.load(Ordering::Relaxed) + 8));
    assert_eq!(filed.cluster["c1"].figure_where(RELOADS, "result=\"refused\""), 10.0);
    filed.cluster.settle();
    for name in ["c1", "g1"] {
        assert_eq!(filed.cluster[name].figure("actor_node_broken_invariants_total"), 0.0);
        assert_eq!(filed.cluster[name].figure("actor_node_task_panics_total"), 0.0);
        assert_eq!(
            filed.cluster[name].figure("actor_node_actor_restarts_total"),
            0.0,
            "{}",
            filed.cluster[name].log()
        );
    }
}

/// A file that is refused changes nothing and says which key breaks which rule; keys that a running node cannot change
/// are named, and the others of the same file count.
#[test]
fn refusals_name_the_key_and_the_rule() {
    let filed = Filed::start(&["w1"], &[]);
    let before = filed.policies();
    for (text, needles) in BAD {
        filed.write("c1", text);
        let (status, report) = filed.post("c1");
        assert_eq!((status, &report["reloaded"]), (422, &json!(false)), "{report} for {text}");
        let error = report["error"].as_str().expect("why");
        assert!(needles.iter().all(|needle| error.contains(needle)), "{error:?} for {text}");
        assert_eq!(report["applied"], json!([]));
        assert_eq!(filed.policies(), before);
        assert!(!filed.signal("c1"));
    }
    assert!(filed.cluster["c1"].log().contains("reload refused"), "{}", filed.cluster["c1"].log());

    filed.write(
        "c1",
        "[controller]\nqueue-limit = 7\n[log]\nformat = \"json\"\n[policy.cache-aware]\nweight = 4\n",
    );
    let (status, report) = filed.post("c1");
    assert_eq!(status, 200, "{report}");
    assert_eq!(report["applied"], json!(["policy.cache-aware.weight"]));
    let mut restart: Vec<&str> =
        report["needs_restart"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
    restart.sort_unstable();
    assert_eq!(restart, ["controller.queue-limit", "log.format"]);
    assert_eq!(filed.policies()[0], json!(["cache-aware", "prod", 4.0]));
    // Nothing of it is forgotten by the next one.
    assert_eq!(filed.post("c1").1["applied"], json!([]));
    assert_eq!(filed.post("c1").1["needs_restart"].as_array().unwrap().len(), 2);
}

/// B88: what a running node has made of a file is what a node makes of it that starts with it.
#[test]
fn b88_a_reloaded_file_is_what_a_fresh_start_makes_of_it() {
    let filed = Filed::start(&["w1"], &[]);
    let client = filed.cluster["g1"].client();
    for (i, text_of_file) in GOOD.into_iter().enumerate().rev() {
        filed.write("c1", text_of_file);
        let (status, report) = filed.post("c1");
        assert_eq!((status, &report["error"]), (200, &Value::Null), "{report}");
        let fresh = Filed::start(&["w1"], &[]);
        fresh.write("c1", text_of_file);
        let mut fresh = fresh;
        fresh.cluster["c1"].restart();
        let fresh = Filed { cluster: Routed::from(fresh.cluster.0), dir: fresh.dir };
        assert_eq!(filed.policies(), fresh.policies(), "{text_of_file}");
        // And they behave alike: the same stages, in the same order.
        let said = |client: &Client| {
            let session = format!("file {i}");
            let request = completion(&text(&session, 100), 2);
            let served = ask_with(client, COMPLETIONS, &[("x-session-id", &session)], &request);
            let stages = served.body["stages"][0]["stages"].as_array().unwrap().clone();
            stages.iter().map(|s| json!([s["policy"], s["mode"], s["action"]])).collect::<Vec<_>>()
        };
        assert_eq!(said(&client), said(&fresh.cluster["g1"].client()), "{text_of_file}");
    }
}

/// Options that are reloaded count, and so do those of a gateway.
#[test]
fn reloaded_options_take_effect() {
    let filed = Filed::start(&["w1", "w2"], &[]);
    let client = filed.cluster["g1"].client();
    let warm = completion(&text("warm", 300), 2);
    let home = ask(&client, &warm).worker;
    filed.cluster.settle();
    assert_eq!(ask(&client, &warm).action("cache-aware"), "hit");
    // Of a prompt of 300 tokens 288 are held: not more than nearly all.
    filed.write("c1", "[policy.cache-aware]\ncache-threshold = 0.99\n");
    assert_eq!(filed.post("c1").1["applied"], json!(["policy.cache-aware.cache-threshold"]));
    assert_eq!(ask(&client, &warm).action("cache-aware"), "cold");
    filed.write("c1", "");
    assert_eq!(filed.post("c1").0, 200);
    filed.cluster.settle();
    let again = ask(&client, &warm);
    assert!(
        again.action("cache-aware") == "hit" && again.cached() > 200,
        "the directory stays: {again:?} {home}"
    );

    let two = json!({"model": "default", "prompt": "two", "max_tokens": 1, "n": 2});
    client.ok(COMPLETIONS, &two);
    filed.write("g1", "[gateway]\nmax-n = 1\n");
    assert_eq!(filed.post("g1").1["applied"], json!(["gateway.max-n"]));
    wait_for("the gateway's new limit", || (client.post(COMPLETIONS, &two).status == 400).then_some(()));
    let error = client.post(COMPLETIONS, &two).error(400);
    assert!(error["message"].as_str().unwrap().contains("gateway.max-n"), "{error}");
}

/// B89: what runs in the background runs after reloads too, and once: every request is thought about once a policy, lost
/// workers are noticed, sessions expire, figures are told.
#[test]
fn b89_background_work_survives_reloads() {
    let mut filed = Filed::start(&["w1", "w2"], &[]);
    let client = filed.cluster["g1"].client();
    for weight in ["2", "3", "4"] {
        filed.write(
            "c1",
            &format!(
                "[policy.cache-aware]\nweight = {weight}\n[policy.session-affinity]\nidle-timeout = \"1ms\"\n"
            ),
        );
        assert_eq!(filed.post("c1").0, 200);
    }
    let before = filed.cluster["c1"].figure(DECISIONS);
    for i in 0..10 {
        ask(&client, &completion(&text(&format!("after {i}"), 50), 2));
    }
    // Four policies and the placement itself.
    assert_eq!(filed.cluster["c1"].figure(DECISIONS), before + 50.0);

    let named = [("x-session-id", "forgotten soon")];
    let request = completion(&text("session", 50), 2);
    ask_with(&client, COMPLETIONS, &named, &request);
    wait_for("the session to expire", || {
        (ask_with(&client, COMPLETIONS, &named, &request).action("session-affinity") == "hash").then_some(())
    });

    let life = filed.cluster.incarnation("w1");
    let killed = std::time::Instant::now();
    filed.cluster["w1"].kill();
    filed.cluster.until_lost(&["c1", "g1"], "w1", life, killed);
    wait_for("w1 to leave the placement", || (filed.cluster.workers() == ["w2"]).then_some(()));
    wait_for("w1 to leave the directory", || (filed.cluster.directory().len() == 1).then_some(()));
    for i in 0..5 {
        assert_eq!(ask(&client, &completion(&text(&format!("left {i}"), 50), 2)).worker, "w2");
    }
    // The tick of the controller sets this one.
    filed.cluster["c1"].wait_for_figure("actor_node_controller_booked", 0.0);
}

/// A policy whose own options stay keeps what it knows; one with others starts afresh.
#[test]
fn bindings_outlive_reloads_of_other_things() {
    let filed = Filed::start(&["w1", "w2", "w3"], &[]);
    let client = filed.cluster["g1"].client();
    let turn = |i: usize| {
        let session = format!("kept {i}");
        ask_with(&client, COMPLETIONS, &[("x-session-id", &session)], &completion(&text(&session, 40), 2))
    };
    let homes: Vec<String> = (0..6).map(|i| turn(i).worker).collect();
    for (file, action) in [
        ("[policy.cache-aware]\nweight = 2\ncache-threshold = 0.5\n", "bound"),
        ("[cluster]\ncluster-policies = [\"session-affinity\", \"cache-aware\"]\n", "bound"),
        ("[policy.session-affinity]\nmode = \"shadow\"\n", "would_bound"),
        ("[policy.session-affinity]\nweight = 3\n", "bound"),
        ("[cluster]\ncluster-policies = [\"session-affinity\"]\n", "bound"),
        ("[policy.session-affinity]\nidle-timeout = \"9m\"\n", "hash"),
        ("[policy.session-affinity]\nmode = \"off\"\nidle-timeout = \"9m\"\n", ""),
        ("[policy.session-affinity]\nidle-timeout = \"9m\"\n", "hash"),
    ] {
        filed.write("c1", file);
        let (status, report) = filed.post("c1");
        assert_eq!(status, 200, "{report}");
        for (i, home) in homes.iter().enumerate() {
            let served = turn(i);
            if action.is_empty() {
                continue;
            }
            assert_eq!(served.action("session-affinity"), action, "{file}");
            assert!(action != "bound" || served.worker == *home, "{file}: {served:?}");
        }
        filed.cluster.settle();
    }
}

/// Every controller has its own file, and reloads for itself; what a follower has read counts when it leads.
#[test]
fn a_follower_reloads_and_leads_with_what_it_read() {
    let filed = Filed::start(&["w1", "w2"], &[]);
    let Filed { mut cluster, dir } = filed;
    let path = file(dir.path(), "c2");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "").unwrap();
    cluster.node("c2", "controller", &["--config", path.to_str().unwrap()], &[]);
    let mut filed = Filed { cluster: Routed::from(cluster.0), dir };
    filed.write("c2", GOOD[3]);
    assert_eq!(filed.post("c2").0, 200);
    let client = filed.cluster["g1"].client();
    let mode =
        |prompt: &str| ask(&client, &completion(&text(prompt, 100), 2)).stage("cache-aware")["mode"].clone();
    assert_eq!(mode("led by c1"), "prod");
    assert_eq!(policies(&filed.cluster["c2"])[0], json!(["cache-aware", "shadow", 1.0]));
    let (life, killed) = (filed.cluster.incarnation("c1"), std::time::Instant::now());
    filed.cluster["c1"].kill();
    filed.cluster.until_lost(&["c2", "g1"], "c1", life, killed);
    wait_for("g1 to follow c2", || (filed.cluster.view("g1")["leader"] == "c2").then_some(()));
    assert_eq!(mode("led by c2"), "shadow");
}

/// One node with all roles reloads all of them at once.
#[test]
fn a_node_alone_reloads() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    std::fs::write(&file, "").unwrap();
    let node = Node::fake_with(&["--config", file.to_str().unwrap()], &[PATIENT]);
    let client = node.client();
    let said = |n: u32| {
        let request =
            json!({"model": "default", "prompt": "alone", "max_tokens": 1, "n": n, "include_stages": true});
        client.post(COMPLETIONS, &request)
    };
    assert_eq!(super::stage(&said(2).json()["stages"][0], "cache-aware")["mode"], "prod");
    std::fs::write(&file, "[policy.cache-aware]\nmode = \"shadow\"\n[gateway]\nmax-n = 1\n").unwrap();
    node.signal("HUP");
    wait_for("the reload", || (node.figure_where(RELOADS, "result=\"reloaded\"") == 1.0).then_some(()));
    wait_for("the gateway's new limit", || (said(2).status == 400).then_some(()));
    let stages = said(1).json()["stages"][0].clone();
    assert_eq!(super::stage(&stages, "cache-aware")["mode"], "shadow");
    // What was given by flag or variable stays, whatever the file says.
    std::fs::write(&file, "[controller]\nopinion-deadline = \"1s\"\n").unwrap();
    let report = client.post("/v1/reload", &json!({})).json();
    assert_eq!((&report["reloaded"], &report["needs_restart"]), (&json!(true), &json!([])), "{report}");
    // A file that is gone is refused as a whole.
    std::fs::remove_file(&file).unwrap();
    let gone = client.post("/v1/reload", &json!({}));
    assert_eq!(gone.status, 422);
    assert!(gone.json()["error"].as_str().unwrap().contains("node.toml"), "{}", gone.text());
    assert_eq!(said(1).status, 200);
}
