//! The port that other workers open KV links to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use config::ids::NodeId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tracing::debug;

use super::proof::KvTerms;
use super::tcp::TcpLink;
use crate::handshake::{self, Failed, Refusal};
use crate::link::{MAX_HANDSHAKES, each, host_and_port, secure};

/// The port, bound before anything is loaded.
#[derive(Debug)]
pub struct KvListener {
    inner: TcpListener,
    address: SocketAddr,
}

/// The port cannot be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen for KV links on `{address}`: {why}; choose another address with `cluster.kv-listen`, or `pool.listen` of a pool (port 0 takes a free one)"
)]
pub struct KvListenError {
    address: String,
    why: std::io::Error,
}

/// What became of a connection to the port.
#[derive(Debug)]
pub enum KvEvent {
    /// It is a link: the other end has proven itself, and so has this one.
    Link(Box<TcpLink>),
    /// It was turned away, or turned us away when it had heard who we are.
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

impl KvListener {
    /// Binds `address`, `HOST:PORT` with or without `tcp://` in front.
    ///
    /// # Errors
    /// The address is taken, not of this machine, or no address.
    pub async fn bind(address: &str) -> Result<Self, KvListenError> {
        let failed = |why| KvListenError { address: address.to_owned(), why };
        let inner = TcpListener::bind(host_and_port(address)).await.map_err(failed)?;
        let address = inner.local_addr().map_err(failed)?;
        Ok(Self { inner, address })
    }

    /// Where it listens; the real port where 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until it is dropped, or until nobody hears the `events` any more. Up to [`MAX_HANDSHAKES`] connections prove
    /// themselves at once, each in a task of its own and within the terms' time; of those without a proof the oldest makes
    /// room for the next. A silent or broken connection is only logged.
    pub async fn run(self, terms: KvTerms, events: mpsc::Sender<KvEvent>) {
        let welcome = |tcp, peer: String, proven| welcome(tcp, peer, terms.clone(), events.clone(), proven);
        let turn_away = |tcp: &TcpStream, peer| {
            let refusal = Refusal::Busy(format!("{MAX_HANDSHAKES} workers are opening KV links"));
            if terms.tls().is_none() {
                // It fits into the socket's buffer, or the peer tries again without having heard why.
                let _ = tcp.try_write(&handshake::refusal_bytes(refusal.clone()));
            }
            // Where the events are not taken, nobody misses one of these.
            let _ = events.try_send(KvEvent::Refused { peer, name: None, refusal, by_peer: false });
        };
        tokio::select! {
            () = each(&self.inner, welcome, turn_away) => {}
            () = events.closed() => {}
        }
    }
}

async fn welcome(
    tcp: TcpStream,
    peer: String,
    terms: KvTerms,
    events: mpsc::Sender<KvEvent>,
    proven: Arc<AtomicBool>,
) {
    let mut budget = terms.budget();
    let done = async {
        let stream = secure(tcp, terms.tls(), &mut budget).await?;
        terms.accept(stream, &mut budget, &proven).await
    };
    let event = match done.await {
        Ok(link) => KvEvent::Link(Box::new(link)),
        Err(Failed::Refused { refusal, by_peer, name }) => KvEvent::Refused { peer, name, refusal, by_peer },
        Err(Failed::Silent) => {
            debug!(peer, "a connection to the KV port was silent for too long");
            return;
        }
        Err(Failed::Broken(why)) => {
            debug!(peer, why, "a connection to the KV port broke before it was a link");
            return;
        }
    };
    let _ = events.send(event).await;
}
