//! `[policy.NAME]`: the options of the policies that `cluster.cluster-policies` lists.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::units::Dur;

mod cache_aware;
mod disaggregate;
mod pool_replicate;
mod replicate;

pub use cache_aware::{CacheAwareConfig, PrefixIndex};
pub use disaggregate::{DisaggregateConfig, PrefillFallback};
pub use pool_replicate::PoolReplicateConfig;
pub use replicate::ReplicateConfig;

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
    /// `[policy.replicate]`
    pub replicate: ReplicateConfig,
    /// `[policy.pool-replicate]`
    pub pool_replicate: PoolReplicateConfig,
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
    pub const NAMES: [&'static str; 5] =
        ["cache-aware", "session-affinity", "disaggregate", "replicate", "pool-replicate"];

    /// Those that are asked where the list is not given. Pools are used where somebody says so: copies of all prompts cost
    /// links and memory.
    pub const DEFAULT: [&'static str; 4] = ["cache-aware", "session-affinity", "disaggregate", "replicate"];

    /// The first name of a list of policies that is not allowed there, with the rule that it breaks.
    #[must_use]
    pub fn wrong_name(list: &[String]) -> Option<(&str, String)> {
        let wrong =
            |(i, name): &(usize, &String)| !Self::NAMES.contains(&name.as_str()) || list[..*i].contains(name);
        let (_, name) = list.iter().enumerate().find(wrong)?;
        Some((name, format!("use any of {}, each once", Self::NAMES.join(", "))))
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let factor = |key, value: f64| check(value.is_finite() && value >= 1.0, key, value, "use 1 or more");
        let scale = |key, value: f64| {
            check(value.is_finite() && (0.0..=1000.0).contains(&value), key, value, "use 0 to 1000")
        };
        self.cache_aware.validate()?;
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
        self.disaggregate.validate()?;
        self.replicate.validate()?;
        self.pool_replicate.validate()
    }
}
