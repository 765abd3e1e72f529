//! Prompts that would wait at a busy worker are computed by one that has time: the answer is what one node gives, whatever
//! becomes of the other.

use std::path::PathBuf;
use std::thread::JoinHandle;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{COMPLETIONS, RELOADS};
use crate::cluster::streams::{Stream, assert_idle, completion, reference, with};
use crate::harness::cluster::Cluster;
use crate::harness::http::Client;
use crate::harness::node::{PREFILLED_TOKENS, RUNNING, WAITING};
use crate::harness::wait_for;

// The simulator does the same.
mod parity;

const OFFLOADED: &str = "actor_node_offload_prompts_total";
const TOKENS: &str = "actor_node_offload_tokens_total";
const OUTSTANDING: &str = "actor_node_offload_outstanding";
const TRANSFERS: &str = "actor_node_kv_transfers_total";
const HELD: &str = "actor_node_kv_pages_held";
const RECEIVING: &str = "actor_node_kv_pages_receiving";

/// A prompt that is worth sending, and one that takes its worker a while.
const LONG: usize = 320;
const LONGER: usize = 1200;

/// Prompts of 64 tokens and more may leave, where 128 are before them; the controller sends none by itself. A token takes
/// 2 ms, so that the longer prompt takes more than two seconds.
const BUSY: [(&str, &str); 7] = [
    ("POLICY__DISAGGREGATE__MODE", "off"),
    ("RUNTIME__MAX_BATCH_TOKENS", "64"),
    ("RUNTIME__MAX_RUNNING", "64"),
    ("WORKER_POLICY__OFFLOAD__MIN_SUFFIX", "64"),
    ("ENGINE__FAKE__PREFILL_PER_TOKEN", "2ms"),
    // A busy machine is slow to give opinions, and to answer a worker that asks for pages.
    ("CONTROLLER__OPINION_DEADLINE", "60s"),
    ("POLICY__DISAGGREGATE__ACCEPT_WITHIN", "60s"),
];
const ON: (&str, &str) = ("RUNTIME__WORKER_POLICY", "offload");

/// Limits at which a worker that says nothing is given up.
const IMPATIENT: [(&str, &str); 2] =
    [("POLICY__DISAGGREGATE__ACCEPT_WITHIN", "1s"), ("POLICY__DISAGGREGATE__PROGRESS_WITHIN", "1s")];

/// A controller, a gateway, a worker `u1` that gets every request, and prefill workers that get none.
fn cluster(peers: &[&str], args: &[&str], keys: &[(&str, &str)]) -> Cluster {
    let mut cluster = Cluster::new(&[&BUSY[..], keys].concat());
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.node("u1", "worker", &[&["--engine", "fake"], args].concat(), &[]);
    for name in peers {
        cluster.node(name, "worker", &["--engine", "fake", "--worker-role", "prefill"], &[]);
    }
    cluster.until_whole();
    cluster
}

/// A request with tokens that no other prompt begins with.
fn asked(salt: usize, tokens: usize) -> Value {
    let prompt: Vec<usize> = (0..tokens).map(|i| 33 + (salt * 37 + i * i * 7 + i * salt) % 90).collect();
    with(&completion("", 6), json!({"prompt": prompt}))
}

fn answer(client: &Client, body: &Value) -> Value {
    client.ok(COMPLETIONS, body)["choices"].clone()
}

/// Keeps `u1` busy from when this returns.
fn busy(cluster: &Cluster, salt: usize) -> (Value, Stream) {
    let body = asked(salt, LONGER);
    let stream = Stream::open(&cluster["g1"].base, COMPLETIONS, &body);
    cluster["u1"].wait_for_figure(RUNNING, 1.0);
    (body, stream)
}

/// Asks, each in a thread of its own.
fn ask(cluster: &Cluster, bodies: &[Value]) -> Vec<JoinHandle<Value>> {
    let ask = |body: &Value| {
        let (base, body) = (cluster["g1"].base.clone(), body.clone());
        std::thread::spawn(move || answer(&Client::new(&base), &body))
    };
    bodies.iter().map(ask).collect()
}

/// Every answer is what one node gives.
fn expect(bodies: &[Value], answers: Vec<JoinHandle<Value>>, first: (Value, Stream)) {
    for (body, given) in bodies.iter().zip(answers) {
        assert_eq!(given.join().unwrap(), answer(&reference().client(), body));
    }
    let text = first.1.answer()["choices"][0]["text"].clone();
    assert_eq!(text, answer(&reference().client(), &first.0)[0]["text"]);
}

fn count(cluster: &Cluster, outcome: &str) -> f64 {
    cluster["u1"].figure_where(OFFLOADED, &format!("outcome=\"{outcome}\""))
}

fn nothing_is_left(cluster: &Cluster, names: &[&str]) {
    assert_idle(cluster, names);
    for name in names.iter().filter(|name| !name.starts_with(['c', 'g'])) {
        for figure in [HELD, RECEIVING, OUTSTANDING] {
            cluster[*name].wait_for_figure(figure, 0.0);
        }
    }
}

#[test]
fn long_prompts_of_a_busy_worker_are_computed_by_an_idle_one() {
    let cluster = cluster(&["p1"], &[], &[ON]);
    let first = busy(&cluster, 1);
    let long = (10..16).map(|salt| asked(salt, LONG));
    let short = (20..23).map(|salt| asked(salt, 40));
    let bodies: Vec<Value> = long.chain(short).collect();
    let answers = ask(&cluster, &bodies);
    expect(&bodies, answers, first);
    let away = count(&cluster, "computed");
    assert!((1.0..=6.0).contains(&away), "{}", cluster["u1"].log());
    let elsewhere = cluster["p1"].figure(PREFILLED_TOKENS);
    assert_eq!(elsewhere, away * LONG as f64, "no short one left");
    assert_eq!(cluster["u1"].figure(TOKENS), elsewhere);
    let all = (LONGER + 6 * LONG + 3 * 40) as f64;
    assert_eq!(cluster["u1"].figure(PREFILLED_TOKENS), all - elsewhere, "nothing is computed twice");
    assert_eq!(cluster["u1"].figure_where(TRANSFERS, "outcome=\"committed\""), away);
    nothing_is_left(&cluster, &["c1", "g1", "u1", "p1"]);
}

#[test]
fn what_is_short_or_finds_an_idle_worker_stays() {
    let cluster = cluster(&["p1"], &[], &[ON]);
    let client = cluster["g1"].client();
    for salt in 1..4 {
        let body = asked(salt, LONG);
        assert_eq!(answer(&client, &body), answer(&reference().client(), &body));
    }
    let first = busy(&cluster, 5);
    let bodies: Vec<Value> = (10..20).map(|salt| asked(salt, 63)).collect();
    let answers = ask(&cluster, &bodies);
    expect(&bodies, answers, first);
    assert_eq!(cluster["u1"].figure(OFFLOADED), 0.0, "{}", cluster["u1"].log());
    assert_eq!(cluster["p1"].figure(PREFILLED_TOKENS), 0.0);
    nothing_is_left(&cluster, &["c1", "g1", "u1", "p1"]);
}

/// Only the peers that are named, and only so many at once.
#[test]
fn limits_and_names_are_kept() {
    let keys =
        [ON, ("WORKER_POLICY__OFFLOAD__MAX_OUTSTANDING", "1"), ("WORKER_POLICY__OFFLOAD__PEERS", "p2")];
    let cluster = cluster(&["p1", "p2"], &[], &keys);
    let first = busy(&cluster, 1);
    let bodies: Vec<Value> = (10..18).map(|salt| asked(salt, LONG)).collect();
    let answers = ask(&cluster, &bodies);
    wait_for("a prompt to leave", || (cluster["u1"].figure(OUTSTANDING) > 0.0).then_some(()));
    while !answers.iter().all(JoinHandle::is_finished) {
        assert!(cluster["u1"].figure(OUTSTANDING) <= 1.0);
        assert!(cluster["p2"].figure(RUNNING) + cluster["p2"].figure(WAITING) <= 1.0);
    }
    expect(&bodies, answers, first);
    assert!(count(&cluster, "computed") >= 1.0);
    assert_eq!(cluster["p1"].figure(PREFILLED_TOKENS), 0.0);
    assert_eq!(cluster["p2"].figure(PREFILLED_TOKENS), count(&cluster, "computed") * LONG as f64);
    nothing_is_left(&cluster, &["c1", "g1", "u1", "p1", "p2"]);
}

/// Loses the peer, in some way, when prompts are away; gives how many came back.
fn peer_is_lost(lose: impl FnOnce(&mut Cluster)) -> Cluster {
    let mut cluster = cluster(&["p1"], &[], &[&[ON][..], &IMPATIENT].concat());
    let first = busy(&cluster, 1);
    let bodies: Vec<Value> = (10..14).map(|salt| asked(salt, LONG)).collect();
    let answers = ask(&cluster, &bodies);
    wait_for("pages on their way", || (cluster["u1"].figure(RECEIVING) > 0.0).then_some(()));
    lose(&mut cluster);
    expect(&bodies, answers, first);
    assert!(count(&cluster, "failed") >= 1.0, "{}", cluster["u1"].log());
    cluster["u1"].wait_for_figure(OUTSTANDING, 0.0);
    cluster["u1"].wait_for_figure(RECEIVING, 0.0);
    cluster
}

/// B44.
#[test]
fn b44_a_peer_is_killed() {
    let cluster = peer_is_lost(|cluster| cluster["p1"].kill());
    nothing_is_left(&cluster, &["c1", "g1", "u1"]);
}

/// B47: it says nothing more, and its connections stay. When it is back it has nothing for anybody.
#[test]
fn b47_a_peer_freezes() {
    let mut cluster = peer_is_lost(|cluster| cluster["p1"].pause());
    cluster["p1"].resume();
    cluster.until_whole();
    nothing_is_left(&cluster, &["c1", "g1", "u1", "p1"]);
}

/// B47: clients that leave while their prompts are away.
#[test]
fn clients_leave_and_nothing_stays() {
    let cluster = cluster(&["p1"], &[], &[ON]);
    let first = busy(&cluster, 1);
    let streams: Vec<Stream> =
        (10..14).map(|salt| Stream::open(&cluster["g1"].base, COMPLETIONS, &asked(salt, LONG))).collect();
    wait_for("pages on their way", || (cluster["u1"].figure(RECEIVING) > 0.0).then_some(()));
    drop(streams);
    expect(&[], Vec::new(), first);
    nothing_is_left(&cluster, &["c1", "g1", "u1", "p1"]);
    assert_eq!(count(&cluster, "failed"), 0.0);
}

/// A unified worker is a peer as well. It is a prefill worker first, so that everything goes to the other one.
#[test]
fn a_unified_worker_is_asked_too() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("u1.toml");
    let write = |policy: &str| {
        std::fs::write(&file, format!("[runtime]\nworker-policy = \"{policy}\"\n")).unwrap();
    };
    write("fcfs");
    let cluster = cluster(&["p1"], &["--config", file.to_str().unwrap()], &[]);
    let body = asked(1, 3 * LONGER);
    let first = Stream::open(&cluster["g1"].base, COMPLETIONS, &body);
    let bodies: Vec<Value> = (10..14).map(|salt| asked(salt, LONG)).collect();
    let answers = ask(&cluster, &bodies);
    let waiting = || cluster["u1"].figure(RUNNING) + cluster["u1"].figure(WAITING);
    wait_for("everything to be at u1", || (waiting() == 5.0).then_some(()));
    let switched = cluster["c1"].client().post("/v1/workers/p1/role", &json!({"role": "unified"})).status;
    assert!(switched < 300, "{switched}");
    wait_for("u1 to hear of it", || {
        let row = cluster.row("u1", "p1")?;
        (row["worker"]["role"] == "unified").then_some(())
    });
    write("offload");
    cluster["u1"].signal("HUP");
    expect(&bodies, answers, (body, first));
    let away = count(&cluster, "computed");
    assert!(away >= 1.0, "{}", cluster["u1"].log());
    assert_eq!(cluster["p1"].figure(PREFILLED_TOKENS), away * LONG as f64);
    nothing_is_left(&cluster, &["c1", "g1", "u1", "p1"]);
}

/// Two workers that are both busy and may both offload: nothing is computed twice, or handed on.
#[test]
fn two_busy_workers_make_no_chains() {
    let mut cluster = Cluster::new(&[&BUSY[..], &[ON]].concat());
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.worker("u1");
    cluster.worker("u2");
    cluster.until_whole();
    let bodies: Vec<Value> = (1..25).map(|salt| asked(salt, LONG / (1 + salt % 3))).collect();
    let answers = ask(&cluster, &bodies);
    for (body, given) in bodies.iter().zip(answers) {
        assert_eq!(given.join().unwrap(), answer(&reference().client(), body));
    }
    let all: usize = (1..25).map(|salt| LONG / (1 + salt % 3)).sum();
    let computed = cluster["u1"].figure(PREFILLED_TOKENS) + cluster["u2"].figure(PREFILLED_TOKENS);
    assert_eq!(computed, all as f64);
    nothing_is_left(&cluster, &["c1", "g1", "u1", "u2"]);
}

/// A reload switches it on and off; what runs, and what is away, goes on.
#[test]
fn a_reload_switches_it_on_and_off() {
    let dir = TempDir::new().unwrap();
    let file: PathBuf = dir.path().join("u1.toml");
    let write = |policy: &str| {
        let text = format!("[runtime]\nworker-policy = \"{policy}\"\n");
        std::fs::write(&file, text).unwrap();
    };
    write("fcfs");
    let cluster = cluster(&["p1"], &["--config", file.to_str().unwrap()], &[]);
    let reload = || {
        let before = cluster["u1"].figure_where(RELOADS, "result=\"reloaded\"");
        cluster["u1"].signal("HUP");
        wait_for("the reload", || {
            (cluster["u1"].figure_where(RELOADS, "result=\"reloaded\"") > before).then_some(())
        });
    };
    let rounds = [(1, "fcfs", false), (2, "fair,offload", true), (3, "fair", false)];
    for (salt, policy, leaves) in rounds {
        let before = cluster["u1"].figure(OFFLOADED);
        let first = busy(&cluster, salt);
        write(policy);
        if salt > 1 {
            reload();
        }
        let bodies: Vec<Value> = (0..4).map(|i| asked(10 * salt + i, LONG)).collect();
        let answers = ask(&cluster, &bodies);
        if leaves {
            wait_for("a prompt to leave", || (cluster["u1"].figure(OUTSTANDING) > 0.0).then_some(()));
            // Off again: what is away comes back, and is not asked for again.
            write("fair");
            reload();
        }
        expect(&bodies, answers, first);
        let left = cluster["u1"].figure(OFFLOADED) - before;
        assert_eq!(left > 0.0, leaves, "{policy}: {}", cluster["u1"].log());
    }
    assert_eq!(count(&cluster, "failed"), 0.0);
    nothing_is_left(&cluster, &["c1", "g1", "u1", "p1"]);
}
