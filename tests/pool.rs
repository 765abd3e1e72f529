//! Prompts that pools keep: what a worker has dropped, what a node held that is gone and what was computed before a restart is
//! fetched, the answer is what one node gives, and nothing is left behind.

// What becomes of requests when pools or their disks fail.
mod lost;

use serde_json::{Value, json};

use crate::cluster::streams::with;
use crate::handoff::{COMPLETIONS, FAKE, Pd, asked, cached_of, prompt};
use crate::harness::node::Node;
use crate::harness::wait_for;

const STORED: &str = "actor_node_pool_stored_pages_total";
const GIVEN: &str = "actor_node_pool_given_pages_total";
const PUTS: &str = "actor_node_pool_puts";
const READERS: &str = "actor_node_pool_readers";

/// Pools keep all prompts of two pages and more, and nothing else has a word.
const POOLS: [(&str, &str); 3] = [
    ("CLUSTER__CLUSTER_POLICIES", "pool-replicate"),
    ("CONTROLLER__CHOICE", "round-robin"),
    ("POLICY__POOL_REPLICATE__MIN_TOKENS", "32"),
];

/// A cluster with a controller, a gateway, these workers and the pool `s1`.
fn with_pool(workers: &[&str], keys: &[(&str, &str)]) -> Pd {
    let mut pd = Pd::of(&[], &[&POOLS, keys].concat());
    pd.node("s1", "pool", &[], &[]);
    for name in workers {
        pd.worker(name, &FAKE);
    }
    pd.until_whole();
    pd.until_known(workers);
    until_kept(&pd, 0);
    pd
}

/// Waits until the controller has heard of so many pages of pools, and of all that they said.
fn until_kept(pd: &Pd, pages: u64) {
    wait_for("the directory to know what pools keep", || {
        let rows = pd["c1"].client().get("/v1/directory").ok()?.json()["pools"].as_array()?.clone();
        let current = !rows.is_empty() && rows.iter().all(|row| row["current"] == true);
        let known: u64 = rows.iter().filter_map(|row| row["pages"].as_u64()).sum();
        (current && known == pages).then_some(())
    });
}

/// The stage of the policy in an answer that asks for stages.
fn stage(answer: &Value) -> &Value {
    let stages = answer["stages"][0]["stages"].as_array().expect("stages");
    stages.iter().find(|stage| stage["policy"] == "pool-replicate").expect("a stage")
}

/// What is asked, with the stages.
fn answered(pd: &Pd, request: &Value) -> Value {
    pd["g1"].client().ok(COMPLETIONS, &with(request, json!({"include_stages": true})))
}

/// Nothing is under way at these nodes, pools among them, and nothing broke.
fn assert_idle(pd: &Pd, names: &[&str]) {
    pd.assert_idle(names);
    for name in names.iter().filter(|name| name.starts_with('s')) {
        for figure in [PUTS, READERS] {
            pd[*name].wait_for_figure(figure, 0.0);
        }
    }
}

/// A prompt outlives the node that has computed it.
#[test]
fn what_a_node_computed_that_is_gone_is_fetched_from_the_pool() {
    let mut pd = with_pool(&["u1"], &[]);
    let alone = Node::ready(&FAKE);
    let first = answered(&pd, &asked(&prompt(1, 200), 3));
    let of = stage(&first);
    assert_eq!((&of["action"], &of["numbers"]["store-tokens"]), (&json!("store"), &json!(192.0)), "{of}");
    until_kept(&pd, 12);
    assert_eq!(pd["s1"].figure(STORED), 12.0);
    pd["u1"].kill();
    pd.worker("u2", &FAKE);
    pd.until_known(&["u2"]);
    let more = asked(&[prompt(1, 200), prompt(2, 77)].concat(), 9);
    let warm = answered(&pd, &more);
    let of = stage(&warm);
    assert_eq!((&of["action"], &of["numbers"]["fetch-tokens"]), (&json!("fetch"), &json!(192.0)), "{of}");
    assert_eq!(warm["choices"], alone.client().ok(COMPLETIONS, &more)["choices"]);
    assert_eq!((pd.prefilled("u2"), cached_of(&warm)), (277.0 - 192.0, 192), "{}", pd["u2"].log());
    assert_eq!(pd["s1"].figure(GIVEN), 12.0);
    // The rest of it is kept there too, behind what was there.
    until_kept(&pd, 17);
    assert_eq!(stage(&answered(&pd, &more))["action"], "known");
    assert_idle(&pd, &["c1", "g1", "u2", "s1"]);
}

/// A worker fetches what it had to drop.
#[test]
fn what_a_worker_has_dropped_is_fetched_back() {
    let pd = with_pool(&["u1"], &[("ENGINE__KV_PAGES", "40")]);
    let first = asked(&prompt(1, 320), 3);
    let cold = answered(&pd, &first);
    until_kept(&pd, 20);
    // Others take its place.
    for salt in 2..5 {
        drop(answered(&pd, &asked(&prompt(salt, 320), 3)));
    }
    until_kept(&pd, 80);
    let computed = pd.prefilled("u1");
    let warm = answered(&pd, &first);
    assert_eq!(warm["choices"], cold["choices"]);
    assert_eq!((stage(&warm)["action"].as_str(), cached_of(&warm)), (Some("fetch"), 319), "{warm}");
    assert_eq!(pd.prefilled("u1") - computed, 1.0, "{}", pd["u1"].log());
    assert_idle(&pd, &["c1", "g1", "u1", "s1"]);
}

/// A prefill worker's prompts are kept from there, and fetched by the next one.
#[test]
fn beside_prefill_workers_the_one_that_computed_gives_and_the_one_that_computes_fetches() {
    let both = [("CLUSTER__CLUSTER_POLICIES", "disaggregate,pool-replicate")];
    let mut pd = with_pool(&["d1", "p1"], &both);
    let alone = Node::ready(&FAKE);
    drop(answered(&pd, &asked(&prompt(1, 200), 3)));
    until_kept(&pd, 12);
    assert_eq!((pd.prefilled("p1"), pd.prefilled("d1")), (200.0, 0.0));
    for gone in ["p1", "d1"] {
        pd[gone].kill();
    }
    for name in ["d2", "p2"] {
        pd.worker(name, &FAKE);
    }
    pd.until_known(&["d2", "p2"]);
    let more = asked(&[prompt(1, 200), prompt(2, 130)].concat(), 9);
    let warm = answered(&pd, &more);
    assert_eq!(stage(&warm)["action"], "fetch", "{warm}");
    assert_eq!(warm["choices"], alone.client().ok(COMPLETIONS, &more)["choices"]);
    assert_eq!((pd.prefilled("p2"), pd.prefilled("d2")), (330.0 - 192.0, 0.0), "{}", pd["p2"].log());
    until_kept(&pd, 20);
    assert_idle(&pd, &["c1", "g1", "d2", "p2", "s1"]);
}

/// Whatever runs a cluster is to see what its pools hold.
#[test]
fn a_pool_is_shown_where_workers_are() {
    let pd = with_pool(&["u1"], &[("POOL__RAM", "32MiB")]);
    drop(answered(&pd, &asked(&prompt(1, 200), 3)));
    until_kept(&pd, 12);
    let row = wait_for("the gateway to hear how full the pool is", || {
        let view = pd.view("g1");
        let row = view["nodes"].as_array()?.iter().find(|node| node["name"] == "s1")?["pool"].clone();
        (row["pages"] == 12).then_some(row)
    });
    let bytes = row["ram_bytes"].as_u64().unwrap();
    assert!(bytes > 0 && bytes % 12 == 0, "{row}");
    assert_eq!((&row["ram_capacity"], &row["disk_capacity"]), (&json!(32 << 20), &json!(0)));
    assert!(row["kv"].as_str().unwrap().starts_with("127.0.0."), "{row}");
}

/// Without the policy a pool is of no use, and that is said.
#[test]
fn a_pool_that_nothing_is_kept_at_is_said_to_be_that() {
    let mut pd = Pd::of(&["u1"], &[("CLUSTER__CLUSTER_POLICIES", "replicate")]);
    pd.node("s1", "pool", &[], &[]);
    pd.until_whole();
    wait_for("the controller to say it", || {
        pd["c1"].log().contains("does not list \\\"pool-replicate\\\"").then_some(())
    });
    drop(pd["g1"].client().ok(COMPLETIONS, &asked(&prompt(1, 200), 3)));
    assert_eq!(pd["s1"].figure(STORED), 0.0);
}
