//! `[policy.cache-aware]`.

use serde::{Deserialize, Serialize};

use super::Mode;
use crate::error::{ConfigError, check};
use crate::optional;
use crate::units::Dur;

/// Sends a request to the worker that holds most of its prompt, unless that one is too busy: what is not computed again
/// and what has to be waited for are weighed as one cost in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheAwareConfig {
    /// `off`, `shadow` or `prod` (default).
    pub mode: Mode,
    /// Factor of its costs beside those of other policies. Default 1.
    pub weight: f64,
    /// A prompt of which no worker holds more than this share is placed by load alone. SGLang's name and default. 0 to 1,
    /// default 0.3.
    pub cache_threshold: f64,
    /// A worker is overloaded when it has more requests than the least busy one by more than this … SGLang's name and
    /// default. Default 64.
    pub balance_abs_threshold: u32,
    /// … and more than this many times as many. SGLang's name and default. Default 1.5.
    pub balance_rel_threshold: f64,
    /// A worker is overloaded, too, when sequences hold more than this share of its KV pages, unless it holds more than
    /// `cache-threshold` of the prompt, which then needs less room there than anywhere else; 1 is never. SGLang's name.
    /// Default 0.95.
    pub overload_token_usage: f64,
    /// Weight of a prompt token, own or waiting. Dynamo's name and default. Default 1.
    pub prefill_load_scale: f64,
    /// Weight of a token of other prompts that a worker without free pages has to forget for one that it computes.
    /// Default 1.
    pub eviction_scale: f64,
    /// Weight of a token that is generated. Default 0.25.
    pub decode_load_scale: f64,
    /// How it knows what workers hold: `events` (default) or `routed`.
    pub index: PrefixIndex,
    /// With `index = "routed"`, tokens that are remembered of each worker. Default `auto`: as many as its KV pages hold,
    /// and 500,000 (the default of the Kubernetes inference gateway) while it has not said. 1 to 1,000,000,000.
    #[serde(with = "optional::auto")]
    pub max_tree_tokens: Option<u64>,
    /// With `index = "routed"`, how long a prompt is remembered after its last use. Dynamo's default. Default `2m`.
    pub index_ttl: Dur,
}

/// How `cache-aware` knows what workers hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefixIndex {
    /// By what workers tell of their pages, and by what is on its way to them.
    #[default]
    Events,
    /// By what was sent where, as routers do that hear nothing from workers. For when what workers tell is late or lost.
    Routed,
}

impl Default for CacheAwareConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Prod,
            weight: 1.0,
            cache_threshold: 0.3,
            balance_abs_threshold: 64,
            balance_rel_threshold: 1.5,
            overload_token_usage: 0.95,
            prefill_load_scale: 1.0,
            eviction_scale: 1.0,
            decode_load_scale: 0.25,
            index: PrefixIndex::Events,
            max_tree_tokens: None,
            index_ttl: Dur::from_secs(120),
        }
    }
}

impl CacheAwareConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let share = |key, value: f64| check((0.0..=1.0).contains(&value), key, value, "use 0 to 1");
        let factor = |key, value: f64| check(value.is_finite() && value >= 1.0, key, value, "use 1 or more");
        let scale = |key, value: f64| {
            check(value.is_finite() && (0.0..=1000.0).contains(&value), key, value, "use 0 to 1000")
        };
        scale("policy.cache-aware.weight", self.weight)?;
        share("policy.cache-aware.cache-threshold", self.cache_threshold)?;
        factor("policy.cache-aware.balance-rel-threshold", self.balance_rel_threshold)?;
        share("policy.cache-aware.overload-token-usage", self.overload_token_usage)?;
        scale("policy.cache-aware.prefill-load-scale", self.prefill_load_scale)?;
        scale("policy.cache-aware.eviction-scale", self.eviction_scale)?;
        scale("policy.cache-aware.decode-load-scale", self.decode_load_scale)?;
        if let Some(most) = self.max_tree_tokens {
            let (key, rule) = ("policy.cache-aware.max-tree-tokens", "use 1 to 1000000000, or \"auto\"");
            check((1..=1_000_000_000).contains(&most), key, most, rule)?;
        }
        check(!self.index_ttl.is_zero(), "policy.cache-aware.index-ttl", self.index_ttl, "use more than 0s")
    }
}
