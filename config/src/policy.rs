//! `[policy.NAME]`: the options of the policies that `cluster.cluster-policies` lists.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::units::Dur;

mod disaggregate;

pub use disaggregate::{DisaggregateConfig, PrefillFallback};

/// The policies that exist, each with its table. A table alone does nothing: the list says which are asked, and in which
/// order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoliciesConfig {
    /// `[policy.cache-aware]`
    pub cache_aware: CacheAwareConfig,
    /// `[policy.session-affinity]`
    pub session_affinity: SessionAffinityConfig,
    /// `[policy.disaggregate]`
    pub disaggregate: DisaggregateConfig,
}

/// What is done with what a policy says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It is not asked, and nothing is recorded.
    Off,
    /// It is asked and recorded as `would_…`; the choice is the same as without it.
    Shadow,
    /// What it says counts.
    #[default]
    Prod,
}

impl Mode {
    /// The mode as it is configured and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Shadow => "shadow",
            Self::Prod => "prod",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

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
    /// A worker is overloaded, too, when sequences hold more than this share of its KV pages; 1 is never. SGLang's name.
    /// Default 0.95.
    pub overload_token_usage: f64,
    /// Weight of a prompt token, own or waiting. Dynamo's name and default. Default 1.
    pub prefill_load_scale: f64,
    /// Weight of a token that is generated. Default 0.25.
    pub decode_load_scale: f64,
}

/// Keeps the turns of a conversation on one worker. The session is what the client names (`x-session-id` and its usual
/// alternatives, `user`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SessionAffinityConfig {
    /// `off`, `shadow` or `prod` (default).
    pub mode: Mode,
    /// Factor of its costs beside those of other policies. Default 1.
    pub weight: f64,
    /// A session that was not used for so long is bound no more. Default `30m`.
    pub idle_timeout: Dur,
    /// Sessions that are remembered at most. Default 100000.
    pub max_sessions: usize,
    /// A worker keeps its sessions while it has less than this many times the mean of requests. SGLang's name and default.
    /// Default 1.25.
    pub load_factor: f64,
    /// A worker with fewer requests than this is never too busy for its sessions. Default 8.
    pub min_requests: u32,
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
            decode_load_scale: 0.25,
        }
    }
}

impl Default for SessionAffinityConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Prod,
            weight: 1.0,
            idle_timeout: Dur::from_secs(1800),
            max_sessions: 100_000,
            load_factor: 1.25,
            min_requests: 8,
        }
    }
}

impl PoliciesConfig {
    /// The names that `cluster.cluster-policies` may list.
    pub const NAMES: [&'static str; 3] = ["cache-aware", "session-affinity", "disaggregate"];

    /// The first name of a list of policies that is not allowed there, with the rule that it breaks.
    #[must_use]
    pub fn wrong_name(list: &[String]) -> Option<(&str, String)> {
        let wrong =
            |(i, name): &(usize, &String)| !Self::NAMES.contains(&name.as_str()) || list[..*i].contains(name);
        let (_, name) = list.iter().enumerate().find(wrong)?;
        Some((name, format!("use any of {}, each once", Self::NAMES.join(", "))))
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let share = |key, value: f64| check((0.0..=1.0).contains(&value), key, value, "use 0 to 1");
        let factor = |key, value: f64| check(value.is_finite() && value >= 1.0, key, value, "use 1 or more");
        let scale = |key, value: f64| {
            check(value.is_finite() && (0.0..=1000.0).contains(&value), key, value, "use 0 to 1000")
        };
        let cache = &self.cache_aware;
        scale("policy.cache-aware.weight", cache.weight)?;
        share("policy.cache-aware.cache-threshold", cache.cache_threshold)?;
        factor("policy.cache-aware.balance-rel-threshold", cache.balance_rel_threshold)?;
        share("policy.cache-aware.overload-token-usage", cache.overload_token_usage)?;
        scale("policy.cache-aware.prefill-load-scale", cache.prefill_load_scale)?;
        scale("policy.cache-aware.decode-load-scale", cache.decode_load_scale)?;
        let affinity = &self.session_affinity;
        scale("policy.session-affinity.weight", affinity.weight)?;
        factor("policy.session-affinity.load-factor", affinity.load_factor)?;
        check(
            (1..=10_000_000).contains(&affinity.max_sessions),
            "policy.session-affinity.max-sessions",
            affinity.max_sessions,
            "use 1 to 10000000",
        )?;
        check(
            !affinity.idle_timeout.is_zero(),
            "policy.session-affinity.idle-timeout",
            affinity.idle_timeout,
            "use more than 0s",
        )?;
        self.disaggregate.validate()
    }
}
