//! `[policy.disaggregate]`: prompts that are computed on another worker than the one that generates the answer.

use serde::{Deserialize, Serialize};

use super::Mode;
use crate::error::{ConfigError, check};
use crate::optional;
use crate::units::Dur;

/// Has a long prompt computed by a prefill worker, which sends its KV pages to the worker that generates, so that streams
/// there do not stall behind it. Does nothing where no prefill worker is (`cluster.role`). A prompt is sent where the part
/// that the decode worker does not hold has at least `min-remote-tokens`, and besides at least `effective-tokens` or at
/// least the share `effective-ratio` of the prompt. `accept-within`, `progress-within`, `lease` and `window-pages` are for
/// workers, the others for the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DisaggregateConfig {
    /// `off`, `shadow` (all is computed where it is generated, and what would have been sent is recorded with its
    /// predicted times) or `prod` (default).
    pub mode: Mode,
    /// A prompt of which fewer tokens are missing is always computed where it is generated. llm-d's `nonCachedTokens`.
    /// Default `auto`: 512, or what the worker that generates computes in 0.3 s by its hardware profile
    /// (`cluster.hardware`), whichever is less: a CPU of a few cores comes to 64 to 256.
    #[serde(with = "optional::auto")]
    pub min_remote_tokens: Option<u32>,
    /// As many missing tokens are worth sending whatever their share of the prompt. Dynamo's
    /// `--router-conditional-disagg-eff-isl-threshold`. Default `auto`: four times `min-remote-tokens`, 2048 on GPUs, which
    /// is Dynamo's default.
    #[serde(with = "optional::auto")]
    pub effective_tokens: Option<u32>,
    /// As large a share of the prompt is worth sending although it is fewer tokens than that; above 1 is never. Dynamo's
    /// `--router-conditional-disagg-eff-isl-ratio-threshold` and its default. 0 to 2, default 0.7.
    pub effective_ratio: f64,
    /// Prefill workers with more prompt tokens waiting than this are the bottleneck, and are not sent more. Dynamo's
    /// `--router-conditional-disagg-prefill-busy-threshold`, in tokens in place of a multiple of the step's budget. Default
    /// `auto`: what a worker computes in 8 s by its hardware profile, some 4,000 on a CPU of two cores with the default model,
    /// some 200,000 on an H200 with a model of 8 thousand million weights; 4096 where a worker says nothing of its model.
    #[serde(with = "optional::auto")]
    pub prefill_busy_tokens: Option<u64>,
    /// A worker of whose KV pages running requests hold more than this share is sent no prompt to compute by
    /// `effective-ratio` or for busy prefill workers: its steps are long already. What is below `min-remote-tokens` it
    /// computes in any case. Dynamo's `--router-conditional-disagg-decode-busy-threshold`, which is off there. 0 to 1, where
    /// 1 is never; default 0.8.
    pub decode_busy_threshold: f64,
    /// Prompts that one worker computes for others at once (waiting, in work, not wholly sent). Default `auto`: as many as it
    /// takes requests; `prefill-busy-tokens` limits what waits.
    #[serde(with = "optional::auto")]
    pub max_outstanding: Option<u32>,
    /// What happens to a prompt that is worth sending where no prefill worker can have it (none is there, none is
    /// compatible, all are full or have failed the request): `unified`, `decode` or `none`. Default `unified`.
    pub fallback: PrefillFallback,
    /// How long the prefill worker may take to say that it takes the prompt, before the decode worker computes it itself.
    /// A worker answers between two steps. Default `5s`.
    pub accept_within: Dur,
    /// How long nothing may come of a prompt that was taken (it may have to wait for its turn), before the decode worker
    /// goes on by itself from the pages that it has. Default `30s`.
    pub progress_within: Dur,
    /// How long a prefill worker keeps pages for a decode worker that says nothing. At least `progress-within`. Default
    /// `60s`.
    pub lease: Dur,
    /// KV pages that may be on their way to a decode worker for one prompt. More hide a longer way, and cost memory while
    /// they wait to be taken in. Default 64.
    pub window_pages: u32,
    /// Whether workers that allow it (`cluster.role-switch`) are switched between computing prompts and generating, where one
    /// side has too little to do and the other too much. Default `false`.
    pub rebalance: bool,
    /// Prefill lacks workers where the prompt tokens that wait at each prefill worker are more than this many times the
    /// tokens still to be drawn at each decode or unified worker. More than `rebalance-low`. Default 2.
    pub rebalance_high: f64,
    /// Decode lacks workers where they are less than this many times as many. Default 0.1.
    pub rebalance_low: f64,
    /// How long that has to last, without a break, before a worker is switched. Default `30s`.
    pub rebalance_after: Dur,
    /// How long no worker is switched after a change of any role. Default `2m`.
    pub rebalance_pause: Dur,
    /// Tokens that wait at each worker of a side, below which it lacks no workers. Default 1024.
    pub rebalance_least_tokens: u64,
}

/// Where a prompt that is worth sending is computed when no prefill worker can have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefillFallback {
    /// On a unified worker; where that is not possible either, on the decode worker.
    #[default]
    Unified,
    /// On the decode worker, as Dynamo does.
    Decode,
    /// Nowhere: the request is answered 503 with `retry-after`, so that streams on decode workers never stall. What
    /// is under way already is computed on the decode worker; a unified worker computes its own prompts in any case.
    None,
}

impl PrefillFallback {
    /// The fallback as it is configured and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unified => "unified",
            Self::Decode => "decode",
            Self::None => "none",
        }
    }
}

impl Default for DisaggregateConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Prod,
            min_remote_tokens: None,
            effective_tokens: None,
            effective_ratio: 0.7,
            prefill_busy_tokens: None,
            decode_busy_threshold: 0.8,
            max_outstanding: None,
            fallback: PrefillFallback::default(),
            accept_within: Dur::from_secs(5),
            progress_within: Dur::from_secs(30),
            lease: Dur::from_secs(60),
            window_pages: 64,
            rebalance: false,
            rebalance_high: 2.0,
            rebalance_low: 0.1,
            rebalance_after: Dur::from_secs(30),
            rebalance_pause: Dur::from_secs(120),
            rebalance_least_tokens: 1024,
        }
    }
}

impl DisaggregateConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        check(
            self.min_remote_tokens != Some(0),
            "policy.disaggregate.min-remote-tokens",
            self.min_remote_tokens.unwrap_or_default(),
            "use 1 or more",
        )?;
        check(
            (0.0..=2.0).contains(&self.effective_ratio),
            "policy.disaggregate.effective-ratio",
            self.effective_ratio,
            "use 0 to 2",
        )?;
        check(
            (0.0..=1.0).contains(&self.decode_busy_threshold),
            "policy.disaggregate.decode-busy-threshold",
            self.decode_busy_threshold,
            "use 0 to 1",
        )?;
        check(
            self.max_outstanding.is_none_or(|most| (1..=65_536).contains(&most)),
            "policy.disaggregate.max-outstanding",
            self.max_outstanding.unwrap_or_default(),
            "use 1 to 65536",
        )?;
        let longest = Dur::from_secs(3600);
        for (key, value) in [
            ("policy.disaggregate.accept-within", self.accept_within),
            ("policy.disaggregate.progress-within", self.progress_within),
            ("policy.disaggregate.lease", self.lease),
        ] {
            check(!value.is_zero() && value <= longest, key, value, "use more than 0s, at most 1h")?;
        }
        if self.lease < self.progress_within {
            let reason =
                format!("use at least policy.disaggregate.progress-within = {}", self.progress_within);
            return Err(ConfigError::invalid("policy.disaggregate.lease", self.lease, reason));
        }
        check(
            (1..=65_536).contains(&self.window_pages),
            "policy.disaggregate.window-pages",
            self.window_pages,
            "use 1 to 65536",
        )?;
        self.validate_rebalance()
    }

    fn validate_rebalance(&self) -> Result<(), ConfigError> {
        let high = "policy.disaggregate.rebalance-high";
        for (key, value) in
            [(high, self.rebalance_high), ("policy.disaggregate.rebalance-low", self.rebalance_low)]
        {
            check(value.is_finite() && value >= 0.0, key, value, "use 0 or more")?;
        }
        if self.rebalance_high <= self.rebalance_low {
            let reason = format!("use more than policy.disaggregate.rebalance-low = {}", self.rebalance_low);
            return Err(ConfigError::invalid(high, self.rebalance_high, reason));
        }
        let longest = Dur::from_secs(24 * 3600);
        for (key, value) in [
            ("policy.disaggregate.rebalance-after", self.rebalance_after),
            ("policy.disaggregate.rebalance-pause", self.rebalance_pause),
        ] {
            check(!value.is_zero() && value <= longest, key, value, "use more than 0s, at most 24h")?;
        }
        check(
            self.rebalance_least_tokens > 0,
            "policy.disaggregate.rebalance-least-tokens",
            self.rebalance_least_tokens,
            "use 1 or more",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_name_their_key_the_value_and_the_limit() {
        type Change = fn(&mut DisaggregateConfig);
        let cases: [(Change, &str); 19] = [
            (|c| c.min_remote_tokens = Some(0), "min-remote-tokens = 0`: use 1 or more"),
            (|c| c.effective_ratio = -0.1, "effective-ratio = -0.1`: use 0 to 2"),
            (|c| c.effective_ratio = f64::NAN, "effective-ratio = NaN`: use 0 to 2"),
            (|c| c.decode_busy_threshold = 1.1, "decode-busy-threshold = 1.1`: use 0 to 1"),
            (|c| c.decode_busy_threshold = f64::NAN, "decode-busy-threshold = NaN`: use 0 to 1"),
            (|c| c.max_outstanding = Some(0), "max-outstanding = 0`: use 1 to 65536"),
            (|c| c.max_outstanding = Some(65_537), "max-outstanding = 65537`"),
            (|c| c.accept_within = Dur::default(), "accept-within = 0ns`: use more than 0s"),
            (|c| c.progress_within = Dur::from_secs(3601), "progress-within = 3601s`"),
            (
                |c| c.lease = Dur::from_secs(29),
                "lease = 29s`: use at least policy.disaggregate.progress-within = 30s",
            ),
            (|c| c.window_pages = 0, "window-pages = 0`: use 1 to 65536"),
            (|c| c.rebalance_high = f64::INFINITY, "rebalance-high = inf`: use 0 or more"),
            (|c| c.rebalance_low = -1.0, "rebalance-low = -1`: use 0 or more"),
            (
                |c| c.rebalance_high = 0.1,
                "rebalance-high = 0.1`: use more than policy.disaggregate.rebalance-low",
            ),
            (|c| c.rebalance_low = 2.5, "rebalance-high = 2`: use more than"),
            (|c| c.rebalance_after = Dur::default(), "rebalance-after = 0ns`: use more than 0s"),
            (|c| c.rebalance_pause = Dur::from_secs(90_000), "rebalance-pause = 25h`"),
            (|c| c.rebalance_least_tokens = 0, "rebalance-least-tokens = 0`: use 1 or more"),
            (|c| c.window_pages = u32::MAX, "window-pages = 4294967295`"),
        ];
        for (change, part) in cases {
            let mut config = DisaggregateConfig::default();
            change(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.starts_with("`policy.disaggregate.") && error.contains(part), "{error}");
        }
        DisaggregateConfig::default().validate().unwrap();
        let never = DisaggregateConfig {
            effective_ratio: 1.5,
            effective_tokens: Some(u32::MAX),
            ..Default::default()
        };
        never.validate().unwrap();
    }
}
