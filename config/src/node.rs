//! `[node]`: what this process does.

use serde::{Deserialize, Serialize};

use crate::role::RoleSet;
use crate::units::Dur;

/// What this process does, and how it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeConfig {
    /// `all` (default) or a list of `gateway`, `controller`, `worker`, `pool`, as one text
    /// with commas or as a TOML list.
    pub roles: RoleSet,
    /// How long requests in work may go on after the first SIGTERM or SIGINT; new ones are refused meanwhile, and a
    /// second signal ends it. Default `30s`.
    pub drain_timeout: Dur,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self { roles: RoleSet::all(), drain_timeout: Dur::from_secs(30) }
    }
}
