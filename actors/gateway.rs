//! The gateway role: clients over HTTP, one session actor a request.
//!
//! Supervision: the caller's supervisor → [`Gateway`] root → door → sessions. The door is restarted with a backoff when
//! it fails; its sessions die with it, and whatever they held at workers and at the controller is given back. A session
//! that fails ends alone: its client gets an error, its work is cancelled, its booking released.

mod assemble;
pub mod auth;
mod collect;
mod door;
pub(crate) mod error;
mod fetch;
pub(crate) mod http;
mod models;
mod openai;
pub mod record;
mod session;
mod sessions;
mod stages;
mod stream;
mod tokenize;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use config::ids::{NodeId, RequestIds};
use config::{GatewayConfig, HttpConfig};
use policies::session::Failure;
use ractor::{Actor, ActorCell, ActorRef, SpawnErr};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::admin::Control;
use crate::doors::{Doors, GatewayMsg};
use crate::supervise::{TaskKind, spawn};

use self::auth::Keys;
use self::door::{Root, RootArgs};
use self::models::Models;
use self::record::Recorder;
use self::sessions::Sessions;
use self::stages::Recent;

/// How long to wait for what should end by itself: a response that is being written, an actor that stops.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Writes the node's figures in Prometheus' text format, for `/metrics`.
pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// Says why the node cannot serve although models are ready (an engine that hangs, say); `None` when it can. Asked at
/// each health check, so it has to answer at once.
pub type Trouble = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What a gateway is made of. The listener is bound by the caller, before anything slow is started.
pub struct GatewayArgs {
    /// This node; workers and the controller answer to it.
    pub node: NodeId,
    /// Differs between gateway processes and between restarts of one; request ids begin with it.
    pub incarnation: u64,
    /// The node's doors; the gateway adds its own.
    pub doors: Doors,
    /// `[http]`.
    pub http: HttpConfig,
    /// `[gateway]`.
    pub gateway: GatewayConfig,
    /// Where clients connect.
    pub listener: TcpListener,
    /// For the routes that every node has.
    pub control: Control,
    /// For `/metrics`.
    pub metrics: RenderMetrics,
    /// For `/readiness` and `/health`.
    pub trouble: Trouble,
    /// Whose requests are taken.
    pub keys: Keys,
    /// The log of requests, where there is one.
    pub recorder: Option<Arc<Recorder>>,
}

impl fmt::Debug for GatewayArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayArgs")
            .field("node", &self.node)
            .field("http", &self.http)
            .field("gateway", &self.gateway)
            .finish_non_exhaustive()
    }
}

/// A gateway that runs.
#[derive(Debug)]
pub struct Gateway {
    root: ActorRef<door::RootMsg>,
    shared: Arc<Shared>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    server: JoinHandle<()>,
}

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// An actor did not start.
    #[error("the gateway's actors did not start: {0}")]
    Spawn(#[from] SpawnErr),
    /// The listener has no address.
    #[error("http.listen: {0}")]
    Listener(#[from] std::io::Error),
}

/// What the door, the sessions and the HTTP handlers of one gateway share.
pub(crate) struct Shared {
    pub(crate) node: NodeId,
    pub(crate) control: Control,
    pub(crate) doors: Doors,
    pub(crate) http: HttpConfig,
    limits: RwLock<Arc<GatewayConfig>>,
    keys: RwLock<Arc<Keys>>,
    pub(crate) ids: RequestIds,
    pub(crate) models: Models,
    pub(crate) sessions: Sessions,
    pub(crate) recent: Recent,
    pub(crate) draining: AtomicBool,
    /// HTTP generation requests in work.
    pub(crate) in_work: Arc<Semaphore>,
    /// Long texts being tokenized at once: as many as there are cores.
    pub(crate) tokenizing: Semaphore,
    pub(crate) started: u64,
    pub(crate) metrics: RenderMetrics,
    pub(crate) trouble: Trouble,
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// The door that lives; none while it is being restarted.
    door: RwLock<Option<ActorRef<GatewayMsg>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("node", &self.node)
            .field("sessions", &self.sessions)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// `[gateway]` as it counts now.
    pub(crate) fn limits(&self) -> Arc<GatewayConfig> {
        self.limits.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `[gateway]` from now on; requests under way keep what they began with.
    pub(crate) fn set_limits(&self, limits: GatewayConfig) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }

    /// The API keys as they count now.
    pub(crate) fn keys(&self) -> Arc<Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The API keys from now on; requests under way go on.
    pub(crate) fn set_keys(&self, keys: Arc<Keys>) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The door, under which sessions are started.
    pub(crate) fn door(&self) -> Option<ActorRef<GatewayMsg>> {
        self.door.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_door(&self, door: &ActorRef<GatewayMsg>) {
        *self.door.write().unwrap_or_else(PoisonError::into_inner) = Some(door.clone());
    }
}

impl Gateway {
    /// Starts the actors, makes the door reachable in `doors` and serves HTTP.
    ///
    /// # Errors
    /// When an actor cannot be spawned or the listener is not bound.
    pub async fn start(args: GatewayArgs, supervisor: Option<ActorCell>) -> Result<Self, GatewayError> {
        let address = args.listener.local_addr()?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shared = Arc::new(Shared {
            node: args.node,
            control: args.control,
            in_work: Arc::new(Semaphore::new(args.http.max_concurrent_requests.min(Semaphore::MAX_PERMITS))),
            http: args.http,
            limits: RwLock::new(Arc::new(args.gateway)),
            keys: RwLock::new(Arc::new(args.keys)),
            ids: RequestIds::new(args.incarnation),
            models: Models::default(),
            sessions: Sessions::new(args.doors.clone()),
            recent: Recent::default(),
            draining: AtomicBool::new(false),
            tokenizing: Semaphore::new(cores),
            started: error::unix_seconds(),
            metrics: args.metrics,
            trouble: args.trouble,
            recorder: args.recorder,
            door: RwLock::default(),
            doors: args.doors,
        });
        let root_args = RootArgs { shared: Arc::clone(&shared) };
        let (root, _) = match supervisor {
            Some(cell) => Actor::spawn_linked(None, Root, root_args, cell).await?,
            None => Actor::spawn(None, Root, root_args).await?,
        };
        let (stop, stopped) = watch::channel(false);
        let server = spawn(TaskKind::Node, "http", http::serve(Arc::clone(&shared), args.listener, stopped));
        Ok(Self { root, shared, address, stop, server })
    }

    /// The root actor, as its supervisor sees it.
    #[must_use]
    pub fn cell(&self) -> ActorCell {
        self.root.get_cell()
    }

    /// The address that the listener is bound to.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no new requests from now on (`/readiness` turns 503); those under way go on.
    pub fn drain(&self) {
        self.shared.doors.to_own_gateways(|| GatewayMsg::Drain);
        // Also without the door's help, should it be restarting just now.
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    /// Requests under way.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.shared.sessions.len()
    }

    /// Ends every request under way with an error for its client, as the drain limit asks.
    pub fn abort_sessions(&self, why: &str) {
        self.shared.sessions.abort_all(&Failure::Unavailable(why.to_owned()));
    }

    /// Stops accepting connections, waits until the last response is written, then stops the actors. Connections that
    /// are still open some seconds after the last request has ended are given up.
    pub async fn stop(mut self) {
        self.drain();
        // The server task holds a receiver until it has ended; then there is nobody left to tell.
        let _ = self.stop.send(true);
        while tokio::time::timeout(STOP_GRACE, &mut self.server).await.is_err() {
            if self.sessions() == 0 {
                tracing::warn!("connections were still open when the gateway stopped");
                self.server.abort();
                break;
            }
        }
        // Stopping an actor that has stopped is fine.
        let _ = self.root.stop_and_wait(None, Some(STOP_GRACE)).await;
    }
}

#[cfg(test)]
mod tests;
