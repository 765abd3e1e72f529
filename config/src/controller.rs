//! `[controller]`: where requests wait and how a worker is chosen.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::units::Dur;

/// Admission and placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ControllerConfig {
    /// Requests that wait for a worker with room; more are answered 429. Default 1024.
    pub queue_limit: usize,
    /// How long a request waits for a worker before it is answered 503. Default `30s`.
    pub queue_timeout: Dur,
    /// `least-loaded` (default), `power-of-two`, `round-robin` or `random`; the last two are there to compare with.
    pub choice: Choice,
    /// How long a request waits for the opinions of policies; it goes on without those that are late. Default `20ms`.
    pub opinion_deadline: Dur,
}

/// How a worker is chosen among those that could serve a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// The one with the least work booked.
    #[default]
    LeastLoaded,
    /// The less loaded of two taken at random: controllers with an old view do not all pick the same one
    /// (Mitzenmacher, "The power of two choices in randomized load balancing", 2001).
    PowerOfTwo,
    /// The one that was chosen longest ago, whatever it has to do.
    RoundRobin,
    /// Any, each as likely.
    Random,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            queue_limit: 1024,
            queue_timeout: Dur::from_secs(30),
            choice: Choice::LeastLoaded,
            opinion_deadline: Dur::from_millis(20),
        }
    }
}

impl ControllerConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check(self.queue_limit > 0, "controller.queue-limit", self.queue_limit, "use at least 1")?;
        check(
            !self.queue_timeout.is_zero(),
            "controller.queue-timeout",
            self.queue_timeout,
            "use more than 0s",
        )?;
        check(
            !self.opinion_deadline.is_zero(),
            "controller.opinion-deadline",
            self.opinion_deadline,
            "use more than 0s",
        )
    }
}
