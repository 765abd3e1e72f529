//! What workers are taken to hold.

use std::sync::Arc;

use config::ids::{Attempt, RequestId};

use super::*;
use crate::kv::PageHash;
use crate::policy::PlacedAt;

/// Tokens a page of the rows.
const PAGE: u32 = 16;

fn options(index: PrefixIndex) -> CacheAwareOptions {
    CacheAwareOptions { index, ..CacheAwareOptions::default() }
}

fn routed(pages: u64, ttl: u64) -> CacheAware {
    let of = CacheAwareOptions {
        max_tree_tokens: Some(pages * u64::from(PAGE)),
        index_ttl: Span::from_secs(ttl),
        ..options(PrefixIndex::Routed)
    };
    CacheAware::new(of)
}

/// The pages of a prompt: `n` that only prompts of this kind begin with.
fn pages(kind: u8, n: u8) -> Arc<[PageHash]> {
    let page = |i| PageHash(std::array::from_fn(|at| [kind, i][at % 2]));
    (0..n).map(page).collect()
}

fn at(number: u64, worker: u64, pages: &Arc<[PageHash]>) -> PlacedAt {
    let (request, pages) = (RequestId::new(1, number), Arc::clone(pages));
    PlacedAt { request, attempt: Attempt(0), session: None, pages, worker: row(worker).worker }
}

/// What the policy says of a prompt of these pages and a token more, and of how many tokens on each of three idle workers
/// it says that they are there.
fn said(p: &mut CacheAware, now: u64, pages: &Arc<[PageHash]>) -> (Opinion, Vec<u32>) {
    let mut query = query(pages.len() as u32 * PAGE + 1, None, (0..3).map(row).collect());
    let mut request = (*query.request).clone();
    request.hashes = Arc::clone(pages);
    query.request = Arc::new(request);
    let opinion = p.opinion(Time(now * 1_000_000_000), &query);
    p.check().unwrap();
    let hits = opinion.hits.clone();
    (opinion, hits)
}

fn hits(p: &mut CacheAware, now: u64, pages: &Arc<[PageHash]>) -> Vec<u32> {
    said(p, now, pages).1.into_iter().map(|tokens| tokens / PAGE).collect()
}

fn tell(p: &mut CacheAware, now: u64, event: &PolicyEvent) {
    p.observe(Time(now * 1_000_000_000), event);
    p.check().unwrap();
}

/// A request from its placement to its end.
fn served(p: &mut CacheAware, now: u64, at: &PlacedAt) {
    tell(p, now, &PolicyEvent::Placed(at.clone()));
    tell(p, now, &PolicyEvent::Accepted(at.clone()));
    tell(p, now, &PolicyEvent::Released(at.clone()));
}

/// No worker tells anything: no row has a hit.
#[test]
fn where_nothing_is_heard_a_prompt_goes_where_its_beginning_went() {
    let mut p = routed(100, 60);
    let prompt = pages(1, 10);
    let (opinion, held) = said(&mut p, 0, &prompt);
    assert_eq!((opinion.action, held), ("cold", vec![0, 0, 0]));
    tell(&mut p, 0, &PolicyEvent::Placed(at(1, 2, &prompt)));
    // It counts from the moment of choice.
    let (opinion, held) = said(&mut p, 0, &prompt);
    assert_eq!((opinion.action, best(&opinion), held), ("hit", "w2".to_owned(), vec![0, 0, 160]));
    assert_eq!(opinion.why, "w2#1 holds 160 tokens of the prompt, by the index routed");
    // One that goes on differently shares the beginning.
    let other: Arc<[PageHash]> = prompt[..6].iter().copied().chain(pages(2, 4).iter().copied()).collect();
    assert_eq!(hits(&mut p, 1, &other), [0, 0, 6]);
}

#[test]
fn what_was_not_used_for_longest_is_forgotten_first_and_never_is_more_claimed_than_fits() {
    let mut p = routed(25, 1000);
    let prompts: Vec<_> = (1..=4).map(|kind| pages(kind, 10)).collect();
    assert_eq!(hits(&mut p, 0, &prompts[0]), [0, 0, 0]);
    served(&mut p, 0, &at(1, 0, &prompts[0]));
    served(&mut p, 1, &at(2, 0, &prompts[1]));
    served(&mut p, 2, &at(3, 0, &prompts[0]));
    // Of the second, which is older, the end goes first.
    served(&mut p, 3, &at(4, 0, &prompts[2]));
    let left: Vec<u32> = prompts.iter().map(|prompt| hits(&mut p, 4, prompt)[0]).collect();
    assert_eq!(left, [10, 5, 10, 0]);
    // A prompt that is longer than all that is remembered is remembered from its beginning.
    served(&mut p, 5, &at(5, 0, &pages(9, 60)));
    assert_eq!(hits(&mut p, 6, &pages(9, 60))[0], 25);
    let Index::Routed(index) = &p.index else { panic!("{p:?}") };
    assert_eq!(index.pages_of(&row(0).worker), 25);
    // Less fits by now.
    p.options.max_tree_tokens = Some(8 * u64::from(PAGE));
    assert_eq!(hits(&mut p, 7, &pages(9, 60))[0], 8);
}

#[test]
fn what_was_not_used_for_so_long_is_forgotten() {
    let mut p = routed(100, 60);
    let (old, new) = (pages(1, 10), pages(2, 10));
    hits(&mut p, 0, &old);
    served(&mut p, 0, &at(1, 0, &old));
    served(&mut p, 30, &at(2, 1, &new));
    assert_eq!((hits(&mut p, 59, &old), hits(&mut p, 60, &old)), (vec![10, 0, 0], vec![0, 0, 0]));
    p.tick(Time(60_000_000_000), &[], &mut Vec::new());
    let Index::Routed(index) = &p.index else { panic!("{p:?}") };
    assert_eq!((index.pages_of(&row(0).worker), index.pages_of(&row(1).worker)), (0, 10));
    // The use counts, not the first one.
    served(&mut p, 80, &at(3, 1, &new));
    assert_eq!(hits(&mut p, 139, &new), [0, 10, 0]);
}

#[test]
fn a_worker_that_left_has_nothing_and_so_has_its_next_life() {
    let mut p = routed(100, 60);
    let prompt = pages(1, 10);
    hits(&mut p, 0, &prompt);
    let open = at(2, 0, &prompt);
    served(&mut p, 0, &at(1, 0, &prompt));
    tell(&mut p, 1, &PolicyEvent::Placed(open.clone()));
    tell(&mut p, 1, &PolicyEvent::Failed(open));
    tell(&mut p, 1, &PolicyEvent::WorkerLeft(row(0).worker));
    assert_eq!(hits(&mut p, 2, &prompt), [0, 0, 0]);
    let again = PlacedAt { worker: WorkerId::new("w0".into(), 2), ..at(3, 0, &prompt) };
    served(&mut p, 3, &again);
    assert_eq!(hits(&mut p, 4, &prompt), [0, 0, 0], "another life");
}

/// Whoever was refused was never there, so that the next one is not sent after it for what it left.
#[test]
fn what_a_worker_has_refused_it_does_not_hold() {
    let mut p = routed(100, 60);
    let (common, prompt) = (pages(1, 4), pages(1, 10));
    hits(&mut p, 0, &prompt);
    served(&mut p, 0, &at(1, 0, &common));
    let refused = at(2, 0, &prompt);
    tell(&mut p, 1, &PolicyEvent::Placed(refused.clone()));
    assert_eq!(hits(&mut p, 1, &prompt), [10, 0, 0]);
    tell(&mut p, 1, &PolicyEvent::Released(refused));
    assert_eq!(hits(&mut p, 2, &prompt), [4, 0, 0]);
}

#[test]
fn as_much_is_remembered_as_a_worker_holds_where_nothing_else_is_said() {
    let mut p = CacheAware::new(options(PrefixIndex::Routed));
    let prompt = pages(1, 10);
    let told = |total| CandidateRow { pages_total: total, ..row(0) };
    for (total, want) in [(0, 10), (100, 10), (7, 7)] {
        let mut query = query(161, None, vec![told(total)]);
        query.request = Arc::new(crate::placement::PlaceRequest {
            hashes: Arc::clone(&prompt),
            ..(*query.request).clone()
        });
        p.opinion(Time::ZERO, &query);
        served(&mut p, 0, &at(u64::from(total), 0, &prompt));
        assert_eq!(p.opinion(Time::ZERO, &query).hits, [want * PAGE], "{total}");
    }
}

#[test]
fn what_is_on_its_way_is_as_good_as_there() {
    let mut p = CacheAware::new(options(PrefixIndex::Events));
    let prompt = pages(1, 10);
    let (first, second) = (at(1, 1, &prompt), at(2, 1, &pages(1, 6)));
    tell(&mut p, 0, &PolicyEvent::Placed(first.clone()));
    // Told again, after a reload.
    tell(&mut p, 0, &PolicyEvent::Placed(first.clone()));
    tell(&mut p, 0, &PolicyEvent::Placed(second.clone()));
    let (opinion, held) = said(&mut p, 0, &prompt);
    assert_eq!((opinion.action, best(&opinion), held), ("hit", "w1".to_owned(), vec![0, 160, 0]));
    tell(&mut p, 1, &PolicyEvent::Released(first));
    assert_eq!(hits(&mut p, 1, &prompt), [0, 6, 0], "the worker has to say what it kept");
    tell(&mut p, 1, &PolicyEvent::Failed(second));
    assert_eq!(hits(&mut p, 1, &prompt), [0, 0, 0]);
}
