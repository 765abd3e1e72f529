//! What clients ask, as data.

use config::Dur;
use serde::{Deserialize, Serialize};

use super::{positive, share, within};
use crate::SimError;

/// Requests of clients, arriving as a Poisson process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Workload {
    /// Requests that arrive.
    pub requests: u64,
    /// Requests a second, on average.
    pub rate: f64,
    /// Requests of a conversation. Each begins with all that was said before it, answers included, and names the
    /// conversation as its session. 1: there are no conversations.
    pub turns: u32,
    /// Time from the end of an answer to the next request of its conversation, on average.
    pub think: Dur,
    /// Tokens of a prompt that no other prompt has; in a conversation those that each turn adds.
    pub prompt: Lengths,
    /// Tokens that a request may generate, for each choice.
    pub output: Lengths,
    /// Choices a request.
    pub choices: u32,
    /// Sampling temperature.
    pub temperature: f32,
    /// Groups of requests; each request belongs to one at random, and a group's prompts begin with the same tokens.
    pub groups: u32,
    /// Tokens that the prompts of a group begin with.
    pub shared_prefix: u32,
    /// An answer ends by itself after so many tokens on average; 0: it goes on to its limit.
    pub end_every: u32,
    /// Share of the clients that leave before their answer is complete, in `[0, 1]`.
    pub leave: f64,
    /// How long those stay, on average.
    pub patience: Dur,
    /// Share of the clients that at first do not read what they get, in `[0, 1]`.
    pub stall: f64,
    /// How long they do not, on average.
    pub stall_for: Dur,
    /// When the gateway gives up on a request.
    pub deadline: Dur,
}

/// Distribution of a length in tokens; never below 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Lengths {
    /// Always the same.
    Fixed(u32),
    /// Each from `min` to `max` as likely.
    Uniform {
        /// The least.
        min: u32,
        /// The most.
        max: u32,
    },
    /// Exponential with a mean, cut at a most.
    Exponential {
        /// Before the cut.
        mean: u32,
        /// The most.
        max: u32,
    },
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            requests: 500,
            rate: 20.0,
            turns: 1,
            think: Dur::from_secs(10),
            prompt: Lengths::Exponential { mean: 400, max: 4000 },
            output: Lengths::Exponential { mean: 150, max: 1000 },
            choices: 1,
            temperature: 0.0,
            groups: 8,
            shared_prefix: 256,
            end_every: 0,
            leave: 0.0,
            patience: Dur::from_secs(1),
            stall: 0.0,
            stall_for: Dur::from_secs(5),
            deadline: Dur::from_secs(120),
        }
    }
}

impl Workload {
    pub(super) fn validate(&self) -> Result<(), SimError> {
        within("workload.requests", self.requests, 1, 1_000_000_000)?;
        positive("workload.rate", self.rate)?;
        self.prompt.validate("workload.prompt")?;
        self.output.validate("workload.output")?;
        within("workload.choices", self.choices.into(), 1, 128)?;
        within("workload.groups", self.groups.into(), 1, 1_000_000)?;
        within("workload.shared-prefix", self.shared_prefix.into(), 0, 1_000_000)?;
        within("workload.turns", self.turns.into(), 1, 1000)?;
        share("workload.leave", self.leave)?;
        share("workload.stall", self.stall)?;
        let day = Dur::from_secs(86_400).as_nanos();
        within("workload.think (ns)", self.think.as_nanos(), 0, day)?;
        // The run has to end: a request that nothing can serve ends at its deadline.
        within("workload.deadline (ns)", self.deadline.as_nanos(), 1, day)
    }
}

impl Lengths {
    fn validate(self, key: &'static str) -> Result<(), SimError> {
        let (low, high) = match self {
            Self::Fixed(n) => (n, n),
            Self::Uniform { min, max } => (min, max),
            Self::Exponential { mean, max } => (mean, max),
        };
        within(key, low.into(), 1, high.into())?;
        within(key, high.into(), 1, 1_000_000)
    }
}
