//! `[worker-policy.NAME]`: the options of the policies that `runtime.worker-policy` lists. Their tables are apart from
//! `[policy.NAME]`, whose policies a controller asks and which have a mode and a weight: a worker has one order, and it
//! counts.

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::optional;
use crate::units::Dur;

/// The policies that exist inside a worker, each with its table. A table alone does nothing: the list says which are in
/// force.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct WorkerPoliciesConfig {
    /// `[worker-policy.fair]`
    pub fair: FairConfig,
    /// `[worker-policy.priority]`
    pub priority: PriorityConfig,
    /// `[worker-policy.deadline]`
    pub deadline: DeadlineConfig,
    /// `[worker-policy.keep-session]`
    pub keep_session: KeepSessionConfig,
    /// `[worker-policy.offload]`
    pub offload: OffloadConfig,
}

/// Shares the worker between tenants by what they have used (Virtual Token Counter, OSDI'24). Tenants and their weights
/// come from `[auth]`; without it there is one, and the order is that of arrival.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FairConfig {
    /// What a prompt token that has to be computed counts. 0 to 1000, default 1.
    pub input_weight: u32,
    /// What a generated token counts. 0 to 1000, default 2.
    pub output_weight: u32,
}

/// Runs requests by their prop `priority`, the higher the sooner, in order of arrival among equals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PriorityConfig {
    /// Priority of a request that says nothing. Default 0.
    pub default: i64,
    /// Whether running requests of a lower priority give up slot and pages to one that waits; they go on later where they
    /// were. Default true.
    pub preempt: bool,
    /// What waits so long counts as one priority more, so that nothing waits for ever. Default `0s`: never.
    pub age_every: Dur,
}

/// Runs requests by their deadline, the earliest first: the prop `deadline-ms`, or `slo-ttft-ms` for the first token.
/// Those without come last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeadlineConfig {
    /// Whether a prompt that, at the speed measured, cannot be computed before `deadline-ms` is refused at once (504
    /// `deadline_exceeded`). Default true.
    pub refuse_hopeless: bool,
}

/// Keeps the KV pages of a conversation between its turns, for the prop `keep-ms` after each of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KeepSessionConfig {
    /// Longest time that `keep-ms` can ask for. Default `10m`.
    pub max_keep: Dur,
    /// Largest share of the KV pages that is kept so. 0 to 1, default 0.25.
    pub max_share: f64,
}

/// Has a prompt that would wait here computed by another worker, which sends its KV pages back (conditional offload, as in
/// Pie and Dynamo). Where that one refuses, is lost or takes too long (`policy.disaggregate.accept-within` and
/// `progress-within`) the prompt is computed here, in the order in which it came. Workers that are no part of a cluster
/// have nobody to ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OffloadConfig {
    /// Names of the nodes whose workers may be asked; none: every worker of the cluster with the same model. Whoever is
    /// asked has the role `prefill` or `unified`, and pages that fit ours. Default none.
    #[serde(deserialize_with = "optional::list")]
    pub peers: Vec<String>,
    /// A prompt of which fewer tokens are missing here is computed here. Set it to about
    /// what a worker computes in 0.3 s, as `policy.disaggregate.min-remote-tokens` does by itself: a CPU of a few cores
    /// wants 64 to 256. At least 1, default 512.
    pub min_suffix: u32,
    /// Prompt tokens that are computed here before a prompt, above which it is offered to others; it goes where fewer wait.
    /// With 0 it is offered as soon as anything is before it. Default `auto`: two steps (`runtime.max-batch-tokens`).
    #[serde(with = "optional::auto")]
    pub busy_tokens: Option<u64>,
    /// Prompts of this worker that others compute at once. 1 to 256, default 4.
    pub max_outstanding: u32,
}

impl Default for FairConfig {
    fn default() -> Self {
        Self { input_weight: 1, output_weight: 2 }
    }
}

impl Default for PriorityConfig {
    fn default() -> Self {
        Self { default: 0, preempt: true, age_every: Dur::from_secs(0) }
    }
}

impl Default for DeadlineConfig {
    fn default() -> Self {
        Self { refuse_hopeless: true }
    }
}

impl Default for KeepSessionConfig {
    fn default() -> Self {
        Self { max_keep: Dur::from_secs(600), max_share: 0.25 }
    }
}

impl Default for OffloadConfig {
    fn default() -> Self {
        Self { peers: Vec::new(), min_suffix: 512, busy_tokens: None, max_outstanding: 4 }
    }
}

impl WorkerPoliciesConfig {
    /// The orders that `runtime.worker-policy` may name, one at most; `fcfs` is the order of arrival.
    pub const ORDERING: [&'static str; 4] = ["fcfs", "fair", "priority", "deadline"];
    /// What it may name beside an order.
    pub const BESIDE: [&'static str; 2] = ["keep-session", "offload"];

    /// The first name of a list of policies that is not allowed there, with the rule that it breaks.
    #[must_use]
    pub fn wrong_name(list: &[String]) -> Option<(&str, String)> {
        let orders = |name: &String| Self::ORDERING.contains(&name.as_str());
        let beside = |name: &String| Self::BESIDE.contains(&name.as_str());
        let (orderings, others) = (Self::ORDERING.join(", "), Self::BESIDE.join(", "));
        for (i, name) in list.iter().enumerate() {
            let before = &list[..i];
            if !orders(name) && !beside(name) {
                return Some((name, format!("use one of {orderings}, and any of {others}")));
            }
            if before.contains(name) {
                return Some((name, "use each policy once".to_owned()));
            }
            if orders(name) && before.iter().any(orders) {
                return Some((name, format!("use one of {orderings}; there is one order")));
            }
        }
        None
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let weight = |key, value: u32| check(value <= 1000, key, value, "use 0 to 1000");
        weight("worker-policy.fair.input-weight", self.fair.input_weight)?;
        weight("worker-policy.fair.output-weight", self.fair.output_weight)?;
        check(
            self.fair.input_weight + self.fair.output_weight > 0,
            "worker-policy.fair.output-weight",
            self.fair.output_weight,
            "use more than 0, or more than 0 for input-weight",
        )?;
        let priority = self.priority.default;
        let sane = -1_000_000..=1_000_000;
        check(
            sane.contains(&priority),
            "worker-policy.priority.default",
            priority,
            "use -1000000 to 1000000",
        )?;
        let keep = &self.keep_session;
        let (longest, key) = (Dur::from_secs(7 * 86_400), "worker-policy.keep-session.max-keep");
        check(
            !keep.max_keep.is_zero() && keep.max_keep <= longest,
            key,
            keep.max_keep,
            "use more than 0s and at most 7d",
        )?;
        let share = keep.max_share;
        check((0.0..=1.0).contains(&share), "worker-policy.keep-session.max-share", share, "use 0 to 1")?;
        let offload = &self.offload;
        let least = offload.min_suffix;
        check(least > 0, "worker-policy.offload.min-suffix", least, "use at least 1")?;
        let most = offload.max_outstanding;
        check((1..=256).contains(&most), "worker-policy.offload.max-outstanding", most, "use 1 to 256")?;
        let nameless = offload.peers.iter().find(|name| name.trim().is_empty());
        check(
            nameless.is_none(),
            "worker-policy.offload.peers",
            "\"\"",
            "use names of nodes (`cluster.name`), or an empty list for all",
        )
    }
}
