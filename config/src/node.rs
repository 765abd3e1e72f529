//! `[node]`: who this process is.

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::role::RoleSet;
use crate::units::Dur;

/// Who this process is and what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeConfig {
    /// The node's name in logs, metrics and ids; 1 to 64 letters, digits, `-`, `_` or `.`. Default `node`.
    pub name: String,
    /// `all` (default) or a list of `gateway`, `controller`, `worker`, `pool`, as one text
    /// with commas or as a TOML list.
    pub roles: RoleSet,
    /// How long requests in work may go on after the first SIGTERM or SIGINT; new ones are refused meanwhile, and a
    /// second signal ends it. Default `30s`.
    pub drain_timeout: Dur,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self { name: "node".to_owned(), roles: RoleSet::all(), drain_timeout: Dur::from_secs(30) }
    }
}

impl NodeConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        check(
            (1..=64).contains(&self.name.len()) && self.name.bytes().all(plain),
            "node.name",
            &self.name,
            "use 1 to 64 letters, digits, `-`, `_` or `.`",
        )
    }
}
