//! The default engine: KV pages, a ragged batch a step, weights kept as they are stored.
//!
//! [`PagedEngine::load`] reads a model of the llama family from GGUF files or a Hugging Face directory. The graph
//! ([`forward`]) is written once over a [`backend`]; on the CPU all operations are row-invariant, so that a token's
//! result is the same in every batch, chunk and phase (see [`crate::cpu`]).

use std::sync::{Arc, Mutex};
use std::time::Instant;

use config::ids::PageId;
use policies::cost::ModelShape;
use policies::kv::Fingerprint;
use policies::step::{Slice, StepOutcome, StepPlan};

mod backend;
mod batch;
mod budget;
mod cpu_backend;
#[cfg(any(feature = "cuda", test))]
mod cuda_backend;
mod forward;
mod load;
mod open;
mod options;
mod resources;
mod source;
mod step;
mod weights;

pub use options::{KvBudget, LoadOptions};
#[doc(hidden)]
pub use resources::resident_memory;

use batch::RaggedBatch;
use forward::Model;
use step::Limits;

use crate::cpu::Compute;
use crate::sample::Sampler;
use crate::{Engine, EngineError, KvInfo, ModelCard};

/// Names the arithmetic of the CPU kernels: pages computed with different arithmetic are not exchanged. To be changed with
/// anything that changes a bit of a page.
const NUMERICS: &str = "paged 2";

/// An engine over KV pages, for llama-like models.
#[derive(Debug)]
pub struct PagedEngine {
    model: Box<dyn Model>,
    compute: Arc<Compute>,
    kv: KvInfo,
    shape: ModelShape,
    limits: Limits,
    weight_bytes: usize,
    on_cpu: bool,
    batch: RaggedBatch,
    samplers: Mutex<Vec<Sampler>>,
}

impl PagedEngine {
    /// Loads a model. Takes as long as reading its files once; logs what was loaded and how many pages there are.
    ///
    /// # Errors
    /// [`EngineError::Load`]: a file is missing, damaged or of a kind that is not supported (naming file, tensor or key),
    /// or the machine lacks what the options ask for (naming the option).
    pub fn load(options: &LoadOptions) -> Result<(Self, ModelCard), EngineError> {
        open::open(options)
    }

    /// Bytes that the weight matrices take in memory.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Computes slices as [`Engine::step`] does, and gives the logits of every row (`[rows][vocab]`): for tools and tests
    /// that look at the model rather than at tokens.
    ///
    /// # Errors
    /// [`EngineError::Step`] when a slice is malformed.
    pub fn logits(&mut self, slices: &[Slice]) -> Result<Vec<Vec<f32>>, EngineError> {
        step::logits(self.model.as_mut(), self.limits, slices, &mut self.batch)
    }

    fn check_page(&self, page: PageId, bytes: usize) -> Result<(), EngineError> {
        let expected = self.kv.layout.page_bytes();
        if page.0 >= self.kv.pages {
            return Err(EngineError::Page(format!(
                "page {page} does not exist; there are {}",
                self.kv.pages
            )));
        }
        if bytes != expected {
            return Err(EngineError::Page(format!("a page has {expected} bytes, not {bytes}")));
        }
        Ok(())
    }
}

impl Engine for PagedEngine {
    fn kv(&self) -> KvInfo {
        self.kv
    }

    fn shape(&self) -> Option<ModelShape> {
        Some(self.shape)
    }

    fn computes_on_cpu(&self) -> bool {
        self.on_cpu
    }

    fn step(&mut self, plan: &StepPlan) -> Result<StepOutcome, EngineError> {
        let start = Instant::now();
        let Self { model, compute, limits, batch, samplers, .. } = self;
        let mut outcome = step::run(model.as_mut(), compute, *limits, plan, batch, samplers)?;
        outcome.took = start.elapsed().into();
        Ok(outcome)
    }

    fn export(&self, page: PageId, out: &mut [u8]) -> Result<(), EngineError> {
        self.check_page(page, out.len())?;
        self.model.export_page(page.0, out)
    }

    fn import(&mut self, page: PageId, content: &[u8]) -> Result<(), EngineError> {
        self.check_page(page, content.len())?;
        self.model.import_page(page.0, content)
    }
}

/// Identity of pages: everything that a page's bytes depend on apart from its tokens, as named fields.
fn fingerprint(fields: &[(&str, &[u8])]) -> Fingerprint {
    let mut all: Vec<(&str, &[u8])> = vec![("numerics", NUMERICS.as_bytes())];
    all.extend_from_slice(fields);
    Fingerprint::of(&all)
}
