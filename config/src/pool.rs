//! `[pool]`: the store of KV pages that workers share.

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::units::Size;

/// How much a pool keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoolConfig {
    /// RAM for pages, taken as they come; the least recently used page leaves first. Default `1GiB`.
    pub ram: Size,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { ram: Size::mib(1024) }
    }
}

impl PoolConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check(self.ram >= Size::mib(1), "pool.ram", self.ram, "use at least 1MiB")
    }
}
