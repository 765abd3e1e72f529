//! The second turn of a conversation computes what is new, although others used the worker in between.

use serde_json::{Value, json};

use super::{COMPLETIONS, Filed, with};
use crate::harness::node::PREFILLED_TOKENS;

const KEPT: &str = "actor_node_kv_pages_kept";
/// Pages of 16 tokens.
const PAGES: &str = "64";

/// A prompt of tokens.
fn tokens(from: usize, len: usize) -> Vec<usize> {
    (0..len).map(|i| (from * 31 + i * i * 7 + i) % 256).collect()
}

fn turn(prompt: &[usize]) -> Value {
    json!({"model": "default", "prompt": prompt, "max_tokens": 4, "ignore_eos": true, "temperature": 0,
        "session_id": "talk", "props": {"keep-ms": "5m"}})
}

/// Asks, and gives how many prompt tokens were computed for it.
fn computed(filed: &Filed, body: &Value) -> f64 {
    let before = filed.node.figure(PREFILLED_TOKENS);
    filed.node.client().ok(COMPLETIONS, body);
    super::wait_for_idle(&filed.node);
    filed.node.figure(PREFILLED_TOKENS) - before
}

#[test]
fn the_second_turn_computes_only_its_new_tokens() {
    for (policy, expected) in [("keep-session", 33.0), ("fcfs", 353.0)] {
        let config = format!(
            "[runtime]\nworker-policy = \"{policy}\"\n[worker-policy.keep-session]\nmax-share = 0.5\n"
        );
        let filed = Filed::start(&config, &[("ENGINE__KV_PAGES", PAGES)]);
        let first = tokens(1, 320);
        assert_eq!(computed(&filed, &turn(&first)), 320.0);
        // Others need all pages meanwhile.
        for other in 10..16 {
            let body = json!({"model": "default", "prompt": tokens(other, 400), "max_tokens": 4});
            computed(&filed, &body);
        }
        let second = [first, tokens(99, 33)].concat();
        assert_eq!(computed(&filed, &turn(&second)), expected, "{policy}");
        if policy == "fcfs" {
            assert_eq!(filed.node.figure(KEPT), 0.0);
            continue;
        }
        assert!(filed.node.figure(KEPT) >= 22.0, "the second turn is kept too");
        // Who needs everything gets everything.
        let big = json!({"model": "default", "prompt": tokens(7, 1000), "max_tokens": 4});
        assert_eq!(computed(&filed, &big), 1000.0);
        assert_eq!(filed.node.figure(KEPT), 0.0);
        computed(&filed, &turn(&second));
        filed.node.wait_for_figure(KEPT, 22.0);
        computed(&filed, &with(turn(&second), json!({"props": {"session-final": true}})));
        filed.node.wait_for_figure(KEPT, 0.0);
        filed.node.assert_idle();
    }
}
