//! Traces as small texts: what comes when, and what is refused.

use std::io::Write as _;

use policies::cost::fake::FakeModel;
use policies::request::{Prop, Sampling};

use super::*;
use crate::workload::Clients;

/// A scenario over a file with a text, which lives as long as the guard.
struct Trace {
    scenario: Scenario,
    path: PathBuf,
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn trace(name: &str, text: &str) -> Trace {
    let path = std::env::temp_dir().join(format!("actor-node-{}-{name}", std::process::id()));
    File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    let mut scenario = Scenario::default();
    scenario.workload.trace = Some(path.clone());
    scenario.workload.block_tokens = 4;
    scenario.cluster.page_tokens = 2;
    Trace { scenario, path }
}

/// Times in ms of what comes by itself, with the prompt's length.
fn all(trace: &Trace) -> Result<Vec<(u64, usize)>, SimError> {
    let mut clients = Clients::new(&trace.scenario)?;
    let mut out = Vec::new();
    while let Some(arrival) = clients.next()? {
        out.push((arrival.at.0 / 1_000_000, arrival.spec.prompt.len()));
    }
    Ok(out)
}

#[test]
fn mooncake_lines_come_at_their_times_and_share_blocks() {
    let text = r#"{"timestamp": 1000, "input_length": 7, "output_length": 3, "hash_ids": [5, 6]}

{"timestamp": 1500, "input_length": 9, "output_length": 0, "hash_ids": [5, 6, 7]}
{"timestamp": 1400.5, "input_length": 8, "output_length": 2, "hash_ids": [5, 9]}
{"timestamp": 3000, "input_length": 6, "output_length": 1}
"#;
    let mut trace = trace("mooncake", text);
    assert_eq!(all(&trace).unwrap(), [(0, 7), (400, 8), (500, 9), (2000, 6)]);
    let mut clients = Clients::new(&trace.scenario).unwrap();
    let specs: Vec<_> = std::iter::from_fn(|| clients.next().unwrap()).map(|a| a.spec).collect();
    assert_eq!(specs[0].prompt[..4], specs[1].prompt[..4]);
    assert_eq!(specs[0].prompt[..7], specs[2].prompt[..7]);
    assert_ne!(specs[1].prompt[4..8], specs[2].prompt[4..8]);
    assert_eq!(specs[0].hashes[..3], specs[2].hashes[..3]);
    assert_ne!(specs[0].hashes[0], specs[3].hashes[0]);
    // Answers have the length that the trace says.
    assert!(specs.iter().all(|spec| spec.ignore_end));
    assert_eq!(specs.iter().map(|spec| spec.max_tokens).collect::<Vec<_>>(), [3, 2, 1, 1]);
    trace.scenario.workload.speedup = 4.0;
    trace.scenario.workload.limit = 2;
    assert_eq!(all(&trace).unwrap(), [(0, 7), (125, 9)]);
}

#[test]
fn azure_lines_have_prompts_of_their_own() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,48,10\r\n\
                2023-11-16 18:17:04.0319600,31,8\r\n";
    let trace = trace("azure", text);
    assert_eq!(all(&trace).unwrap(), [(0, 48), (52, 31)]);
    let mut clients = Clients::new(&trace.scenario).unwrap();
    let specs: Vec<_> = std::iter::from_fn(|| clients.next().unwrap()).map(|a| a.spec).collect();
    assert_ne!(specs[0].prompt[..31], specs[1].prompt[..]);
    assert_eq!(specs.iter().map(|spec| spec.max_tokens).collect::<Vec<_>>(), [10, 8]);
}

#[test]
fn our_log_brings_pages_sessions_tenants_and_hints() {
    let text = r#"{"timestamp": 1790000000000, "input_length": 5, "output_length": 3, "hash_ids": ["00ff", "0x10"], "block_size": 2, "session_id": "s", "tenant": "t", "props": {"priority": 5, "note": "x", "share": 0.5, "fast": true}}
{"timestamp": 1790000000250, "input_length": 5, "output_length": 3, "hash_ids": ["00ff", "11"], "block_size": 2, "session_id": "s", "tenant": "t"}
{"timestamp": 1790000000250, "input_length": 5, "output_length": 3, "hash_ids": ["00ff", "11"], "block_size": 2}
"#;
    let trace = trace("log", text);
    let mut clients = Clients::new(&trace.scenario).unwrap();
    let specs: Vec<_> = std::iter::from_fn(|| clients.next().unwrap()).map(|a| a.spec).collect();
    assert_eq!(specs[0].session.as_ref().unwrap().as_str(), "s");
    assert_eq!(specs[0].tenant.as_ref().unwrap().as_str(), "t");
    let props = &specs[0].props;
    assert_eq!(props["priority"], Prop::Int(5));
    assert_eq!(props["note"], Prop::Text("x".into()));
    assert_eq!(props["share"], Prop::Float(0.5));
    assert_eq!(props["fast"], Prop::Bool(true));
    assert_eq!(specs[0].hashes[0], specs[1].hashes[0]);
    assert_ne!(specs[0].hashes[1], specs[1].hashes[1]);
    // Another tenant, or none, shares no page, though the tokens are the same.
    assert_eq!(specs[1].prompt[..4], specs[2].prompt[..4]);
    assert_ne!(specs[1].hashes[0], specs[2].hashes[0]);
    assert!(specs[1].props.is_empty());
}

/// A second turn begins with the first one's prompt and answer, of which the log knows no tokens.
#[test]
fn a_next_turn_finds_the_answer_before_it_in_the_cache() {
    let lines = |answer: &str| {
        format!(
            r#"{{"timestamp": 0, "input_length": 10, "output_length": 10, "hash_ids": [1, 2]{answer}, "block_size": 4}}
{{"timestamp": 60000, "input_length": 30, "output_length": 2, "hash_ids": [1, 2, 3, 4, 5, 6, 7], "block_size": 4}}
"#
        )
    };
    let one_worker = |name: &str, text: &str| {
        let mut trace = trace(name, text);
        trace.scenario.cluster.workers = 1;
        trace
    };
    let with = one_worker("answers", &lines(r#", "answer_hash_ids": [3, 4, 5]"#));
    let mut clients = Clients::new(&with.scenario).unwrap();
    let specs: Vec<_> = std::iter::from_fn(|| clients.next().unwrap()).map(|a| a.spec).collect();
    let answer = FakeModel::default().answer(&specs[0].prompt, &Sampling::default(), 0, 10);
    assert_eq!(specs[1].prompt[..20], [&specs[0].prompt[..], &answer[..]].concat());
    // The last token of the answer is in no page.
    let run = |trace: &Trace| crate::simulate(&trace.scenario).unwrap().report.cached_tokens;
    assert_eq!(run(&with), 18);
    // A log from before it knew: no more than the prompt's own blocks.
    assert_eq!(run(&one_worker("answers-unknown", &lines(""))), 8);
}

#[test]
fn turns_with_a_delay_come_after_the_former_one_has_ended() {
    let text = r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "session_id": "a"}
{"input_length": 2, "output_length": 1, "session_id": "a", "delay": 250}
{"timestamp": 100, "input_length": 9, "output_length": 1}
{"input_length": 3, "output_length": 1, "session_id": "a", "delay_ms": 500}
{"timestamp": 200, "input_length": 4, "output_length": 1, "session_id": "b"}
{"timestamp": 300, "input_length": 5, "output_length": 1, "session_id": "b"}
"#;
    let trace = trace("turns", text);
    let mut clients = Clients::new(&trace.scenario).unwrap();
    let first = clients.next().unwrap().unwrap();
    assert!(clients.is_followed(first.spec.id));
    let came = clients.ended(Time(7_000_000_000), first.spec.id, &[]).unwrap();
    let [second] = &came[..] else { panic!("{came:?}") };
    assert_eq!((second.at, second.spec.prompt.len()), (Time(7_250_000_000), 2));
    // Others come at their own times.
    let rest: Vec<_> = std::iter::from_fn(|| clients.next().unwrap()).collect();
    assert_eq!(rest.iter().map(|a| a.spec.prompt.len()).collect::<Vec<_>>(), [9, 4, 5]);
    assert!(!clients.is_followed(rest[0].spec.id));
    let came = clients.ended(Time(8_000_000_000), second.spec.id, &[]).unwrap();
    let [third] = &came[..] else { panic!("{came:?}") };
    assert_eq!((third.at, third.spec.prompt.len()), (Time(8_500_000_000), 3));
    assert!(clients.ended(Time(9_000_000_000), third.spec.id, &[]).unwrap().is_empty());
    clients.check_all_came().unwrap();
}

#[test]
fn requests_wait_for_those_that_they_name() {
    let text = r#"{"request_id": "a", "timestamp": 0, "input_length": 1, "output_length": 1, "branches": ["b"], "prefix_reset": true}
{"request_id": "b", "timestamp": 10, "input_length": 2, "output_length": 1}
{"request_id": "c", "wait_for": ["a", "b"], "input_length": 3, "output_length": 1, "delay": 5, "tool_wait_ms": 20}
"#;
    let trace = trace("waits", text);
    let mut clients = Clients::new(&trace.scenario).unwrap();
    let (a, b) = (clients.next().unwrap().unwrap(), clients.next().unwrap().unwrap());
    assert!(clients.next().unwrap().is_none());
    assert!(clients.ended(Time(50_000_000), b.spec.id, &[]).unwrap().is_empty());
    assert!(clients.check_all_came().is_err());
    let came = clients.ended(Time(70_000_000), a.spec.id, &[]).unwrap();
    let [c] = &came[..] else { panic!("{came:?}") };
    assert_eq!((c.at, c.spec.prompt.len()), (Time(95_000_000), 3));
    clients.check_all_came().unwrap();
}

#[test]
fn bad_lines_are_refused_with_file_line_and_key() {
    let good =
        r#"{"timestamp": 5000, "input_length": 4, "output_length": 1, "hash_ids": [1], "request_id": "r"}"#;
    let cases = [
        (r#"{"timestamp": 0, "output_length": 1}"#, "input_length"),
        (r#"{"timestamp": 0, "input_length": 0, "output_length": 1}"#, "input_length"),
        (r#"{"timestamp": -1, "input_length": 1, "output_length": 1}"#, "timestamp"),
        (r#"{"timestamp": 1e40, "input_length": 1, "output_length": 1}"#, "timestamp"),
        (r#"{"input_length": 1, "output_length": 1}"#, "timestamp"),
        (r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "chat_id": 3}"#, "chat_id"),
        (r#"{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}"#, "block-tokens"),
        (r#"{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": ["xyz"]}"#, "hash_ids"),
        (r#"{"timestamp": 0, "input_length": 4, "output_length": 1, "block_size": 0}"#, "block_size"),
        (
            r#"{"timestamp": 0, "input_length": 4, "output_length": 1, "answer_hash_ids": ["x"]}"#,
            "answer_hash_ids",
        ),
        (
            r#"{"timestamp": 0, "input_length": 5, "output_length": 2, "answer_hash_ids": [4]}"#,
            "answer_hash_ids",
        ),
        (r#"{"session_id": "s", "delay": 3, "input_length": 4, "output_length": 1}"#, "timestamp"),
        (r#"{"wait_for": ["q"], "input_length": 4, "output_length": 1}"#, "\"q\""),
        (r#"{"request_id": "r", "timestamp": 9000, "input_length": 4, "output_length": 1}"#, "request_id"),
        (r#"{"timestamp": "0", "input_length": 4, "output_length": 1}"#, "`timestamp`: "),
        (r#"{"timestamp": 0, "input_length": -4, "output_length": 1}"#, "`input_length`: "),
        (
            r#"{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [null]}"#,
            "`hash_ids`: use whole",
        ),
        (r#"{"timestamp": 0, "input_length": 4, "output_length": 1, "props": {"a": []}}"#, "use a flag"),
        ("{", "cut off"),
        ("hello", "expected value"),
    ];
    for (number, (bad, part)) in cases.into_iter().enumerate() {
        let trace = trace(&format!("bad-{number}"), &format!("{good}\n\n{bad}\n"));
        let error = all(&trace).unwrap_err().to_string();
        let file = trace.path.display().to_string();
        assert!(error.contains(part) && error.contains(&file) && error.contains("line 3"), "{bad}: {error}");
    }
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
    let cases = [
        (format!("{header}yesterday,3,4\n"), "TIMESTAMP"),
        (format!("{header}2023-11-16 18:17:03,many,4\n"), "ContextTokens"),
        (format!("{header}2023-11-16 18:17:03,3\n"), "GeneratedTokens"),
        ("TIMESTAMP,Context\n".into(), "ContextTokens"),
        (String::new(), "has no request: give it"),
        (header.into(), "has no request: give it"),
        ("what,is,this\n".into(), "format"),
    ];
    for (number, (text, part)) in cases.into_iter().enumerate() {
        let trace = trace(&format!("csv-{number}"), &text);
        let error = all(&trace).unwrap_err().to_string();
        assert!(error.contains(part), "{text:?}: {error}");
    }
    let binary = trace("binary", "");
    std::fs::write(&binary.path, [good.as_bytes(), b"\n\xff\xfe\n"].concat()).unwrap();
    assert!(all(&binary).unwrap_err().to_string().contains("line 2: it is no text"));
    let mut gone = trace("gone", "");
    gone.scenario.workload.trace = Some("no/such/trace.jsonl".into());
    assert!(all(&gone).unwrap_err().to_string().contains("no/such/trace.jsonl"));
}

/// A log is in the order of ends: what came first may have ended last.
#[test]
fn the_first_to_come_may_be_on_any_line() {
    let text = r#"{"timestamp": 1400, "input_length": 7, "output_length": 3}
{"timestamp": 1900, "input_length": 9, "output_length": 1}
{"timestamp": 1000, "input_length": 8, "output_length": 900}
"#;
    assert_eq!(all(&trace("ends", text)).unwrap(), [(0, 8), (400, 7), (900, 9)]);
}

#[test]
fn a_time_long_before_others_is_refused() {
    use std::fmt::Write as _;
    let mut text = String::new();
    for at in 0..2 * AHEAD {
        writeln!(text, r#"{{"timestamp": {}, "input_length": 1, "output_length": 1}}"#, 10 + at).unwrap();
    }
    text.push_str(r#"{"timestamp": 20, "input_length": 1, "output_length": 1}"#);
    let error = all(&trace("order", &text)).unwrap_err().to_string();
    let line = format!("line {}", 2 * AHEAD + 1);
    assert!(error.contains("sort the file") && error.contains(&line), "{error}");
}

#[test]
fn a_replay_ends_with_every_request_answered() {
    let text: String = (0..60)
        .map(|n| {
            let session = n % 7;
            let delay = if n < 7 { format!("\"timestamp\": {}", n * 40) } else { "\"delay\": 30".into() };
            format!(
                "{{{delay}, \"session_id\": \"s{session}\", \"input_length\": {}, \"output_length\": {}, \"hash_ids\": [{session}]}}\n",
                4 + n % 3,
                1 + n % 5
            )
        })
        .collect();
    let trace = trace("whole", &text);
    let run = crate::simulate(&trace.scenario).unwrap();
    assert_eq!((run.report.requests, run.report.finished), (60, 60), "{:?}", run.report);
    let tokens: u64 = (0..60).map(|n| 1 + n % 5).sum();
    assert_eq!(run.report.output_tokens, tokens);
    assert!(run.report.cached_tokens > 0);
}
