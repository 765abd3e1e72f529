use serde_json::json;

use super::*;
use crate::cluster::streams::{Stream, kinds};

/// B43, B58: all lengths around the boundaries of pages and chunks, greedy, drawn and for three choices: the tokens of
/// one node, and the second worker computes none of the prompt.
#[test]
fn b58_every_length_is_what_one_node_gives() {
    let pd = Pd::of(&["p1", "d1"], &[]);
    let edges = [PAGE * 2, CHUNK - PAGE, CHUNK, CHUNK + PAGE, 2 * CHUNK, 3 * CHUNK, 5 * CHUNK];
    let lengths = edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 1]).filter(|len| *len >= 32);
    let mut sent = 0.0;
    for (salt, len) in lengths.enumerate() {
        let plain = asked(&prompt(salt, len), 5);
        let drawn = with(&plain, json!({"temperature": 1, "seed": 11, "prompt": prompt(salt + 100, len)}));
        let three = with(&drawn, json!({"n": 3, "prompt": prompt(salt + 200, len)}));
        for request in [plain, drawn, three] {
            assert_eq!(answer_of(&pd["g1"], &request), answer_of(reference(), &request), "{len} tokens");
            sent += 1.0;
        }
    }
    assert_eq!((pd.committed("d1"), pd.committed("p1")), (sent, sent));
    assert_eq!(pd.prefilled("d1"), 0.0);
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
}

/// B42, B43, B61: every kind of request, in a stream and not.
#[test]
fn every_kind_of_request_is_answered_as_by_one_node() {
    let keys =
        [("POLICY__DISAGGREGATE__MIN_REMOTE_TOKENS", "1"), ("POLICY__DISAGGREGATE__EFFECTIVE_TOKENS", "1")];
    let pd = Pd::of(&["p1", "d1"], &keys);
    for kind in kinds(&reference().client(), 30) {
        let stream = Stream::open(&pd["g1"].base, kind.path, &kind.body);
        assert_eq!(stream.worker.split('#').next(), Some("d1"), "the worker that generates is named");
        assert_eq!(stream.answer(), kind.answer, "{}", kind.name);
    }
    assert!(pd.committed("d1") >= 1.0);
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
}

/// B42: one token is one token, and what ends with its first token is not sent.
#[test]
fn b42_the_first_token_may_be_the_last() {
    let pd = Pd::of(&["p1", "d1"], &[]);
    for (salt, tokens) in [(1, 1), (2, 2)] {
        for n in [1, 2] {
            let request = with(&asked(&prompt(salt * 10 + n, 100), tokens), json!({"n": n, "logprobs": 1}));
            let before = pd["d1"].figure(BYTES);
            assert_eq!(answer_of(&pd["g1"], &request), answer_of(reference(), &request), "{tokens} {n}");
            let moved = pd["d1"].figure(BYTES) > before;
            assert_eq!(moved, tokens > 1, "pages for {tokens} tokens");
        }
    }
    // The first token is an end token: what is biased to it ends at once.
    let end = 257;
    let request = with(&asked(&prompt(77, 100), 9), json!({"logit_bias": {end.to_string(): 100}}));
    assert_eq!(answer_of(&pd["g1"], &request), answer_of(reference(), &request));
    assert_eq!(pd.prefilled("d1"), 0.0);
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
}

/// B48, B49, B56: what the second worker holds is not sent again, what the first one holds is not computed again, and
/// what is received is not called cached.
#[test]
fn b48_only_what_is_missing_is_sent() {
    // However little is missing.
    let keys =
        [("POLICY__DISAGGREGATE__MIN_REMOTE_TOKENS", "1"), ("POLICY__DISAGGREGATE__EFFECTIVE_TOKENS", "1")];
    let pd = Pd::of(&["p1", "d1"], &keys);
    let all = prompt(3, 20 * PAGE);
    let page_bytes = PAGE as f64 * 8.0;
    let first = pd["g1"].client().ok(COMPLETIONS, &asked(&all[..10 * PAGE], 4));
    assert_eq!(cached_of(&first), 0, "cold");
    assert_eq!(pd["d1"].figure(BYTES), 10.0 * page_bytes);
    // Four pages more, and a bit.
    let longer = asked(&all[..14 * PAGE + 3], 4);
    let answer = pd["g1"].client().ok(COMPLETIONS, &longer);
    assert_eq!(cached_of(&answer), 10 * PAGE as u64);
    assert_eq!(pd["d1"].figure(BYTES), 15.0 * page_bytes);
    assert_eq!(pd.prefilled("p1"), (14 * PAGE + 3) as f64, "nothing is computed twice");
    // The same again and again: nothing is sent, nobody keeps anything.
    for _ in 0..20 {
        assert_eq!(answer_of(&pd["g1"], &longer), answer_of(reference(), &longer));
    }
    let cached = pd["p1"].figure("actor_node_kv_pages_cached");
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert_eq!(answer_of(&pd["g1"], &longer), answer_of(reference(), &longer)));
        }
    });
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
    assert_eq!(pd["p1"].figure("actor_node_kv_pages_cached"), cached);
    assert_eq!(pd["d1"].figure(BYTES), 15.0 * page_bytes);
}

/// B57: a decode worker with few pages serves everybody.
#[test]
fn b57_a_small_decode_worker_serves_everybody() {
    let mut cluster = Cluster::new(&SMALL);
    cluster.controller("c1");
    cluster.gateway("g1");
    cluster.node("p1", "worker", &["--engine", "fake", "--worker-role", "prefill"], &[]);
    let small = [("ENGINE__KV_PAGES", "40")];
    cluster.node("d1", "worker", &["--engine", "fake", "--worker-role", "decode"], &small);
    cluster.until_whole();
    let pd = Pd(cluster);
    pd.until_known(&["p1", "d1"]);
    std::thread::scope(|scope| {
        for salt in 0..12 {
            let (pd, request) = (&pd, asked(&prompt(salt, 5 * PAGE), 4 * PAGE as u32));
            scope.spawn(move || assert_eq!(answer_of(&pd["g1"], &request), answer_of(reference(), &request)));
        }
    });
    assert!(pd.committed("d1") > 0.0);
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
}
