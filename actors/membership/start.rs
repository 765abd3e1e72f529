//! The way into the cluster: what has to be there before the membership starts, so that a taken port, a cookie that others
//! can read or a missing certificate is known in the first second.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::cookie::{Cookie, CookieSource};
use cluster::link::{HANDSHAKE_TIMEOUT, Links, LinksConfig, Listener};
use cluster::port::{Door, Port};
use cluster::tls::Tls;
use config::{ClusterConfig, ClusterSecrets, ClusterTlsConfig, Config, Role, RoleSet};
use policies::membership::MembershipConfig;
use policies::rng;
use ractor::{ActorCell, ActorProcessingErr};
use tracing::{info, warn};

use super::MembershipMsg;
use super::gate::{Doorkeeper, Hello};
use crate::doors::{self, Doors};
use crate::kv::KvEntry;

/// Wait after the first failure to reach a node.
const DIAL_FIRST: Duration = Duration::from_millis(100);

/// A bound port, and what opens it to the right nodes only.
#[derive(Debug)]
pub struct Entry {
    listener: Listener,
    cookie: Cookie,
    tls: Option<Tls>,
    roles: RoleSet,
}

/// Binds the cluster's port and reads cookie and certificates; nothing for a node alone.
///
/// # Errors
/// What is wrong with the address, the cookie or the certificates.
pub async fn prepare(config: &Config, secrets: &ClusterSecrets) -> Result<Option<Entry>> {
    let cluster = &config.cluster;
    if !cluster.is_clustered(&config.node.roles) {
        return Ok(None);
    }
    let listener = Listener::bind(cluster.listen_address()).await.context("cluster.listen")?;
    let ip = listener.local_addr().ip();
    if ip.is_unspecified() && cluster.advertise.is_none() {
        bail!(
            "cluster.listen = \"{}\" listens on every address and says none that others could dial; name one with \
             --advertise HOST:0 (port 0 stands for the one listened on)",
            cluster.listen_address()
        );
    }
    let loopback = ip.is_loopback();
    let (cookie, source) = Cookie::load(
        cluster.cookie_file.as_deref(),
        secrets.cookie.as_deref(),
        secrets.config_dir.as_deref(),
        loopback,
    )
    .context("the cluster's cookie")?;
    match source {
        CookieSource::Made(path) => info!(path = %path.display(), "made a cookie for the cluster"),
        other => info!(from = ?other, "cookie of the cluster"),
    }
    let tls = tls(&cluster.tls)?;
    if !loopback && tls.is_none() {
        warn!("links to other nodes are not encrypted; set cluster.tls where the network is not your own");
    }
    Ok(Some(Entry { listener, cookie, tls, roles: config.node.roles.clone() }))
}

fn tls(config: &ClusterTlsConfig) -> Result<Option<Tls>> {
    match (&config.ca, &config.cert, &config.key) {
        (None, None, None) => Ok(None),
        (Some(ca), Some(cert), Some(key)) => {
            Ok(Some(Tls::load(ca, cert, key, config.server_name.as_deref()).context("cluster.tls")?))
        }
        _ => bail!("cluster.tls needs all of ca, cert and key"),
    }
}

impl Entry {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The worker's KV port, behind the same cookie and certificates.
    ///
    /// # Errors
    /// What is wrong with `cluster.kv-listen`.
    pub async fn kv(&self, config: &Config) -> Result<KvEntry> {
        KvEntry::prepare(config, self.cookie.clone(), self.tls.clone()).await
    }

    /// The pool's KV port, `beside` that of a worker of this node or in its place.
    ///
    /// # Errors
    /// As [`Entry::kv`].
    pub async fn pool_kv(&self, config: &Config, beside: bool) -> Result<KvEntry> {
        let (cookie, tls) = (self.cookie.clone(), self.tls.clone());
        KvEntry::prepare_pool(config, beside, cookie, tls).await
    }

    /// The same again after the membership has died with it.
    ///
    /// # Errors
    /// The port cannot be bound again.
    pub async fn reopen(
        config: &Config,
        secrets: &ClusterSecrets,
        address: SocketAddr,
    ) -> Result<Option<Self>> {
        let mut config = config.clone();
        config.cluster.listen = Some(address.to_string());
        prepare(&config, secrets).await
    }

    /// Opens this node's doors and starts to accept and dial.
    pub(super) async fn open(
        self,
        doors: &Doors,
        hello: &Hello,
        supervisor: ActorCell,
    ) -> Result<Links, ActorProcessingErr> {
        let mut ports = Vec::new();
        for door in Door::ALL {
            let role = match door {
                Door::Node => None,
                Door::Gateway => Some(Role::Gateway),
                Door::Controller => Some(Role::Controller),
                Door::Worker => Some(Role::Worker),
                Door::Pool => Some(Role::Pool),
            };
            if role.is_none_or(|role| self.roles.contains(role)) {
                ports.push(Port::open(door, doors::handler(door, doors), supervisor.clone()).await?);
            }
        }
        let told = doors.clone();
        let links = LinksConfig {
            listener: self.listener,
            cookie: self.cookie,
            tls: self.tls,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            gate: std::sync::Arc::new(Doorkeeper { doors: doors.clone(), hello: hello.clone() }),
            ports,
            events: std::sync::Arc::new(move |event| {
                // A membership that is restarting begins with no links.
                told.to_membership(MembershipMsg::Link(event));
            }),
        };
        Ok(Links::start(links, supervisor).await?)
    }
}

pub(super) fn core_config(cluster: &ClusterConfig) -> MembershipConfig {
    let span = |dur: config::Dur| Duration::from(dur).into();
    MembershipConfig {
        heartbeat: span(cluster.heartbeat),
        suspect_after: span(cluster.suspect_after),
        forget_after: span(cluster.forget_after),
        dial_first: DIAL_FIRST.into(),
        dial_longest: span(cluster.retry_longest),
        seed: rng::mix64(cluster::identity::next_incarnation()),
    }
}
