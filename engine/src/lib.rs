//! Engines: what turns step plans into tokens.
//!
//! [`Engine`] is the one trait for page-based engines. [`paged`] is the default; [`fake`] makes deterministic tokens at
//! a modelled pace for tests, simulation and demos; [`whole`] adapts the whole mistral.rs engine, which keeps its KV to
//! itself and therefore is driven by requests rather than by steps.
#![warn(missing_docs)]

pub mod gguf;
pub mod store;
pub mod text;

pub mod cpu;
pub mod sample;

pub mod host;

pub mod fake;
pub mod paged;
pub mod whole;

use std::sync::Arc;

use config::ids::PageId;
use policies::cost::ModelShape;
use policies::kv::{Fingerprint, PageLayout};
use policies::step::{StepOutcome, StepPlan};

use crate::text::TextDescriptor;

/// What an engine serves, as plain data that travels to gateways and controllers.
#[derive(Clone, Debug)]
pub struct ModelCard {
    /// Id that clients ask for.
    pub name: String,
    /// Architecture and quantisation in words, for people.
    pub description: String,
    /// Tokenizer, chat templates, special tokens.
    pub text: Arc<TextDescriptor>,
    /// Identity of the pages.
    pub fingerprint: Fingerprint,
    /// Longest sequence in tokens.
    pub max_context: u32,
    /// Size of the vocabulary: tokens are `0..vocab`.
    pub vocab: u32,
    /// Tokens of a KV page, by which prompts are hashed.
    pub page_tokens: u32,
}

/// KV of a page-based engine.
#[derive(Clone, Copy, Debug)]
pub struct KvInfo {
    /// Shape of a page.
    pub layout: PageLayout,
    /// How many there are.
    pub pages: u32,
}

/// An engine that computes step plans over pages.
///
/// Engines are used from one thread of their own ([`host::EngineHost`]).
pub trait Engine: Send + std::fmt::Debug {
    /// Shape and count of the KV pages.
    fn kv(&self) -> KvInfo;

    /// Size of the model, for those that predict how long it takes; none where it is not known.
    fn shape(&self) -> Option<ModelShape> {
        None
    }

    /// Whether steps are computed on the CPU, where they take about as long as they have tokens, so that a prompt loses
    /// little by being computed in short ones.
    fn computes_on_cpu(&self) -> bool {
        false
    }

    /// Runs one step: copies, computes every slice, stores its keys and values in its pages, makes its draws.
    ///
    /// # Errors
    /// [`EngineError::Step`] when the step as a whole failed; what the plan's slices had before is still in their pages.
    /// A slice that fails alone is reported in [`StepOutcome::failed`].
    fn step(&mut self, plan: &StepPlan) -> Result<StepOutcome, EngineError>;

    /// Writes the content of `page` to `out` in the canonical layout of [`PageLayout`].
    ///
    /// # Errors
    /// [`EngineError::Page`] when the page does not exist or `out` has another length than a page.
    fn export(&self, page: PageId, out: &mut [u8]) -> Result<(), EngineError>;

    /// Sets the content of `page` from the canonical layout.
    ///
    /// # Errors
    /// As [`Engine::export`].
    fn import(&mut self, page: PageId, content: &[u8]) -> Result<(), EngineError>;
}

/// Why an engine could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model cannot be loaded; the text says which file, tensor or key, and what is supported.
    #[error("{0}")]
    Load(String),
    /// A step failed as a whole.
    #[error("engine step failed: {0}")]
    Step(String),
    /// A page operation was malformed.
    #[error("page operation failed: {0}")]
    Page(String),
    /// The engine has no such feature.
    #[error("engine `{engine}` does not support {what}")]
    Unsupported {
        /// Its kind.
        engine: &'static str,
        /// What was asked.
        what: String,
    },
    /// The engine's thread has ended.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
}
