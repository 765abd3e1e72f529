//! What clients ask, as data.

use std::collections::BTreeMap;
use std::path::PathBuf;

use config::Dur;
use serde::{Deserialize, Serialize};

use super::{invalid, positive, share, within};
use crate::SimError;

/// Requests of clients: drawn, or replayed from a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Workload {
    /// Requests that arrive, where they are drawn.
    pub requests: u64,
    /// Requests a second, on average. Closed-loop clients go by their answers instead.
    pub rate: f64,
    /// How the gaps between arrivals are distributed.
    pub arrivals: Arrivals,
    /// All times of clients (gaps, pauses, times of a trace) are divided by this.
    pub speedup: f64,
    /// Requests of a conversation. Each begins with all that was said before it, answers included, and names the
    /// conversation as its session. 1: there are no conversations.
    pub turns: u32,
    /// Time from the end of an answer to the next request of its conversation or client, on average.
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
    /// File of requests to replay in place of drawn ones; a relative path is taken from the current directory. It is
    /// read line by line as the run goes on.
    pub trace: Option<PathBuf>,
    /// What the file is; seen from its first line where this is left out.
    pub format: Option<TraceFormat>,
    /// Lines of the file that are replayed; 0: all.
    pub limit: u64,
    /// Tokens that each of a line's `hash_ids` stands for, where the line itself has no `block_size`.
    pub block_tokens: u32,
    /// Kinds of clients. Each conversation, or line of a trace, is of one kind at random; none: all are alike.
    #[serde(rename = "class")]
    pub classes: Vec<Class>,
}

/// How arrivals are spread in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Arrivals {
    /// Independent of each other: exponential gaps.
    #[default]
    Poisson,
    /// Equal gaps.
    Constant,
    /// Gamma-distributed gaps.
    Gamma {
        /// Coefficient of variation of the gaps: 1 is Poisson, more is burstier.
        cv: f64,
    },
    /// Poisson arrivals for a time and then none for a time, again and again; `rate` is the mean of both.
    OnOff {
        /// How long requests arrive.
        on: Dur,
        /// How long none does.
        off: Dur,
    },
    /// So many clients, each of which asks again when it has its answer and has thought about it.
    Closed {
        /// How many.
        clients: u32,
    },
}

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceFormat {
    /// JSON lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`, and what else
    /// [`crate::workload::trace`] names.
    Mooncake,
    /// CSV with the columns `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.
    Azure,
    /// The request log that `actor-node --record` writes: as `mooncake`, with page hashes and their `block_size`.
    Log,
}

/// A kind of clients. What is left out is as for all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Class {
    /// How often it comes, relative to the other kinds.
    pub share: f64,
    /// Whose requests they are.
    pub tenant: Option<String>,
    /// The tenant's weight.
    pub weight: f64,
    /// Hints of its requests.
    pub props: BTreeMap<String, PropValue>,
    /// As [`Workload::prompt`].
    pub prompt: Option<Lengths>,
    /// As [`Workload::output`].
    pub output: Option<Lengths>,
    /// As [`Workload::groups`]; the kind's groups are its own.
    pub groups: Option<u32>,
    /// As [`Workload::shared_prefix`].
    pub shared_prefix: Option<u32>,
}

/// Value of a hint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "use a flag, a number or a text")]
pub enum PropValue {
    /// A flag.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(String),
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
            arrivals: Arrivals::Poisson,
            speedup: 1.0,
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
            trace: None,
            format: None,
            limit: 0,
            block_tokens: 512,
            classes: Vec::new(),
        }
    }
}

impl Default for Class {
    fn default() -> Self {
        Self {
            share: 1.0,
            tenant: None,
            weight: 1.0,
            props: BTreeMap::new(),
            prompt: None,
            output: None,
            groups: None,
            shared_prefix: None,
        }
    }
}

const DAY: u64 = Dur::from_secs(86_400).as_nanos();
const MOST_GROUPS: u64 = 1_000_000;

impl Workload {
    pub(super) fn validate(&self) -> Result<(), SimError> {
        within("workload.requests", self.requests, 1, 1_000_000_000)?;
        positive("workload.rate", self.rate)?;
        positive("workload.speedup", self.speedup)?;
        self.arrivals.validate()?;
        self.prompt.validate("workload.prompt")?;
        self.output.validate("workload.output")?;
        within("workload.choices", self.choices.into(), 1, 128)?;
        within("workload.groups", self.groups.into(), 1, MOST_GROUPS)?;
        within("workload.shared-prefix", self.shared_prefix.into(), 0, 1_000_000)?;
        within("workload.turns", self.turns.into(), 1, 1000)?;
        within("workload.block-tokens", self.block_tokens.into(), 1, 1_000_000)?;
        share("workload.leave", self.leave)?;
        share("workload.stall", self.stall)?;
        within("workload.think (ns)", self.think.as_nanos(), 0, DAY)?;
        self.classes.iter().try_for_each(Class::validate)?;
        // The run has to end: a request that nothing can serve ends at its deadline.
        within("workload.deadline (ns)", self.deadline.as_nanos(), 1, DAY)
    }
}

impl Arrivals {
    fn validate(self) -> Result<(), SimError> {
        match self {
            Self::Poisson | Self::Constant => Ok(()),
            Self::Gamma { cv } => match (0.01..=100.0).contains(&cv) {
                true => Ok(()),
                false => Err(invalid("workload.arrivals.gamma.cv", &cv, "use 0.01 to 100".into())),
            },
            Self::OnOff { on, off } => {
                within("workload.arrivals.on-off.on (ns)", on.as_nanos(), 1_000_000, DAY)?;
                within("workload.arrivals.on-off.off (ns)", off.as_nanos(), 0, DAY)
            }
            Self::Closed { clients } => {
                within("workload.arrivals.closed.clients", clients.into(), 1, 1_000_000)
            }
        }
    }
}

impl Class {
    fn validate(&self) -> Result<(), SimError> {
        positive("workload.class.share", self.share)?;
        positive("workload.class.weight", self.weight)?;
        self.prompt.map_or(Ok(()), |lengths| lengths.validate("workload.class.prompt"))?;
        self.output.map_or(Ok(()), |lengths| lengths.validate("workload.class.output"))?;
        within("workload.class.groups", self.groups.unwrap_or(1).into(), 1, MOST_GROUPS)?;
        within("workload.class.shared-prefix", self.shared_prefix.unwrap_or(0).into(), 0, 1_000_000)
    }
}

impl Lengths {
    fn validate(self, key: &'static str) -> Result<(), SimError> {
        let (low, high) = match self {
            Self::Fixed(n) => (n, n),
            Self::Uniform { min, max } => (min, max),
            Self::Exponential { mean, max } => (mean, max),
        };
        within(key, low.into(), 1, 1_000_000)?;
        within(key, high.into(), 1, 1_000_000)?;
        match low <= high {
            true => Ok(()),
            false => {
                Err(invalid(key, &format!("{low} to {high}"), "use a max of at least min, or mean".into()))
            }
        }
    }
}
