use std::sync::Arc;

use super::*;
use crate::cost::{HardwareProfile, ModelShape};
use crate::kv::{Fingerprint, PageLayout};
use crate::placement::{KvPeer, PlaceRequest, PoolInfo, WorkerInfo};
use crate::policy::{CandidateRow, testing};
use crate::time::Span;

const T: Time = Time::ZERO;
const PAGE: u32 = 16;

fn pool_id(n: u64) -> WorkerId {
    WorkerId::new(format!("p{n}").into(), 1)
}

/// A pool that holds so many pages of the prompt.
fn pool(n: u64, hit_pages: u32) -> PoolRow {
    let info = PoolInfo { id: pool_id(n), address: format!("p{n}:1"), hardware: HardwareProfile::default() };
    PoolRow { info: Arc::new(info), hit_pages, wait: Span::ZERO }
}

/// An idle worker that exchanges pages and holds so many tokens of the prompt.
fn row(n: u64, hit_tokens: u32) -> CandidateRow {
    let layout = PageLayout { page_tokens: PAGE, layers: 30, kv_heads: 3, head_dim: 64, element_bytes: 2 };
    let row = testing::row(n);
    let info = WorkerInfo {
        kv: Some(KvPeer { address: "h:1".to_owned(), fingerprint: Fingerprint([7; 32]), layout }),
        shape: ModelShape::named("smollm2-135m"),
        ..WorkerInfo::clone(&row.info)
    };
    CandidateRow { info: Arc::new(info), hit_tokens, ..row }
}

fn query(prompt: u32, rows: Vec<CandidateRow>, pools: Vec<PoolRow>) -> PolicyQuery {
    let query = testing::query(prompt, None, rows);
    let hashes = (0..prompt / PAGE).map(|n| PageHash([n as u8; 16])).collect();
    let request = PlaceRequest { hashes, ..PlaceRequest::clone(&query.request) };
    PolicyQuery { request: Arc::new(request), pools: pools.into(), ..query }
}

fn said(least: u32, query: &PolicyQuery) -> Opinion {
    let options = PoolReplicateOptions { min_tokens: Some(least) };
    let opinion = PoolReplicate::new(options).opinion(T, query);
    assert!(opinion.exclude.is_empty() && opinion.pin.is_none() && opinion.costs.is_empty());
    opinion
}

/// Who fetches how many tokens from whom, and where the prompt is kept.
fn summed(opinion: &Opinion) -> (Vec<(&str, &str, u32)>, Option<&str>) {
    assert!(opinion.fetches.iter().all(|f| f.pool));
    let fetches =
        opinion.fetches.iter().map(|f| (f.to.node.as_str(), f.from.node.as_str(), f.tokens)).collect();
    (fetches, opinion.store.as_ref().map(|store| store.pool.node.as_str()))
}

#[test]
fn whoever_holds_less_fetches_from_the_pool_that_holds_most_and_the_rest_is_kept_there() {
    let pools = vec![pool(0, 4), pool(1, 40), pool(2, 0)];
    let query = query(1000, vec![row(0, 0), row(1, 640), row(2, 600)], pools);
    assert_eq!(summed(&said(64, &query)), (vec![("w0", "p1", 640)], Some("p1")));
    assert_eq!(summed(&said(32, &query)), (vec![("w0", "p1", 640), ("w2", "p1", 640)], Some("p1")));
    let opinion = said(64, &query);
    assert_eq!(
        (opinion.action, opinion.fetches[0].why.as_str()),
        ("store", "the pool p1#1 holds 640 more tokens of the prompt than w0#1")
    );
    let store = opinion.store.unwrap();
    assert_eq!(store.why, "the pool p1#1 is to keep 352 tokens of the prompt");
    let bytes = f64::from(22 * PAGE * 2 * 30 * 3 * 64 * 2);
    let numbers = [("store-tokens", 352.0), ("pool-tokens", 640.0), ("store-bytes", bytes)];
    assert_eq!(store.numbers, numbers);
}

#[test]
fn a_prompt_that_no_pool_holds_goes_to_one_by_its_first_page_and_the_same_start_to_the_same() {
    let pools = || (0..4).map(|n| pool(n, 0)).collect::<Vec<_>>();
    let mut homes = std::collections::BTreeSet::new();
    for first in 0..64 {
        let at = |prompt| {
            let query = query(prompt, vec![row(0, 0)], pools());
            let mut hashes = query.request.hashes.to_vec();
            hashes[0] = PageHash([first; 16]);
            let request = PlaceRequest { hashes: hashes.into(), ..PlaceRequest::clone(&query.request) };
            let opinion = said(64, &PolicyQuery { request: Arc::new(request), ..query });
            opinion.store.unwrap().pool
        };
        assert_eq!(at(320), at(1000), "they begin with the same page");
        homes.insert(at(320));
    }
    assert_eq!(homes.len(), 4, "each pool has some of them");
}

#[test]
fn another_life_of_a_pool_is_the_home_of_the_same_prompts() {
    let of = |incarnation| rendezvous(&PageHash([3; 16]), &WorkerId::new("p".into(), incarnation));
    assert_eq!(of(1), of(2));
    assert_ne!(of(1), rendezvous(&PageHash([4; 16]), &WorkerId::new("p".into(), 1)));
    assert_ne!(of(1), rendezvous(&PageHash([3; 16]), &WorkerId::new("q".into(), 1)));
}

#[test]
fn what_is_kept_is_not_kept_again_and_little_is_not_kept() {
    let known = said(64, &query(1000, vec![row(0, 990)], vec![pool(0, 60)]));
    assert_eq!((summed(&known), known.action), ((vec![], None), "known"), "less than min-tokens is missing");
    assert_eq!(summed(&said(32, &query(1000, vec![row(0, 990)], vec![pool(0, 60)]))), (vec![], Some("p0")));
    assert_eq!(summed(&said(64, &query(60, vec![row(0, 0)], vec![pool(0, 0)]))), (vec![], None));
    // A page that is not full is none.
    assert_eq!(summed(&said(1, &query(15, vec![row(0, 0)], vec![pool(0, 0)]))), (vec![], None));
}

#[test]
fn without_pools_or_workers_that_exchange_pages_nothing_is_done() {
    let none = said(1, &query(1000, vec![row(0, 0)], vec![]));
    assert_eq!((summed(&none), none.action), ((vec![], None), "no_pool"));
    let alone = CandidateRow { info: testing::row(0).info, ..row(0, 0) };
    assert_eq!(summed(&said(1, &query(1000, vec![alone], vec![pool(0, 62)]))), (vec![], None));
}

#[test]
fn the_last_token_is_computed_though_its_page_is_kept() {
    let query = query(640, vec![row(0, 0)], vec![pool(0, 40)]);
    let opinion = said(64, &query);
    assert_eq!(summed(&opinion), (vec![("w0", "p0", 640)], None));
    assert_eq!(opinion.fetches[0].numbers[0], ("fetch-tokens", 639.0));
}

/// What has to wait for others is fetched as long as that is sooner done than computing it.
#[test]
fn a_pool_that_has_much_to_give_is_left_alone() {
    let asked = |wait: Span| {
        let mut row = row(0, 0);
        let info = Arc::make_mut(&mut row.info);
        (info.hardware.figures.flops, info.hardware.figures.link) = (1_000_000_000_000, 1_000_000_000);
        let mut held = pool(0, 40);
        Arc::make_mut(&mut held.info).hardware.figures.link = 1_000_000_000;
        said(64, &query(1000, vec![row], vec![PoolRow { wait, ..held }]))
    };
    let idle = asked(Span::ZERO);
    let [fetch] = &idle.fetches[..] else { panic!("{idle:?}") };
    let computing = fetch.computing.unwrap();
    assert!(computing > fetch.sending && fetch.sending >= fetch.occupies, "{fetch:?}");
    let spare = Span(computing.0 - fetch.sending.0);
    let busy = asked(Span(spare.0 - 1));
    assert_eq!(busy.fetches.len(), 1);
    let told = busy.fetches[0].numbers.iter().find(|(name, _)| *name == "wait-ms");
    assert!((told.unwrap().1 - spare.0 as f64 / 1e6).abs() < 1e-3, "{told:?}");
    assert!(asked(spare).fetches.is_empty());
}
