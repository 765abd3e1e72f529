//! What is simulated, as data.

use std::path::Path;

use config::{Choice, Dur, PoliciesConfig};
use policies::cost::{CostModel, Hardware, ModelShape};
use serde::{Deserialize, Serialize};

use crate::SimError;

mod fault;
mod network;

pub use fault::{Fault, FaultKind, Faults, NodeName, RandomFaults};
pub use network::Network;

/// A whole run. Every key has a default; an unknown one is an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// Seed of every random choice.
    pub seed: u64,
    /// Shape of the model, one of [`ModelShape::NAMES`].
    pub model: String,
    /// Machine of each worker, one of [`Hardware::NAMES`].
    pub hardware: String,
    /// What clients ask.
    pub workload: Workload,
    /// Who serves them.
    pub cluster: Cluster,
    /// Options of policies, as a node's configuration has them.
    pub policy: PoliciesConfig,
    /// What goes wrong.
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
    /// What else goes wrong, drawn from the seed.
    #[serde(rename = "faults")]
    pub random_faults: Faults,
    /// What is between the nodes.
    pub network: Network,
    /// Hold each token of an answer against what the model says. Costs a hash of each prompt.
    pub check_answers: bool,
}

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
    /// Time from one request of a conversation to the next, on average; should be longer than an answer takes.
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

/// Workers, their limits, and what is between the nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cluster {
    /// Workers, all alike.
    pub workers: u32,
    /// KV pages of a worker.
    pub pages: u32,
    /// Tokens a page.
    pub page_tokens: u32,
    /// Tokens that a worker computes in one step at most.
    pub max_batch_tokens: u32,
    /// Sequences that a worker has in work at most.
    pub max_running: u32,
    /// Sequences that wait at a worker at most.
    pub max_waiting: u32,
    /// The model's window in tokens.
    pub max_context: u32,
    /// Whether workers reuse full pages by content.
    pub prefix_cache: bool,
    /// Share of the pages that admission leaves free, in `[0, 1)`.
    pub watermark: f32,
    /// Tokens of a choice that a worker produces ahead of the client; 0: without limit.
    pub credit: u32,
    /// Requests that the controller books on a worker at once.
    pub max_requests: u32,
    /// Requests that wait at the controller at most.
    pub queue_limit: u32,
    /// How long they wait.
    pub queue_timeout: Dur,
    /// How a worker is chosen where no policy does.
    pub choice: Choice,
    /// Policies that the controller asks, in this order; those of [`PoliciesConfig::NAMES`].
    #[serde(alias = "cluster_policies")]
    pub cluster_policies: Vec<String>,
    /// Placements of a request after its first.
    pub retry_limit: u32,
    /// Wait before a second retry, doubled before each one after it.
    pub retry_backoff: Dur,
    /// Time that a message takes from node to node.
    pub network: Dur,
    /// Time until the others know that a node is gone or cannot be reached.
    pub detect: Dur,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            seed: 1,
            model: "llama-3.1-8b".into(),
            hardware: "h100".into(),
            workload: Workload::default(),
            cluster: Cluster::default(),
            policy: PoliciesConfig::default(),
            faults: Vec::new(),
            random_faults: Faults::default(),
            network: Network::default(),
            check_answers: true,
        }
    }
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

impl Default for Cluster {
    fn default() -> Self {
        Self {
            workers: 2,
            pages: 8192,
            page_tokens: 16,
            max_batch_tokens: 512,
            max_running: 256,
            max_waiting: 1024,
            max_context: 8192,
            prefix_cache: true,
            watermark: 0.01,
            credit: 256,
            max_requests: 512,
            queue_limit: 1024,
            queue_timeout: Dur::from_secs(30),
            choice: Choice::LeastLoaded,
            cluster_policies: Vec::new(),
            retry_limit: 5,
            retry_backoff: Dur::from_millis(50),
            network: Dur::from_nanos(100_000),
            detect: Dur::from_millis(500),
        }
    }
}

impl Scenario {
    /// Reads a scenario from TOML text; `origin` names it in errors.
    ///
    /// # Errors
    /// Text that is not TOML, or has an unknown key or a value of another type.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, SimError> {
        toml::from_str(text).map_err(|e| SimError::Parse { origin: origin.into(), source: Box::new(e) })
    }

    /// Reads a scenario file.
    ///
    /// # Errors
    /// A file that cannot be read, and as [`Scenario::from_toml`].
    pub fn load(path: &Path) -> Result<Self, SimError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SimError::Read { path: path.to_path_buf(), source })?;
        Self::from_toml(&text, &path.display().to_string())
    }

    /// The time that steps take.
    ///
    /// # Errors
    /// An unknown model or machine.
    pub fn cost(&self) -> Result<CostModel, SimError> {
        let known = |names: &[&str]| format!("use one of {}", names.join(", "));
        let model = ModelShape::named(&self.model)
            .ok_or_else(|| invalid("model", &self.model, known(ModelShape::NAMES)))?;
        let hardware = Hardware::named(&self.hardware)
            .ok_or_else(|| invalid("hardware", &self.hardware, known(Hardware::NAMES)))?;
        Ok(CostModel::Roofline { model, hardware })
    }

    /// What a node can send, and receive, in bulk a second; 0: without limit.
    ///
    /// # Errors
    /// An unknown machine.
    pub fn link_bandwidth(&self) -> Result<u64, SimError> {
        Ok(match self.cost()? {
            CostModel::Roofline { hardware, .. } => hardware.link,
            CostModel::Affine(_) => 0,
        })
    }

    /// Whether the values make sense together.
    ///
    /// # Errors
    /// The first that does not.
    pub fn validate(&self) -> Result<(), SimError> {
        self.cost()?;
        let (w, c) = (&self.workload, &self.cluster);
        within("workload.requests", w.requests, 1, 1_000_000)?;
        positive("workload.rate", w.rate)?;
        w.prompt.validate("workload.prompt")?;
        w.output.validate("workload.output")?;
        within("workload.choices", w.choices.into(), 1, 128)?;
        within("workload.groups", w.groups.into(), 1, 1_000_000)?;
        within("workload.shared-prefix", w.shared_prefix.into(), 0, 1_000_000)?;
        share("workload.leave", w.leave)?;
        share("workload.stall", w.stall)?;
        share("cluster.watermark", c.watermark.into())?;
        within("cluster.workers", c.workers.into(), 1, 10_000)?;
        within("cluster.pages", c.pages.into(), 1, 10_000_000)?;
        within("cluster.page-tokens", c.page_tokens.into(), 1, 1024)?;
        within("cluster.max-batch-tokens", c.max_batch_tokens.into(), 1, 1_000_000)?;
        within("cluster.max-running", c.max_running.into(), 1, 1_000_000)?;
        within("cluster.max-requests", c.max_requests.into(), 1, 1_000_000)?;
        within("cluster.max-context", c.max_context.into(), 2, 10_000_000)?;
        // The run has to end: a request that nothing can serve ends at its deadline.
        within("workload.deadline (ns)", w.deadline.as_nanos(), 1, Dur::from_secs(86_400).as_nanos())?;
        within("workload.turns", w.turns.into(), 1, 1000)?;
        within("workload.think (ns)", w.think.as_nanos(), 0, Dur::from_secs(86_400).as_nanos())?;
        if let Some((name, rule)) = PoliciesConfig::wrong_name(&c.cluster_policies) {
            return Err(invalid("cluster.cluster-policies", &name, rule));
        }
        for fault in &self.faults {
            fault.validate(c)?;
        }
        self.random_faults.random.validate()?;
        self.network.validate()
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

fn invalid(key: &'static str, value: &impl ToString, reason: String) -> SimError {
    SimError::Invalid { key, value: value.to_string(), reason }
}

fn within(key: &'static str, value: u64, low: u64, high: u64) -> Result<(), SimError> {
    match (low..=high).contains(&value) {
        true => Ok(()),
        false => Err(invalid(key, &value, format!("use {low} to {high}"))),
    }
}

fn positive(key: &'static str, value: f64) -> Result<(), SimError> {
    match value > 0.0 && value.is_finite() {
        true => Ok(()),
        false => Err(invalid(key, &value, "use a number above 0".into())),
    }
}

fn share(key: &'static str, value: f64) -> Result<(), SimError> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(()),
        false => Err(invalid(key, &value, "use 0 to 1".into())),
    }
}
