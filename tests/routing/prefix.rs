//! A prompt goes to the worker that holds most of it, and cold ones to the least busy.

use std::collections::BTreeMap;

use super::{COMPLETIONS, Routed, ask, completion, counts, text, with};
use crate::harness::http::{Client, Raw};

const WORKERS: [&str; 3] = ["w1", "w2", "w3"];

#[test]
fn a_shared_prefix_goes_to_its_holder_and_cold_prompts_are_spread() {
    let cluster = Routed::of(&["c1", "g1", "w1", "w2", "w3"], &[]);
    let client = cluster["g1"].client();
    let shared = text("shared", 600);
    let ask = |prompt: &str| {
        let served = ask(&client, &completion(prompt, 4));
        cluster.settle();
        served
    };
    let cold = |round: &str| -> Vec<String> {
        (0..6)
            .map(|i| {
                let served = ask(&text(&format!("{round} {i}"), 200));
                assert_eq!(served.cached(), 0);
                assert_eq!(served.action("cache-aware"), "cold");
                served.worker
            })
            .collect()
    };
    assert_eq!(counts(&cold("before"), &WORKERS), [2, 2, 2], "idle workers take turns");

    let first = ask(&format!("{shared} and this is the first"));
    for i in 0..12 {
        let served = ask(&format!("{shared}{i} is the question"));
        assert_eq!(served.worker, first.worker);
        assert_eq!(served.action("cache-aware"), "hit");
        assert!((592..616).contains(&served.cached()), "{}", served.body["usage"]);
    }
    let after = counts(&cold("after"), &WORKERS);
    assert!(after.iter().all(|n| *n > 0), "a warm worker takes cold prompts too: {after:?}");
}

/// B32: a prompt that nobody knows goes by load, not by who holds least.
#[test]
fn b32_a_miss_goes_by_load() {
    let keys = [("ENGINE__FAKE__STEP_OVERHEAD", "20ms")];
    let mut cluster = Routed::of(&["c1", "g1", "w1"], &keys);
    let busy: Vec<Raw> = (0..8)
        .map(|i| {
            let long =
                with(&completion(&text(&format!("long {i}"), 64), 2000), serde_json::json!({"stream": true}));
            let mut raw = Raw::post(&cluster["g1"].base, COMPLETIONS, &long);
            assert_eq!(raw.head().0, 200);
            raw
        })
        .collect();
    cluster.worker("w2");
    cluster.until_whole();
    let client = cluster["g1"].client();
    let warm = ask(&client, &completion(&text("warm", 2000), 2));
    assert_eq!(warm.worker, "w2");
    cluster.settle_with(&[("w1", 8)]);
    let short: Vec<String> =
        (0..20).map(|i| ask(&client, &completion(&text(&format!("short {i}"), 60), 2)).worker).collect();
    assert!(counts(&short, &["w2"])[0] >= 18, "{short:?}");
    drop(busy);
}

/// Turns of a conversation whose client names no session: each prompt begins with the one before and its answer.
fn converse(client: &Client, name: &str, turns: u32) -> (Vec<String>, u64, u64) {
    let (mut prompt, mut workers, mut tokens, mut cached) = (text(name, 320), Vec::new(), 0, 0);
    for turn in 0..turns {
        let served = ask(client, &completion(&prompt, 24));
        tokens += served.prompt();
        cached += served.cached();
        let said = served.body["choices"][0]["text"].as_str().expect("text");
        prompt = format!("{prompt}{said} And {turn} was the turn of {name}. ");
        workers.push(served.worker);
    }
    (workers, tokens, cached)
}

/// B33: what is reused alone is reused under load, and nobody gets all of the load.
#[test]
fn b33_load_does_not_take_locality_away() {
    const TALKS: usize = 12;
    const TURNS: u32 = 5;
    let cluster = Routed::of(&["c1", "g1", "w1", "w2", "w3"], &[("ENGINE__FAKE__STEP_OVERHEAD", "2ms")]);
    let client = cluster["g1"].client();
    let share = |talks: &[(Vec<String>, u64, u64)]| {
        let (tokens, cached) = talks.iter().fold((0, 0), |sum, talk| (sum.0 + talk.1, sum.1 + talk.2));
        cached as f64 / tokens as f64
    };
    let alone: Vec<_> = (0..TALKS).map(|i| converse(&client, &format!("alone {i}"), TURNS)).collect();
    let loaded: Vec<_> = std::thread::scope(|scope| {
        let talks: Vec<_> = (0..TALKS)
            .map(|i| {
                let client = &client;
                scope.spawn(move || converse(client, &format!("loaded {i}"), TURNS))
            })
            .collect();
        talks.into_iter().map(|talk| talk.join().expect("a conversation fails")).collect()
    });
    let (unloaded, loaded_share) = (share(&alone), share(&loaded));
    assert!(unloaded > 0.6, "{unloaded}");
    assert!(loaded_share >= 0.8 * unloaded, "{loaded_share} of {unloaded} are left under load");
    let all: Vec<String> = loaded.into_iter().flat_map(|talk| talk.0).collect();
    let counts = counts(&all, &WORKERS);
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(*least >= all.len() / 9 && *most <= all.len() * 6 / 10, "{counts:?}");
}

/// Two gateways hash alike and ask the same controller: together they reuse as much as one does.
#[test]
fn two_gateways_reuse_as_much_as_one() {
    let cluster = Routed::of(&["c1", "g1", "g2", "w1", "w2", "w3"], &[]);
    let clients = [cluster["g1"].client(), cluster["g2"].client()];
    let run = |salt: &str, gateways: &[Client]| {
        let before = cluster.prefilled(&WORKERS);
        let mut homes: BTreeMap<usize, String> = BTreeMap::new();
        for i in 0..40 {
            let family = i * 7 % 5;
            let prompt = text(&format!("{salt} {family}"), 400) + &format!("{i} asks");
            let served = ask(&gateways[i % gateways.len()], &completion(&prompt, 3));
            let home = homes.entry(family).or_insert_with(|| served.worker.clone());
            assert_eq!(served.worker, *home, "request {i} of {salt}");
            cluster.settle();
        }
        cluster.prefilled(&WORKERS) - before
    };
    let (one, two) = (run("one", &clients[..1]), run("two", &clients));
    assert!((two - one).abs() <= 0.1 * one, "one gateway computes {one} tokens, two {two}");
}
