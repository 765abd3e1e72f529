//! What is simulated, as data.

use std::path::Path;

use config::{Choice, Config, Dur, PoliciesConfig, WorkerPoliciesConfig};
use policies::cost::CostModel;
use serde::{Deserialize, Serialize};

use crate::SimError;
use crate::watch::Checks;

mod checks;
mod cost;
mod fault;
mod layers;
mod moves;
mod network;
mod node;
mod peers;
mod pool;
mod slo;
mod workload;

pub use cost::{AffineCost, Cost, CurveCost, Degrees, StepsCost};
pub use fault::{Fault, FaultKind, Faults, NodeName, RandomFaults};
pub use moves::Move;
pub use network::Network;
pub use node::{Machine, Model, NodeClass, Number, Shape};
pub use pool::PoolClass;
pub use slo::Slo;
pub use workload::{Arrivals, Class, Lengths, Phase, PropValue, TraceFormat, Workload};

/// A whole run. Every key has a default; an unknown one is an error.
///
/// `config = "PATH"` takes the policies of a node's configuration file, with their options and limits, as they are there;
/// what the scenario says itself counts more. `[controller]` and `[runtime]` may be written as there, too: their keys are
/// those of [`Cluster`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// Seed of every random choice.
    pub seed: u64,
    /// Shape of the model.
    pub model: Model,
    /// Machine of each worker.
    pub hardware: Machine,
    /// How often the cores are checked against themselves; by the size of the run where this is left out.
    pub checks: Option<Checks>,
    /// What clients ask.
    pub workload: Workload,
    /// Who serves them.
    pub cluster: Cluster,
    /// Options of policies, as a node's configuration has them.
    pub policy: PoliciesConfig,
    /// What goes wrong.
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
    /// Requests that change their workers while they run.
    #[serde(rename = "move")]
    pub moves: Vec<Move>,
    /// How long steps take, where that is not what model and machine say.
    pub cost: Cost,
    /// Kinds of workers; none: [`Cluster::workers`] that are all alike.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeClass>,
    /// Kinds of pools, which keep KV pages for workers; none where this is left out.
    #[serde(rename = "pool", skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolClass>,
    /// Options of the policies inside workers, as a node's configuration has them.
    pub worker_policy: WorkerPoliciesConfig,
    /// What is good enough.
    pub slo: Slo,
    /// What else goes wrong, drawn from the seed.
    #[serde(rename = "faults")]
    pub random_faults: Faults,
    /// What is between the nodes.
    pub network: Network,
    /// Hold each token of an answer against what the model says. Costs a hash of each prompt.
    pub check_answers: bool,
}

/// Workers, their limits, and what is between the nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cluster {
    /// Workers, all alike. Left out where there are kinds of nodes ([`Scenario::nodes`]), which say how many.
    pub workers: u32,
    /// KV pages of a worker.
    pub pages: u32,
    /// Tokens a page.
    pub page_tokens: u32,
    /// Tokens that a worker computes in one step at most.
    pub max_batch_tokens: u32,
    /// Of those, tokens of prompts in a step in which sequences decode. Left out, or `auto` as in a node's configuration:
    /// `max-batch-tokens`.
    #[serde(deserialize_with = "layers::auto")]
    pub max_mixed_tokens: Option<u32>,
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
    #[serde(alias = "cluster_policies", deserialize_with = "layers::list")]
    pub cluster_policies: Vec<String>,
    /// Placements of a request after its first.
    pub retry_limit: u32,
    /// Wait before a second retry, doubled before each one after it.
    pub retry_backoff: Dur,
    /// Time that a message takes from node to node.
    pub network: Dur,
    /// Time until the others know that a node is gone or cannot be reached.
    pub detect: Dur,
    /// As `cluster.heartbeat`: how often a worker tells those that may give it prompts (policy `offload`) what it has to
    /// do, where that has changed.
    pub heartbeat: Dur,
    /// Policies inside each worker, as `runtime.worker-policy` lists them.
    #[serde(alias = "worker_policy", deserialize_with = "layers::list")]
    pub worker_policy: Vec<String>,
    /// As `controller.opinion-deadline`. Policies answer at once here.
    pub opinion_deadline: Dur,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            seed: 1,
            model: "llama-3.1-8b".into(),
            hardware: "h100".into(),
            checks: None,
            workload: Workload::default(),
            cluster: Cluster::default(),
            policy: PoliciesConfig::default(),
            faults: Vec::new(),
            moves: Vec::new(),
            cost: Cost::default(),
            nodes: Vec::new(),
            pools: Vec::new(),
            worker_policy: WorkerPoliciesConfig::default(),
            slo: Slo::default(),
            random_faults: Faults::default(),
            network: Network::default(),
            check_answers: true,
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
            max_mixed_tokens: None,
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
            heartbeat: Dur::from_millis(500),
            worker_policy: vec!["fcfs".into()],
            opinion_deadline: Dur::from_millis(20),
        }
    }
}

impl Scenario {
    /// Reads a scenario from TOML text; `origin` names it in errors. A configuration file that it names is looked for from
    /// the working directory.
    ///
    /// # Errors
    /// Text that is not TOML, or has an unknown key or a value of another type; and a configuration file that a node would
    /// refuse.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, SimError> {
        layers::parse(text, origin, Path::new(""), None)
    }

    /// Reads a scenario file. A configuration file that it names is looked for from its folder.
    ///
    /// # Errors
    /// A file that cannot be read, and as [`Scenario::from_toml`].
    pub fn load(path: &Path) -> Result<Self, SimError> {
        Self::load_with(path, None)
    }

    /// As [`Scenario::load`], with the policies of this configuration file in place of the one that the scenario names.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn load_with(path: &Path, config: Option<&Path>) -> Result<Self, SimError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SimError::Read { path: path.to_path_buf(), source })?;
        layers::parse(&text, &path.display().to_string(), path.parent().unwrap_or(Path::new("")), config)
    }

    /// The time that steps take on the machine of a worker that has none of its own.
    ///
    /// # Errors
    /// An unknown model or machine.
    pub fn cost(&self) -> Result<CostModel, SimError> {
        self.cost_on(&self.hardware)
    }

    /// The time that steps take on a machine.
    ///
    /// # Errors
    /// An unknown model or machine.
    pub fn cost_on(&self, machine: &Machine) -> Result<CostModel, SimError> {
        let model = self.model.shape()?;
        Ok(self.cost.model(model, machine.profile("hardware")?.figures))
    }

    /// The kinds of workers, at least one.
    #[must_use]
    pub fn classes(&self) -> Vec<NodeClass> {
        match self.nodes.is_empty() {
            true => vec![NodeClass { count: self.cluster.workers, ..NodeClass::default() }],
            false => self.nodes.clone(),
        }
    }

    /// Workers of all kinds. They are numbered from 0 on, in the order of their kinds.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.classes().iter().map(|class| class.count).fold(0, u32::saturating_add)
    }

    /// Whether the values make sense together.
    ///
    /// # Errors
    /// The first that does not.
    pub fn validate(&self) -> Result<(), SimError> {
        self.cost()?;
        self.cost.validate()?;
        let (w, c) = (&self.workload, &self.cluster);
        w.validate()?;
        share("cluster.watermark", c.watermark.into())?;
        within("cluster.workers", c.workers.into(), 1, 10_000)?;
        self.nodes.iter().try_for_each(NodeClass::validate)?;
        if !self.nodes.is_empty() && c.workers != Cluster::default().workers {
            let reason = "leave it out: there are kinds of nodes, each with its count".into();
            return Err(invalid("cluster.workers", &c.workers, reason));
        }
        within("node.count, of all kinds", self.workers().into(), 1, 10_000)?;
        within("cluster.pages", c.pages.into(), 1, 10_000_000)?;
        within("cluster.page-tokens", c.page_tokens.into(), 1, 1024)?;
        within("cluster.max-batch-tokens", c.max_batch_tokens.into(), 1, 1_000_000)?;
        within("cluster.max-mixed-tokens", c.max_mixed_tokens.unwrap_or(1).into(), 1, 1_000_000)?;
        within("cluster.max-running", c.max_running.into(), 1, 1_000_000)?;
        within("cluster.max-requests", c.max_requests.into(), 1, 1_000_000)?;
        within("cluster.max-context", c.max_context.into(), 2, 10_000_000)?;
        self.validate_pools()?;
        if !(Dur::from_millis(1)..=Dur::from_secs(60)).contains(&c.heartbeat) {
            return Err(invalid("cluster.heartbeat", &c.heartbeat, "use 1ms to 60s".into()));
        }
        if let Some((name, rule)) = PoliciesConfig::wrong_name(&c.cluster_policies) {
            return Err(invalid("cluster.cluster-policies", &name, rule));
        }
        let tables = (self.policy.clone(), self.worker_policy.clone());
        Config { policy: tables.0, worker_policy: tables.1, ..Config::default() }
            .validate()
            .map_err(|e| SimError::Config(Box::new(e)))?;
        let orders = self.nodes.iter().filter_map(|class| class.worker_policy.as_ref());
        for list in orders.chain([&c.worker_policy]) {
            if let Some((name, rule)) = WorkerPoliciesConfig::wrong_name(list) {
                return Err(invalid("runtime.worker-policy", &name, rule));
            }
            if Self::offloads(list) {
                self.peers()?;
            }
        }
        for fault in &self.faults {
            fault.validate(self.workers(), &self.pools)?;
        }
        self.moves.iter().try_for_each(|moves| moves.validate(self.workers()))?;
        self.random_faults.random.validate()?;
        self.network.validate()
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
