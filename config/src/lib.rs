//! What all crates share: the ids, the roles, and the configuration as one typed tree.
//!
//! A value comes from, the later winning: the defaults in the section structs, a TOML file, the environment
//! (`ACTOR_NODE_SECTION__KEY`), the command line. [`load()`] is the one path from these to a validated [`Config`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod auth;
pub mod cli;
pub mod cluster;
pub mod controller;
pub mod engine;
pub mod error;
pub mod gateway;
pub mod hardware;
pub mod http;
pub mod ids;
pub mod kv_events;
pub mod load;
pub mod log;
pub mod model;
pub mod node;
pub mod policy;
pub mod pool;
pub mod role;
pub mod runtime;
pub mod tree;
pub mod units;
pub mod worker_policy;

mod keys;
mod optional;

pub use auth::{ApiKey, AuthConfig};
pub use cli::{AuthCommand, CalibrateArgs, Cli, Command, Exit, ModelCommand, Overrides, SimArgs, StatusArgs};
pub use cluster::{ClusterConfig, ClusterTlsConfig};
pub use controller::{Choice, ControllerConfig};
pub use engine::{Device, EngineConfig, EngineKind, FakeConfig, KvDtype};
pub use error::ConfigError;
pub use gateway::GatewayConfig;
pub use hardware::HardwareConfig;
pub use http::HttpConfig;
pub use kv_events::{KvEventsConfig, KvEventsEncoding};
pub use load::{ClusterSecrets, Environment, load};
pub use log::{LogConfig, LogFormat};
pub use model::{Dtype, Isq, ModelConfig};
pub use node::NodeConfig;
pub use policy::{
    CacheAwareConfig, DisaggregateConfig, Mode, PoliciesConfig, PoolReplicateConfig, PrefillFallback,
    PrefixIndex, ReplicateConfig, SessionAffinityConfig,
};
pub use pool::PoolConfig;
pub use role::{Role, RoleSet, WorkerRole};
pub use runtime::RuntimeConfig;
pub use tree::Config;
pub use units::{Dur, Size};
pub use worker_policy::{
    DeadlineConfig, FairConfig, KeepSessionConfig, OffloadConfig, PriorityConfig, WorkerPoliciesConfig,
};
