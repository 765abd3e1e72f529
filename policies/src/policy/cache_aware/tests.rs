use std::sync::Arc;

use config::WorkerRole;
use config::ids::WorkerId;

use super::*;
use crate::policy::testing::{query, row};

mod index;

/// The worker that costs least, by number; those that are excluded do not count.
fn best(opinion: &Opinion) -> String {
    let left = opinion.costs.iter().filter(|(worker, _)| !opinion.exclude.contains(worker));
    left.min_by_key(|(_, cost)| *cost).map(|(worker, _)| worker.node.to_string()).unwrap()
}

fn ask(options: CacheAwareOptions, prompt_tokens: u32, rows: Vec<CandidateRow>) -> Opinion {
    CacheAware::new(options).opinion(Time::ZERO, &query(prompt_tokens, None, rows))
}

/// A row with (hit, prefill waiting, being generated, requests).
fn loaded(n: u64, hit: u32, prefill: u64, decode: u64, requests: u32) -> CandidateRow {
    CandidateRow {
        hit_tokens: hit,
        prefill_tokens: prefill,
        work_tokens: prefill + decode,
        requests,
        ..row(n)
    }
}

#[test]
fn locality_and_load_are_one_cost() {
    // (name, prompt, rows, the cheapest, what is said)
    let cases: Vec<(&str, u32, Vec<CandidateRow>, &str, &str)> = vec![
        ("idle: the holder", 1000, vec![loaded(0, 0, 0, 0, 0), loaded(1, 900, 0, 0, 0)], "w1", "hit"),
        ("cold: the least busy", 1000, vec![loaded(0, 0, 500, 0, 1), loaded(1, 0, 0, 0, 0)], "w1", "cold"),
        (
            "a little is cold: the least busy",
            1000,
            vec![loaded(0, 300, 10, 0, 1), loaded(1, 0, 0, 0, 0)],
            "w1",
            "cold",
        ),
        (
            "the holder has less to do than the others to compute",
            1000,
            vec![loaded(0, 900, 800, 0, 1), loaded(1, 0, 0, 0, 0)],
            "w0",
            "hit",
        ),
        (
            "the holder is so busy that computing again is sooner done",
            1000,
            vec![loaded(0, 900, 1000, 0, 1), loaded(1, 0, 0, 0, 0)],
            "w1",
            "miss",
        ),
        (
            "the one with some of it lies between",
            1000,
            vec![loaded(0, 900, 1000, 0, 1), loaded(1, 600, 100, 0, 1), loaded(2, 0, 0, 0, 0)],
            "w1",
            "partial-hit",
        ),
        (
            "decode weighs less than prefill",
            1000,
            vec![loaded(0, 900, 0, 3000, 9), loaded(1, 0, 0, 0, 0)],
            "w0",
            "hit",
        ),
        ("but weighs", 1000, vec![loaded(0, 900, 0, 4000, 9), loaded(1, 0, 0, 0, 0)], "w1", "miss"),
    ];
    for (name, prompt, rows, expected, action) in cases {
        let opinion = ask(CacheAwareOptions::default(), prompt, rows);
        assert_eq!((best(&opinion).as_str(), opinion.action), (expected, action), "{name}: {opinion:?}");
        assert!(opinion.exclude.is_empty() && opinion.pin.is_none(), "{name}: {opinion:?}");
    }
}

/// A worker that is stuck on long prompts of its own holds little and looks free to who counts holdings.
#[test]
fn a_miss_goes_by_load() {
    let rows = vec![loaded(0, 0, 16_000, 0, 8), loaded(1, 0, 0, 200, 1)];
    assert_eq!(best(&ask(CacheAwareOptions::default(), 40, rows)), "w1");
}

#[test]
fn the_guard_leaves_out_the_overloaded_and_keeps_locality_among_the_others() {
    let rows = vec![loaded(0, 900, 0, 0, 200), loaded(1, 0, 0, 0, 100), loaded(2, 800, 0, 0, 110)];
    let opinion = ask(CacheAwareOptions::default(), 1000, rows);
    let out: Vec<&str> = opinion.exclude.iter().map(|w| w.node.as_str()).collect();
    assert_eq!((out, best(&opinion)), (vec!["w0"], "w2".to_owned()), "{opinion:?}");
    assert_eq!(opinion.action, "partial-hit");
    // Both thresholds have to be passed.
    for (abs, rel) in [(100, 1.5), (64, 2.0)] {
        let options = CacheAwareOptions {
            balance_abs_threshold: abs,
            balance_rel_threshold: rel,
            ..Default::default()
        };
        let rows = vec![loaded(0, 900, 0, 0, 200), loaded(1, 0, 0, 0, 100)];
        assert!(ask(options, 1000, rows).exclude.is_empty(), "{abs} {rel}");
    }
}

#[test]
fn a_worker_without_memory_left_is_left_out_while_another_has_some() {
    let full = |n, hit, used| CandidateRow { pages_used: used, pages_total: 100, ..loaded(n, hit, 0, 0, 1) };
    let opinion = ask(CacheAwareOptions::default(), 1000, vec![full(0, 300, 96), full(1, 0, 95)]);
    assert_eq!(*opinion.exclude, [WorkerId::new("w0".into(), 1)]);
    let opinion = ask(CacheAwareOptions::default(), 1000, vec![full(0, 300, 100), full(1, 0, 97)]);
    assert!(opinion.exclude.is_empty(), "all are full: {opinion:?}");
    // What it holds needs no room there; a copy elsewhere would take as much again from what is held there.
    let opinion = ask(CacheAwareOptions::default(), 1000, vec![full(0, 900, 100), full(1, 0, 50)]);
    assert_eq!((opinion.exclude.len(), opinion.action, best(&opinion)), (0, "hit", "w0".to_owned()));
}

/// A worker with free pages forgets nothing for a new prompt; one without forgets as much as it computes.
#[test]
fn a_copy_costs_what_is_forgotten_for_it() {
    let at = |n, hit, waiting, free| CandidateRow {
        pages_used: 10,
        pages_free: free,
        pages_total: 100,
        ..loaded(n, hit, waiting, 0, 1)
    };
    let cases = [(1000, 100, "w1"), (1000, 0, "w0"), (1700, 0, "w0"), (1900, 0, "w1"), (1300, 30, "w0")];
    for (waiting, free, expected) in cases {
        let rows = vec![at(0, 900, waiting, 0), at(1, 0, 0, free)];
        let opinion = ask(CacheAwareOptions::default(), 1000, rows.clone());
        assert_eq!(best(&opinion), expected, "{waiting} {free}: {opinion:?}");
        let never = CacheAwareOptions { eviction_scale: 0.0, ..CacheAwareOptions::default() };
        assert_eq!(best(&ask(never, 1000, rows)), "w1", "{waiting} {free}");
    }
}

#[test]
fn what_it_saves_is_counted_against_the_least_loaded() {
    let rows = vec![loaded(0, 900, 10, 0, 1), loaded(1, 160, 0, 0, 0)];
    assert_eq!(ask(CacheAwareOptions::default(), 1000, rows).saved, Some(740));
}

#[test]
fn extreme_figures_do_not_overflow() {
    let rows = vec![loaded(0, u32::MAX, u64::MAX, 0, u32::MAX), loaded(1, 0, 0, u64::MAX, 0)];
    let opinion = ask(CacheAwareOptions::default(), u32::MAX, rows);
    assert_eq!(opinion.costs.iter().map(|(_, cost)| *cost > 1 << 60).collect::<Vec<_>>(), [true, true]);
}

/// A row with (role, KV held, hit, prefill waiting).
fn generating(
    n: u64,
    role: WorkerRole,
    kv_tokens: u64,
    hit_tokens: u32,
    prefill_tokens: u64,
) -> CandidateRow {
    let row = CandidateRow { kv_tokens, hit_tokens, prefill_tokens, ..row(n) };
    let mut info = crate::placement::WorkerInfo::clone(&row.info);
    info.role = role;
    CandidateRow { info: Arc::new(info), ..row }
}

/// Asks about a prompt of 1,000 tokens beside a prefill worker where so many wait; the cheapest.
fn beside_prefill(rows: Vec<CandidateRow>, waiting: Option<u64>) -> String {
    let mut query = query(1000, None, rows);
    query.prefill =
        waiting.map(|prefill_tokens| CandidateRow { prefill_tokens, ..row(9) }).into_iter().collect();
    best(&CacheAware::default().opinion(Time::ZERO, &query))
}

/// Where prefill workers compute prompts, decode workers are compared by the KV that they hold or will hold.
#[test]
fn decode_workers_are_balanced_by_what_they_hold() {
    let decode = |n, kv, hit, prefill| generating(n, WorkerRole::Decode, kv, hit, prefill);
    let rows = |first| vec![decode(0, first, 400, 900), decode(1, 8000, 0, 5000), decode(2, 8500, 0, 300)];
    assert_eq!(beside_prefill(rows(9000), Some(300)), "w1", "whatever prompts wait there");
    // What it holds of the prompt comes to no more than what it holds.
    assert_eq!(beside_prefill(rows(8100), Some(300)), "w0");
    assert_eq!(beside_prefill(rows(8100), None), "w2", "alone it computes the prompt itself");
}

/// Whoever generated the turns before holds what a prefill worker would compute again.
#[test]
fn a_decode_worker_that_holds_the_prompt_is_sooner_done_than_prefill_workers() {
    let decode = |n, kv, hit, prefill| generating(n, WorkerRole::Decode, kv, hit, prefill);
    let rows = |waiting| vec![decode(0, 9000, 990, waiting), decode(1, 8000, 0, 0)];
    assert_eq!(beside_prefill(rows(0), Some(5000)), "w0", "ten tokens here to six thousand there");
    assert_eq!(beside_prefill(rows(7000), Some(5000)), "w1", "unless it has more to compute than they");
}

/// A unified worker beside decode workers has its prompts computed like theirs, and its streams slowed down like theirs.
#[test]
fn unified_workers_are_compared_with_decode_workers_by_the_same_measure() {
    let rows = |kv| {
        vec![
            generating(0, WorkerRole::Unified, kv, 0, 0),
            generating(1, WorkerRole::Decode, 8000, 0, 0),
            generating(2, WorkerRole::Decode, 9000, 0, 0),
        ]
    };
    assert_eq!(beside_prefill(rows(7000), Some(0)), "w0");
    assert_eq!(beside_prefill(rows(9000), Some(0)), "w1", "what it holds counts, too");
}
