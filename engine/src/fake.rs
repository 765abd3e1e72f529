//! An engine without a model: deterministic tokens at the pace of a cost model, for tests and demonstrations.
//!
//! What it computes is [`policies::cost::fake`], which the simulator computes too: the KV of a token is a hash of the
//! tokens up to it, read back through the block table, so that every mistake in page tables, copies or prefix reuse shows
//! in the tokens. Its vocabulary is the 256 bytes and three control tokens.

mod card;

use std::time::{Duration, Instant};

use config::EngineConfig;
use config::ids::PageId;
use policies::cost::fake::{FakeModel, FakePages};
use policies::cost::{Affine, CostModel};
use policies::kv::PageLayout;
use policies::step::{StepOutcome, StepPlan};
use policies::time::Span;

use crate::{Engine, EngineError, KvInfo};

pub use card::{END_OF_TEXT, END_OF_TURN, START_OF_TURN, VOCAB, fake_card};

#[cfg(test)]
mod tests;

/// Pages where the configuration sets neither their number nor their memory.
const DEFAULT_PAGES: u32 = 4096;

/// Bytes of a slot: one hash.
const SLOT_BYTES: usize = size_of::<u64>();

/// What a fake engine pretends to be.
#[derive(Clone, Copy, Debug)]
pub struct FakeOptions {
    /// Tokens a page.
    pub page_tokens: u32,
    /// KV pages.
    pub pages: u32,
    /// What it draws.
    pub model: FakeModel,
    /// How long its steps take.
    pub cost: CostModel,
    /// What goes wrong.
    pub faults: Faults,
}

/// Faults on purpose. Steps are counted from 1 on; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The step that panics.
    pub panic_at: u64,
    /// The step that never ends.
    pub stall_at: u64,
}

impl FakeOptions {
    /// As `[engine]` and `[engine.fake]` say. The end token comes after `eos-every` tokens on average.
    #[must_use]
    pub fn from_config(config: &EngineConfig) -> Self {
        let span = |dur: config::Dur| Span::from(dur.get());
        let page_tokens = u32::try_from(config.page_tokens).unwrap_or(u32::MAX);
        let by_memory = |size: config::Size| {
            let pages = size.as_usize() / (config.page_tokens.max(1) * SLOT_BYTES);
            u32::try_from(pages).unwrap_or(u32::MAX)
        };
        let mean = u32::try_from(config.fake.eos_every).unwrap_or(u32::MAX);
        Self {
            page_tokens,
            pages: config.kv_pages.or(config.kv_memory.map(by_memory)).unwrap_or(DEFAULT_PAGES),
            model: FakeModel { end: (mean > 0).then_some((END_OF_TURN, mean)) },
            cost: CostModel::Affine(Affine {
                step_overhead: span(config.fake.step_overhead),
                prefill_per_token: span(config.fake.prefill_per_token),
                decode_per_sequence: span(config.fake.decode_per_sequence),
                attention_per_token: span(config.fake.attention_per_token),
            }),
            faults: Faults {
                panic_at: config.fake.panic_at_step as u64,
                stall_at: config.fake.stall_at_step as u64,
            },
        }
    }
}

/// The fake engine.
#[derive(Debug)]
pub struct FakeEngine {
    pages: FakePages,
    kv: KvInfo,
    cost: CostModel,
    faults: Faults,
    /// Steps so far.
    steps: u64,
}

impl FakeEngine {
    /// An engine whose pages hold nothing.
    #[must_use]
    pub fn new(options: FakeOptions) -> Self {
        let FakeOptions { page_tokens, pages, model, cost, faults } = options;
        // Keys and values of one element of four bytes each: the eight bytes of a slot.
        let layout = PageLayout { page_tokens, layers: 1, kv_heads: 1, head_dim: 1, element_bytes: 4 };
        let (kv, pages) = (KvInfo { layout, pages }, FakePages::new(model, pages, page_tokens));
        Self { pages, kv, cost, faults, steps: 0 }
    }
}

impl Engine for FakeEngine {
    fn kv(&self) -> KvInfo {
        self.kv
    }

    fn step(&mut self, plan: &StepPlan) -> Result<StepOutcome, EngineError> {
        let started = Instant::now();
        self.steps += 1;
        assert!(self.steps != self.faults.panic_at, "engine.fake.panic-at-step is {}", self.steps);
        if self.steps == self.faults.stall_at {
            loop {
                std::thread::park();
            }
        }
        let mut outcome = self.pages.step(plan).map_err(EngineError::Step)?;
        wait_until(started + self.cost.plan(plan).to_duration());
        outcome.took = started.elapsed().into();
        Ok(outcome)
    }

    fn export(&self, page: PageId, out: &mut [u8]) -> Result<(), EngineError> {
        let slots = self.pages.page(page.index()).ok_or_else(|| missing(page))?;
        check_length(out.len(), slots.len())?;
        for (slot, bytes) in slots.iter().zip(out.chunks_exact_mut(SLOT_BYTES)) {
            bytes.copy_from_slice(&slot.to_le_bytes());
        }
        Ok(())
    }

    fn import(&mut self, page: PageId, content: &[u8]) -> Result<(), EngineError> {
        let slots = self.pages.page_mut(page.index()).ok_or_else(|| missing(page))?;
        check_length(content.len(), slots.len())?;
        for (slot, bytes) in slots.iter_mut().zip(content.chunks_exact(SLOT_BYTES)) {
            let mut word = [0; SLOT_BYTES];
            word.copy_from_slice(bytes);
            *slot = u64::from_le_bytes(word);
        }
        Ok(())
    }
}

fn missing(page: PageId) -> EngineError {
    EngineError::Page(format!("page {page} does not exist"))
}

fn check_length(bytes: usize, slots: usize) -> Result<(), EngineError> {
    if bytes == slots * SLOT_BYTES {
        return Ok(());
    }
    Err(EngineError::Page(format!("a page has {} bytes and the buffer {bytes}", slots * SLOT_BYTES)))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the fake engine's work is waiting, on the engine's own thread"
)]
fn wait_until(end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    if left > Duration::ZERO {
        std::thread::sleep(left);
    }
}
