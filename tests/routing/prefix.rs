//! A prompt goes to the worker that holds most of it, and cold ones to the least busy.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{COMPLETIONS, Routed, ask, completion, counts, text, with};
use crate::harness::http::{Client, Raw};
use crate::harness::wait_for;

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
            let long = with(&completion(&text(&format!("long {i}"), 64), 2000), json!({"stream": true}));
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

/// A conversation whose client names no session: each prompt begins with the one before and its answer.
struct Talk {
    name: String,
    prompt: String,
    workers: Vec<String>,
    tokens: u64,
    cached: u64,
}

impl Talk {
    fn new(name: String) -> Self {
        Self { prompt: text(&name, 320), name, workers: Vec::new(), tokens: 0, cached: 0 }
    }

    fn turn(&mut self, client: &Client) {
        let served = ask(client, &completion(&self.prompt, 24));
        self.tokens += served.prompt();
        self.cached += served.cached();
        self.prompt += served.body["choices"][0]["text"].as_str().expect("text");
        self.prompt += &format!(" And {} were the turns of {}. ", self.workers.len(), self.name);
        self.workers.push(served.worker);
    }
}

/// B33: what is reused alone is reused under load, and nobody gets all of the load.
#[test]
fn b33_load_does_not_take_locality_away() {
    const TALKS: usize = 12;
    const TURNS: usize = 5;
    let cluster = Routed::of(&["c1", "g1", "w1", "w2", "w3"], &[("ENGINE__FAKE__STEP_OVERHEAD", "2ms")]);
    let client = cluster["g1"].client();
    // All begin one after the other, by load, and so at home on all workers alike.
    let begin = |name: &str| -> Vec<Talk> {
        (0..TALKS)
            .map(|i| {
                let mut talk = Talk::new(format!("{name} {i}"));
                talk.turn(&client);
                cluster.settle();
                talk
            })
            .collect()
    };
    let share = |talks: &[Talk]| {
        let (tokens, cached) =
            talks.iter().fold((0, 0), |sum, talk| (sum.0 + talk.tokens, sum.1 + talk.cached));
        cached as f64 / tokens as f64
    };
    let mut alone = begin("alone");
    for talk in &mut alone {
        for _ in 1..TURNS {
            talk.turn(&client);
            cluster.settle();
        }
    }
    let mut loaded = begin("loaded");
    std::thread::scope(|scope| {
        let talks: Vec<_> = loaded
            .iter_mut()
            .map(|talk| {
                let client = &client;
                scope.spawn(move || (1..TURNS).for_each(|_| talk.turn(client)))
            })
            .collect();
        talks.into_iter().for_each(|talk| talk.join().expect("a conversation fails"));
    });
    let (unloaded, under_load) = (share(&alone), share(&loaded));
    assert!(unloaded > 0.6, "{unloaded}");
    assert!(under_load >= 0.8 * unloaded, "{under_load} of {unloaded} are left under load");
    let all: Vec<String> = loaded.into_iter().flat_map(|talk| talk.workers).collect();
    let counts = counts(&all, &WORKERS);
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(*least >= all.len() / 9 && *most <= all.len() * 6 / 10, "{counts:?}");
}

/// A prefix that everybody asks for does not stay with its first holder alone: as that one gets busier than computing
/// the prefix again takes, others get it too, once each. (Where they may fetch it they have less to do at first.)
#[test]
fn a_prefix_in_demand_spreads_to_all_workers() {
    const STREAMS: usize = 18;
    let keys = [("ENGINE__FAKE__STEP_OVERHEAD", "20ms"), ("POLICY__REPLICATE__MODE", "off")];
    let cluster = Routed::of(&["c1", "g1", "w1", "w2", "w3"], &keys);
    let shared = text("shared", 600);
    let (mut homes, mut held): (Vec<String>, Vec<Raw>) = (Vec::new(), Vec::new());
    for i in 0..STREAMS {
        let long = with(&completion(&format!("{shared}{i}"), 4000), json!({"stream": true}));
        let mut raw = Raw::post(&cluster["g1"].base, COMPLETIONS, &long);
        let (status, head) = raw.head();
        assert_eq!(status, 200, "{head:?}");
        let home = head.iter().find_map(|line| line.strip_prefix("x-served-by: ")).expect("x-served-by");
        homes.push(home.to_owned());
        held.push(raw);
        let now = counts(&homes, &WORKERS);
        let busy: Vec<(&str, u64)> = WORKERS.iter().zip(&now).map(|(name, n)| (*name, *n as u64)).collect();
        cluster.settle_with(&busy);
        wait_for("the controller to know who holds the prefix", || {
            let holds =
                |row: &Value| row["pages"].as_u64() >= Some(37) || !homes.contains(&super::name_of(row));
            cluster.directory().iter().all(holds).then_some(())
        });
    }
    let counts = counts(&homes, &WORKERS);
    assert!(counts.iter().all(|n| (3..=10).contains(n)), "{homes:?}");
    assert!(homes[1] == homes[0], "it pays to wait for one request: {homes:?}");
    let computed = cluster.prefilled(&WORKERS);
    assert!(computed < (3 * 600 + STREAMS * 32) as f64, "{computed} tokens computed");
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
