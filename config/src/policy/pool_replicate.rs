//! `[policy.pool-replicate]`: what pools hold of a prompt is fetched from there, and prompts are kept there.

use serde::{Deserialize, Serialize};

use super::Mode;
use crate::error::{ConfigError, check};
use crate::optional;

/// Has pools (nodes with the role `pool`) keep the KV pages of prompts, and workers fetch them from there where that is sooner
/// done than computing them again: what a worker has dropped for want of room, what a node held that is gone, what was computed
/// before a restart. Needs workers that exchange pages (`engine.kind = "paged"` or `"fake"`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoolReplicateConfig {
    /// `off`, `shadow` (nothing is fetched or kept, and what would have been is recorded with its predicted times) or `prod`
    /// (default).
    pub mode: Mode,
    /// Fewer tokens than this are neither fetched nor kept. Default `auto`: 512, or what the worker computes in 0.1 s by its
    /// hardware profile (`cluster.hardware`), whichever is less, and two pages at least. 1 to 100,000,000.
    #[serde(with = "optional::auto")]
    pub min_tokens: Option<u32>,
}

impl Default for PoolReplicateConfig {
    fn default() -> Self {
        Self { mode: Mode::Prod, min_tokens: None }
    }
}

impl PoolReplicateConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if let Some(least) = self.min_tokens {
            let (key, rule) = ("policy.pool-replicate.min-tokens", "use 1 to 100000000, or \"auto\"");
            check((1..=100_000_000).contains(&least), key, least, rule)?;
        }
        Ok(())
    }
}
