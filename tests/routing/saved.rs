//! The real engine: conversations that stay where their pages are need not be computed again.

use serde_json::{Value, json};

use super::{CHAT, Dice, PATIENT, Routed, counts};
use crate::harness::cluster::Cluster;

const WORKERS: [&str; 3] = ["w1", "w2", "w3"];
const TALKS: usize = 12;
const TURNS: usize = 5;

/// What became of the conversations.
#[derive(Debug)]
struct Run {
    /// Prompt tokens of all requests.
    prompts: u64,
    /// Of those, tokens that were computed.
    computed: f64,
    /// Requests a worker.
    shared: Vec<usize>,
}

/// Runs the same conversations in the same order. Their clients take turns in a shuffled order, as they do in life; in a
/// fixed one, an alternating choice would come back to the same worker by accident.
fn run(policies: &str) -> Run {
    let mut cluster = Cluster::new(&[PATIENT, ("CLUSTER__CLUSTER_POLICIES", policies)]);
    cluster.controller("c1");
    cluster.gateway("g1");
    for name in WORKERS {
        // Room for not quite half of the conversations: a worker alone cannot hold them all, the three together can.
        cluster.node(name, "worker", &["--kv-pages", "120", "--max-context", "512"], &[]);
    }
    let cluster = Routed::from(cluster);
    let client = cluster["g1"].client();
    let mut talks: Vec<Vec<Value>> =
        (0..TALKS).map(|i| vec![json!({"role": "system", "content": role(i)})]).collect();
    let (mut dice, mut homes) = (Dice(0x7a1c), Vec::new());
    let (before, mut prompts) = (cluster.prefilled(&WORKERS), 0);
    for turn in 0..TURNS {
        let mut order: Vec<usize> = (0..TALKS).collect();
        dice.shuffle(&mut order);
        for i in order {
            talks[i].push(json!({"role": "user", "content": format!("Name number {turn} of {i}.")}));
            let request = json!({"model": "default", "messages": talks[i], "max_tokens": 3, "temperature": 0, "ignore_eos": true});
            let headers = [("content-type", "application/json"), ("x-session-id", &*format!("talk {i}"))];
            let answer = client.send("POST", CHAT, &headers, request.to_string().into_bytes());
            assert_eq!(answer.status, 200, "{}", answer.text());
            homes.push(answer.header("x-served-by").expect("x-served-by").to_owned());
            let answer = answer.json();
            prompts += answer["usage"]["prompt_tokens"].as_u64().expect("prompt_tokens");
            let said = answer["choices"][0]["message"]["content"].clone();
            talks[i].push(json!({"role": "assistant", "content": said}));
        }
    }
    cluster.settle();
    Run { prompts, computed: cluster.prefilled(&WORKERS) - before, shared: counts(&homes, &WORKERS) }
}

/// Some 230 tokens that no other conversation begins with.
fn role(i: usize) -> String {
    let things = ["rivers", "planets", "metals", "birds", "islands", "colours"];
    let thing = things[i % things.len()];
    format!("{i} and {} are your numbers. You know all about {thing}. ", i * 37 + 11)
        + &format!(
            "When you are asked about {thing} you name one of the {thing}, and say nothing else about it. "
        )
        .repeat(10)
}

/// The choice by load is nearest to round robin: all workers are equally free when a request comes, and then the one
/// that was chosen longest ago takes it.
#[test]
fn conversations_with_policies_compute_less_than_half() {
    let (with, without) = (run("cache-aware,session-affinity"), run(""));
    let mean = (TALKS * TURNS) as f64 / WORKERS.len() as f64;
    let worst = with.shared.iter().copied().max().unwrap() as f64;
    assert_eq!(with.prompts, without.prompts, "the same answers, wherever they are computed");
    assert_eq!(without.shared, [TALKS * TURNS / 3; 3], "without policies, workers take turns");
    assert!(with.computed <= 0.4 * without.computed, "with policies {with:?}, without {without:?}");
    assert!(worst <= 1.5 * mean, "{with:?}");
}
