//! Prompts that are computed by one scheduler and generated from by another, with pages copied between their engines.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{Attempt, PageId};

use super::driver::{Driver, Id, config, id, prompt, request};
use super::random::{hints, random_policy};
use crate::batch::{BatchConfig, KvWork, Refusal};
use crate::order::deadline::Deadline;
use crate::order::fair::Fair;
use crate::order::priority::Priority;
use crate::order::{Ranks, WorkerPolicy};
use crate::request::{Prop, RequestSpec, ResumedChoice};
use crate::rng::Rng;
use crate::time::Span;

const PAGE: u32 = 4;
const CHUNK: u32 = 12;

fn limits(pages: u32) -> BatchConfig {
    BatchConfig { max_batch_tokens: CHUNK, ..config(PAGE, pages) }
}

/// What the receiving end knows of a request.
#[derive(Debug)]
struct Stream {
    spec: RequestSpec,
    table: Vec<PageId>,
    /// Tokens whose content is there.
    there: u32,
}

/// Two workers and the pages that go from `p` to `d`.
struct Pair {
    p: Driver,
    d: Driver,
    streams: BTreeMap<Id, Stream>,
    /// Pages that were copied.
    copied: u32,
}

impl Pair {
    fn new(p: &BatchConfig, d: &BatchConfig) -> Self {
        Self { p: Driver::new(p), d: Driver::new(d), streams: BTreeMap::new(), copied: 0 }
    }

    fn one(pages: u32) -> Self {
        Self::new(&limits(pages), &limits(pages))
    }

    fn add(&mut self, spec: &RequestSpec) {
        self.d.add_received(spec, 1);
        self.streams.insert(id(spec), Stream { spec: spec.clone(), table: Vec::new(), there: 0 });
        self.news();
    }

    /// A step at each end, where there is one; whether there was.
    fn step(&mut self) -> bool {
        let stepped = [self.d.step().is_some(), self.p.step().is_some()];
        let told = self.news();
        stepped.contains(&true) || told
    }

    fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                break;
            }
        }
        self.d.expect_idle();
        self.p.expect_idle();
        assert_eq!((self.d.batch.set_aside(), self.p.batch.set_aside()), Default::default());
        assert!(self.streams.is_empty(), "{:?}", self.streams);
    }

    fn news(&mut self) -> bool {
        let mut told = false;
        loop {
            let (mut here, there) = (self.d.kv_work(), self.p.kv_work());
            if here.is_empty() && there.is_empty() {
                return told;
            }
            told = true;
            here.drain(..).for_each(|work| self.at_receiver(work));
            there.into_iter().for_each(|work| self.at_sender(work));
        }
    }

    fn at_receiver(&mut self, work: KvWork) {
        match work {
            KvWork::Reserved { request, attempt, pages, cached, tokens } => {
                let stream = self.streams.get_mut(&(request, attempt)).unwrap();
                assert_eq!(tokens as usize, stream.spec.prompt.len());
                assert!(cached % PAGE == 0 && cached < tokens && pages.len() as u32 == tokens.div_ceil(PAGE));
                (stream.table, stream.there) = (pages, cached);
                let spec = stream.spec.clone();
                if self.p.add_prefill(&spec).is_err() {
                    self.fall_back((request, attempt));
                }
            }
            KvWork::NotNeeded { request, attempt } => _ = self.streams.remove(&(request, attempt)),
            KvWork::Dropped { request, attempt, .. } => {
                self.p.cancel((request, attempt));
                self.streams.remove(&(request, attempt));
            }
            KvWork::Computed { .. } | KvWork::Prefilled { .. } => panic!("{work:?}"),
        }
    }

    fn at_sender(&mut self, work: KvWork) {
        match work {
            KvWork::Computed { request, attempt, first, pages } => {
                for (page, number) in pages.into_iter().zip(first..) {
                    self.copy((request, attempt), page, number, (number + 1) * PAGE);
                }
            }
            KvWork::Prefilled { request, attempt, computed, cached, tail, drawn, ends } => {
                let of = (request, attempt);
                if let Some(tail) = tail.filter(|_| !ends) {
                    self.copy(of, tail, computed / PAGE, computed);
                }
                if self.streams.remove(&of).is_some() {
                    assert!(self.d.with(|d, now| d.received(now, request, attempt, !ends, cached, &drawn)));
                    assert!(
                        !self.d.with(|d, now| d.received(now, request, attempt, true, 0, &drawn)),
                        "twice"
                    );
                }
                self.p.cancel(of);
            }
            KvWork::Dropped { request, attempt, reason } => {
                if reason.is_some() {
                    self.fall_back((request, attempt));
                }
            }
            KvWork::Reserved { .. } | KvWork::NotNeeded { .. } => panic!("{work:?}"),
        }
    }

    fn copy(&mut self, of: Id, page: PageId, number: u32, upto: u32) {
        let Some(stream) = self.streams.get_mut(&of) else { return };
        if upto > stream.there {
            assert_eq!(stream.there / PAGE, number, "pages come in order");
            self.d.engine.import(stream.table[number as usize], self.p.engine.export(page));
            stream.there = upto;
            self.copied += 1;
        }
    }

    /// The receiving end goes on by itself.
    fn fall_back(&mut self, of: Id) {
        let Some(stream) = self.streams.remove(&of) else { return };
        assert!(self.d.with(|d, now| d.compute_here(now, of.0, of.1, stream.there)));
        assert!(!self.d.with(|d, now| d.compute_here(now, of.0, of.1, 0)), "twice");
    }
}

/// All lengths around the boundaries of pages and chunks; one choice and three; nothing is computed twice, and what the
/// second worker computes of the prompt is nothing.
#[test]
fn b58_every_length_gives_what_one_worker_gives() {
    for len in 1..=5 * CHUNK + 2 {
        for choices in [1, 3] {
            let mut pair = Pair::one(200);
            let mut spec = request(&limits(200), u64::from(len), &prompt(len, len), 7);
            spec.resumed = vec![ResumedChoice::default(); choices];
            pair.add(&spec);
            pair.run();
            pair.d.expect_complete(&spec);
            assert_eq!(pair.p.engine.computed, u64::from(len));
            assert_eq!(pair.d.load().prefilled_tokens, 0);
            assert_eq!(pair.copied, len.div_ceil(PAGE));
            assert_eq!(pair.d.got(id(&spec)).choices[&0][0].cached_tokens, 0, "B56: received is not cached");
        }
    }
}

/// B42: what ends with its first token ends, at both workers, and no page is needed for it.
#[test]
fn b42_the_first_token_may_be_the_last() {
    for (tokens, end) in [(1, false), (2, false), (40, true)] {
        let mut pair = Pair::one(64);
        let mut spec = request(&limits(64), 3, &prompt(3, 21), tokens);
        if end {
            let first = super::model::solo(&spec, 0, 4096).tokens[0].0;
            spec.end_tokens = Arc::new([first]);
        }
        pair.add(&spec);
        pair.run();
        pair.d.expect_complete(&spec);
        let whole = tokens == 2;
        assert_eq!(pair.copied, if whole { 6 } else { 5 }, "the tail page only where somebody goes on");
        assert_eq!(pair.d.engine.computed, u64::from(whole));
    }
}

/// B48, B49: what the second worker holds is not sent again; the last token's logits come from somewhere all the same.
#[test]
fn b48_b49_only_what_is_missing_is_sent() {
    let mut pair = Pair::one(64);
    let config = limits(64);
    let all = prompt(0, 8 * PAGE + 3);
    for (number, len, copied) in [(0, 6 * PAGE, 6), (1, 6 * PAGE, 1), (2, 7 * PAGE, 1), (3, 8 * PAGE + 3, 2)]
    {
        let spec = request(&config, number, &all[..len as usize], 5);
        let before = pair.copied;
        pair.add(&spec);
        pair.run();
        pair.d.expect_complete(&spec);
        assert_eq!(pair.copied - before, copied, "{len} tokens");
    }
    // Little enough is missing to be computed at once.
    let spec = request(&config, 9, &all, 5);
    pair.d.add_received(&spec, 2 * PAGE);
    assert!(pair.d.step().is_some());
    assert_eq!(pair.d.kv_work(), [KvWork::NotNeeded { request: spec.id, attempt: spec.attempt }]);
    pair.d.run();
    pair.d.expect_complete(&spec);
}

/// B44, B45, B47: the first worker is lost, refuses, or is slow, after any number of pages.
#[test]
fn b44_whatever_has_come_is_used_and_the_rest_computed() {
    let len = 3 * CHUNK + 5;
    for steps in 0..6 {
        let mut pair = Pair::one(64);
        let spec = request(&limits(64), 1, &prompt(1, len), 9);
        pair.add(&spec);
        (0..steps).for_each(|_| _ = pair.step());
        let there = pair.streams.get(&id(&spec)).map_or(len, |s| s.there);
        assert_eq!(there, (steps * CHUNK).saturating_sub(CHUNK).min(len));
        pair.p.cancel(id(&spec));
        pair.fall_back(id(&spec));
        pair.run();
        pair.d.expect_complete(&spec);
        assert_eq!(pair.d.load().prefilled_tokens, u64::from(len - there));
    }
}

/// B57: pages are reserved with room to grow; everybody finishes, and nobody waits in a queue that nobody serves.
#[test]
fn b57_a_small_receiver_serves_everybody() {
    let d = BatchConfig { watermark: 0.0, ..limits(40) };
    let mut pair = Pair::new(&limits(200), &d);
    let specs: Vec<RequestSpec> =
        (0..12).map(|n| request(&d, n, &prompt(n as u32, 5 * PAGE), 4 * PAGE)).collect();
    specs.iter().for_each(|spec| pair.add(spec));
    pair.run();
    specs.iter().for_each(|spec| pair.d.expect_complete(spec));
}

/// A sequence that is being generated goes on elsewhere, with the very tokens, whenever it is moved.
#[test]
fn a_running_sequence_moves_at_any_token() {
    for moved_after in 1..3 * PAGE {
        let mut pair = Pair::one(64);
        let spec = request(&limits(64), 1, &prompt(1, 10), 3 * PAGE + 2);
        pair.p.add(&spec);
        while pair.p.got(id(&spec)).choices.get(&0).map_or(0, Vec::len) < moved_after as usize {
            pair.p.step().unwrap();
        }
        let plan = pair.p.plan().unwrap();
        assert!(!pair.p.with(|p, now| p.freeze(now, spec.id, spec.attempt)), "it is in a step");
        pair.p.complete(&plan);
        assert!(pair.p.with(|p, now| p.freeze(now, spec.id, spec.attempt)));
        assert!(pair.p.step().is_none(), "it is set aside");
        if moved_after % 3 == 0 {
            assert!(pair.p.with(|p, now| p.thaw(now, spec.id, spec.attempt)));
            pair.p.kv_work();
            pair.p.run();
            pair.p.expect_complete(&spec);
            continue;
        }
        let tokens: Vec<u32> = pair.p.got(id(&spec)).choices[&0].iter().map(|e| e.token).collect();
        let mut there = spec.clone();
        there.attempt = Attempt(1);
        there.resumed = vec![ResumedChoice { tokens, ..ResumedChoice::default() }];
        pair.d.add_received(&there, 1);
        assert!(pair.d.plan().is_none());
        let [KvWork::Reserved { pages: table, cached: 0, .. }] = &pair.d.kv_work()[..] else { panic!() };
        let mut upto = 0;
        for work in pair.p.kv_work() {
            match work {
                KvWork::Computed { first, pages, .. } => {
                    for (page, number) in pages.into_iter().zip(first..) {
                        pair.d.engine.import(table[number as usize], pair.p.engine.export(page));
                    }
                }
                KvWork::Prefilled { computed, tail, drawn, ends, .. } => {
                    assert!(drawn.is_empty() && !ends);
                    if let Some(tail) = tail {
                        let number = (computed / PAGE) as usize;
                        pair.d.engine.import(table[number], pair.p.engine.export(tail));
                    }
                    upto = computed;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(pair.d.with(|d, now| d.compute_here(now, there.id, there.attempt, upto)));
        pair.p.cancel(id(&spec));
        pair.d.run();
        pair.p.expect_idle();
        pair.d.expect_complete(&there);
        let left = 3 * PAGE + 2 - moved_after - 1;
        assert_eq!(pair.d.engine.computed, u64::from(left), "nothing is computed twice");
    }
}

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
        pair.p.add_prefill(&ahead).unwrap();
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

fn with_prop(mut spec: RequestSpec, name: &str, value: i64) -> RequestSpec {
    Arc::make_mut(&mut spec.props).insert(name.to_owned(), Prop::Int(value));
    spec
}

/// What a tenant is charged where its prompt is computed, and where its tokens are drawn.
#[test]
fn a_tenant_is_charged_for_each_token_once_and_where_it_is_computed() {
    let len = 3 * CHUNK + 5;
    // The first worker is lost after so many steps; never.
    for lost_after in [None, Some(2)] {
        let mut pair = Pair::one(64);
        pair.p.batch.order_by_policy(true, Vec::new());
        pair.d.batch.order_by_policy(true, Vec::new());
        let mut spec = request(&limits(64), 1, &prompt(1, len), 9);
        (spec.tenant, spec.hashes) = (Some("a".into()), Arc::default());
        pair.add(&spec);
        let mut there = len;
        if let Some(steps) = lost_after {
            (0..steps).for_each(|_| _ = pair.step());
            there = pair.streams[&id(&spec)].there;
            assert!(there > 0 && there < len);
            pair.p.cancel(id(&spec));
            pair.fall_back(id(&spec));
        }
        while pair.step() {}
        let charged = |driver: &mut Driver| {
            let mut events = Vec::new();
            driver.batch.take_order_events(&mut events);
            let mut fair = Fair::new(Default::default());
            fair.observe(driver.now, &events, &mut Ranks::default());
            fair.check().unwrap();
            fair.counter(spec.tenant.as_ref()).unwrap()
        };
        let (p, d) = (charged(&mut pair.p), charged(&mut pair.d));
        let tokens = 2.0 * 9.0;
        assert_eq!((p, d), (f64::from(there), f64::from(len - there) + tokens), "{lost_after:?}");
        pair.run();
    }
}

/// What is recomputed after a preemption is told anew from its first page on: the pages are others.
#[test]
fn a_prompt_for_another_worker_that_is_pushed_out_is_told_anew() {
    let config = BatchConfig { watermark: 0.0, ..limits(12) };
    let mut p = Driver::new(&config);
    p.order_by(Some(Box::new(Priority::default())));
    let spec = request(&config, 1, &prompt(1, 10 * PAGE), 5);
    p.add_prefill(&spec).unwrap();
    (0..2).for_each(|_| _ = p.step().unwrap());
    let high = with_prop(request(&config, 2, &prompt(2, 10 * PAGE), 5), "priority", 1);
    p.add(&high);
    let (mut table, mut recalled): (Vec<PageId>, u32) = Default::default();
    let mut last: Vec<PageId> = Vec::new();
    for step in 0.. {
        assert!(step < 100, "it ends");
        if let Some(plan) = p.step() {
            let of_it = plan.slices.iter().find(|slice| slice.seq.request == spec.id);
            last = of_it.map_or(last, |slice| slice.block_table.clone());
        }
        let mut ends = false;
        for work in p.kv_work() {
            match work {
                KvWork::Computed { first, pages, .. } => {
                    recalled += u32::from(pages.is_empty());
                    table.truncate(first as usize);
                    table.extend(pages);
                }
                KvWork::Prefilled { tail: None, .. } => ends = true,
                other => panic!("{other:?}"),
            }
        }
        if ends {
            break;
        }
        assert!(table.is_empty() || last.starts_with(&table) || recalled == 0, "{table:?} of {last:?}");
    }
    assert_eq!((recalled, &table), (1, &last));
    p.expect_complete(&high);
    p.cancel(id(&spec));
    p.expect_idle();
}

/// A worker that does not compute a prompt does not judge how long it takes.
#[test]
fn a_prompt_that_comes_from_elsewhere_is_not_hopeless_here() {
    // Smaller steps say nothing about the speed.
    let config = BatchConfig { max_batch_tokens: 64, ..limits(64) };
    let mut d = Driver::new(&config);
    d.order_by(Some(Box::new(Deadline::default())));
    d.add(&request(&config, 0, &prompt(0, 40 * PAGE), 1));
    d.run();
    let mut spec = request(&config, 1, &prompt(1, 40 * PAGE), 1);
    spec.deadline = d.now + Span::from_millis(2);
    let spec = with_prop(spec, "deadline-ms", 2);
    assert!(matches!(d.submit(&spec), Err(Refusal::Hopeless { .. })), "by its own speed");
    d.add_received(&spec, 1);
    assert!(d.plan().is_none());
    assert!(matches!(d.kv_work()[..], [KvWork::Reserved { .. }]));
    assert_eq!(d.batch.set_aside().receiving, 1);
    d.cancel(id(&spec));
    d.expect_idle();
}

/// Requests of all kinds, on workers with few pages, with workers that lose each other and clients that leave: every
/// stream that ends is what it is alone, and nothing is left.
#[test]
fn random_transfers_give_the_solo_tokens_and_leave_nothing() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (p, d) = (limits(40 + rng.below(60) as u32), limits(40 + rng.below(60) as u32));
        let mut pair = Pair::new(&p, &d);
        pair.p.batch.set_transfer_chunk(1 + rng.below(20) as u32);
        pair.p.order_by(random_policy(&mut rng));
        pair.d.order_by(random_policy(&mut rng));
        let (mut open, mut specs): (Vec<Id>, Vec<RequestSpec>) = Default::default();
        let mut own_specs: Vec<RequestSpec> = Vec::new();
        for number in 0..40 {
            let shared = prompt(rng.below(3) as u32, rng.below(30) as u32);
            let own = prompt(100 + number as u32, 1 + rng.below(30) as u32);
            let mut spec = request(&d, number, &[shared, own].concat(), 1 + rng.below(20) as u32);
            spec.resumed = vec![ResumedChoice::default(); 1 + rng.below(3) as usize];
            spec.end_tokens = Arc::new([rng.below(29) as u32]);
            hints(&mut rng, &d, &mut spec);
            if rng.below(8) == 0 {
                // The first worker has requests of its own, which may push others out.
                let mut own = spec.clone();
                own.id.gateway += 1;
                pair.p.add(&own);
                own_specs.push(own);
            }
            if rng.below(4) == 0 {
                pair.d.add(&spec);
            } else {
                pair.add(&spec);
            }
            open.push(id(&spec));
            specs.push(spec);
            for _ in 0..rng.below(6) {
                pair.step();
            }
            let any = open[rng.below(open.len() as u64) as usize];
            match rng.below(6) {
                0 => {
                    pair.d.cancel(any);
                    open.retain(|of| *of != any);
                    pair.news();
                    if open.is_empty() {
                        open.push(any);
                    }
                }
                1 if pair.streams.contains_key(&any) && !pair.streams[&any].table.is_empty() => {
                    pair.p.cancel(any);
                    pair.fall_back(any);
                }
                _ => {}
            }
        }
        pair.run();
        for spec in &specs {
            if pair.d.got(id(spec)).done.is_some() {
                pair.d.expect_complete(spec);
            } else {
                (0..spec.choices() as u32).for_each(|c| _ = pair.d.expect_prefix(spec, c));
            }
        }
        own_specs.iter().for_each(|spec| pair.p.expect_complete(spec));
        let done = specs.iter().filter(|spec| pair.d.got(id(spec)).done.is_some()).count();
        assert!(done >= 20, "{done}");
    }
}
