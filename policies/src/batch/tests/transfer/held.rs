//! What another worker holds of a prompt's start, and gives without computing anything.

use config::ids::Attempt;

use super::*;
use crate::batch::{Held, Refusal};

/// A worker that holds prompts, and one that asks for them.
struct Two {
    holder: Driver,
    asks: Driver,
    copied: u32,
}

impl Two {
    fn new(pages: u32) -> Self {
        let limits = limits(pages);
        Self { holder: Driver::new(&limits), asks: Driver::new(&limits), copied: 0 }
    }

    /// The holder computes `spec`, and holds its full pages afterwards.
    fn hold(&mut self, spec: &RequestSpec) {
        self.holder.add(spec);
        self.holder.run();
        let _ = self.holder.kv_work();
    }

    fn add(&mut self, spec: &RequestSpec, held: Held) {
        self.asks.add_held(spec, held);
    }

    /// Runs the asking worker to the end, and does what it asks for as soon as it does.
    fn run(&mut self) {
        for _ in 0..100_000 {
            let stepped = self.asks.step().is_some();
            if !self.news() && !stepped {
                break;
            }
        }
        self.asks.expect_idle();
        self.holder.expect_idle();
        assert_eq!(self.holder.batch.set_aside(), Default::default());
    }

    /// What the asking worker waits for.
    fn asked(&mut self) -> Option<(Id, Vec<PageId>, u32, u32)> {
        let mut work = self.asks.kv_work().into_iter();
        let asked = work.find_map(|work| match work {
            KvWork::Reserved { request, attempt, pages, cached, tokens } => {
                Some(((request, attempt), pages, cached, tokens))
            }
            _ => None,
        });
        asked.inspect(|_| assert_eq!(work.next(), None))
    }

    fn news(&mut self) -> bool {
        let Some((of, table, cached, tokens)) = self.asked() else { return false };
        let spec = self.asks.spec(of).held_prefix(tokens, PAGE);
        assert_eq!(spec.attempt.fetched_for(), Some(of.1));
        let held = self.holder.with(|holder, now| holder.hold_cached(now, spec.clone()));
        let there = held.unwrap_or(0);
        if there > 0 {
            let [KvWork::Computed { first: 0, pages, .. }, KvWork::Prefilled { computed, drawn, tail, .. }] =
                &self.holder.kv_work()[..]
            else {
                panic!("a holder says what it keeps")
            };
            assert_eq!((*computed, pages.len() as u32 * PAGE), (there, there));
            assert!(drawn.is_empty() && tail.is_none(), "it draws nothing");
            for (number, page) in pages.iter().enumerate().skip((cached / PAGE) as usize) {
                self.asks.engine.import(table[number], self.holder.engine.export(*page));
                self.copied += 1;
            }
            assert!(self.holder.cancel(id(&spec)));
            let _ = self.holder.kv_work();
        }
        let here = there.max(cached);
        assert!(self.asks.with(|asks, now| asks.compute_here(now, of.0, of.1, here)));
        assert!(!self.asks.with(|asks, now| asks.compute_here(now, of.0, of.1, here)), "twice");
        true
    }
}

fn spec(number: u64, salt: u32, len: u32) -> RequestSpec {
    request(&limits(200), number, &prompt(salt, len), 5)
}

fn all(spec: &RequestSpec) -> Held {
    Held { tokens: spec.prompt.len() as u32, least: PAGE }
}

#[test]
fn every_length_gives_what_one_worker_gives_and_full_pages_are_computed_once() {
    for len in 1..=4 * CHUNK + 2 {
        let mut two = Two::new(200);
        let (first, again) = (spec(1, len, len), spec(2, len, len));
        two.hold(&first);
        let before = two.holder.engine.computed;
        two.add(&again, all(&again));
        two.run();
        two.asks.expect_complete(&again);
        let full = len / PAGE;
        assert_eq!(two.copied, full);
        assert_eq!(two.holder.engine.computed, before, "the holder computes nothing");
        // The last token of a prompt is computed in any case, and four more are generated from.
        let computed = (len - full * PAGE).max(1) + 4;
        assert_eq!(two.asks.engine.computed, u64::from(computed), "{len} tokens");
        let cached = two.asks.got(id(&again)).choices[&0][0].cached_tokens;
        assert_eq!(cached, (full * PAGE).min(len - 1), "{len} tokens");
    }
}

#[test]
fn what_the_holder_has_lost_is_computed() {
    let mut two = Two::new(200);
    let (first, longer) = (spec(1, 7, 5 * PAGE), spec(2, 7, 9 * PAGE));
    two.hold(&first);
    // It was told that the holder has more than it has.
    two.add(&longer, all(&longer));
    two.run();
    two.asks.expect_complete(&longer);
    assert_eq!(two.copied, 5);
    assert_eq!(two.asks.engine.computed, u64::from(4 * PAGE + 4));

    let other = spec(3, 8, 6 * PAGE);
    two.add(&other, all(&other));
    two.run();
    two.asks.expect_complete(&other);
    assert_eq!(two.copied, 5, "nothing of it was there");
}

#[test]
fn what_is_here_already_is_not_asked_for() {
    let mut two = Two::new(200);
    let (first, again) = (spec(1, 7, 6 * PAGE + 1), spec(2, 7, 6 * PAGE + 1));
    two.hold(&first);
    two.asks.add(&first);
    two.asks.run();
    two.add(&again, all(&again));
    assert_eq!(two.asked(), None);
    two.run();
    two.asks.expect_complete(&again);
    assert_eq!(two.copied, 0);
    // Nor is what is too little.
    let more = spec(3, 7, 8 * PAGE);
    two.add(&more, Held { tokens: 7 * PAGE, least: 2 * PAGE });
    two.run();
    two.asks.expect_complete(&more);
    assert_eq!(two.copied, 0);
}

/// What waits for its start counts for whoever comes after it with what is left.
#[test]
fn what_is_computed_ahead_leaves_out_what_is_held_elsewhere() {
    let mut two = Two::new(200);
    let (first, second) = (spec(1, 7, 9 * PAGE), spec(2, 8, 5 * PAGE));
    two.add(&first, Held { tokens: 6 * PAGE, least: PAGE });
    two.asks.add(&second);
    let found = two.asks.with(|asks, _| asks.waiting_prompts(PAGE, 1));
    let ahead: Vec<_> = found.iter().map(|prompt| (prompt.key.request, prompt.ahead)).collect();
    assert_eq!(ahead, [(second.id, u64::from(3 * PAGE))]);
}

#[test]
fn a_holder_without_the_start_says_so_and_keeps_nothing() {
    let mut two = Two::new(200);
    let asked = spec(1, 7, 6 * PAGE).held_prefix(5 * PAGE, PAGE);
    let refused = two.holder.with(|holder, now| holder.hold_cached(now, asked.clone()));
    assert!(matches!(refused, Err(Refusal::Malformed(_))), "{refused:?}");
    assert_eq!(two.holder.kv_work(), []);
    two.holder.expect_idle();
    two.holder.with(|holder, _| holder.drain());
    let refused = two.holder.with(|holder, now| holder.hold_cached(now, asked.clone()));
    assert_eq!(refused, Err(Refusal::Draining));
}

/// Pages that are kept for another worker are nobody else's, and go back when it has them or is gone.
#[test]
fn b72_what_is_kept_is_not_given_to_others() {
    let mut two = Two::new(16);
    let first = spec(1, 7, 10 * PAGE);
    two.hold(&first);
    let asked = first.held_prefix(10 * PAGE, PAGE);
    let held = two.holder.with(|holder, now| holder.hold_cached(now, asked.clone()));
    assert_eq!(held, Ok(10 * PAGE));
    let [KvWork::Computed { pages, .. }, _] = &two.holder.kv_work()[..] else { panic!("kept") };
    let before: Vec<Vec<u64>> = pages.iter().map(|page| two.holder.engine.export(*page)).collect();
    // Another prompt takes all that is left.
    let other = spec(2, 8, 5 * PAGE);
    two.holder.add(&other);
    while two.holder.step().is_some() {}
    two.holder.expect_complete(&other);
    let after: Vec<Vec<u64>> = pages.iter().map(|page| two.holder.engine.export(*page)).collect();
    assert_eq!(before, after);
    assert_eq!(two.holder.batch.set_aside().held_pages, 10);
    assert!(two.holder.cancel(id(&asked)));
    two.holder.expect_idle();
}

/// The request goes while its content is on its way; what comes then goes nowhere.
#[test]
fn a_request_that_is_cancelled_while_it_waits_gives_its_pages_back() {
    let mut two = Two::new(200);
    let (first, again) = (spec(1, 7, 6 * PAGE), spec(2, 7, 6 * PAGE));
    two.hold(&first);
    two.add(&again, all(&again));
    assert!(two.asks.step().is_none());
    let (of, ..) = two.asked().unwrap();
    assert_eq!(two.asks.batch.set_aside().receiving, 1);
    assert!(two.asks.cancel(of));
    assert!(matches!(&two.asks.kv_work()[..], [KvWork::Dropped { .. }]));
    assert!(!two.asks.with(|asks, now| asks.compute_here(now, of.0, of.1, 20)));
    two.asks.expect_idle();
}

/// A prefill worker asks a third one for what it holds, computes the rest and gives all to the worker that generates.
#[test]
fn a_prompt_for_another_worker_starts_with_what_a_third_one_holds() {
    for open in [true, false] {
        let mut two = Two::new(200);
        let (first, again) = (spec(1, 7, 6 * PAGE), spec(2, 7, 9 * PAGE + 2));
        two.hold(&first);
        let held = Held { tokens: 6 * PAGE, least: 1 };
        two.asks.add_prefill_held(&again, open, held);
        assert!(two.asks.step().is_none(), "it has pages, and waits for their content");
        assert!(two.news());
        let mut told = two.asks.kv_work();
        while two.asks.step().is_some() {
            told.extend(two.asks.kv_work());
        }
        let begun = told.iter().filter(|work| matches!(work, KvWork::Begun { .. })).count();
        assert_eq!(begun, usize::from(!open));
        let full: Vec<PageId> = told
            .iter()
            .filter_map(|work| match work {
                KvWork::Computed { pages, .. } => Some(pages.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(full.len(), 9, "what came is told of too");
        let Some(KvWork::Prefilled { computed, cached, drawn, .. }) = told.last() else { panic!("{told:?}") };
        assert_eq!((*computed, *cached, drawn.len()), (9 * PAGE + 2, 6 * PAGE, 1));
        let alone = super::super::model::solo(&again, 0, 4096).tokens[0].0;
        assert_eq!(drawn[0].token, alone);
        assert_eq!(two.asks.engine.computed, u64::from(3 * PAGE + 2));
        assert!(two.asks.cancel(id(&again)));
        two.asks.expect_idle();
    }
}

#[test]
fn a_fetch_has_a_name_of_its_own() {
    let attempt = Attempt(3);
    assert_eq!(attempt.fetch().fetched_for(), Some(attempt));
    assert_eq!((attempt.fetched_for(), attempt.fetch().fetch()), (None, attempt.fetch()));
}
