//! `[pool]`: the store of KV pages that workers share.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cluster::{ClusterConfig, bare, host, with_port};
use crate::error::{ConfigError, check};
use crate::http::check_address;
use crate::optional;
use crate::units::Size;

/// The least that a tier may hold.
const LEAST: Size = Size::mib(1);

/// How much a pool keeps, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoolConfig {
    /// `HOST:PORT` on which the pool takes KV pages and gives them; port 0 takes a free one. Default `auto`: `cluster.kv-listen`,
    /// or a free port of the same host where the node is also a worker, which has that.
    #[serde(with = "optional::auto")]
    pub listen: Option<String>,
    /// `HOST:PORT` that others reach `listen` at (containers, NAT). Port 0 stands for the port listened on. Default `auto`: the
    /// host at which others reach the node's worker, and the port listened on; without `listen`, and a worker,
    /// `cluster.kv-advertise`.
    #[serde(with = "optional::auto")]
    pub advertise: Option<String>,
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
        Self { listen: None, advertise: None, ram: Size::mib(1024), disk: None, disk_size: None }
    }
}

impl PoolConfig {
    /// Where the pool listens for KV pages, without its scheme; `beside` a worker, which has the node's port for them.
    #[must_use]
    pub fn listen_address(&self, cluster: &ClusterConfig, beside: bool) -> String {
        match self.listen.as_deref().map(bare) {
            Some(given) => given.to_owned(),
            None if beside => format!("{}:0", host(&cluster.kv_listen_address())),
            None => cluster.kv_listen_address(),
        }
    }

    /// Where others reach the pool for KV pages, given the address that it is bound to.
    #[must_use]
    pub fn advertised(&self, cluster: &ClusterConfig, beside: bool, bound: SocketAddr) -> String {
        match self.advertise.as_deref().map(bare) {
            Some(given) => with_port(given, bound.port()),
            // The port that is advertised there is another one's.
            None if beside || self.listen.is_some() => {
                format!("{}:{}", host(&cluster.kv_advertised(bound)), bound.port())
            }
            None => cluster.kv_advertised(bound),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        for (key, address) in [("pool.listen", &self.listen), ("pool.advertise", &self.advertise)] {
            if let Some(address) = address {
                check_address(key, bare(address))?;
            }
        }
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

    #[test]
    fn pages_are_taken_at_a_port_of_its_own_or_where_a_worker_would() {
        let bound = "127.0.0.1:4001".parse().unwrap();
        let cluster = ClusterConfig {
            kv_listen: Some("tcp://127.0.0.1:7000".into()),
            kv_advertise: Some("kv.example:7001".into()),
            ..ClusterConfig::default()
        };
        type Case<'a> = (Option<&'a str>, Option<&'a str>, bool, &'a str, &'a str);
        let cases: [Case<'_>; 6] = [
            (None, None, false, "127.0.0.1:7000", "kv.example:7001"),
            (None, None, true, "127.0.0.1:0", "kv.example:4001"),
            (Some("tcp://0.0.0.0:7100"), None, true, "0.0.0.0:7100", "kv.example:4001"),
            (Some("0.0.0.0:7100"), None, false, "0.0.0.0:7100", "kv.example:4001"),
            (Some("0.0.0.0:7100"), Some("pool.example:0"), true, "0.0.0.0:7100", "pool.example:4001"),
            (None, Some("tcp://pool.example:9"), false, "127.0.0.1:7000", "pool.example:9"),
        ];
        for (listen, advertise, beside, listens, reached) in cases {
            let own = |text: Option<&str>| text.map(str::to_owned);
            let pool = PoolConfig { listen: own(listen), advertise: own(advertise), ..PoolConfig::default() };
            pool.validate().unwrap();
            assert_eq!(pool.listen_address(&cluster, beside), listens);
            assert_eq!(pool.advertised(&cluster, beside, bound), reached);
        }
        for key in ["pool.listen", "pool.advertise"] {
            let wrong = Some("nowhere".to_owned());
            let pool = match key {
                "pool.listen" => PoolConfig { listen: wrong, ..PoolConfig::default() },
                _ => PoolConfig { advertise: wrong, ..PoolConfig::default() },
            };
            let error = pool.validate().unwrap_err().to_string();
            assert!(error.contains(&format!("`{key} = nowhere`: use HOST:PORT")), "{error}");
        }
    }
}
