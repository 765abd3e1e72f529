//! Prompts that a pool keeps: one course of requests, live and in virtual time. Workers have room for one prompt each, so
//! that most of what comes again is fetched from the pool.

use std::path::Path;

use config::ids::RequestId;
use serde_json::json;
use sim::workload::{Clients, GATEWAY};

use super::{Placed, WORKERS, live, simulated};
use crate::harness::cluster::Cluster;
use crate::harness::node::Node;
use crate::harness::wait_for;
use crate::routing::{PAGE, Routed, Served, ask, completion, with};

/// What prompts begin with, by request: 24 pages of one of four texts, and one of its own that is not full.
const KINDS: [u64; 14] = [0, 1, 2, 1, 2, 0, 0, 3, 3, 0, 1, 3, 2, 2];
const BEGINNING: u64 = 24;
const OWN: u64 = PAGE + 5;
const TOKENS: u32 = 5;
/// Pages of a worker: a prompt with its answer, and some of another.
const ROOM: &str = "40";

/// As a node has it; what the simulator takes of it is the policy part.
const CONFIG: &str = "[cluster]\ncluster-policies = [\"pool-replicate\"]\n[controller]\nchoice = \"round-robin\"\n\
                      [policy.pool-replicate]\nmin-tokens = 32\n";

fn trace() -> String {
    let line = |(n, kind): (u64, u64)| {
        let mut ids: Vec<u64> = (0..BEGINNING).map(|page| 1000 * kind + page).collect();
        ids.push(100_000 + n);
        let row = json!({
            "timestamp": 1000 * n, "input_length": BEGINNING * PAGE + OWN, "output_length": TOKENS,
            "block_size": PAGE, "hash_ids": ids,
        });
        format!("{row}\n")
    };
    (0..).zip(KINDS).map(line).collect()
}

fn scenario(folder: &Path) -> sim::Scenario {
    let (trace_file, config) = (folder.join("trace.jsonl"), folder.join("config.toml"));
    std::fs::write(&trace_file, trace()).unwrap();
    std::fs::write(&config, CONFIG).unwrap();
    // A machine on which everything is sooner fetched than computed: the fake engine's says nothing of itself, and nodes
    // fetch whatever they lack.
    let text = format!(
        "config = {config:?}\nhardware = \"cpu\"\n[cost.affine]\nstep-overhead = \"1ms\"\n[workload]\n\
         trace = {trace_file:?}\n[cluster]\nworkers = {}\npage-tokens = {PAGE}\npages = {ROOM}\nmax-context = 640\n\
         [[pool]]\nram = \"4GiB\"\n",
        WORKERS.len()
    );
    let path = folder.join("scenario.toml");
    std::fs::write(&path, text).unwrap();
    sim::Scenario::load(&path).unwrap()
}

fn cluster() -> Routed {
    let keys = [
        ("CLUSTER__CLUSTER_POLICIES", "pool-replicate"),
        ("CONTROLLER__CHOICE", "round-robin"),
        ("POLICY__POOL_REPLICATE__MIN_TOKENS", "32"),
        ("CONTROLLER__OPINION_DEADLINE", "60s"),
        ("POLICY__DISAGGREGATE__ACCEPT_WITHIN", "60s"),
        ("ENGINE__KV_PAGES", ROOM),
        ("ENGINE__FAKE__STEP_OVERHEAD", "1ms"),
        ("MODEL__MAX_CONTEXT", "640"),
    ];
    let mut cluster = Cluster::new(&keys);
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.node("s1", "pool", &[], &[]);
    for name in WORKERS {
        cluster.node(name, "worker", &["--engine", "fake"], &[]);
    }
    Routed::from(cluster)
}

/// Waits until the controller knows that the pool has so many pages, and no others.
fn until_kept(cluster: &Routed, pages: u64) {
    wait_for("the directory to know what the pool keeps", || {
        let rows = cluster["c1"].client().get("/v1/directory").ok()?.json()["pools"].as_array()?.clone();
        let [row] = &rows[..] else { return None };
        (row["current"] == true && row["pages"] == pages).then_some(())
    });
}

fn pages_of(pool: &Node, figure: &str) -> f64 {
    pool.figure(&format!("actor_node_pool_{figure}_pages_total"))
}

#[test]
fn prompts_that_a_pool_keeps_take_the_same_course_in_the_simulator_as_live() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = scenario(folder.path());
    let mut clients = Clients::new(&scenario).unwrap();
    let cluster = cluster();
    let (mut kept, mut served): (u64, Vec<Served>) = (0, Vec::new());
    for _ in KINDS {
        cluster.settle();
        until_kept(&cluster, kept);
        let prompt = clients.next().unwrap().expect("a request").spec.prompt;
        let body = with(&completion("", TOKENS), json!({"prompt": &prompt[..], "ignore_eos": true}));
        let answer = ask(&cluster["g1"].client(), &body);
        let stores = answer.stage("pool-replicate")["numbers"]["store-tokens"].as_f64();
        kept += stores.unwrap_or_default() as u64 / PAGE;
        served.push(answer);
    }
    cluster.settle();
    until_kept(&cluster, kept);
    let run = sim::simulate(&scenario).unwrap();
    assert_eq!((run.report.finished, run.report.retries), (KINDS.len() as u64, 0), "{:?}", run.report);
    let mut fetched = 0;
    for (number, answer) in (1..).zip(&served) {
        let id = RequestId::new(GATEWAY, number);
        let there: Vec<Placed> = run.placements[&id].iter().map(simulated).collect();
        assert_eq!([live(&answer.body["stages"][0])], there[..], "request {number}");
        let told: String = run.answers[&id][0].iter().map(|token| char::from(*token as u8)).collect();
        assert_eq!(answer.body["choices"][0]["text"], told.as_str(), "request {number}");
        fetched += u64::from(answer.action("pool-replicate") == "fetch");
    }
    assert!(fetched >= 6, "{fetched} of {} requests fetch from the pool", KINDS.len());
    let found: u64 = served.iter().map(Served::cached).sum();
    assert_eq!(run.report.cached_tokens, found, "tokens that were found or fetched");
    let pools = run.report.pools.as_ref().expect("a pool");
    let [there] = &pools.each[..] else { panic!("one pool: {pools:?}") };
    let pool = &cluster["s1"];
    let [stored, given] = ["stored", "given"].map(|figure| pages_of(pool, figure) as u64);
    assert_eq!((stored, given), (there.stored, there.given_ram + there.given_disk), "{there:?}");
}
