//! Many streams of the real model on little memory: row-invariance makes every one of them its solo run, token by token.

use serde_json::{Value, json};

use super::{COMPLETIONS, completion, with};
use crate::harness::http::{choices, join, only};
use crate::harness::node::{Node, PREEMPTIONS, PREFIX_HITS};

const PAGES: &str = "64";

/// Short requests of different lengths, some of which begin alike.
fn requests() -> Vec<Value> {
    let openings =
        ["The capital of", "Once upon a time", "fn main() {", "In the beginning there was", "2 + 2 ="];
    (0..200_u32)
        .map(|i| {
            let prompt = format!("{} {i}{}", openings[i as usize % 5], " and so on".repeat(i as usize % 7));
            let fields = match i % 4 {
                1 => json!({"temperature": 0.8, "seed": i}),
                2 => json!({"logprobs": 1, "seed": i}),
                3 => json!({"stop": ["\n", "."], "seed": i}),
                _ => json!({"seed": i}),
            };
            with(&completion(prompt, 6 + i % 20), fields)
        })
        .collect()
}

/// Four texts in one request, so that they run together however late other clients are.
struct Together {
    request: Value,
    expected: Vec<Value>,
}

impl Together {
    /// Each prompt by itself, and all of them in one request.
    fn new(node: &Node, prompts: [String; 4], max_tokens: u32) -> Self {
        let request =
            |prompt: Value| with(&completion(prompt, max_tokens), json!({"logprobs": 2, "ignore_eos": true}));
        let solo =
            |prompt: &String| node.client().ok(COMPLETIONS, &request(json!(prompt)))["choices"][0].clone();
        Self { expected: prompts.iter().map(solo).collect(), request: request(json!(prompts)) }
    }

    /// Runs it; every one equals its solo run to the last bit.
    fn run(&self, node: &Node) {
        let got = node.client().ok(COMPLETIONS, &self.request);
        for (got, expected) in got["choices"].as_array().unwrap().iter().zip(&self.expected) {
            assert_eq!(
                (&got["text"], &got["finish_reason"], &got["logprobs"]),
                (&expected["text"], &expected["finish_reason"], &expected["logprobs"])
            );
        }
        let tokens = self.expected.len() as u64 * self.request["max_tokens"].as_u64().unwrap();
        assert_eq!(got["usage"]["completion_tokens"], tokens);
    }
}

/// 200 concurrent streams on a 64-page KV beside four answers that do not fit in it by themselves, all equal to their
/// solo runs; nothing leaks.
#[test]
fn two_hundred_streams_on_64_pages_equal_their_solo_runs() {
    let node = Node::ready(&["--kv-pages", PAGES]);
    let client = node.client();
    let requests = requests();
    let expected: Vec<Value> = requests.iter().map(|request| client.ok(COMPLETIONS, request)).collect();
    let long = Together::new(&node, [1, 2, 3, 4].map(|i| format!("Part {i} of the story:")), 270);
    let before = node.figure(PREEMPTIONS);
    std::thread::scope(|scope| {
        scope.spawn(|| long.run(&node));
        for (request, expected) in requests.iter().zip(&expected) {
            let client = client.clone();
            scope.spawn(move || {
                if request.get("logprobs").is_some() {
                    let whole = client.ok(COMPLETIONS, request);
                    assert_eq!(whole["choices"], expected["choices"], "to the last bit of {request}");
                } else {
                    assert_eq!(
                        join(&client.stream(COMPLETIONS, request)).choices,
                        choices(expected),
                        "{request}"
                    );
                }
            });
        }
    });
    assert!(node.figure(PREEMPTIONS) > before, "memory was never short");
    node.assert_idle();
}

/// B111: four long answers that cannot all stay in memory: those that lose their pages go on as if nothing had happened.
#[test]
fn b111_preemption_changes_nothing() {
    let node = Node::ready(&["--kv-pages", "16"]);
    let prompt = |i| format!("Chapter {i}. It was a dark and stormy night, and");
    let together = Together::new(&node, [0, 1, 2, 3].map(prompt), 70);
    assert_eq!(node.figure(PREEMPTIONS), 0.0);
    together.run(&node);
    assert!(node.figure(PREEMPTIONS) > 0.0, "memory was never short");
    node.assert_idle();
}

/// B78: the identical prompt five times in a row and five times at once, its beginning and what extends it: all equal the
/// run without a cache.
#[test]
fn b78_identical_prompts() {
    let base = "A robot lived in a lighthouse by the sea. Every evening it climbed the steps to the lamp, polished the \
                glass and waited for the ships. One night a storm came from the north and the robot";
    let prompts = [base, &base[..60], &format!("{base} saw a boat"), &format!("{} slept.", &base[..130])];
    let uncached = Node::ready_with(&["--kv-pages", PAGES], &[("RUNTIME__PREFIX_CACHE", "false")]);
    let request = |prompt: &str| with(&completion(prompt, 12), json!({"logprobs": 2}));
    let expected: Vec<Value> =
        prompts.iter().map(|p| uncached.client().ok(COMPLETIONS, &request(p))["choices"].clone()).collect();
    assert_eq!(uncached.figure(PREFIX_HITS), 0.0);
    drop(uncached);
    let node = Node::ready(&["--kv-pages", PAGES]);
    let client = node.client();
    for round in 0..5 {
        let answer = client.ok(COMPLETIONS, &request(base));
        assert_eq!(answer["choices"], expected[0], "round {round}");
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert_eq!(cached > 0, round > 0, "round {round}: {cached} cached");
        assert!(cached < answer["usage"]["prompt_tokens"].as_u64().unwrap());
    }
    for (prompt, expected) in prompts.iter().zip(&expected) {
        assert_eq!(client.ok(COMPLETIONS, &request(prompt))["choices"], *expected, "{prompt}");
    }
    std::thread::scope(|scope| {
        for i in 0..5 {
            let (client, request, expected) = (client.clone(), request(base), &expected[0]);
            scope.spawn(move || assert_eq!(client.ok(COMPLETIONS, &request)["choices"], *expected));
            let client = node.client();
            scope.spawn(move || {
                only(&client.ok(COMPLETIONS, &completion(format!("Something else, {i}:"), 4)))
            });
        }
    });
    node.assert_idle();
}
