//! `[pool]`: the store of KV pages that workers share.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::optional;
use crate::units::Size;

/// The least that a tier may hold.
const LEAST: Size = Size::mib(1);

/// How much a pool keeps, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoolConfig {
    /// RAM for pages, taken as they come, and up to 64 MiB more while pages wait for the disk; the least recently used page
    /// leaves first. Default `1GiB`.
    pub ram: Size,
    /// A folder for pages, made where it is not there, and used by one pool at a time. Pages are written there before they
    /// leave RAM and when the node stops, and are found again after a restart. Default `none`: RAM only.
    #[serde(with = "optional::none")]
    pub disk: Option<PathBuf>,
    /// Bytes that files in that folder may take; the least recently used page is deleted first. Default `none`; a folder
    /// needs one.
    #[serde(with = "optional::none")]
    pub disk_size: Option<Size>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { ram: Size::mib(1024), disk: None, disk_size: None }
    }
}

impl PoolConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check(self.ram >= LEAST, "pool.ram", self.ram, "use at least 1MiB")?;
        match (&self.disk, self.disk_size) {
            (None, None) => Ok(()),
            (None, Some(size)) => {
                let reason = "set pool.disk too, the folder that may hold so much; or leave this `none`";
                Err(ConfigError::invalid("pool.disk-size", size, reason))
            }
            (Some(folder), None) => {
                let reason =
                    "set pool.disk-size too, the bytes that pages may take there; or leave this `none`";
                Err(ConfigError::invalid("pool.disk", folder.display(), reason))
            }
            (Some(folder), Some(size)) => {
                let named = !folder.as_os_str().is_empty();
                check(named, "pool.disk", "\"\"", "name a folder, or leave this `none`")?;
                check(size >= LEAST, "pool.disk-size", size, "use at least 1MiB")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_and_its_size_go_together() {
        let of = |disk: Option<&str>, disk_size| PoolConfig {
            disk: disk.map(PathBuf::from),
            disk_size,
            ..PoolConfig::default()
        };
        of(None, None).validate().unwrap();
        of(Some("pages"), Some(Size::mib(1))).validate().unwrap();
        let cases = [
            (of(None, Some(Size::mib(64))), "`pool.disk-size = 64MiB`: set pool.disk too"),
            (of(Some("pages"), None), "`pool.disk = pages`: set pool.disk-size too"),
            (of(Some("pages"), Some(Size::kib(4))), "`pool.disk-size = 4KiB`: use at least 1MiB"),
            (of(Some(""), Some(Size::mib(1))), "`pool.disk = \"\"`: name a folder"),
            (
                PoolConfig { ram: Size::kib(1), ..PoolConfig::default() },
                "`pool.ram = 1KiB`: use at least 1MiB",
            ),
        ];
        for (config, expected) in cases {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
