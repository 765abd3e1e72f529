//! One step of the scheduler, plan and completion, with 256 sequences running and 10,000 requests waiting.

use std::sync::Arc;

use config::ids::{Attempt, RequestId};
use criterion::{Criterion, criterion_group, criterion_main};
use policies::batch::{Batch, BatchConfig, BatchEffect};
use policies::kv::{Fingerprint, page_hashes};
use policies::request::{RequestSpec, ResumedChoice, Sampling, Token};
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
}

impl Load {
    fn new(pages: u32, prompt: usize, shared: usize, output: u32) -> Self {
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
        };
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
        let config = self.batch.config();
        let spec = RequestSpec {
            id: RequestId::new(1, number),
            attempt: Attempt(0),
            model: "m".into(),
            prompt: self.prompt.as_slice().into(),
            hashes: page_hashes(&config.fingerprint, config.page_tokens, &self.prompt).into(),
            resumed: vec![ResumedChoice::default()],
            // Different lengths, so that ends are spread over the steps.
            max_tokens: self.output + (number * 37 % 64) as u32,
            credit: 0,
            end_tokens: Arc::new([]),
            ignore_end: false,
            sampling: Arc::new(Sampling::default()),
            prompt_logprobs: false,
            props: Arc::default(),
            session: None,
            deadline: Time::NEVER,
        };
        self.batch.submit(Time::ZERO, spec).expect("the queue has no limit");
    }

    fn plan(&mut self) -> StepPlan {
        self.batch.plan(Time::ZERO).expect("there is always work")
    }

    fn step(&mut self) {
        let plan = self.plan();
        let outcome = outcome(&plan);
        self.batch.complete(Time::ZERO, &outcome, &mut self.effects);
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

fn steps(c: &mut Criterion) {
    let mut load = Load::new(16_384, 128, 0, 256);
    assert!(
        load.batch.load().running >= 250 && load.batch.load().waiting >= 9_000,
        "{:?}",
        load.batch.load()
    );
    c.bench_function("step/256 running, 10000 waiting", |b| b.iter(|| load.step()));

    // The pages are full, the next request does not fit, and half of its long prompt is cached.
    let mut load = Load::new(12_000, 2048, 1024, 256);
    c.bench_function("step/full pages, long shared prefix", |b| b.iter(|| load.step()));
    assert!(load.batch.load().waiting >= 9_000, "{:?}", load.batch.load());
}

criterion_group!(benches, steps);
criterion_main!(benches);
