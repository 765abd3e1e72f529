//! `[engine]`: what computes, on what, and how much KV memory it has.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::units::{Dur, Size};

/// The engine and its resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EngineConfig {
    /// `paged` (default), `mistralrs` or `fake`.
    pub kind: EngineKind,
    /// Compute threads. Default 0: one a physical core that the process may use.
    pub threads: usize,
    /// `auto` (default: a GPU if this build supports one and one is found), `cpu` or `cuda`.
    pub device: Device,
    /// What K and V are stored as: `f16` (default) or `f32`.
    pub kv_dtype: KvDtype,
    /// Tokens a KV page, a multiple of 16 up to 256. Default 16.
    pub page_tokens: usize,
    /// KV memory, such as `512MiB`. Default `auto`: a share of the memory free at start, at least what one sequence of
    /// the whole context window needs; the start-up log states the outcome as pages and tokens.
    #[serde(with = "crate::optional::auto")]
    pub kv_memory: Option<Size>,
    /// The number of KV pages, in place of `kv-memory`. Default `auto`: as many as `kv-memory` holds.
    #[serde(with = "crate::optional::auto")]
    pub kv_pages: Option<u32>,
    /// A step that takes longer marks the worker as stalled: not ready, and its requests go elsewhere or fail. It has to
    /// exceed the longest step of `runtime.max-batch-tokens` tokens on this machine. Default `2m`.
    pub stall_after: Dur,
    /// What the `fake` engine pretends; without effect on the others.
    pub fake: FakeConfig,
}

/// Which implementation computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// Our page table and scheduler over mistral.rs's parts and kernels of ours; every role.
    #[default]
    Paged,
    /// The whole mistral.rs engine behind an adapter: any architecture it knows, no pages to share.
    Mistralrs,
    /// Deterministic tokens at the pace of `[engine.fake]`, without a model: tests and demonstrations.
    Fake,
}

/// What the engine computes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// A GPU where the build supports it and one is found, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU; starting fails where none is found.
    Cuda,
}

/// What K and V are stored as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// 16-bit floats.
    #[default]
    F16,
    /// 32-bit floats.
    F32,
}

/// The cost model of the `fake` engine: a step takes `step-overhead`, plus each term times its count. All default to
/// `0ns`, which answers as fast as the machine can. And the faults that it has on purpose, to show and to test what a
/// cluster does about them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FakeConfig {
    /// A step, whatever is in it.
    pub step_overhead: Dur,
    /// Each prompt token of the step.
    pub prefill_per_token: Dur,
    /// Each sequence that decodes a token in the step.
    pub decode_per_sequence: Dur,
    /// Each token of context that the step's rows attend to.
    pub attention_per_token: Dur,
    /// Ends each generation after so many tokens. Default 0: only the request's own limit ends it.
    pub eos_every: usize,
    /// The engine panics in that step, the first after its load being 1. Default 0: never.
    pub panic_at_step: usize,
    /// That step never ends, counted likewise. Default 0: none.
    pub stall_at_step: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            kind: EngineKind::Paged,
            threads: 0,
            device: Device::Auto,
            kv_dtype: KvDtype::F16,
            page_tokens: 16,
            kv_memory: None,
            kv_pages: None,
            stall_after: Dur::from_secs(120),
            fake: FakeConfig::default(),
        }
    }
}

impl EngineConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check(self.threads <= 1024, "engine.threads", self.threads, "use 0 (all cores) to 1024")?;
        check(
            self.page_tokens.is_multiple_of(16) && (16..=256).contains(&self.page_tokens),
            "engine.page-tokens",
            self.page_tokens,
            "use a multiple of 16 from 16 to 256",
        )?;
        check(!self.stall_after.is_zero(), "engine.stall-after", self.stall_after, "use more than 0s")?;
        if let Some(size) = self.kv_memory {
            check(size >= Size::kib(64), "engine.kv-memory", size, "use at least 64KiB")?;
        }
        if let Some(pages) = self.kv_pages {
            check(pages > 0, "engine.kv-pages", pages, "use at least 1")?;
            if let Some(size) = self.kv_memory {
                let reason = format!("set this or engine.kv-memory (now {size}), not both");
                return Err(ConfigError::invalid("engine.kv-pages", pages, reason));
            }
        }
        Ok(())
    }
}
