//! The log of requests.

use std::path::Path;

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, chat, completion, with};
use crate::harness::http::Raw;
use crate::harness::node::{Node, binary};
use crate::harness::wait_for;

fn lines(path: &Path, count: usize) -> Vec<Value> {
    wait_for("the requests in the file", || {
        let text = std::fs::read_to_string(path).unwrap();
        (text.lines().count() >= count && text.ends_with('\n')).then_some(text)
    })
    .lines()
    .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}")))
    .collect()
}

#[test]
fn requests_are_recorded_without_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.jsonl");
    let node = Node::fake(&["--record", path.to_str().unwrap()]);
    let client = node.client();
    let secret = "the colour of the safe is green, and its number is 4711 ";
    let first = client.ok(COMPLETIONS, &completion(secret, 5));
    let hints = json!({"n": 2, "props": {"priority": 3, "why": "the safe"}, "user": "eve"});
    client.ok(COMPLETIONS, &with(&completion(format!("{secret}!"), 7), hints));
    client.stream(CHAT, &chat("hello", 4));
    let found = lines(&path, 3);
    assert_eq!(found.len(), 3);

    let of = |n: usize, key: &str| found[n][key].clone();
    assert_eq!((of(0, "input_length"), of(0, "output_length")), (json!(secret.len()), json!(5)));
    assert_eq!((of(0, "outcome"), of(0, "max_tokens")), (json!("success"), json!(5)));
    let page = of(0, "block_size").as_u64().unwrap() as usize;
    let pages = |n: usize| of(n, "hash_ids").as_array().unwrap().clone();
    assert_eq!(pages(0).len(), secret.len() / page);
    // The second prompt begins as the first one does, and found that in the cache.
    let shared = pages(0).iter().zip(&pages(1)).take_while(|(a, b)| a == b).count();
    assert_eq!(shared, secret.len() / page);
    assert_eq!(of(1, "cached_tokens"), json!(shared * page));
    assert_eq!((of(1, "n"), of(1, "props")["priority"].clone()), (json!(2), json!(3)));
    assert!(of(0, "timestamp").as_f64() <= of(1, "timestamp").as_f64());
    assert!(of(2, "ttft_ms").as_f64().unwrap() <= of(2, "e2e_ms").as_f64().unwrap());
    let text = std::fs::read_to_string(&path).unwrap();
    for word in ["colour", "safe", "eve", "hello", first["choices"][0]["text"].as_str().unwrap()] {
        assert!(!text.contains(word), "{word} in {text}");
    }
}

/// What fails, and who leaves, is there too: a replay has to carry the same load.
#[test]
fn requests_that_fail_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.jsonl");
    let keys = [("ENGINE__FAKE__STEP_OVERHEAD", "20ms"), ("LOG__RECORD", path.to_str().unwrap())];
    let node = Node::fake_with(&[], &keys);
    let long = with(&completion("leaves early", 4000), json!({"stream": true}));
    let mut stream = Raw::post(&node.base, COMPLETIONS, &long);
    stream.head();
    stream.read_events(1);
    drop(stream);
    let found = lines(&path, 1);
    assert_eq!(found[0]["outcome"], "cancelled", "{}", found[0]);
    assert!(found[0]["output_length"].as_u64().unwrap() >= 1);
}

#[test]
fn a_file_that_cannot_be_written_is_said_at_the_start() {
    for (flag, key) in [("--record", "log.record"), ("--record-steps", "log.record-steps")] {
        let (status, said) = Node::refused(&["--engine", "fake", flag, "/proc/none/lines.jsonl"], &[]);
        assert!(!status.success());
        assert!(
            said.contains(key) && said.contains(flag) && said.contains("/proc/none/lines.jsonl"),
            "{said}"
        );
    }
    let whole = ["--engine", "mistralrs", "--record-steps", "steps.jsonl", "--dump-config"];
    let (status, said) = Node::refused(&whole, &[]);
    assert!(!status.success());
    assert!(said.contains("log.record-steps = steps.jsonl") && said.contains("engine.kind"), "{said}");
}

/// A node whose steps take twice what a scenario says of them: replayed with what it wrote of its steps, they take that.
#[test]
fn a_replay_goes_by_the_speed_of_the_machine_that_served() {
    let folder = tempfile::tempdir().unwrap();
    let [requests, steps] = ["requests.jsonl", "steps.jsonl"].map(|name| folder.path().join(name));
    let flags = ["--record", requests.to_str().unwrap(), "--record-steps", steps.to_str().unwrap()];
    let node =
        Node::fake_with(&flags, &[("ENGINE__FAKE__STEP_OVERHEAD", "20ms"), ("CLUSTER__NAME", "slow-1")]);
    let client = node.client();
    for number in 0..3 {
        client.ok(
            COMPLETIONS,
            &with(&completion(format!("a secret of {number}"), 8), json!({"ignore_eos": true})),
        );
    }
    let asked = lines(&requests, 3);
    // A step at least a request is due, and all of it is in the file when a later one is.
    let found = lines(&steps, 3);
    let number = |line: &Value, key: &str| line[key].as_u64().unwrap_or_else(|| panic!("{key} in {line}"));
    for line in &found {
        assert_eq!(line["node"], "slow-1", "{line}");
        assert!(number(line, "took_ns") >= 20_000_000, "{line}");
        assert!(line["prefill"] != json!([]) || line["decode"][0] == 1, "{line}");
    }
    for pair in found.windows(2) {
        assert!(number(&pair[1], "unix_us") - number(&pair[0], "unix_us") >= 100_000, "{pair:?}");
    }
    // The first step computed the first prompt, after the request had come.
    let prompt = "a secret of 0".len();
    assert_eq!((&found[0]["prefill"], &found[0]["decode"]), (&json!([[0, prompt]]), &json!([0, 0])));
    assert!(number(&asked[0], "unix_us") <= number(&found[0], "unix_us"));
    assert!(!std::fs::read_to_string(&steps).unwrap().contains("secret"));

    let scenario = folder.path().join("scenario.toml");
    std::fs::write(&scenario, "[cost.affine]\nstep-overhead = \"10ms\"\n").unwrap();
    let [scenario, requests, steps] = [&scenario, &requests, &steps].map(|path| path.to_str().unwrap());
    let replay = |more: &[&str]| {
        let args = ["sim", scenario, "--workers", "1", "--json", "--trace", requests];
        let out = binary().args([&args[..], more].concat()).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        serde_json::from_slice::<Value>(&out.stdout).unwrap()
    };
    let (by_speed, by_cost) = (replay(&["--speed", steps]), replay(&[]));
    let ttft = |report: &Value| report["ttft_ms"]["p50"].as_f64().unwrap();
    assert_eq!((by_speed["finished"].as_u64(), by_cost["finished"].as_u64()), (Some(3), Some(3)));
    assert!(by_speed["workers"][0]["slowed"].as_f64().unwrap() >= 2.0, "{by_speed}");
    assert!(ttft(&by_speed) >= 20.0 && ttft(&by_cost) < 20.0, "{} {}", ttft(&by_speed), ttft(&by_cost));
}
