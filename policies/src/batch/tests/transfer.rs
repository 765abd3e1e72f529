//! Prompts that are computed by one scheduler and generated from by another, with pages copied between their engines.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::PageId;

use super::driver::{Driver, Id, config, id, prompt, request};
use super::random::{hints, random_policy};
use crate::batch::{BatchConfig, KvWork};
use crate::request::{RequestSpec, ResumedChoice};
use crate::rng::Rng;

mod expected;
mod held;
mod moves;
mod offload;
mod ordered;

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
    /// It gets its pages when its prompt is begun.
    late: bool,
    /// What the other worker has told of it before there were pages.
    told: Vec<KvWork>,
}

impl Stream {
    /// One that has its pages before anything is asked for.
    fn reserved(spec: RequestSpec) -> Self {
        Self { spec, table: Vec::new(), there: 0, late: false, told: Vec::new() }
    }
}

/// Two workers and the pages that go from `p` to `d`.
struct Pair {
    p: Driver,
    d: Driver,
    streams: BTreeMap<Id, Stream>,
    /// Pages that were copied.
    copied: u32,
    /// Requests get their pages when their prompts are begun.
    late: bool,
}

impl Pair {
    fn new(p: &BatchConfig, d: &BatchConfig) -> Self {
        Self { p: Driver::new(p), d: Driver::new(d), streams: BTreeMap::new(), copied: 0, late: false }
    }

    fn one(pages: u32) -> Self {
        Self::new(&limits(pages), &limits(pages))
    }

    fn add(&mut self, spec: &RequestSpec) {
        let late = self.late;
        if late {
            self.d.add_expected(spec, 1);
        } else {
            self.d.add_received(spec, 1);
        }
        self.streams.insert(id(spec), Stream { late, ..Stream::reserved(spec.clone()) });
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
                if stream.late {
                    let told = std::mem::take(&mut stream.told);
                    stream.late = false;
                    self.p.with(|p, _| p.open(request, attempt));
                    return told.into_iter().for_each(|work| self.at_sender(work));
                }
                let spec = stream.spec.clone();
                if self.p.add_prefill(&spec, true).is_err() {
                    self.fall_back((request, attempt));
                }
            }
            KvWork::Expected { request, attempt, tokens } => {
                let spec = self.streams[&(request, attempt)].spec.clone();
                assert_eq!(tokens as usize, spec.prompt.len());
                if self.p.add_prefill(&spec, false).is_err() {
                    self.fall_back((request, attempt));
                }
            }
            KvWork::NotNeeded { request, attempt } => {
                if self.streams.remove(&(request, attempt)).is_some_and(|stream| stream.late) {
                    self.p.cancel((request, attempt));
                }
            }
            KvWork::Dropped { request, attempt, .. } => {
                self.p.cancel((request, attempt));
                self.streams.remove(&(request, attempt));
            }
            KvWork::Begun { .. } | KvWork::Computed { .. } | KvWork::Prefilled { .. } => panic!("{work:?}"),
        }
    }

    fn at_sender(&mut self, work: KvWork) {
        let of = match &work {
            KvWork::Computed { request, attempt, .. } | KvWork::Prefilled { request, attempt, .. } => {
                Some((*request, *attempt))
            }
            _ => None,
        };
        if let Some(stream) = of.and_then(|of| self.streams.get_mut(&of)).filter(|stream| stream.late) {
            if matches!(&work, KvWork::Computed { first: 0, pages, .. } if pages.is_empty()) {
                // They were taken away from it.
                stream.told.clear();
            } else {
                stream.told.push(work);
            }
            return;
        }
        match work {
            KvWork::Begun { request, attempt } => _ = self.d.with(|d, now| d.begun(now, request, attempt)),
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
            KvWork::Expected { .. } | KvWork::Reserved { .. } | KvWork::NotNeeded { .. } => {
                panic!("{work:?}")
            }
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
        for (choices, late) in [(1, false), (3, false), (1, true), (3, true)] {
            let mut pair = Pair { late, ..Pair::one(200) };
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
    for late in [false, true] {
        let mut pair = Pair { late, ..Pair::new(&limits(200), &d) };
        let specs: Vec<RequestSpec> =
            (0..12).map(|n| request(&d, n, &prompt(n as u32, 5 * PAGE), 4 * PAGE)).collect();
        specs.iter().for_each(|spec| pair.add(spec));
        pair.run();
        specs.iter().for_each(|spec| pair.d.expect_complete(spec));
    }
}

/// Requests of all kinds, on workers with few pages, with workers that lose each other and clients that leave: every
/// stream that ends is what it is alone, and nothing is left.
#[test]
fn random_transfers_give_the_solo_tokens_and_leave_nothing() {
    let mut left = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (p, d) = (limits(40 + rng.below(60) as u32), limits(40 + rng.below(60) as u32));
        let mut pair = Pair { late: seed % 2 == 1, ..Pair::new(&p, &d) };
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
            let (least, over) = (1 + rng.below(8) as u32, rng.below(4));
            let found = pair.d.with(|d, _| d.waiting_prompts(least, over));
            if let Some(prompt) = found.first().filter(|_| rng.below(2) == 0) {
                assert!(prompt.missing >= least && prompt.ahead > over);
                assert!(pair.leave(prompt.key));
                left += 1;
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
                1 if pair.streams.get(&any).is_some_and(|s| s.late || !s.table.is_empty()) => {
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
    assert!(left > 50, "{left} left");
}
