//! Sequences that are being generated and go on at another scheduler.

use config::ids::Attempt;

use super::*;
use crate::request::ResumedChoice;

/// A running sequence's pages are fetched while it goes on, by another scheduler that keeps them and nothing else; when the
/// sequence comes there, only what was drawn meanwhile is computed. The one that has them may be draining.
#[test]
fn pages_are_fetched_ahead_of_a_running_sequence() {
    for moved_after in 1..3 * PAGE {
        let mut pair = Pair::one(64);
        let spec = request(&limits(64), 1, &prompt(1, 10), 3 * PAGE + 4);
        pair.p.add(&spec);
        let tokens = |p: &Driver| -> Vec<u32> {
            let got = p.got(id(&spec)).choices.get(&0);
            got.map(|events| events.iter().map(|e| e.token).collect()).unwrap_or_default()
        };
        while tokens(&pair.p).len() < moved_after as usize {
            pair.p.step().unwrap();
        }
        if moved_after % 2 == 0 {
            pair.p.batch.drain();
        }
        let resumed = |attempt, tokens: Vec<u32>| RequestSpec {
            attempt: Attempt(attempt),
            resumed: vec![ResumedChoice { tokens, ..ResumedChoice::default() }],
            ..spec.clone()
        };
        let ahead = resumed(1, tokens(&pair.p));
        let of = id(&ahead);
        assert!(!pair.d.with(|d, now| d.keep_received(now, of.0, of.1, 0)), "it is not there");
        pair.d.add_received(&ahead, 1);
        assert!(pair.d.plan().is_none());
        let [KvWork::Reserved { pages: table, cached: 0, .. }] = &pair.d.kv_work()[..] else { panic!() };
        pair.p.add_prefill(&ahead, true).unwrap();
        let before = pair.p.engine.computed;
        let mut all = None;
        while all.is_none() {
            pair.p.step().unwrap();
            for work in pair.p.kv_work() {
                match work {
                    KvWork::Computed { first, pages, .. } => {
                        for (page, number) in pages.into_iter().zip(first..) {
                            pair.d.engine.import(table[number as usize], pair.p.engine.export(page));
                        }
                    }
                    KvWork::Prefilled { computed, .. } => all = Some(computed),
                    other => panic!("{other:?}"),
                }
            }
        }
        let drawn = tokens(&pair.p).len() as u64 - u64::from(moved_after);
        assert!(pair.p.engine.computed - before <= drawn + u64::from(PAGE), "the rest was in the cache");
        pair.p.cancel(of);
        assert_eq!(all, Some(10 + moved_after));
        assert!(pair.d.batch.has(of.0, of.1));
        assert!(pair.d.with(|d, now| d.keep_received(now, of.0, of.1, 10 + moved_after)));
        assert!(!pair.d.batch.has(of.0, of.1) && pair.d.kv_work().is_empty());
        pair.d.expect_idle();
        // The switch.
        let there = resumed(2, tokens(&pair.p));
        pair.p.cancel(id(&spec));
        pair.p.expect_idle();
        pair.d.add(&there);
        pair.d.run();
        pair.d.expect_complete(&there);
        let full = (10 + moved_after) / PAGE * PAGE;
        let rest = 10 + 3 * PAGE + 4 - 1 - full;
        assert!(pair.d.engine.computed <= u64::from(rest), "{} of {rest}", pair.d.engine.computed);
    }
}
