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

/// A running sequence at one scheduler, of which another one has been told `told` tokens of output, and its place there.
struct Lent {
    p: Driver,
    d: Driver,
    spec: RequestSpec,
    there: RequestSpec,
    table: Vec<PageId>,
}

impl Lent {
    /// The first has drawn `drawn` tokens when the second asks.
    fn new(drawn: u32, told: u32, output: u32) -> Self {
        let (mut p, mut d) = (Driver::new(&limits(64)), Driver::new(&limits(64)));
        let spec = request(&limits(64), 1, &prompt(1, 10), output);
        p.add(&spec);
        let got = |p: &Driver| p.got(id(&spec)).choices.get(&0).map_or(0, Vec::len) as u32;
        while got(&p) < drawn {
            p.step().unwrap();
        }
        let tokens: Vec<_> =
            p.got(id(&spec)).choices[&0].iter().map(|e| e.token).take(told as usize).collect();
        let resumed = vec![ResumedChoice { tokens, ..ResumedChoice::default() }];
        let there = RequestSpec { attempt: Attempt(2), resumed, ..spec.clone() };
        d.add_received(&there, 1);
        assert!(d.plan().is_none());
        let [KvWork::Reserved { pages, cached: 0, .. }] = &d.kv_work()[..] else { panic!() };
        let table = pages.clone();
        Self { p, d, spec, there, table }
    }

    fn lend(&mut self) -> bool {
        let there = self.there.clone();
        self.p.with(|p, now| p.lend(now, &there, Attempt(0)))
    }

    fn end(&mut self, taken: bool) -> bool {
        let of = id(&self.there);
        self.p.with(|p, now| p.end_lending(now, of.0, of.1, taken))
    }

    /// What is kept goes to the other engine, whose scheduler takes it over.
    fn take(&mut self) {
        let of = id(&self.there);
        let [
            KvWork::Computed { first: 0, pages, attempt, .. },
            KvWork::Prefilled { computed, tail, drawn, ends: false, .. },
        ] = &self.p.kv_work()[..]
        else {
            panic!()
        };
        assert_eq!(*attempt, of.1);
        let pages: Vec<PageId> = pages.iter().copied().chain(*tail).collect();
        assert_eq!(pages.len() as u32, computed.div_ceil(PAGE));
        if let Some(more) = pages.len().checked_sub(self.table.len()).filter(|more| *more > 0) {
            let grown = self.d.with(|d, _| d.grow_received(of.0, of.1, more as u32)).unwrap();
            self.table.extend(grown);
        }
        for (page, here) in pages.iter().zip(&self.table) {
            self.d.engine.import(*here, self.p.engine.export(*page));
        }
        assert_eq!(10 + self.there.resumed[0].tokens.len() + drawn.len(), *computed as usize + 1);
        assert!(self.d.with(|d, now| d.received(now, of.0, of.1, true, 0, drawn)));
    }
}

/// Wherever it stands in its pages, and however far it has come since the other scheduler was told of it: it goes on there
/// with the token after, and nothing is computed twice.
#[test]
fn a_running_sequence_is_taken_over_with_the_page_that_is_not_full() {
    for told in 1..2 * PAGE + 2 {
        for ahead in [0, 1, 2, PAGE, 2 * PAGE + 1] {
            let mut lent = Lent::new(told + ahead, told, 5 * PAGE);
            assert!(lent.lend() && !lent.lend(), "once");
            if ahead == 0 {
                assert!(lent.p.kv_work().is_empty(), "it has nothing new yet");
                lent.p.step().unwrap();
            }
            let before = lent.p.engine.computed;
            assert!(lent.p.plan().is_none(), "it is kept");
            lent.take();
            assert!(lent.end(true) && !lent.end(true));
            assert!(lent.p.got(id(&lent.spec)).taken_over);
            lent.p.expect_idle();
            lent.d.run();
            lent.d.expect_complete(&lent.there);
            let all = u64::from(10 + 5 * PAGE - 1);
            assert_eq!((lent.p.engine.computed, before + lent.d.engine.computed), (before, all));
            assert_eq!(lent.d.load().prefilled_tokens, 0);
        }
    }
}

/// Whatever becomes of it before it is taken over, the sequence goes on where it is, or is gone where it was called off.
#[test]
fn what_is_not_taken_over_goes_on() {
    for drawn in [5, 6, 7, 8] {
        // In the middle of a step, at rest, and when it is kept already.
        for moment in 0..3 {
            let mut lent = Lent::new(drawn, drawn - 1, 30);
            let plan = (moment == 0).then(|| lent.p.plan().unwrap());
            assert!(lent.lend());
            assert_eq!(lent.p.kv_work().is_empty(), moment == 0, "not before the step ends");
            if moment == 2 {
                assert!(lent.p.plan().is_none());
            }
            assert!(lent.end(false));
            if let Some(plan) = &plan {
                lent.p.complete(plan);
            }
            lent.p.run();
            lent.p.expect_complete(&lent.spec);
            assert!(!lent.p.got(id(&lent.spec)).taken_over);
            // Called off, in the middle of a step or not: the one that takes it over hears of it.
            let mut lent = Lent::new(drawn, drawn - 1, 30);
            let plan = (moment == 0).then(|| lent.p.plan().unwrap());
            assert!(lent.lend());
            let _ = lent.p.kv_work();
            assert!(lent.p.cancel(id(&lent.spec)));
            if let Some(plan) = &plan {
                lent.p.complete(plan);
            }
            let [KvWork::Dropped { attempt, .. }] = &lent.p.kv_work()[..] else { panic!() };
            assert_eq!(*attempt, Attempt(2));
            assert!(!lent.end(true));
            lent.p.expect_idle();
        }
    }
}

/// What is not there, not what the other one was told, more than one, waits, or is for somebody else is not lent.
#[test]
fn what_cannot_be_lent_is_refused() {
    let mut lent = Lent::new(6, 4, 30);
    let there = lent.there.clone();
    let other = |change: &dyn Fn(&mut RequestSpec)| {
        let mut spec = there.clone();
        change(&mut spec);
        spec
    };
    for (spec, from) in [
        (there.clone(), 1),
        (other(&|s| s.attempt = Attempt(0)), 0),
        (other(&|s| s.prompt = prompt(2, 10).into()), 0),
        (other(&|s| s.resumed[0].tokens[3] += 1), 0),
        (other(&|s| s.resumed[0].tokens.clear()), 0),
        (other(&|s| s.resumed[0].tokens.extend([1, 2, 3])), 0),
        (other(&|s| s.tenant = Some("t".into())), 0),
    ] {
        assert!(!lent.p.with(|p, now| p.lend(now, &spec, Attempt(from))), "{spec:?}");
    }
    assert!(lent.p.kv_work().is_empty());
    let mut two = Driver::new(&limits(64));
    let spec = RequestSpec { resumed: vec![ResumedChoice::default(); 2], ..lent.spec.clone() };
    two.add(&spec);
    (0..5).for_each(|_| assert!(two.step().is_some()));
    assert!(!two.with(|p, now| p.lend(now, &there, Attempt(0))));
    // One that has used its credit is lent with what it has.
    let mut paused = Driver::new(&limits(64));
    paused.add(&RequestSpec { credit: 6, ..lent.spec.clone() });
    while paused.step().is_some() {}
    assert!(paused.with(|p, now| p.lend(now, &there, Attempt(0))));
    assert_eq!(paused.kv_work().len(), 2);
    assert!(paused.with(|p, now| p.end_lending(now, there.id, Attempt(2), false)));
    assert!(paused.plan().is_none());
    paused.grant(id(&lent.spec), 0, 40);
    paused.run();
    paused.expect_complete(&lent.spec);
}
