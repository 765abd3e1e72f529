//! Policies that are only watched change nothing, and say what they would have done.

use serde_json::{Value, json};

use super::{COMPLETIONS, Routed, ask_with, completion, text, with};
use crate::harness::http::Raw;

/// Steps long enough for the streams that are held to outlast the rest of the test.
const SLOW: (&str, &str) = ("ENGINE__FAKE__STEP_OVERHEAD", "150ms");
const NAMES: [&str; 5] = ["c1", "g1", "w1", "w2", "w3"];

/// Where each request of the same workload goes, over a fresh cluster: some workers busy, prefixes that come again,
/// sessions.
fn run(keys: &[(&str, &str)]) -> (Routed, Vec<String>, Vec<Value>) {
    let cluster = Routed::of(&NAMES, &[&[SLOW], keys].concat());
    let (mut homes, mut stages, mut held) = (Vec::new(), Vec::new(), Vec::new());
    let client = cluster["g1"].client();
    let mut busy = std::collections::BTreeMap::<String, u64>::new();
    let settle = |busy: &std::collections::BTreeMap<String, u64>| {
        let busy: Vec<(&str, u64)> = busy.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        cluster.settle_with(&busy);
    };
    for i in 0..18 {
        // Every fourth stays; what it takes of its worker differs.
        if i % 4 == 0 {
            let long = completion(&text(&format!("held {i}"), 40 + 30 * i), 800);
            let mut raw = Raw::post(&cluster["g1"].base, COMPLETIONS, &with(&long, json!({"stream": true})));
            let (status, head) = raw.head();
            assert_eq!(status, 200, "{head:?}");
            let worker =
                head.iter().find_map(|line| line.strip_prefix("x-served-by: ")).expect("x-served-by");
            *busy.entry(worker.to_owned()).or_default() += 1;
            homes.push(worker.to_owned());
            held.push(raw);
        }
        settle(&busy);
        let session = format!("session {}", i % 3);
        let request = completion(&format!("{}{i}", text(&format!("family {}", i % 2), 300)), 1);
        let served = ask_with(&client, COMPLETIONS, &[("x-session-id", &session)], &request);
        homes.push(served.worker);
        stages.push(served.body["stages"].clone());
        settle(&busy);
    }
    let still = cluster.rows().iter().map(|row| row["running"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        still,
        held.len() as u64,
        "the held streams have ended too early for this to compare anything"
    );
    drop(held);
    (cluster, homes, stages)
}

#[test]
fn shadow_places_exactly_as_no_policies_do() {
    let shadow = [("POLICY__CACHE_AWARE__MODE", "shadow"), ("POLICY__SESSION_AFFINITY__MODE", "shadow")];
    // Both clusters at once: they wait for steps rather than compute.
    let (without, watched) = std::thread::scope(|scope| {
        let without = scope.spawn(|| run(&[("CLUSTER__CLUSTER_POLICIES", "")]));
        let watched = scope.spawn(|| run(&shadow));
        (without.join().expect("without policies"), watched.join().expect("in shadow"))
    });
    assert_eq!(watched.1, without.1);
    let workers: std::collections::BTreeSet<&String> = without.1.iter().collect();
    assert_eq!(workers.len(), 3, "the workload uses all workers");

    for placements in &without.2 {
        let names: Vec<&Value> =
            placements[0]["stages"].as_array().unwrap().iter().map(|s| &s["policy"]).collect();
        assert_eq!(names, ["placement"]);
    }
    let mut saved = 0;
    for placements in &watched.2 {
        for policy in ["cache-aware", "session-affinity"] {
            let stage = super::stage(&placements[0], policy);
            assert_eq!(stage["mode"], "shadow");
            assert!(stage["action"].as_str().unwrap().starts_with("would_"), "{stage}");
            assert!(!stage["why"].as_str().unwrap().is_empty(), "{stage}");
            saved += stage["saved_tokens"].as_i64().unwrap_or(0);
        }
        let stage = super::stage(&placements[0], "cache-aware");
        assert!(stage["numbers"]["best-hit-tokens"].is_number(), "{stage}");
    }
    assert!(saved > 600, "the workload has prefixes to share: {saved}");
    let hits = watched.0["c1"].figure_where("actor_node_policy_decisions_total", "action=\"would_hit\"");
    assert!(hits > 5.0, "{hits}");
    assert_eq!(
        watched.0["c1"].figure_where("actor_node_policy_decisions_total", "mode=\"shadow\""),
        2.0 * 23.0
    );
}
