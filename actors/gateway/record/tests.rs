use config::ids::TenantId;
use policies::kv::page_hashes;
use policies::request::Props;
use tokio::sync::mpsc;

use super::*;
use crate::testing::request;

const PRINT: Fingerprint = Fingerprint([3; 32]);

fn recorder() -> (Recorder, mpsc::Receiver<Line>) {
    let (lines, waiting) = Lines::channel("log.record", 2);
    (Recorder { opened: Time::ZERO, key: [7; 32], lines }, waiting)
}

fn spec(number: u64) -> RequestSpec {
    let mut spec = request(number, 16);
    spec.hashes = Arc::new([PageHash([1; 16]), PageHash([number as u8; 16])]);
    spec.session = Some("alice's chat".into());
    spec.tenant = Some(TenantId::from("alice"));
    let props = [("priority", Prop::Int(5)), ("note", Prop::Text("about alice".into()))];
    spec.props = Arc::new(props.map(|(name, value)| (name.to_owned(), value)).into_iter().collect::<Props>());
    spec
}

fn measured() -> Measured {
    Measured {
        started: Time::ZERO + Span::from_micros(1500),
        ttft: Some(Span::from_millis(2)),
        whole: Span::from_millis(9),
        tokens: 4,
        decode_rate: None,
        tail: None,
        remote: None,
    }
}

fn line(recorder: &Recorder, spec: &RequestSpec) -> Value {
    let ended = Ended {
        spec,
        page_tokens: 16,
        fingerprint: PRINT,
        answer: &[1; 4],
        outcome: "success",
        measured: &measured(),
        cached: Some(16),
        worker: Some("w1".into()),
    };
    serde_json::to_value(recorder.line(&ended)).unwrap()
}

#[test]
fn a_line_has_what_a_replay_needs_and_no_text() {
    let (recorder, _waiting) = recorder();
    let line = line(&recorder, &spec(2));
    assert_eq!((line["timestamp"].as_f64(), line["input_length"].as_u64()), (Some(1.5), Some(3)));
    assert_eq!((line["output_length"].as_u64(), line["block_size"].as_u64()), (Some(4), Some(16)));
    assert_eq!((line["ttft_ms"].as_f64(), line["props"]["priority"].as_i64()), (Some(2.0), Some(5)));
    assert!(!line.to_string().contains("alice"), "{line}");
    assert!(line.get("n").is_none(), "{line}");
}

#[test]
fn what_is_equal_has_one_id_and_only_in_one_log() {
    let (recorder, _waiting) = recorder();
    let (a, b) = (line(&recorder, &spec(2)), line(&recorder, &spec(3)));
    assert_eq!(a["hash_ids"][0], b["hash_ids"][0]);
    assert_ne!(a["hash_ids"][1], b["hash_ids"][1]);
    assert_eq!((&a["session_id"], &a["tenant"]), (&b["session_id"], &b["tenant"]));
    let (lines, _waiting) = Lines::channel("log.record", 1);
    let other = Recorder { opened: Time::ZERO, key: [8; 32], lines };
    let c = line(&other, &spec(2));
    assert!(a["hash_ids"][0] != c["hash_ids"][0] && a["session_id"] != c["session_id"]);
    assert!(a["hash_ids"][0].as_u64().unwrap() < 1 << BITS);
}

/// What a next turn begins with: its pages have the ids that the former answer was recorded with.
#[test]
fn the_pages_of_an_answer_are_those_of_the_next_prompt() {
    let (recorder, _waiting) = recorder();
    let of = |prompt: &[Token]| {
        let hashes = page_hashes(&PRINT, 16, prompt).into();
        RequestSpec { prompt: prompt.into(), hashes, ..spec(2) }
    };
    let line = |spec: &RequestSpec, answer: &[Token]| {
        let ended = Ended {
            spec,
            page_tokens: 16,
            fingerprint: PRINT,
            answer,
            outcome: "success",
            measured: &measured(),
            cached: None,
            worker: None,
        };
        serde_json::to_value(recorder.line(&ended)).unwrap()
    };
    let (prompt, answer): (Vec<Token>, Vec<Token>) = ((0..40).collect(), (40..70).collect());
    let first = line(&of(&prompt), &answer);
    let ids = |line: &Value, key: &str| line[key].as_array().cloned().unwrap_or_default();
    assert_eq!((ids(&first, "hash_ids").len(), ids(&first, "answer_hash_ids").len()), (2, 2));
    let next: Vec<Token> = (0..90).collect();
    let both = [ids(&first, "hash_ids"), ids(&first, "answer_hash_ids")].concat();
    assert_eq!(ids(&line(&of(&next), &[]), "hash_ids")[..4], both);
    // Nothing is said of an answer that fills no page, nor of another one.
    assert!(ids(&line(&of(&prompt), &answer[..7]), "answer_hash_ids").is_empty());
    let other = line(&of(&prompt), &[9; 30]);
    assert!(ids(&other, "answer_hash_ids").iter().all(|id| !both.contains(id)));
}

#[test]
fn a_slow_disk_makes_nobody_wait() {
    let (recorder, mut waiting) = recorder();
    let spec = spec(2);
    let measured = measured();
    let ended = |output| Ended {
        spec: &spec,
        page_tokens: 16,
        fingerprint: PRINT,
        answer: &[1; 4][..output],
        outcome: "success",
        measured: &measured,
        cached: None,
        worker: None,
    };
    (0..5).for_each(|n| recorder.add(&ended(n)));
    assert_eq!(waiting.try_recv().unwrap().output_length, 0);
    assert_eq!(waiting.try_recv().unwrap().output_length, 1);
    assert!(waiting.try_recv().is_err(), "the others are left out");
}

#[tokio::test]
async fn lines_are_in_the_file_when_nothing_waits_and_what_was_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.jsonl");
    std::fs::write(&path, "{\"old\":1}\n").unwrap();
    let recorder = Recorder::open(&path).await.unwrap();
    let (spec, measured) = (spec(2), measured());
    recorder.add(&Ended {
        spec: &spec,
        page_tokens: 16,
        fingerprint: PRINT,
        answer: &[1; 4],
        outcome: "success",
        measured: &measured,
        cached: None,
        worker: None,
    });
    let two = async {
        while std::fs::read_to_string(&path).unwrap().lines().count() < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), two).await.expect("the line is written");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines[0]["old"].as_u64(), lines[1]["output_length"].as_u64()), (Some(1), Some(4)));
}
