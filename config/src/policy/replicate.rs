//! `[policy.replicate]`: what another worker holds of a prompt is fetched from there.

use serde::{Deserialize, Serialize};

use super::Mode;
use crate::error::{ConfigError, check};
use crate::optional;

/// Has the worker that computes a prompt fetch the KV pages which another one holds of its start, where that is sooner done
/// than computing them again: a conversation whose last turn was generated elsewhere, a system prompt that is hot on a full
/// worker. Needs workers that exchange pages (`engine.kind = "paged"` or `"fake"`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ReplicateConfig {
    /// `off`, `shadow` (nothing is fetched, and what would have been is recorded with its predicted times) or `prod`
    /// (default).
    pub mode: Mode,
    /// Fewer tokens than this are computed again. Default `auto`: 512, or what the worker computes in 0.1 s by its hardware
    /// profile (`cluster.hardware`), whichever is less, and two pages at least. 1 to 100,000,000.
    #[serde(with = "optional::auto")]
    pub min_tokens: Option<u32>,
}

impl Default for ReplicateConfig {
    fn default() -> Self {
        Self { mode: Mode::Prod, min_tokens: None }
    }
}

impl ReplicateConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if let Some(least) = self.min_tokens {
            let (key, rule) = ("policy.replicate.min-tokens", "use 1 to 100000000, or \"auto\"");
            check((1..=100_000_000).contains(&least), key, least, rule)?;
        }
        Ok(())
    }
}
