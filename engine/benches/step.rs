//! Steps of engine `paged` on the default model: a prompt of 512 tokens, and decoding one and eight sequences at 256
//! tokens of context. `cargo bench -p engine --bench step`; throughput is tokens a second.

use std::sync::Arc;

use config::ids::{Attempt, PageId, RequestId};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::Engine;
use engine::paged::{KvBudget, LoadOptions, PagedEngine};
use engine::store::{ModelFiles, default_model_for_tests};
use policies::step::{Draw, SeqKey, Slice, StepPlan};

/// Pages a sequence: room for the prompt of 512 tokens.
const PAGES: u32 = 32;

/// Consecutive tokens of sequence `number` from position `start`, and a greedy draw after the last.
fn slice(number: u32, tokens: u32, start: u32) -> Slice {
    let seq = SeqKey { request: RequestId::new(1, u64::from(number)), attempt: Attempt(0), choice: 0 };
    let position = start + tokens;
    Slice {
        seq,
        tokens: (0..tokens).map(|i| 100 + (i * 7919 + number * 613) % 40_000).collect(),
        start,
        block_table: (number * PAGES..(number + 1) * PAGES).map(PageId).collect(),
        draws: vec![Draw { choice: 0, sampling: Arc::default(), position, history: None }],
        prompt_logprobs: None,
    }
}

fn run(engine: &mut PagedEngine, slices: Vec<Slice>) {
    let plan = StepPlan { step: 1, copies: vec![], slices };
    let outcome = engine.step(&plan).expect("a valid plan");
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
}

fn steps(criterion: &mut Criterion) {
    let files = ModelFiles::Gguf(default_model_for_tests());
    let options = LoadOptions { kv: KvBudget::Pages(8 * PAGES), ..LoadOptions::new(files) };
    let (mut engine, _card) = PagedEngine::load(&options).expect("the default model");
    for number in 0..8 {
        run(&mut engine, vec![slice(number, 256, 0)]);
    }
    let mut group = criterion.benchmark_group("step");
    group.sample_size(20);
    for (name, sequences) in [("decode 1 at 256", 1), ("decode 8 at 256", 8)] {
        group.throughput(Throughput::Elements(u64::from(sequences)));
        group.bench_function(name, |bencher| {
            bencher.iter(|| run(&mut engine, (0..sequences).map(|number| slice(number, 1, 256)).collect()));
        });
    }
    group.throughput(Throughput::Elements(512));
    group.sample_size(10);
    group.bench_function("prefill 512", |bencher| bencher.iter(|| run(&mut engine, vec![slice(0, 512, 0)])));
    group.finish();
}

criterion_group!(benches, steps);
criterion_main!(benches);
