use std::sync::Arc;

use super::super::fetching::MIN_TOKENS;
use super::*;
use crate::cost::{Hardware, HardwareProfile, ModelShape};
use crate::kv::{Fingerprint, PageLayout};
use crate::placement::{KvPeer, PlaceRequest, WorkerInfo};
use crate::policy::testing;

const T: Time = Time::ZERO;
const PAGE: u32 = 16;

fn with(row: CandidateRow, change: impl FnOnce(&mut WorkerInfo)) -> CandidateRow {
    let mut info = WorkerInfo::clone(&row.info);
    change(&mut info);
    CandidateRow { info: Arc::new(info), ..row }
}

/// An idle worker that exchanges pages and holds so many tokens of the prompt.
fn row(n: u64, hit_tokens: u32) -> CandidateRow {
    let layout = PageLayout { page_tokens: PAGE, layers: 30, kv_heads: 3, head_dim: 64, element_bytes: 2 };
    let kv = KvPeer { address: "h:1".to_owned(), fingerprint: Fingerprint([7; 32]), layout };
    let row = with(testing::row(n), |info| {
        info.kv = Some(kv);
        info.shape = ModelShape::named("smollm2-135m");
    });
    CandidateRow { hit_tokens, ..row }
}

fn query(prompt: u32, rows: Vec<CandidateRow>, prefill: Vec<CandidateRow>) -> PolicyQuery {
    PolicyQuery { prefill: prefill.into(), ..testing::query(prompt, None, rows) }
}

fn said(least: u32, query: &PolicyQuery) -> Opinion {
    let opinion = Replicate::new(ReplicateOptions { min_tokens: Some(least) }).opinion(T, query);
    assert!(opinion.exclude.is_empty() && opinion.pin.is_none() && opinion.costs.is_empty());
    opinion
}

/// Who fetches from whom, and how many tokens.
fn fetches(opinion: &Opinion) -> Vec<(&str, &str, u32)> {
    opinion.fetches.iter().map(|f| (f.to.node.as_str(), f.from.node.as_str(), f.tokens)).collect()
}

#[test]
fn whoever_holds_less_fetches_from_who_holds_most() {
    let query = query(1000, vec![row(0, 0), row(1, 640), row(2, 320)], vec![row(9, 608)]);
    assert_eq!(fetches(&said(64, &query)), [("w0", "w1", 640), ("w2", "w1", 640)], "32 tokens are too few");
    assert_eq!(fetches(&said(32, &query)), [("w0", "w1", 640), ("w2", "w1", 640), ("w9", "w1", 640)]);
    let fetch = &said(64, &query).fetches[1];
    assert_eq!(fetch.why, "w1#1 holds 320 more tokens of the prompt than w2#1");
    let numbers: Vec<&str> = fetch.numbers.iter().map(|(name, _)| *name).collect();
    let all = ["fetch-tokens", "holder-tokens", "own-tokens", "transfer-bytes", "transfer-ms", "compute-ms"];
    assert_eq!(numbers, all);
    let bytes = f64::from(20 * PAGE * 2 * 30 * 3 * 64 * 2);
    assert_eq!(fetch.numbers[3].1, bytes, "pages that w2 does not hold");
}

#[test]
fn a_prefill_worker_fetches_from_the_worker_that_generated() {
    let query = query(5000, vec![row(0, 4992)], vec![row(8, 0), row(9, 4096)]);
    assert_eq!(fetches(&said(512, &query)), [("w8", "w0", 4992), ("w9", "w0", 4992)]);
}

#[test]
fn the_page_of_the_last_token_comes_too() {
    let query = query(640, vec![row(0, 639), row(1, 0)], vec![]);
    assert_eq!(fetches(&said(64, &query)), [("w1", "w0", 640)]);
}

#[test]
fn the_least_busy_of_those_that_hold_as_much_is_asked() {
    let busy = CandidateRow { work_tokens: 100, ..row(0, 640) };
    let query = query(1000, vec![busy, row(1, 640), row(2, 640), row(3, 0)], vec![]);
    assert_eq!(fetches(&said(64, &query)), [("w3", "w1", 640)]);
}

#[test]
fn nobody_fetches_what_cannot_be_used_or_takes_longer() {
    let other = |change: fn(&mut WorkerInfo)| query(1000, vec![row(0, 640), with(row(1, 0), change)], vec![]);
    let fetched = |query: &PolicyQuery| !said(64, query).fetches.is_empty();
    assert!(fetched(&other(|_| {})));
    assert!(!fetched(&other(|info| info.kv = None)));
    assert!(!fetched(&other(|info| info.kv.as_mut().unwrap().fingerprint = Fingerprint([8; 32]))));
    assert!(!fetched(&other(|info| info.kv.as_mut().unwrap().layout.page_tokens = 32)));
    let slow_link = |info: &mut WorkerInfo| {
        let figures = Hardware { link: 1000, ..info.hardware.figures };
        info.hardware = HardwareProfile { figures, ..info.hardware.clone() };
    };
    assert!(!fetched(&other(slow_link)));
    assert!(
        fetched(&other(|info| {
            info.shape = None;
        })),
        "without a prediction the tokens alone count"
    );
    let mut scored = other(|_| {});
    scored.request = Arc::new(PlaceRequest { prompt_logprobs: true, ..PlaceRequest::clone(&scored.request) });
    assert_eq!((fetched(&scored), said(64, &scored).action), (false, "not_transferable"));
}

#[test]
fn without_a_holder_it_says_so() {
    let opinion = said(64, &query(1000, vec![row(0, 0), row(1, 0)], vec![]));
    assert_eq!((opinion.action, opinion.fetches.len()), ("cold", 0));
    let opinion = said(64, &query(1000, vec![row(0, 640)], vec![]));
    assert_eq!((opinion.action, opinion.fetches.len()), ("own", 0));
}

#[test]
fn the_least_follows_from_the_machine() {
    let least = |row: &CandidateRow| fetching::least(None, row);
    let figures = Hardware::named("h200").unwrap();
    let h200 = HardwareProfile { name: "h200".to_owned(), figures };
    let fast = with(row(0, 0), |info| info.hardware = h200);
    assert_eq!(least(&fast), MIN_TOKENS);
    let slow = least(&row(0, 0));
    assert!((2 * PAGE..MIN_TOKENS).contains(&slow), "{slow}");
    assert_eq!(least(&with(row(0, 0), |info| info.shape = None)), MIN_TOKENS);
}
