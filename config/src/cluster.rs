//! `[cluster]`: how this node finds the others, and who it is to them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::hardware::HardwareConfig;
use crate::http::check_address;
use crate::optional;
use crate::policy::PoliciesConfig;
use crate::role::{Role, RoleSet, WorkerRole};
use crate::units::Dur;

/// What an address of a cluster listener may be written with.
const SCHEME: &str = "tcp://";

/// The cluster. A node with all three of gateway, controller and worker and none of `listen`, `seeds`, `controller` and
/// `gateways` stays alone and opens no cluster port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ClusterConfig {
    /// The node's name in the cluster, in logs, metrics and `x-served-by`; 1 to 64 letters, digits, `-`, `_` or `.`,
    /// unique among the nodes that live. Default `auto`: `node` for a node alone, else its role and a random number
    /// (`worker-3f2a`).
    #[serde(with = "optional::auto")]
    pub name: Option<String>,
    /// `HOST:PORT` to listen on for other nodes; port 0 takes a free one. Beyond loopback an explicit cookie is
    /// demanded. Default `auto`: `127.0.0.1:0` in a cluster, nothing for a node alone.
    #[serde(with = "optional::auto")]
    pub listen: Option<String>,
    /// `HOST:PORT` that other nodes reach this one at, where it is not the one listened on (containers, NAT). Port 0
    /// stands for the port listened on. Default `auto`.
    #[serde(with = "optional::auto")]
    pub advertise: Option<String>,
    /// What this node's worker does (`--worker-role`): `unified` takes whole requests; `prefill` computes prompts for others
    /// and sends them the KV pages; `decode` takes requests whose prompts are computed elsewhere where that pays. See
    /// `[policy.disaggregate]`. `POST /v1/workers/{name}/role` changes it until the next start. Default `unified`.
    pub role: WorkerRole,
    /// Whether `policy.disaggregate.rebalance` may change this worker's role while it runs. Default `false`.
    pub role_switch: bool,
    /// `HOST:PORT` on which the worker takes KV pages from others and gives them, or the pool of a node without a worker; port 0
    /// takes a free one. A pool beside a worker has a port of its own, `pool.listen`. Default `auto`: the host of `listen`,
    /// port 0.
    #[serde(with = "optional::auto")]
    pub kv_listen: Option<String>,
    /// `HOST:PORT` that others reach `kv-listen` at (containers, NAT). Port 0 stands for the port listened on. Default
    /// `auto`: the host of `advertise` where that is set, else the address listened on.
    #[serde(with = "optional::auto")]
    pub kv_advertise: Option<String>,
    /// `HOST:PORT` (or `tcp://HOST:PORT`) of nodes to join through. Any may be down. Default none.
    #[serde(deserialize_with = "optional::list")]
    pub seeds: Vec<String>,
    /// A controller's address: one more seed. Default `none`.
    #[serde(with = "optional::none")]
    pub controller: Option<String>,
    /// Gateways' addresses: more seeds. Default none.
    #[serde(deserialize_with = "optional::list")]
    pub gateways: Vec<String>,
    /// The file with the secret that all nodes share, readable by its owner only. Default `auto`: the variable
    /// `ACTOR_NODE_COOKIE`, else `actor-node/cookie` in the user's configuration folder, made on first use.
    #[serde(with = "optional::auto")]
    pub cookie_file: Option<PathBuf>,
    /// The policies that the controller asks about each request, in this order (`cluster_policies` is read too):
    /// `cache-aware`, `session-affinity`, `disaggregate`, `replicate`, `pool-replicate`. Each has its table `[policy.NAME]`.
    /// Default: all but `pool-replicate`.
    #[serde(deserialize_with = "optional::list")]
    pub cluster_policies: Vec<String>,
    /// How often a node tells the others that it lives, and its load. Default `500ms`.
    pub heartbeat: Dur,
    /// A node that has been silent for this long is given up: its streams go elsewhere. At least three heartbeats.
    /// Default `3s`.
    pub suspect_after: Dur,
    /// How long a node that is gone is shown and looked for. Default `10m`.
    pub forget_after: Dur,
    /// The longest pause between two tries to reach a node: a healed network is whole again after about this long. Default
    /// `1500ms`.
    pub retry_longest: Dur,
    /// `[cluster.hardware]`
    pub hardware: HardwareConfig,
    /// `[cluster.tls]`
    pub tls: ClusterTlsConfig,
}

/// TLS between nodes, with certificates of a CA of one's own on both sides. All three files or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ClusterTlsConfig {
    /// The CA's certificates (PEM). Default `none`.
    #[serde(with = "optional::none")]
    pub ca: Option<PathBuf>,
    /// This node's certificate chain (PEM), valid as server and as client. Default `none`.
    #[serde(with = "optional::none")]
    pub cert: Option<PathBuf>,
    /// Its private key (PEM). Default `none`.
    #[serde(with = "optional::none")]
    pub key: Option<PathBuf>,
    /// The name that other nodes' certificates have to carry. Default `auto`: the host that was dialled.
    #[serde(with = "optional::auto")]
    pub server_name: Option<String>,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            name: None,
            listen: None,
            advertise: None,
            role: WorkerRole::default(),
            role_switch: false,
            kv_listen: None,
            kv_advertise: None,
            seeds: Vec::new(),
            controller: None,
            gateways: Vec::new(),
            cookie_file: None,
            cluster_policies: PoliciesConfig::DEFAULT.map(str::to_owned).to_vec(),
            heartbeat: Dur::from_millis(500),
            suspect_after: Dur::from_secs(3),
            forget_after: Dur::from_secs(600),
            retry_longest: Dur::from_millis(1500),
            hardware: HardwareConfig::default(),
            tls: ClusterTlsConfig::default(),
        }
    }
}

impl ClusterConfig {
    /// Whether this process talks to others: asked to, or unable to serve alone.
    #[must_use]
    pub fn is_clustered(&self, roles: &RoleSet) -> bool {
        let alone = [Role::Gateway, Role::Controller, Role::Worker].iter().all(|r| roles.contains(*r));
        !alone || self.listen.is_some() || !self.all_seeds().is_empty()
    }

    /// Every address to join through, without its scheme.
    #[must_use]
    pub fn all_seeds(&self) -> Vec<String> {
        let all = self.seeds.iter().chain(&self.controller).chain(&self.gateways);
        all.map(|address| bare(address).to_owned()).collect()
    }

    /// Where to listen, without its scheme.
    #[must_use]
    pub fn listen_address(&self) -> &str {
        self.listen.as_deref().map_or("127.0.0.1:0", bare)
    }

    /// Where others reach this node, given the address that it is bound to.
    #[must_use]
    pub fn advertised(&self, bound: std::net::SocketAddr) -> String {
        let Some(given) = self.advertise.as_deref().map(bare) else { return bound.to_string() };
        with_port(given, bound.port())
    }

    /// Where the worker listens for KV pages, without its scheme.
    #[must_use]
    pub fn kv_listen_address(&self) -> String {
        match self.kv_listen.as_deref().map(bare) {
            Some(given) => given.to_owned(),
            None => format!("{}:0", host(self.listen_address())),
        }
    }

    /// Where others reach the worker for KV pages, given the address that it is bound to.
    #[must_use]
    pub fn kv_advertised(&self, bound: std::net::SocketAddr) -> String {
        match (self.kv_advertise.as_deref().map(bare), self.advertise.as_deref().map(bare)) {
            (Some(given), _) => with_port(given, bound.port()),
            (None, Some(node)) => format!("{}:{}", host(node), bound.port()),
            (None, None) => bound.to_string(),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if let Some(name) = &self.name {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            check(
                (1..=64).contains(&name.len()) && name.bytes().all(plain),
                "cluster.name",
                name,
                "use 1 to 64 letters, digits, `-`, `_` or `.`",
            )?;
        }
        let own = [
            ("cluster.listen", &self.listen),
            ("cluster.advertise", &self.advertise),
            ("cluster.kv-listen", &self.kv_listen),
            ("cluster.kv-advertise", &self.kv_advertise),
        ];
        for (key, address) in own {
            if let Some(address) = address {
                check_address(key, bare(address))?;
            }
        }
        let lists = [("cluster.seeds", &self.seeds), ("cluster.gateways", &self.gateways)];
        let one = self.controller.iter().map(|address| ("cluster.controller", address));
        let seeds =
            lists.iter().flat_map(|(key, list)| list.iter().map(|address| (*key, address))).chain(one);
        for (key, address) in seeds {
            check_address(key, bare(address))?;
            let to_nobody = bare(address).rsplit_once(':').is_some_and(|(_, port)| port.parse() == Ok(0_u16));
            check(!to_nobody, key, address, "a seed needs the port that its node printed, not 0")?;
        }
        if let Some((name, rule)) = PoliciesConfig::wrong_name(&self.cluster_policies) {
            return Err(ConfigError::invalid("cluster.cluster-policies", name, rule));
        }
        check(!self.heartbeat.is_zero(), "cluster.heartbeat", self.heartbeat, "use more than 0s")?;
        let least = std::time::Duration::from(self.heartbeat) * 3;
        check(
            std::time::Duration::from(self.suspect_after) >= least,
            "cluster.suspect-after",
            self.suspect_after,
            "use at least three times cluster.heartbeat",
        )?;
        check(
            std::time::Duration::from(self.forget_after) >= self.suspect_after.into(),
            "cluster.forget-after",
            self.forget_after,
            "use at least cluster.suspect-after",
        )?;
        check(
            !self.retry_longest.is_zero(),
            "cluster.retry-longest",
            self.retry_longest,
            "use more than 0s",
        )?;
        self.hardware.validate()?;
        self.tls.validate()
    }
}

impl ClusterTlsConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        let files =
            [("cluster.tls.ca", &self.ca), ("cluster.tls.cert", &self.cert), ("cluster.tls.key", &self.key)];
        let given = files.iter().filter(|(_, file)| file.is_some()).count();
        if let Some((missing, _)) = files.iter().find(|(_, file)| file.is_none())
            && given > 0
        {
            return Err(ConfigError::invalid(missing, "none", "TLS needs all of ca, cert and key"));
        }
        Ok(())
    }
}

pub(crate) fn bare(address: &str) -> &str {
    address.strip_prefix(SCHEME).unwrap_or(address)
}

/// The host of `HOST:PORT`.
pub(crate) fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// `address`, where port 0 stands for `port`.
pub(crate) fn with_port(address: &str, port: u16) -> String {
    match address.rsplit_once(':') {
        Some((host, "0")) => format!("{host}:{port}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_alone_opens_no_cluster_port_until_it_is_asked_to() {
        let alone = ClusterConfig::default();
        assert!(!alone.is_clustered(&RoleSet::all()));
        assert!(alone.is_clustered(&"worker".parse().unwrap()));
        assert!(!alone.is_clustered(&"gateway,controller,worker".parse().unwrap()));
        for asked in [
            ClusterConfig { listen: Some("127.0.0.1:0".into()), ..alone.clone() },
            ClusterConfig { controller: Some("tcp://a:1".into()), ..alone.clone() },
            ClusterConfig { gateways: vec!["b:2".into()], ..alone },
        ] {
            assert!(asked.is_clustered(&RoleSet::all()));
        }
    }

    #[test]
    fn controller_and_gateways_are_seeds_too() {
        let config = ClusterConfig {
            seeds: vec!["tcp://a:1".into(), "b:2".into()],
            controller: Some("tcp://c:3".into()),
            gateways: vec!["tcp://[::1]:4".into()],
            ..ClusterConfig::default()
        };
        assert_eq!(config.all_seeds(), ["a:1", "b:2", "c:3", "[::1]:4"]);
        config.validate().unwrap();
    }

    #[test]
    fn what_is_advertised_follows_the_bound_port_where_it_says_0() {
        let bound = "10.0.0.1:7946".parse().unwrap();
        let with = |advertise: Option<&str>| {
            ClusterConfig { advertise: advertise.map(Into::into), ..ClusterConfig::default() }
                .advertised(bound)
        };
        assert_eq!(with(None), "10.0.0.1:7946");
        assert_eq!(with(Some("node.example:0")), "node.example:7946");
        assert_eq!(with(Some("tcp://node.example:17")), "node.example:17");
    }

    #[test]
    fn pages_are_taken_where_the_node_listens_and_reached_where_it_is_reached() {
        let bound = "10.0.0.1:4001".parse().unwrap();
        type Case<'a> =
            (Option<&'a str>, Option<&'a str>, Option<&'a str>, Option<&'a str>, &'a str, &'a str);
        let cases: [Case<'_>; 6] = [
            (None, None, None, None, "127.0.0.1:0", "10.0.0.1:4001"),
            (Some("tcp://0.0.0.0:7946"), None, None, None, "0.0.0.0:0", "10.0.0.1:4001"),
            (Some("[::1]:7946"), Some("a.example:7946"), None, None, "[::1]:0", "a.example:4001"),
            (None, None, Some("tcp://kv.example:9"), None, "kv.example:9", "10.0.0.1:4001"),
            (None, Some("a:1"), None, Some("b:0"), "127.0.0.1:0", "b:4001"),
            (None, Some("a:1"), None, Some("tcp://b:7"), "127.0.0.1:0", "b:7"),
        ];
        for (listen, advertise, kv_listen, kv_advertise, listens, reached) in cases {
            let own = |text: Option<&str>| text.map(str::to_owned);
            let config = ClusterConfig {
                listen: own(listen),
                advertise: own(advertise),
                kv_listen: own(kv_listen),
                kv_advertise: own(kv_advertise),
                ..ClusterConfig::default()
            };
            assert_eq!((&*config.kv_listen_address(), &*config.kv_advertised(bound)), (listens, reached));
        }
    }

    #[test]
    fn wrong_values_name_their_key_and_the_rule() {
        type Change = fn(&mut ClusterConfig);
        let cases: [(Change, &str); 13] = [
            (
                |c| c.cluster_policies = vec!["cache_aware".into()],
                "cache-aware, session-affinity, disaggregate",
            ),
            (|c| c.kv_listen = Some("nowhere".into()), "cluster.kv-listen"),
            (|c| c.kv_listen = Some("::1:5".into()), "cluster.kv-listen"),
            (|c| c.kv_advertise = Some("host:70000".into()), "cluster.kv-advertise"),
            (|c| c.hardware.flops = Some(1.0), "cluster.hardware.flops"),
            (|c| c.cluster_policies = vec!["cache-aware".into(), "cache-aware".into()], "each once"),
            (|c| c.name = Some("a b".into()), "cluster.name"),
            (|c| c.seeds = vec!["nowhere".into()], "cluster.seeds"),
            (|c| c.seeds = vec!["host:0".into()], "not 0"),
            (|c| c.listen = Some("tcp://:".into()), "cluster.listen"),
            (|c| c.suspect_after = Dur::from_millis(600), "three times"),
            (|c| c.forget_after = Dur::from_secs(1), "cluster.forget-after"),
            (|c| c.tls.ca = Some("ca.pem".into()), "cluster.tls.cert"),
        ];
        for (change, part) in cases {
            let mut config = ClusterConfig::default();
            change(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
