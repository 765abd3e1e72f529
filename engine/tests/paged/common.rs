//! Loading and driving an engine.

use std::path::Path;
use std::sync::Arc;

use config::ids::{Attempt, PageId, RequestId};
use config::{Device, KvDtype};
use engine::Engine;
use engine::paged::{KvBudget, LoadOptions, PagedEngine};
use engine::store::ModelFiles;
use policies::request::Sampling;
use policies::step::{Draw, SeqKey, Slice, StepOutcome, StepPlan};

/// Options for the model in a GGUF file.
pub(crate) fn gguf(path: &Path) -> LoadOptions {
    LoadOptions {
        device: Device::Cpu,
        threads: 2,
        kv: KvBudget::Pages(64),
        ..LoadOptions::new(ModelFiles::Gguf(path.to_owned()))
    }
}

/// As [`gguf`], with keys and values in 32 bits.
pub(crate) fn gguf_f32(path: &Path) -> LoadOptions {
    LoadOptions { kv_dtype: KvDtype::F32, ..gguf(path) }
}

/// Loads or panics with the reason.
pub(crate) fn load(options: &LoadOptions) -> PagedEngine {
    PagedEngine::load(options).unwrap_or_else(|e| panic!("{e}")).0
}

/// Names a sequence.
pub(crate) fn key(number: u64) -> SeqKey {
    SeqKey { request: RequestId::new(1, number), attempt: Attempt(0), choice: 0 }
}

/// Pages `first..first + count`.
pub(crate) fn table(first: u32, count: u32) -> Vec<PageId> {
    (first..first + count).map(PageId).collect()
}

/// A slice without draws.
pub(crate) fn slice(number: u64, tokens: &[u32], start: u32, block_table: Vec<PageId>) -> Slice {
    Slice {
        seq: key(number),
        tokens: tokens.to_vec(),
        start,
        block_table,
        draws: vec![],
        prompt_logprobs: None,
    }
}

/// A draw of the token at `position`.
pub(crate) fn draw(sampling: &Arc<Sampling>, position: u32) -> Draw {
    Draw { choice: 0, sampling: Arc::clone(sampling), position, history: None }
}

/// Runs one step.
pub(crate) fn step(engine: &mut PagedEngine, slices: Vec<Slice>) -> StepOutcome {
    engine.step(&StepPlan { step: 1, copies: vec![], slices }).unwrap()
}

/// Tokens drawn after a prompt, one step a token; the prompt is computed in one step.
pub(crate) fn generate(
    engine: &mut PagedEngine,
    prompt: &[u32],
    sampling: &Sampling,
    count: usize,
) -> Vec<u32> {
    let sampling = Arc::new(sampling.clone());
    let pages = engine.kv().layout.pages_for((prompt.len() + count) as u32);
    let mut out = Vec::new();
    let (mut tokens, mut start) = (prompt.to_vec(), 0);
    while out.len() < count {
        let end = start + tokens.len() as u32;
        let mut next = slice(1, &tokens, start, table(0, pages));
        next.draws = vec![draw(&sampling, end)];
        let outcome = step(engine, vec![next]);
        assert_eq!(outcome.failed, []);
        let token = outcome.drawn[0].token;
        out.push(token);
        (tokens, start) = (vec![token], end);
    }
    out
}
