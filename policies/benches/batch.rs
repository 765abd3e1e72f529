//! One step of the scheduler, plan and completion, with 256 sequences running and 10,000 requests waiting: in order of
//! arrival, and in the order of each policy, whose ranks are taken over in every step as they are live. The policy's own
//! work is not the scheduler's and is shown beside.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a bench measures time and says what it took"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::ids::RequestId;
use criterion::{Criterion, criterion_group, criterion_main};
use policies::batch::{Batch, BatchConfig, BatchEffect};
use policies::kv::{Fingerprint, page_hashes};
use policies::order::deadline::Deadline;
use policies::order::fair::Fair;
use policies::order::priority::Priority;
use policies::order::{OrderEvent, Ranks, WorkerPolicy};
use policies::request::{Prop, RequestSpec, Token};
use policies::step::{Drawn, SeqKey, StepOutcome, StepPlan};
use policies::time::Time;

const WAITING: u64 = 10_000;

/// A scheduler in steady state: whatever ends is replaced by a new request.
struct Load {
    batch: Batch,
    prompt: Vec<Token>,
    /// Tokens at the start of each prompt that all have in common.
    shared: usize,
    output: u32,
    submitted: u64,
    effects: Vec<BatchEffect>,
    policy: Option<Box<dyn WorkerPolicy>>,
    /// What the scheduler and what the policy took, by step.
    scheduler: Vec<Duration>,
    policies: Vec<Duration>,
}

impl Load {
    fn new(
        pages: u32,
        prompt: usize,
        shared: usize,
        output: u32,
        policy: Option<Box<dyn WorkerPolicy>>,
    ) -> Self {
        let config = BatchConfig {
            max_waiting: u32::MAX,
            ..BatchConfig::sized(16, pages, 16_384, Fingerprint::of(&[("bench", b"1")]))
        };
        let mut load = Self {
            batch: Batch::new(config),
            prompt: vec![0; prompt],
            shared,
            output,
            submitted: 0,
            effects: Vec::new(),
            policy,
            scheduler: Vec::new(),
            policies: Vec::new(),
        };
        load.batch.order_by_policy(load.policy.is_some(), Vec::new());
        for _ in 0..WAITING + 256 {
            load.submit();
        }
        for _ in 0..600 {
            load.step();
        }
        load
    }

    fn submit(&mut self) {
        let number = self.submitted;
        self.submitted += 1;
        self.prompt[self.shared..].fill(number as Token);
        let (level, due) = ((number % 3) as i64, (number * 7919 % 100_000) as i64);
        let config = self.batch.config();
        let spec = RequestSpec {
            hashes: page_hashes(&config.fingerprint, config.page_tokens, &self.prompt).into(),
            props: Arc::new(
                [("priority".to_owned(), Prop::Int(level)), ("deadline-ms".to_owned(), Prop::Int(due))]
                    .into(),
            ),
            tenant: (self.policy.is_some()).then(|| format!("tenant {}", number % 50).into()),
            deadline: Time(u64::MAX / 2 + due as u64),
            // Different lengths, so that ends are spread over the steps.
            ..RequestSpec::plain(
                RequestId::new(1, number),
                "m".into(),
                self.prompt.as_slice(),
                self.output + (number * 37 % 64) as u32,
            )
        };
        self.batch.submit(Time::ZERO, spec).expect("the queue has no limit");
    }

    fn plan(&mut self) -> StepPlan {
        self.batch.plan(Time::ZERO).expect("there is always work")
    }

    /// A step, and what the policy has to say to it.
    fn step(&mut self) {
        let begun = Instant::now();
        let plan = self.plan();
        let planned = begun.elapsed();
        let outcome = outcome(&plan);
        let begun = Instant::now();
        self.batch.complete(Time::ZERO, &outcome, &mut self.effects);
        let mut events: Vec<OrderEvent> = Vec::new();
        self.batch.take_order_events(&mut events);
        let completed = begun.elapsed();
        let begun = Instant::now();
        let mut ranks = Ranks::default();
        if let Some(policy) = &mut self.policy {
            policy.observe(Time::ZERO, &events, &mut ranks);
        }
        self.policies.push(begun.elapsed());
        let begun = Instant::now();
        self.batch.publish(&ranks);
        self.scheduler.push(planned + completed + begun.elapsed());
        let done = self.effects.iter().filter(|e| matches!(e, BatchEffect::Done { .. })).count();
        self.effects.clear();
        for _ in 0..done {
            self.submit();
        }
    }
}

fn outcome(plan: &StepPlan) -> StepOutcome {
    let draws = plan.slices.iter().flat_map(|s| s.draws.iter().map(|d| (s.seq, d.choice)));
    let drawn = draws
        .map(|(seq, choice)| Drawn { seq: SeqKey { choice, ..seq }, token: 5, logprobs: None })
        .collect();
    StepOutcome { step: plan.step, drawn, ..StepOutcome::default() }
}

fn percentile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * share) as usize]
}

/// The tail matters here: a slow step is a gap in every stream.
fn ordered(c: &mut Criterion) {
    let policies: [(&str, Option<Box<dyn WorkerPolicy>>); 4] = [
        ("fcfs", None),
        ("fair", Some(Box::new(Fair::new(Default::default())))),
        ("priority", Some(Box::new(Priority::default()))),
        ("deadline", Some(Box::new(Deadline::default()))),
    ];
    for (name, policy) in policies {
        let mut load = Load::new(16_384, 128, 0, 256, policy);
        assert!(
            load.batch.load().running >= 250 && load.batch.load().waiting >= 9_000,
            "{:?}",
            load.batch.load()
        );
        (load.scheduler, load.policies) = (Vec::new(), Vec::new());
        c.bench_function(&format!("order/{name}, 256 running, 10000 waiting"), |b| b.iter(|| load.step()));
        let (p50, p99) = (percentile(&mut load.scheduler, 0.5), percentile(&mut load.scheduler, 0.99));
        let beside = percentile(&mut load.policies, 0.99);
        println!("order/{name}: scheduler p50 {p50:?} p99 {p99:?} a step; policy p99 {beside:?} beside it");
    }
}

fn steps(c: &mut Criterion) {
    let mut load = Load::new(16_384, 128, 0, 256, None);
    assert!(
        load.batch.load().running >= 250 && load.batch.load().waiting >= 9_000,
        "{:?}",
        load.batch.load()
    );
    c.bench_function("step/256 running, 10000 waiting", |b| b.iter(|| load.step()));

    // The pages are full, the next request does not fit, and half of its long prompt is cached.
    let mut load = Load::new(12_000, 2048, 1024, 256, None);
    c.bench_function("step/full pages, long shared prefix", |b| b.iter(|| load.step()));
    assert!(load.batch.load().waiting >= 9_000, "{:?}", load.batch.load());
}

criterion_group!(benches, steps, ordered);
criterion_main!(benches);
