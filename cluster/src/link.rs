//! Links: the connections between nodes that carry control.
//!
//! ```text
//! Links (the keeper; under the node's supervisor)
//! ├─ accept loop, one task a handshake           see [`crate::handshake`]
//! └─ NodeServer (ractor_cluster)
//!    └─ NodeSession × peers ─ stand-ins of the peer's doors
//! ```
//!
//! This module dials and accepts, secures a connection where TLS is configured, runs our handshake on it, and only then
//! hands it to ractor_cluster, whose sessions carry the messages of doors ([`crate::port`]). ractor authenticates once
//! more by itself, with a key derived from the cookie. Of two connections that both ends made at once the keepers keep
//! the same one, before a message goes over either: nobody is taken for lost who is there, and nothing is lost.
//!
//! ractor's NodeServer insists on a listener of its own, that would let anybody in who passes its authentication alone. It
//! gets one that completes no connection: on a free loopback port, with a TLS that has no certificate.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use config::ids::NodeId;
use policies::membership::{DialError, LinkId, Member};
use ractor::{Actor, ActorCell, ActorRef, SpawnErr};
use tokio::net::TcpListener;

use crate::cookie::Cookie;
use crate::handshake::{Gate, HANDSHAKE_KEY, JUDGE_LIMIT, Refusal, Terms};
use crate::port::{PeerDoors, Port};
use crate::tls::{Tls, TlsError};
use crate::wire::version::SUPPORTED;

mod accept;
mod aside;
mod dial;
mod keeper;
mod stream;

pub(crate) use accept::{each, secure};
pub(crate) use dial::{host_and_port, reach};
use keeper::{Keeper, KeeperArgs, LinksMsg};
pub(crate) use stream::Stream;

#[cfg(test)]
mod tests;

/// Time for a handshake's frames, TLS included, unless configured otherwise.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// Handshakes with nodes that dial us, at once.
pub const MAX_HANDSHAKES: usize = 64;

/// The port that other nodes dial, bound before anything is loaded.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    address: SocketAddr,
}

/// The cluster's port cannot be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen for nodes on `{address}`: {why}; choose another address with `--listen HOST:PORT` (port 0 takes a free one)"
)]
pub struct ListenError {
    address: String,
    why: std::io::Error,
}

impl Listener {
    /// Binds `address`, `HOST:PORT` with or without `tcp://` in front.
    ///
    /// # Errors
    /// The address is taken, not of this machine, or no address.
    pub async fn bind(address: &str) -> Result<Self, ListenError> {
        let failed = |why| ListenError { address: address.to_owned(), why };
        let inner = TcpListener::bind(dial::host_and_port(address)).await.map_err(failed)?;
        let address = inner.local_addr().map_err(failed)?;
        Ok(Self { inner, address })
    }

    /// Where it listens; the real port where 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

/// What became of the node's connections. Sent one after the other, in an actor: the receiver must not block.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// A connection carries messages.
    Up {
        /// Its number here.
        link: LinkId,
        /// Its number at the other end: what a peer says came over a link of its own can be told apart by it.
        their_link: LinkId,
        /// Who is at the other end.
        member: Member,
        /// Tokens of the peer's KV pages.
        page_tokens: Option<u32>,
        /// The address dialled, where this end did.
        outbound: Option<String>,
        /// Where to send.
        doors: PeerDoors,
    },
    /// The peer opened or closed doors.
    Doors {
        /// Over which link.
        link: LinkId,
        /// All that it has now.
        doors: PeerDoors,
    },
    /// A connection that was up is gone; sent once.
    Down {
        /// Which.
        link: LinkId,
        /// For the log.
        why: String,
    },
    /// A dial ended without a connection; each [`Links::dial`] ends with this or [`LinkEvent::Up`].
    DialFailed {
        /// The address dialled.
        address: String,
        /// Why.
        error: DialError,
    },
    /// A node that dialled us was turned away, or turned us away when it had heard who we are.
    Refused {
        /// Its socket's address.
        peer: String,
        /// The name that it gave; proven unless the refusal is about the cookie, the version or the protocol.
        name: Option<NodeId>,
        /// Why.
        refusal: Refusal,
        /// The other end refused.
        by_peer: bool,
    },
}

/// Who gets the events.
pub type Events = Arc<dyn Fn(LinkEvent) + Send + Sync>;

/// What [`Links::start`] needs.
pub struct LinksConfig {
    /// The bound port.
    pub listener: Listener,
    /// The cluster's secret.
    pub cookie: Cookie,
    /// TLS, where configured; then for every link.
    pub tls: Option<Tls>,
    /// Time for a handshake's frames.
    pub handshake_timeout: Duration,
    /// Who decides on peers.
    pub gate: Arc<dyn Gate>,
    /// The doors of this node, which have to be open before the first peer comes.
    pub ports: Vec<Port>,
    /// Who gets the events.
    pub events: Events,
}

impl fmt::Debug for LinksConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinksConfig")
            .field("listener", &self.listener)
            .field("tls", &self.tls)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

/// The links cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum LinksError {
    /// ractor's parts do not start.
    #[error("links between nodes do not start: {0}")]
    Spawn(#[from] SpawnErr),
    /// No TLS to refuse connections with.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The system has no random numbers.
    #[error("no random numbers for the name of this process: {0}")]
    Random(String),
}

/// A handle on the node's links.
#[derive(Clone, Debug)]
pub struct Links {
    keeper: ActorRef<LinksMsg>,
    address: SocketAddr,
}

impl Links {
    /// Starts accepting and dialling, under `supervisor`. At most once in a process at a time: ractor's registries are
    /// the process's.
    ///
    /// If ractor's server dies, every link goes [`LinkEvent::Down`] and the keeper fails; the supervisor is told.
    ///
    /// # Errors
    /// An actor does not start.
    pub async fn start(config: LinksConfig, supervisor: ActorCell) -> Result<Self, LinksError> {
        let address = config.listener.local_addr();
        let terms = Terms {
            key: config.cookie.key(HANDSHAKE_KEY),
            versions: SUPPORTED,
            gate: config.gate.clone(),
            judge_limit: JUDGE_LIMIT,
        };
        let args = KeeperArgs::new(config, terms)?;
        let (keeper, _) = Actor::spawn_linked(None, Keeper, args, supervisor).await?;
        Ok(Self { keeper, address })
    }

    /// Where this node listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Dials `address`, `HOST:PORT` with or without `tcp://` in front; the name is looked up each time. The outcome is one
    /// [`LinkEvent::Up`] or [`LinkEvent::DialFailed`] with this very text, unless the links are stopped before.
    pub fn dial(&self, address: impl Into<String>) {
        let _ = self.keeper.send_message(LinksMsg::Dial(address.into()));
    }

    /// Ends a link; its [`LinkEvent::Down`] says `why`. Its socket is closed whatever the peer does.
    pub fn close(&self, link: LinkId, why: impl Into<String>) {
        let _ = self.keeper.send_message(LinksMsg::Close(link, why.into()));
    }

    /// Ends all links and stops listening. Returns when the keeper has stopped, or after `limit`.
    pub async fn stop(&self, limit: Duration) {
        let _ = self.keeper.stop_and_wait(None, Some(limit)).await;
    }
}
