//! Many requests on little memory: all finish, and every answer is the one it would have been alone.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::{COMPLETIONS, completion, solo, streamed};
use crate::harness::http::{Raw, choices, join, only};
use crate::harness::node::{
    GENERATION_TOKENS, Node, PREEMPTIONS, PREFILLED_TOKENS, PREFIX_HITS, PROMPT_TOKENS, RUNNING,
};
use crate::harness::wait_for;

/// Requests of every kind: greedy and drawn, with stop strings, log-probabilities and several choices.
fn requests() -> Vec<Value> {
    (0..200_u32)
        .map(|i| {
            let prompt = format!(
                "{i:03} {}",
                &"a prompt of its own length and more ".repeat(3)[..20 + i as usize % 60]
            );
            let mut request = completion(&prompt, 24 + i % 60);
            match i % 5 {
                1 => request["temperature"] = json!(1),
                2 => request["logprobs"] = json!(3),
                3 => request["stop"] = json!(["ee", "th", "a "]),
                4 => (request["n"], request["temperature"]) = (json!(2), json!(0.7)),
                _ => {}
            }
            request["seed"] = json!(i);
            request
        })
        .collect()
}

/// What does not depend on time: choices with their log-probabilities, and the counts.
fn content(answer: &Value) -> Value {
    json!([answer["choices"], answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]])
}

/// B108, B110, B111: 200 at once on 64 pages. Streams have no gap and no repetition, counts and log-probabilities are those
/// of an undisturbed run, and nobody loses its pages more than three times.
#[test]
fn two_hundred_streams_on_64_pages_equal_their_solo_runs() {
    let requests = requests();
    let roomy = Node::fake(&[]);
    let expected: Vec<Value> = requests.iter().map(|r| roomy.client().ok(COMPLETIONS, r)).collect();
    assert_eq!(roomy.figure(PREEMPTIONS), 0.0, "solo runs are undisturbed");

    let node = Node::fake(&["--kv-pages", "64"]);
    let client = node.client();
    std::thread::scope(|scope| {
        for (i, (request, expected)) in requests.iter().zip(&expected).enumerate() {
            let client = client.clone();
            scope.spawn(move || {
                if i % 2 == 0 {
                    let joined = join(&client.stream(COMPLETIONS, request));
                    assert_eq!(joined.choices, choices(expected), "{request}");
                } else {
                    assert_eq!(content(&client.ok(COMPLETIONS, request)), content(expected), "{request}");
                }
            });
        }
    });
    let preemptions = node.figure(PREEMPTIONS);
    assert!(preemptions > 0.0, "memory was never short");
    assert!(preemptions <= 3.0 * 240.0, "{preemptions} preemptions of 240 sequences");
    node.assert_idle();
}

/// B110: twelve requests that need more than twice the memory finish, and most of what is computed is computed once.
#[test]
fn b110_preemption_does_not_thrash() {
    let requests: Vec<Value> = (0..12)
        .map(|i| completion(&format!("{i:02} {}", "four pages of prompt. ".repeat(3)[..60].to_owned()), 97))
        .collect();
    let roomy = Node::fake(&[]);
    let expected: Vec<_> = requests.iter().map(|r| solo(&roomy.client(), r)).collect();
    let node = Node::fake_with(&["--kv-pages", "64"], &[("ENGINE__FAKE__STEP_OVERHEAD", "500us")]);
    let client = node.client();
    std::thread::scope(|scope| {
        for (request, expected) in requests.iter().zip(&expected) {
            let client = client.clone();
            scope.spawn(move || assert_eq!(solo(&client, request), *expected));
        }
    });
    node.assert_idle();
    assert!(node.figure(PREEMPTIONS) <= 36.0, "three times a request at most");
    let (prefilled, drawn) = (node.figure(PREFILLED_TOKENS), node.figure(GENERATION_TOKENS));
    let recomputed = prefilled - node.figure(PROMPT_TOKENS);
    assert!(
        recomputed < (prefilled + drawn) / 2.0,
        "{recomputed} of {prefilled} + {drawn} were computed again"
    );
}

/// B107: without memory pressure nothing is computed twice, however different the lengths.
#[test]
fn b107_nothing_is_computed_twice_without_pressure() {
    let node = Node::fake(&[]);
    let client = node.client();
    std::thread::scope(|scope| {
        for i in 1..=8 {
            let client = client.clone();
            let prompt = format!("{i}{}", "x".repeat(i * 10 - 1));
            scope.spawn(move || client.ok(COMPLETIONS, &completion(&prompt, 100)));
        }
    });
    node.assert_idle();
    assert_eq!(node.figure(PREFILLED_TOKENS), 360.0);
    assert_eq!(node.figure(GENERATION_TOKENS), 800.0);
    assert_eq!((node.figure(PREEMPTIONS), node.figure(PREFIX_HITS)), (0.0, 0.0));
}

/// B78: a prompt that was seen, its beginning, what extends it and what shares half of it: all equal the run without a
/// cache, hits are counted, and at least one token is computed each time.
#[test]
fn b78_cached_prompts_change_nothing() {
    let base = "A prompt that fills five pages of sixteen tokens each, so that four can be found again.";
    let prompts = [
        base.to_owned(),
        base[..64].to_owned(),
        base[..63].to_owned(),
        format!("{base} And more of it."),
        format!("{}{}", &base[..40], "but then it goes another way for a while"),
    ];
    let uncached = Node::fake_with(&[], &[("RUNTIME__PREFIX_CACHE", "false")]);
    let expected = prompts.each_ref().map(|p| solo(&uncached.client(), &completion(p, 20)));
    let again = uncached.client().ok(COMPLETIONS, &completion(base, 20));
    assert_eq!((only(&again), uncached.figure(PREFIX_HITS)), (expected[0].clone(), 0.0));

    let node = Node::fake(&["--kv-pages", "64"]);
    let client = node.client();
    for round in 0..5 {
        for (i, prompt) in prompts.iter().enumerate() {
            let answer = client.ok(COMPLETIONS, &completion(prompt, 20));
            assert_eq!(only(&answer), expected[i], "round {round}, prompt {i}");
            let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            assert!(cached < prompt.len() as u64, "a token is always computed");
            match (round, i) {
                (0, 0) => assert_eq!(cached, 0),
                (0, 4) => assert_eq!(cached, 32, "two whole pages are shared"),
                (1.., 0) => assert_eq!(cached, 80, "all whole pages"),
                (1.., 1) => assert_eq!(cached, 48, "all but the page with the last token"),
                _ => {}
            }
        }
        std::thread::scope(|scope| {
            for i in 0..20 {
                let client = client.clone();
                scope.spawn(move || {
                    client.ok(COMPLETIONS, &completion(&format!("{round} {i} something else"), 8))
                });
            }
            for _ in 0..5 {
                let (client, expected) = (client.clone(), &expected[0]);
                scope.spawn(move || assert_eq!(solo(&client, &completion(base, 20)), *expected, "at once"));
            }
        });
    }
    assert!(node.figure(PREFIX_HITS) > 0.0);
    node.assert_idle();
}

/// B108: rounds of a few requests of different lengths, some of them cancelled: each answer is its own.
#[test]
fn b108_batch_mates_do_not_mix() {
    let node = Node::fake_with(&[], &[("ENGINE__FAKE__STEP_OVERHEAD", "300us")]);
    let roomy = Node::fake(&[]);
    let request = |round: usize, i: usize| {
        completion(
            &format!("{round}/{i} {}", "w".repeat(round * 13 % 50 + i * 9)),
            (10 + (round * 7 + i * 11) % 40) as u32,
        )
    };
    for round in 0..50 {
        std::thread::scope(|scope| {
            for i in 0..2 + round % 5 {
                let (node, roomy) = (&node, &roomy);
                let request = request(round, i);
                scope.spawn(move || {
                    if (round + i) % 4 == 3 {
                        Raw::post(&node.base, COMPLETIONS, &streamed(&request)).read_events(1 + i);
                    } else {
                        let (got, expected) =
                            (solo(&node.client(), &request), solo(&roomy.client(), &request));
                        assert_eq!(got, expected, "round {round}");
                    }
                });
            }
        });
    }
    node.assert_idle();
}

/// B112: decoding goes on while a long prompt is computed, chunk by chunk; no step is larger than configured.
#[test]
fn b112_a_long_prompt_does_not_stall_decoding() {
    let keys = [
        ("ENGINE__FAKE__PREFILL_PER_TOKEN", "200us"),
        ("RUNTIME__MAX_RUNNING", "16"),
        ("RUNTIME__MAX_BATCH_TOKENS", "64"),
    ];
    let node = Node::fake_with(&[], &keys);
    let mut decoding =
        Raw::post(&node.base, COMPLETIONS, &streamed(&completion("decodes all the time", 8000)));
    decoding.read_events(1);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Reads along, so that nothing waits for this client.
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                decoding.read_events(1);
            }
            drop(decoding);
        });
        wait_for("decoding", || (node.figure(RUNNING) == 1.0).then_some(()));
        let before = node.figure(GENERATION_TOKENS);
        node.client().ok(COMPLETIONS, &completion(&"long prompt ".repeat(500)[..6000], 1));
        let between = node.figure(GENERATION_TOKENS) - before;
        ended.store(true, Ordering::Relaxed);
        // 6000 tokens at 63 a step are 96 steps, and each of them decodes a token of the other stream.
        assert!(between >= 80.0, "{between} tokens were decoded meanwhile");
    });
    node.assert_idle();
    let text = node.client().get("/metrics").unwrap().text();
    let bucket = |le: &str| {
        let line = text
            .lines()
            .find(|l| l.starts_with(&format!("actor_node_engine_step_tokens_bucket{{le=\"{le}\"}}")));
        line.and_then(|l| l.rsplit(' ').next()).unwrap_or_else(|| panic!("{le} in {text}")).to_owned()
    };
    assert_eq!(bucket("64"), bucket("+Inf"), "no step has more than 64 tokens");
}
