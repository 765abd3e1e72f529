//! Serving across processes: what a cluster answers is what one node answers, whoever computes it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::streams::{
    BOOKED, CHAT, COMPLETIONS, LEAST_LOADED, Stream, assert_idle, completion, joined, kinds, open_at,
    reference, with,
};
use crate::harness::cluster::Cluster;
use crate::harness::node::{Node, PAGES_USED, RUNNING, SESSIONS};
use crate::harness::wait_for;

/// Gateway, controller and workers in processes of their own answer every kind of request like one node, as streams and
/// whole.
#[test]
fn a_cluster_answers_like_one_node() {
    let cluster = Cluster::of(&["c1", "g1", "w1", "w2"]);
    let client = cluster["g1"].client();
    for kind in kinds(&reference().client(), 40) {
        assert_eq!(joined(&client.stream(kind.path, &kind.body)), kind.answer, "{}", kind.name);
        let mut whole = kind.body.clone();
        whole.as_object_mut().unwrap().remove("stream_options");
        let answer = client.post(kind.path, &whole);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(["w1", "w2"].contains(&answer.header("x-served-by").expect("x-served-by")));
        let alone = reference().client().ok(kind.path, &whole);
        assert_eq!(answer.json()["choices"], alone["choices"], "{}", kind.name);
    }
    assert_idle(&cluster, &["c1", "g1", "w1", "w2"]);
}

/// Two workers with a model each: `model` picks, the list has both, an unknown one is 404.
#[test]
fn a_model_picks_its_worker() {
    let mut cluster = Cluster::new(&[]);
    cluster.controller("c1");
    cluster.gateway("g1");
    for (name, model) in [("w1", "a"), ("w2", "b")] {
        cluster.node(name, "worker", &["--engine", "fake", "--model-name", model], &[]);
    }
    cluster.until_whole();
    let client = cluster["g1"].client();
    let listed = || {
        let list = client.get("/v1/models").unwrap().json();
        let ids = list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap().to_owned());
        let mut ids: Vec<String> = ids.collect();
        ids.sort();
        ids
    };
    wait_for("both models to be listed", || (listed() == ["a", "b"]).then_some(()));
    for _ in 0..5 {
        for (model, worker) in [("a", "w1"), ("b", "w2")] {
            let answer = client.post(COMPLETIONS, &with(&completion("who", 3), json!({"model": model})));
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.header("x-served-by"), Some(worker));
            assert_eq!(answer.json()["model"], model);
        }
    }
    let error = client.post(COMPLETIONS, &with(&completion("who", 3), json!({"model": "c"}))).error(404);
    assert_eq!(error["code"], "model_not_found");
    cluster["w2"].kill();
    wait_for("the lost worker's model to be unlisted", || (listed() == ["a"]).then_some(()));
    client.ok(COMPLETIONS, &with(&completion("who", 3), json!({"model": "a"})));
    // Known, and nobody has it now.
    let answer = client.post(COMPLETIONS, &with(&completion("who", 3), json!({"model": "b"})));
    assert!([404, 503].contains(&answer.status), "{}", answer.text());
}

/// The gateway has no model file: it speaks to a real model with what the worker tells it. A worker is killed under
/// greedy and seeded streams, penalties and characters of several tokens: all go on, and are those of one node.
#[test]
fn b61_the_real_model_across_processes() {
    crate::harness::model::default_file();
    let model = ["--kv-pages", "256", "--max-context", "1024", "--threads", "1"];
    let mut cluster = Cluster::new(&[LEAST_LOADED]);
    cluster.controller("c1");
    cluster.gateway("g1");
    for name in ["w1", "w2"] {
        cluster.node(name, "worker", &model, &[]);
    }
    let alone = Node::ready(&model);
    let oracle = alone.client();
    let sampled = json!({"temperature": 0.9, "seed": 7});
    let penalties = json!({"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2});
    let base = completion("Once upon a time there was a lighthouse, and", 40);
    let talk = json!([{"role": "user", "content": "Name three colours."}]);
    let chat = with(&base, json!({"messages": talk}));
    let mut chat = chat;
    chat.as_object_mut().unwrap().remove("prompt");
    let requests = [
        (COMPLETIONS, base.clone()),
        (COMPLETIONS, with(&base, sampled.clone())),
        (COMPLETIONS, with(&with(&base, sampled), penalties)),
        (COMPLETIONS, with(&completion("🦀🐙🦀🐙🦀🐙🦀🐙", 30), json!({"logprobs": 2}))),
        (CHAT, chat),
    ];
    let requests =
        requests.map(|(path, body)| (path, with(&body, json!({"stream_options": {"include_usage": true}}))));
    let expected: Vec<Value> =
        requests.iter().map(|(path, body)| joined(&oracle.stream(path, body))).collect();
    let crabs = expected[3]["choices"][0]["text"].as_str().unwrap();
    assert!(crabs.chars().any(|c| c.len_utf8() > 2), "characters of several tokens: {crabs:?}");
    drop(alone);
    cluster.until_whole();
    let client = cluster["g1"].client();
    for ((path, body), expected) in requests.iter().zip(&expected) {
        assert_eq!(joined(&client.stream(path, body)), *expected, "{body}");
    }
    let base = &cluster["g1"].base;
    let mut streams: Vec<(Stream, usize)> = Vec::new();
    for (i, (path, body)) in requests.iter().enumerate() {
        streams.extend(open_at(base, path, body, "w1").into_iter().map(|stream| (stream, i)));
    }
    streams.iter_mut().find(|(stream, _)| stream.worker == "w1").unwrap().0.read(5);
    cluster["w1"].kill();
    for (stream, i) in streams {
        assert_eq!(stream.answer(), expected[i], "{}", requests[i].1);
    }
    assert_idle(&cluster, &["c1", "g1", "w2"]);
}

/// B31: load counts from the choice on: thirty at once that nobody has answered yet are split evenly.
#[test]
fn b31_a_burst_is_split_evenly() {
    let cluster =
        Cluster::of_with(&["c1", "g1", "w1", "w2"], &[("ENGINE__FAKE__PREFILL_PER_TOKEN", "100us")]);
    let client = cluster["g1"].client();
    let served: Vec<String> = std::thread::scope(|scope| {
        let ask = |i: usize| {
            let client = client.clone();
            scope.spawn(move || {
                let prompt = format!("{i} {}", "a long prompt of its own ".repeat(160));
                let answer = client.post(COMPLETIONS, &completion(&prompt, 1));
                assert_eq!(answer.status, 200, "{}", answer.text());
                answer.header("x-served-by").unwrap().to_owned()
            })
        };
        let all: Vec<_> = (0..30).map(ask).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let mut count: BTreeMap<&str, u32> = BTreeMap::new();
    for worker in &served {
        *count.entry(worker).or_default() += 1;
    }
    assert!(count.len() == 2 && count.values().all(|n| (12..=18).contains(n)), "{count:?}");
    assert_idle(&cluster, &["c1", "g1", "w1", "w2"]);
}

/// Two gateways serve at once, and each hears only what is for it.
#[test]
fn two_gateways_serve_at_once() {
    let cluster = Cluster::of(&["c1", "g1", "g2", "w1", "w2"]);
    let kinds = kinds(&reference().client(), 30);
    std::thread::scope(|scope| {
        for gateway in ["g1", "g2"] {
            for kind in &kinds {
                let client = cluster[gateway].client();
                scope.spawn(move || {
                    for _ in 0..3 {
                        let answer = joined(&client.stream(kind.path, &kind.body));
                        assert_eq!(answer, kind.answer, "{} by {gateway}", kind.name);
                    }
                });
            }
        }
    });
    assert_idle(&cluster, &["c1", "g1", "g2", "w1", "w2"]);
}

/// B62: a gateway that dies takes its requests with it: workers and controller give back all that they held, and the
/// streams of another gateway go on.
#[test]
fn b62_a_dead_gateway_leaves_nothing_behind() {
    let mut cluster =
        Cluster::of_with(&["c1", "g1", "g2", "w1", "w2"], &[("ENGINE__FAKE__STEP_OVERHEAD", "20ms")]);
    let long = completion("For a gateway that dies", 8000);
    let short = completion("For one that lives", 100);
    let expected = joined(&reference().client().stream(COMPLETIONS, &short));
    let mut dying: Vec<Stream> =
        (0..8).map(|_| Stream::open(&cluster["g2"].base, COMPLETIONS, &long)).collect();
    let living: Vec<Stream> =
        (0..4).map(|_| Stream::open(&cluster["g1"].base, COMPLETIONS, &short)).collect();
    dying.iter_mut().for_each(|stream| stream.read(2));
    cluster["c1"].wait_for_figure(BOOKED, 12.0);
    cluster["g2"].kill();
    for stream in living {
        assert_eq!(stream.answer(), expected);
    }
    for name in ["w1", "w2"] {
        for figure in [RUNNING, PAGES_USED] {
            cluster[name].wait_for_figure(figure, 0.0);
        }
    }
    cluster["c1"].wait_for_figure(BOOKED, 0.0);
    // The same by a gateway that is frozen.
    cluster["g2"].restart();
    cluster.until_whole();
    let mut dying: Vec<Stream> =
        (0..8).map(|_| Stream::open(&cluster["g2"].base, COMPLETIONS, &long)).collect();
    dying.iter_mut().for_each(|stream| stream.read(2));
    cluster["g2"].pause();
    for name in ["w1", "w2"] {
        cluster[name].wait_for_figure(RUNNING, 0.0);
    }
    cluster["c1"].wait_for_figure(BOOKED, 0.0);
    // It is not told to be dead: it places its streams again when it can, and its clients have left.
    drop(dying);
    cluster["g2"].resume();
    cluster.until_whole();
    cluster["g2"].wait_for_figure(SESSIONS, 0.0);
    assert_idle(&cluster, &["c1", "g1", "g2", "w1", "w2"]);
}
