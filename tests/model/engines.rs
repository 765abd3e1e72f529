//! The two engines on the same file, and what a node takes of memory.

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, alternatives, chat, completion, node, top_agreement, with};
use crate::harness::http::{Raw, choices, join, only};
use crate::harness::model::default_file;
use crate::harness::node::Node;

/// The whole mistral.rs engine: answers, streams, draws, is biased and cancelled, and agrees with the reference on the top token.
#[test]
fn the_whole_mistral_rs_engine_serves_the_same_file() {
    let whole = Node::ready(&["--engine", "mistralrs", "--max-context", "1024"]);
    let client = whole.client();
    // A first token with a wide margin: the engines' arithmetic differs in the last digits.
    let paris = only(&client.ok(COMPLETIONS, &completion("The capital of France is", 8)));
    assert_eq!(paris, only(&node().client().ok(COMPLETIONS, &completion("The capital of France is", 8))));
    assert!(paris.text.starts_with(" Paris."), "{paris:?}");

    let question = chat("What is the capital of France?", 24);
    let answer = only(&client.ok(CHAT, &question));
    assert_eq!(join(&client.stream(CHAT, &question)).choices, std::slice::from_ref(&answer));
    let tokens = client.ok("/v1/tokenize", &json!({"messages": question["messages"]}));
    assert_eq!(only(&client.ok(COMPLETIONS, &completion(tokens["tokens"].clone(), 24))), answer);

    let (agree, compared) = top_agreement(&whole, &alternatives(&whole, 1));
    assert!(agree * 100 >= compared * 95, "{agree} of {compared} top tokens agree");

    let several = with(&completion("Once upon a time", 8), json!({"n": 2, "temperature": 1, "stop": "zzz"}));
    let drawn = choices(&client.ok(COMPLETIONS, &several));
    assert!(drawn.len() == 2 && drawn[0] != drawn[1], "{drawn:?}");
    assert_eq!(choices(&client.ok(COMPLETIONS, &several)), drawn, "draws depend on seed and position alone");
    let paris = super::tokenize(&whole, " Paris")[0];
    let forced = with(&completion("The capital", 4), json!({"logit_bias": {paris.to_string(): 100}}));
    assert_eq!(only(&client.ok(COMPLETIONS, &forced)).text, " Paris Paris Paris Paris");
    let error = client.post(COMPLETIONS, &completion(vec![1; 1024], 4)).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    // A client that leaves ends its request here too.
    let mut leaving = with(&completion("Once upon a time", 900), json!({"stream": true, "ignore_eos": true}));
    leaving["stream_options"] = json!({"include_usage": true});
    let mut stream = Raw::post(&whole.base, COMPLETIONS, &leaving);
    stream.read_events(2);
    drop(stream);
    assert_eq!(only(&client.ok(CHAT, &question)), answer, "and goes on");
    whole.assert_idle();
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
