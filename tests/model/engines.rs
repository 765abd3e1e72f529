//! The two engines on the same file, and what a node takes of memory.

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, chat, completion, node, reference, with};
use crate::harness::http::{choices, join, only};
use crate::harness::model::default_file;
use crate::harness::node::{Node, SESSIONS};
use crate::harness::wait_for;

/// The whole mistral.rs engine: answers, streams, agrees on the top token, and says clearly what it cannot do.
#[test]
fn the_whole_mistral_rs_engine_serves_the_same_file() {
    let whole = Node::ready(&["--engine", "mistralrs", "--max-context", "1024"]);
    let client = whole.client();
    let question = chat("What is the capital of France?", 24);
    let answer = only(&client.ok(CHAT, &question));
    assert_eq!(answer, only(&node().client().ok(CHAT, &question)), "both engines say the same here");
    assert_eq!(join(&client.stream(CHAT, &question)).choices, [answer]);

    let (mut agree, mut compared) = (0, 0);
    for text in &reference().texts {
        // Every eighth position: a request each.
        for at in (3..text.ids.len()).step_by(8) {
            let request = completion(json!(text.ids[..=at]), 1);
            let request = with(&request, json!({"logprobs": 1, "ignore_eos": true}));
            let token = |node: &Node| {
                node.client().ok(COMPLETIONS, &request)["choices"][0]["logprobs"]["tokens"].clone()
            };
            compared += 1;
            agree += usize::from(token(&whole) == token(node()));
        }
    }
    assert!(compared >= 35 && agree * 100 >= compared * 95, "{agree} of {compared} top tokens agree");

    let several = with(&completion("Once upon a time", 8), json!({"n": 2, "temperature": 1}));
    assert_eq!(choices(&client.ok(COMPLETIONS, &several)).len(), 2);
    let prompt_logprobs = with(&completion("Once upon a time", 4), json!({"echo": true, "logprobs": 1}));
    let response = client.post(COMPLETIONS, &prompt_logprobs);
    let error = response.error(response.status);
    assert!((400..=501).contains(&response.status) && response.status != 500, "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("mistralrs") && message.contains("prompt"), "{message}");
    assert_eq!(only(&client.ok(CHAT, &question)).finish, "stop", "and goes on");
    wait_for("all sessions to end", || (whole.figure(SESSIONS) == 0.0).then_some(()));
}

/// Resident memory: twice the file, the KV budget and 300 MB at most, after work at full width.
#[test]
fn memory_stays_within_its_bound() {
    let file = std::fs::metadata(default_file()).unwrap().len();
    let kv: u64 = 64 * 1024 * 1024;
    let node = Node::ready(&["--kv-memory", "64MiB"]);
    let client = node.client();
    std::thread::scope(|scope| {
        for i in 0..16 {
            let client = client.clone();
            let prompt = format!("{i} {}", "the quick brown fox jumps over the lazy dog ".repeat(8));
            scope.spawn(move || client.ok(COMPLETIONS, &completion(prompt, 8)));
        }
    });
    let (resident, bound) = (node.resident(), 2 * file + kv + 300_000_000);
    assert!(resident <= bound, "{resident} bytes are resident; the bound is {bound}");
    node.assert_idle();
}

/// B106: with nothing configured the start-up log states the budget, and several whole windows fit.
#[test]
fn b106_the_default_budget_is_stated_and_useful() {
    let node = Node::ready(&["--log-format", "json"]);
    let log = node.log();
    let line = log.lines().find(|line| line.contains("model is ready")).unwrap_or_else(|| panic!("{log}"));
    let line: Value = serde_json::from_str(line).unwrap();
    let (pages, tokens) = (line["pages"].as_u64().unwrap(), line["kv_tokens"].as_u64().unwrap());
    assert_eq!(tokens, pages * 16);
    assert!(
        line["full_windows"].as_u64().unwrap() >= 1 && tokens >= line["window"].as_u64().unwrap(),
        "{line}"
    );
}
