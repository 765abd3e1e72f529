//! The whole configuration: one section a file, one struct a section.

use serde::{Deserialize, Serialize};

use crate::auth::AuthConfig;
use crate::cluster::ClusterConfig;
use crate::controller::ControllerConfig;
use crate::engine::{EngineConfig, EngineKind};
use crate::error::ConfigError;
use crate::gateway::GatewayConfig;
use crate::http::HttpConfig;
use crate::kv_events::KvEventsConfig;
use crate::log::LogConfig;
use crate::model::ModelConfig;
use crate::node::NodeConfig;
use crate::policy::PoliciesConfig;
use crate::pool::PoolConfig;
use crate::role::WorkerRole;
use crate::runtime::RuntimeConfig;
use crate::worker_policy::WorkerPoliciesConfig;

/// Every setting of a node. `Config::default()` is valid and serves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Who this process is.
    pub node: NodeConfig,
    /// How nodes find each other.
    pub cluster: ClusterConfig,
    /// The HTTP listener.
    pub http: HttpConfig,
    /// Logging.
    pub log: LogConfig,
    /// The model.
    pub model: ModelConfig,
    /// The engine.
    pub engine: EngineConfig,
    /// The worker's scheduler.
    pub runtime: RuntimeConfig,
    /// The policies inside the worker.
    pub worker_policy: WorkerPoliciesConfig,
    /// Whose requests are taken.
    pub auth: AuthConfig,
    /// Limits on a request.
    pub gateway: GatewayConfig,
    /// Admission and placement.
    pub controller: ControllerConfig,
    /// The policies that the controller asks.
    pub policy: PoliciesConfig,
    /// `[pool]`
    pub pool: PoolConfig,
    /// KV events for routers of others.
    pub kv_events: KvEventsConfig,
}

impl Config {
    /// Checks every value against its range and those it depends on.
    ///
    /// # Errors
    /// The first value that is not allowed, with its key and the rule.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.cluster.validate()?;
        self.http.validate()?;
        self.log.validate()?;
        self.model.validate()?;
        self.engine.validate()?;
        self.runtime.validate(self.engine.page_tokens)?;
        self.worker_policy.validate()?;
        self.auth.validate()?;
        self.gateway.validate()?;
        self.controller.validate()?;
        self.policy.validate()?;
        self.pool.validate()?;
        let plain = |name: &String| name == "fcfs";
        if self.engine.kind == EngineKind::Mistralrs && !self.runtime.worker_policy.iter().all(plain) {
            let list = self.runtime.worker_policy.join(", ");
            let reason = "use fcfs: engine.kind = \"mistralrs\" orders its requests itself";
            return Err(ConfigError::invalid("runtime.worker-policy", list, reason));
        }
        if self.cluster.role != WorkerRole::Unified && self.engine.kind == EngineKind::Mistralrs {
            let reason =
                "engine.kind = mistralrs keeps its KV pages to itself; use unified, or another engine";
            return Err(ConfigError::invalid("cluster.role", self.cluster.role, reason));
        }
        if self.cluster.role_switch && self.engine.kind == EngineKind::Mistralrs {
            let reason =
                "engine.kind = mistralrs can be unified only; leave this false, or use another engine";
            return Err(ConfigError::invalid("cluster.role-switch", true, reason));
        }
        if let Some(path) = &self.log.record_steps
            && self.engine.kind == EngineKind::Mistralrs
        {
            let reason = "engine.kind = mistralrs plans its steps itself and tells nothing of them; leave this `none`, or use \
                          another engine";
            return Err(ConfigError::invalid("log.record-steps", path.display(), reason));
        }
        self.kv_events.validate()?;
        if let Some(endpoint) = &self.kv_events.endpoint
            && self.engine.kind == EngineKind::Mistralrs
        {
            let reason = "the engine mistralrs keeps its pages to itself; use engine.kind = \"paged\" or leave this `none`";
            return Err(ConfigError::invalid("kv-events.endpoint", endpoint, reason));
        }
        if let Some(tokens) = self.model.max_context {
            let least = HttpConfig::body_limit_for(tokens);
            if self.http.body_limit < least {
                let reason =
                    format!("use at least {least}, which model.max-context = {tokens} tokens may take");
                return Err(ConfigError::invalid("http.body-limit", self.http.body_limit, reason));
            }
        }
        Ok(())
    }

    /// The tree as TOML with every key present, which reads back as the same tree (`--dump-config`).
    ///
    /// # Errors
    /// A path that is not UTF-8 or a number beyond TOML's 63 bits; a tree made by [`crate::load()`] holds neither.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}
