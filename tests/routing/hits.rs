//! B37, B38: what the controller expects a worker to have is what the worker finds, within a page.

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, Dice, MISPREDICTED, PAGE, Routed, Served, ask_with, completion, text, with};
use crate::harness::http::Raw;

/// Of one answer, and of all so far.
fn assert_predicted(cluster: &Routed, served: &Served, request: &Value) {
    assert!(served.predicted().abs_diff(served.cached()) <= PAGE, "{:#} for {request}", served.body);
    assert_eq!(cluster["g1"].figure(MISPREDICTED), 0.0, "{:#} for {request}", served.body);
}

#[test]
fn b37_b38_a_random_workload_finds_what_was_predicted() {
    let mut dice = Dice(0x5eed);
    let cluster = Routed::of(&["c1", "g1", "w1", "w2", "w3"], &[]);
    let client = cluster["g1"].client();
    let mut found = 0;
    for i in 0..60 {
        let prefix = text(&format!("family {}", dice.below(5)), 40 + dice.below(500));
        let tail = format!(" and {i}").repeat(dice.below(20));
        let n = 1 + dice.below(2);
        let (path, request) = match dice.below(3) {
            0 => (
                CHAT,
                json!({"messages": [{"role": "system", "content": prefix},
                                            {"role": "user", "content": format!("Go on{tail}")}]}),
            ),
            _ => (COMPLETIONS, json!({"prompt": prefix + &tail})),
        };
        let max_tokens = 1 + dice.below(40);
        let fields =
            json!({"model": "default", "max_tokens": max_tokens, "n": n, "temperature": 1, "seed": i});
        let request = with(&request, fields);
        let served = ask_with(&client, path, &[], &request);
        assert_predicted(&cluster, &served, &request);
        found += served.cached();
        cluster.settle();
    }
    let (predicted, actual) = (
        cluster["g1"].figure("actor_node_predicted_hit_tokens_total"),
        cluster["g1"].figure("actor_node_actual_hit_tokens_total"),
    );
    assert_eq!(actual, found as f64);
    assert!((predicted - actual).abs() <= 60.0 * PAGE as f64, "{predicted} {actual}");
    assert!(found > 3000, "the families share little: {found}");
}

/// The same system prompt through chat; then with another last word; and through completions as the template renders it.
#[test]
fn b38_chat_and_completions_are_the_same_tokens() {
    let cluster = Routed::of(&["c1", "g1", "w1", "w2"], &[]);
    let client = cluster["g1"].client();
    let system = text("system", 800);
    let chat = |system: &str, user: &str| {
        let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": user}]);
        let request = json!({"model": "default", "messages": messages, "max_tokens": 2, "temperature": 0});
        let served = ask_with(&client, CHAT, &[], &request);
        assert_predicted(&cluster, &served, &request);
        cluster.settle();
        served
    };
    let first = chat(&system, "first");
    for i in 0..10 {
        let served = chat(&system, &format!("question {i}"));
        assert_eq!(served.worker, first.worker);
        assert!(served.cached() >= 800 - PAGE, "{}", served.body["usage"]);
    }
    let changed = chat(&format!("{}END", &system[..797]), "question");
    assert_eq!(changed.worker, first.worker);
    assert!((700..816).contains(&changed.cached()), "{}", changed.body["usage"]);

    // The ids that chat has computed, sent as they are.
    let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": "first"}]);
    let tokens =
        client.ok("/v1/tokenize", &json!({"model": "default", "messages": messages}))["tokens"].clone();
    let request = with(&completion("", 2), json!({"prompt": tokens}));
    let served = ask_with(&client, COMPLETIONS, &[], &request);
    assert_predicted(&cluster, &served, &request);
    assert_eq!((served.worker.as_str(), served.prompt()), (first.worker.as_str(), first.prompt()));
    assert!(served.cached() + PAGE >= served.prompt(), "{}", served.body["usage"]);
}

/// A stream whose worker is lost is placed again: of its second life too no more is promised than is found.
#[test]
fn b37_resumed_requests_are_predicted() {
    let mut cluster = Routed::of(&["c1", "g1", "w1", "w2"], &[("ENGINE__FAKE__STEP_OVERHEAD", "10ms")]);
    for round in 0..3 {
        let request = with(
            &completion(&text(&format!("resumed {round}"), 300), 250),
            json!({"n": 1 + round % 2, "stream": true, "include_stages": true, "temperature": 1}),
        );
        let mut raw = Raw::post(&cluster["g1"].base, COMPLETIONS, &request);
        let (status, head) = raw.head();
        assert_eq!(status, 200);
        let worker =
            head.iter().find_map(|line| line.strip_prefix("x-served-by: ")).expect("x-served-by").to_owned();
        raw.read_events(8);
        cluster[&worker].kill();
        let events = raw.remaining();
        let stages = events.iter().find(|line| line.contains("\"stages\"")).expect("a chunk of stages");
        let stages: Value = serde_json::from_str(stages).unwrap();
        let placements = stages["stages"].as_array().expect("placements");
        assert_eq!(placements.len(), 2, "{stages:#}");
        assert_ne!(placements[0]["worker"], placements[1]["worker"]);
        assert_eq!(cluster["g1"].figure(MISPREDICTED), 0.0, "{stages:#}");
        cluster[&worker].restart();
        cluster.until_whole();
        cluster.settle();
    }
}
