//! The same with the real model on little memory.

use serde_json::{Value, json};

use super::{COMPLETIONS, ENDED, rest_of, wait_for_idle, with};
use crate::harness::http::{Raw, only};
use crate::harness::node::{Node, PREEMPTIONS, PREFILLED_TOKENS, RUNNING};

const POLICY: (&str, &str) = ("RUNTIME__WORKER_POLICY", "priority,keep-session");

fn long(n: usize) -> Value {
    let prompt = format!("A long story about the number {n}:");
    json!({"model": "default", "prompt": prompt, "max_tokens": 120, "temperature": 0, "ignore_eos": true})
}

#[test]
fn b109_a_high_priority_overtakes_on_the_real_engine() {
    let node = Node::ready_with(&["--kv-pages", "64"], &[POLICY, ("RUNTIME__MAX_RUNNING", "4")]);
    let client = node.client();
    let streamed = |n| with(long(n), json!({"stream": true}));
    let mut running: Vec<Raw> = (0..4).map(|n| Raw::post(&node.base, COMPLETIONS, &streamed(n))).collect();
    for raw in &mut running {
        assert_eq!(raw.head().0, 200);
        raw.read_events(1);
    }
    node.wait_for_figure(RUNNING, 4.0);
    let high =
        json!({"model": "default", "prompt": "Quick!", "max_tokens": 2, "priority": 10, "temperature": 0});
    client.ok(COMPLETIONS, &high);
    assert_eq!(node.figure(ENDED), 1.0, "none of the four has ended");
    // Figures of a worker come a moment later.
    node.wait_for_figure(PREEMPTIONS, 1.0);
    for (n, streamed) in running.into_iter().map(rest_of).enumerate() {
        let alone = only(&client.ok(COMPLETIONS, &long(n))).text;
        assert!(!streamed.is_empty() && alone.ends_with(&streamed), "{n}: {streamed:?} of {alone:?}");
    }
    node.assert_idle();
}

#[test]
fn the_second_turn_computes_only_its_new_tokens_on_the_real_engine() {
    let node =
        Node::ready_with(&["--kv-pages", "32"], &[POLICY, ("WORKER_POLICY__KEEP_SESSION__MAX_SHARE", "0.5")]);
    let client = node.client();
    let tokens =
        |from: u32, len: u32| (0..len).map(|i| 500 + (from * 97 + i * 13) % 3000).collect::<Vec<u32>>();
    let computed = |body: &Value| {
        let before = node.figure(PREFILLED_TOKENS);
        client.ok(COMPLETIONS, body);
        wait_for_idle(&node);
        node.figure(PREFILLED_TOKENS) - before
    };
    let turn = |prompt: &[u32], keep: &str| {
        json!({"model": "default", "prompt": prompt, "max_tokens": 2, "ignore_eos": true, "session_id": keep,
            "props": {"keep-ms": keep}})
    };
    for (keep, expected) in [("5m", 21.0), ("0s", 149.0)] {
        let first = tokens(u32::from(keep == "0s") + 1, 128);
        assert_eq!(computed(&turn(&first, keep)), 128.0);
        for other in 5..8 {
            computed(&json!({"model": "default", "prompt": tokens(other, 200), "max_tokens": 2}));
        }
        let second = [first, tokens(9, 21)].concat();
        assert_eq!(computed(&turn(&second, keep)), expected, "{keep}");
    }
}
