//! A whole placement, from the question to the booking and its release, on 64 workers: without policies, and with five
//! that are called inline.

use std::sync::Arc;

use config::ids::{Attempt, RequestId, WorkerId};
use criterion::{Criterion, criterion_group, criterion_main};
use policies::batch::BatchLoad;
use policies::invariant::Broken;
use policies::kv::{Fingerprint, PageHash, page_hashes};
use policies::placement::{
    Choice, PlaceRequest, Placement, PlacementConfig, PlacementEffect, WorkerInfo, WorkerView,
};
use policies::policy::cache_aware::{CacheAware, CacheAwareOptions};
use policies::policy::session_affinity::{SessionAffinity, SessionAffinityOptions};
use policies::policy::{
    ClusterPolicy, OPINION_DEADLINE, Opinion, PolicyAction, PolicyConfig, PolicyEvent, PolicyMode,
    PolicyQuery,
};
use policies::time::{Span, Time};

const WORKERS: u64 = 64;
/// Tokens of a prompt.
const PROMPT: u32 = 4000;
const PAGE: u32 = 16;

/// A policy under another name: a name is in the list once.
#[derive(Debug)]
struct Named(&'static str, Box<dyn ClusterPolicy>);

impl ClusterPolicy for Named {
    fn name(&self) -> config::ids::PolicyName {
        self.0.into()
    }

    fn observe(&mut self, now: Time, event: &PolicyEvent) {
        self.1.observe(now, event);
    }

    fn opinion(&mut self, now: Time, query: &PolicyQuery) -> Opinion {
        self.1.opinion(now, query)
    }

    fn tick(&mut self, now: Time, workers: &[WorkerView], actions: &mut Vec<PolicyAction>) {
        self.1.tick(now, workers, actions);
    }

    fn check(&self) -> Result<(), Broken> {
        self.1.check()
    }
}

fn five() -> Vec<(PolicyConfig, Box<dyn ClusterPolicy>)> {
    let cache = || Box::new(CacheAware::new(CacheAwareOptions::default())) as Box<dyn ClusterPolicy>;
    let session =
        || Box::new(SessionAffinity::new(SessionAffinityOptions::default())) as Box<dyn ClusterPolicy>;
    let list = [
        ("cache-1", PolicyMode::Prod, cache()),
        ("cache-2", PolicyMode::Shadow, cache()),
        ("session-1", PolicyMode::Shadow, session()),
        ("cache-3", PolicyMode::Prod, cache()),
        ("session-2", PolicyMode::Prod, session()),
    ];
    list.into_iter()
        .map(|(name, mode, policy)| {
            let config = PolicyConfig { mode, ..PolicyConfig::new(name.into()) };
            (config, Box::new(Named(name, policy)) as Box<dyn ClusterPolicy>)
        })
        .collect()
}

/// Text `which` of 100: all begin with the same 600 tokens.
fn text(which: u64) -> Arc<[PageHash]> {
    let tokens: Vec<u32> = (0..PROMPT).map(|n| if n < 600 { n } else { n + 10_000 * which as u32 }).collect();
    page_hashes(&Fingerprint::of(&[("bench", b"1")]), PAGE, &tokens).into()
}

struct Bench {
    placement: Placement,
    texts: Vec<Arc<[PageHash]>>,
    number: u64,
    now: Time,
}

impl Bench {
    fn new(policies: Vec<(PolicyConfig, Box<dyn ClusterPolicy>)>) -> Self {
        let config = PlacementConfig {
            max_queued: 1000,
            queue_timeout: Span::from_secs(30),
            choice: Choice::LeastLoaded,
            seed: 1,
            opinion_deadline: OPINION_DEADLINE,
            directory: true,
        };
        let mut placement = Placement::new(config).with_policies(policies);
        let texts: Vec<_> = (0..100).map(text).collect();
        for n in 0..WORKERS {
            let id = WorkerId::new(format!("worker-{n:02}").as_str().into(), 1);
            let info = WorkerInfo::unified(id.clone(), "m".into(), 131_072, 256, PAGE);
            placement.worker_joined(Time::ZERO, info, &mut Vec::new());
            // Each holds three texts, so most are held by two.
            let pages: Vec<PageHash> =
                (0..3).flat_map(|k| texts[((n * 3 + k) % 100) as usize].to_vec()).collect();
            placement.kv_snapshot(&id, 0, 0, 1, &pages);
            let load = BatchLoad { pages_used: 100, pages_total: 10_000, ..BatchLoad::default() };
            placement.worker_load(Time::ZERO, &id, load, &mut Vec::new());
        }
        Self { placement, texts, number: 0, now: Time::ZERO }
    }

    /// Places a request, has it taken, and ends the one of a hundred placements ago.
    fn place(&mut self, fx: &mut Vec<PlacementEffect>) {
        self.number += 1;
        self.now = self.now + Span::from_millis(1);
        fx.clear();
        let request = PlaceRequest {
            request: RequestId::new(1, self.number),
            attempt: Attempt(0),
            model: "m".into(),
            prompt_tokens: PROMPT,
            context_tokens: PROMPT,
            max_tokens: 256,
            choices: 1,
            resumed: false,
            prompt_logprobs: false,
            avoid: Vec::new(),
            pin: None,
            hashes: Arc::clone(&self.texts[(self.number * 7 % 100) as usize]),
            session: self.number.is_multiple_of(2).then(|| format!("session {}", self.number % 1000).into()),
            props: Arc::default(),
            deadline: Time::NEVER,
        };
        self.placement.place(self.now, request, fx);
        assert_eq!(fx.len(), 1, "it is placed at once");
        self.placement.accepted(self.now, RequestId::new(1, self.number), Attempt(0));
        if let Some(former) = self.number.checked_sub(100) {
            self.placement.release(self.now, RequestId::new(1, former), Attempt(0), fx);
        }
    }
}

fn placement(c: &mut Criterion) {
    let mut group = c.benchmark_group("placement on 64 workers");
    for (name, list) in [("without policies", Vec::new()), ("with 5 policies", five())] {
        let mut bench = Bench::new(list);
        let mut fx = Vec::new();
        (0..1000).for_each(|_| bench.place(&mut fx));
        group.bench_function(name, |b| b.iter(|| bench.place(&mut fx)));
        // A tail is what a mean hides: single placements, sorted.
        let mut single: Vec<u128> = (0..20_000)
            .map(|_| {
                let start = started();
                bench.place(&mut fx);
                start.elapsed().as_nanos()
            })
            .collect();
        single.sort_unstable();
        let at = |percent: usize| single[single.len() * percent / 100] as f64 / 1000.0;
        tail(name, at(50), at(99));
    }
    group.finish();
}

#[expect(clippy::print_stdout, reason = "beside what criterion prints")]
fn tail(name: &str, median: f64, p99: f64) {
    println!("{name}: p50 {median:.1} us, p99 {p99:.1} us");
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn started() -> std::time::Instant {
    std::time::Instant::now()
}

criterion_group!(benches, placement);
criterion_main!(benches);
