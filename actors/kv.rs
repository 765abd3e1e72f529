//! The node's door for KV pages: the links to other workers and to pools, and who gets what comes over them.
//!
//! A link is made when the first transfer to a worker needs it, and kept. What comes over it goes to the page set of its
//! transfer ([`crate::worker::pages`]); a question makes a page set of its own. The actor owns the links and restarts with
//! the worker, or the pool, that it is of; the page sets are told when a link ends. A node that is both has two.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use cluster::cookie::Cookie;
use cluster::kv::{self, KvEvent, KvListener, KvPeer, KvTerms, TcpLink, WireLayout};
use cluster::tls::Tls;
use config::Config;
use config::ids::WorkerId;
use policies::kv::PageLayout;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef};
use ractor_cluster::RactorMessage;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::supervise::{TaskKind, spawn};
use crate::worker::pages::{PageSetMsg, Provider};

pub mod lane;

pub use lane::{Asked, Lane, Seat};

/// Links that have proven themselves and wait to be taken in.
const ACCEPTED: usize = 16;

/// The KV port of a worker or a pool, bound before its model is loaded, and what opens it.
#[derive(Debug)]
pub struct KvEntry {
    bound: SocketAddr,
    address: String,
    cookie: Cookie,
    tls: Option<Tls>,
    /// Used up by the first start.
    listener: Mutex<Option<KvListener>>,
}

impl KvEntry {
    /// Binds `cluster.kv-listen`.
    ///
    /// # Errors
    /// The address is taken, or not of this machine.
    pub async fn prepare(config: &Config, cookie: Cookie, tls: Option<Tls>) -> Result<Self> {
        let listen = config.cluster.kv_listen_address();
        let advertised = |bound| config.cluster.kv_advertised(bound);
        Self::bind("cluster.kv-listen", &listen, advertised, cookie, tls).await
    }

    /// The same for a pool, which has a port of its own where it is `beside` a worker.
    ///
    /// # Errors
    /// As [`KvEntry::prepare`].
    pub async fn prepare_pool(
        config: &Config,
        beside: bool,
        cookie: Cookie,
        tls: Option<Tls>,
    ) -> Result<Self> {
        let (pool, cluster) = (&config.pool, &config.cluster);
        let key = if pool.listen.is_some() { "pool.listen" } else { "cluster.kv-listen" };
        let listen = pool.listen_address(cluster, beside);
        Self::bind(key, &listen, |bound| pool.advertised(cluster, beside, bound), cookie, tls).await
    }

    async fn bind(
        key: &'static str,
        listen: &str,
        advertised: impl FnOnce(SocketAddr) -> String,
        cookie: Cookie,
        tls: Option<Tls>,
    ) -> Result<Self> {
        let listener = KvListener::bind(listen).await.context(key)?;
        let bound = listener.local_addr();
        let address = advertised(bound);
        Ok(Self { bound, address, cookie, tls, listener: Mutex::new(Some(listener)) })
    }

    /// Where others reach it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    async fn listener(&self) -> Result<KvListener, ActorProcessingErr> {
        let first = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        match first {
            Some(listener) => Ok(listener),
            None => Ok(KvListener::bind(&self.bound.to_string()).await?),
        }
    }
}

/// The actor.
#[derive(Debug)]
pub struct KvPort;

/// What it is started with.
#[derive(Debug)]
pub struct KvPortArgs {
    /// The bound port.
    pub entry: std::sync::Arc<KvEntry>,
    /// The worker, or the pool, whose pages travel.
    pub worker: WorkerId,
    /// Which pages those are.
    pub exchanged: Exchanged,
}

/// Pages that travel over links of one port.
#[derive(Clone, Copy, Debug)]
pub enum Exchanged {
    /// A worker's.
    One {
        /// Their shape.
        layout: PageLayout,
        /// Buffers for pages that have come and are not in the engine yet.
        pages: usize,
    },
    /// A pool's: of any shape.
    Any {
        /// Pages of a shape that have come may take so many bytes, those that are kept included.
        bytes: usize,
    },
}

/// What the port takes.
#[derive(Debug, RactorMessage)]
pub enum KvPortMsg {
    /// Who answers the questions of others from now on; none while there is no engine.
    Serve(Option<Provider>),
    /// A page set needs a link to the worker at an address.
    Open {
        /// Where.
        to: String,
        /// The shape of the pages on it.
        layout: PageLayout,
        /// The transfer that what comes back is of.
        transfer: u64,
        /// Who is told of the link, and gets what comes.
        set: ActorRef<PageSetMsg>,
    },
    /// A link is there that this worker asked for, or not.
    Dialled {
        /// Where to, for pages of which shape.
        to: To,
        /// What came of it.
        result: Result<Box<TcpLink>, String>,
    },
    /// Another worker has opened a link.
    Accepted(KvEvent),
    /// Another worker asks for pages.
    Asked(Box<Asked>),
    /// A link has ended.
    Ended {
        /// Which.
        link: u64,
        /// Why.
        why: String,
    },
    /// How many transfers have a place on a link?
    #[cfg(test)]
    Seats(ractor::RpcReplyPort<usize>),
}

/// Where a link goes, and the shape of the pages on it.
type To = (String, WireLayout);

/// Page sets that wait for a link.
type Waiting = Vec<(u64, ActorRef<PageSetMsg>)>;

/// The port's mutable state.
#[derive(Debug)]
pub struct KvPortState {
    terms: KvTerms,
    provider: Option<Provider>,
    /// Links that this end has opened.
    links: BTreeMap<To, Lane>,
    /// Those that others have opened.
    guests: BTreeMap<u64, Lane>,
    dialling: BTreeMap<To, Waiting>,
    last_link: u64,
    /// The accept loop and the dials; they end with the port.
    tasks: JoinSet<()>,
}

impl Actor for KvPort {
    type Msg = KvPortMsg;
    type State = KvPortState;
    type Arguments = KvPortArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<KvPortMsg>,
        args: KvPortArgs,
    ) -> Result<KvPortState, ActorProcessingErr> {
        let KvPortArgs { entry, worker, exchanged } = args;
        let me = KvPeer { worker, address: entry.address.clone() };
        let (cookie, tls) = (&entry.cookie, entry.tls.clone());
        let terms = match exchanged {
            Exchanged::One { layout, pages } => KvTerms::new(me, cookie, tls, layout, pages),
            Exchanged::Any { bytes } => KvTerms::of_pool(me, cookie, tls, bytes),
        };
        let listener = entry.listener().await?;
        let (events, mut accepted) = mpsc::channel(ACCEPTED);
        let mut tasks = JoinSet::new();
        tasks.spawn(listener.run(terms.clone(), events));
        tasks.spawn(async move {
            while let Some(event) = accepted.recv().await {
                if myself.cast(KvPortMsg::Accepted(event)).is_err() {
                    return;
                }
            }
        });
        let (links, guests, dialling) = Default::default();
        Ok(KvPortState { terms, provider: None, links, guests, dialling, last_link: 0, tasks })
    }

    async fn handle(
        &self,
        myself: ActorRef<KvPortMsg>,
        message: KvPortMsg,
        state: &mut KvPortState,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        match message {
            KvPortMsg::Serve(provider) => state.provider = provider,
            KvPortMsg::Open { to, layout, transfer, set } => {
                state.open(&myself, to, layout, (transfer, set));
            }
            KvPortMsg::Dialled { to, result } => state.dialled(&myself, to, result),
            KvPortMsg::Accepted(event) => state.accepted(&myself, event),
            KvPortMsg::Asked(asked) => match &state.provider {
                Some(provider) => provider.asked(*asked).await,
                None => asked.refuse(kv::RefusalCode::Unavailable, "its engine is not ready").await,
            },
            KvPortMsg::Ended { link, why } => {
                debug!(link, why, "a KV link has ended");
                state.links.retain(|_, lane| lane.id() != link);
                state.guests.remove(&link);
            }
            #[cfg(test)]
            KvPortMsg::Seats(reply) => {
                let _ = reply.send(state.links.values().chain(state.guests.values()).map(Lane::seats).sum());
            }
        }
        Ok(())
    }
}

/// However the port ends: nobody is left to take what comes over its links.
impl Drop for KvPortState {
    fn drop(&mut self) {
        for lane in self.links.values().chain(self.guests.values()) {
            lane.close("its KV port has stopped");
        }
    }
}

impl KvPortState {
    fn open(
        &mut self,
        myself: &ActorRef<KvPortMsg>,
        address: String,
        layout: PageLayout,
        (transfer, set): (u64, ActorRef<PageSetMsg>),
    ) {
        let to: To = (address, layout.into());
        if let Some(seat) = self.links.get(&to).and_then(|lane| lane.join(transfer, &set)) {
            // A page set that has ended needs no link.
            let _ = set.cast(PageSetMsg::Linked(Ok(seat)));
            return;
        }
        self.links.remove(&to);
        let waiting = self.dialling.entry(to.clone()).or_default();
        waiting.push((transfer, set));
        if waiting.len() == 1 {
            let (terms, port) = (self.terms.with_layout(layout), myself.clone());
            self.tasks.spawn(async move {
                let result = match terms {
                    Ok(terms) => kv::dial(&to.0, &terms, None).await.map(Box::new).map_err(|e| e.to_string()),
                    Err(e) => Err(e.to_string()),
                };
                // The port may have stopped.
                let _ = port.cast(KvPortMsg::Dialled { to, result });
            });
        }
    }

    fn dialled(&mut self, myself: &ActorRef<KvPortMsg>, to: To, result: Result<Box<TcpLink>, String>) {
        let waiting = self.dialling.remove(&to).unwrap_or_default();
        let lane = match result {
            Ok(link) => self.take_in(myself, link),
            Err(e) => {
                warn!(address = to.0, error = e, "no KV link");
                for (_, set) in waiting {
                    // A page set that has ended does not care.
                    let _ = set.cast(PageSetMsg::Linked(Err(e.clone())));
                }
                return;
            }
        };
        info!(address = to.0, peer = %lane.peer().worker, "KV link");
        for (transfer, set) in waiting {
            let seat = lane.join(transfer, &set).ok_or_else(|| "the link has ended".to_owned());
            // As above.
            let _ = set.cast(PageSetMsg::Linked(seat));
        }
        self.links.insert(to, lane);
    }

    fn accepted(&mut self, myself: &ActorRef<KvPortMsg>, event: KvEvent) {
        match event {
            KvEvent::Link(link) => {
                let lane = self.take_in(myself, link);
                info!(peer = %lane.peer().worker, "a KV link was opened to this node");
                self.guests.insert(lane.id(), lane);
            }
            KvEvent::Refused { peer, name, refusal, by_peer } => {
                let node = name.map(|name| name.to_string()).unwrap_or_default();
                warn!(peer, node, reason = %refusal, by_peer, "no KV link");
                metrics::counter!(crate::metrics::REFUSED_NODES, "reason" => refusal.as_str()).increment(1);
            }
        }
    }

    fn take_in(&mut self, myself: &ActorRef<KvPortMsg>, link: Box<TcpLink>) -> Lane {
        self.last_link += 1;
        let port = myself.clone();
        let (lane, sending, receiving) = Lane::over(self.last_link, link, port);
        spawn(TaskKind::Role, "kv-send", sending);
        spawn(TaskKind::Role, "kv-receive", receiving);
        lane
    }
}

/// Starts the port under the worker, or the pool.
///
/// # Errors
/// The port cannot be bound again.
pub async fn start(args: KvPortArgs, supervisor: ActorCell) -> Result<ActorRef<KvPortMsg>, ractor::SpawnErr> {
    Ok(Actor::spawn_linked(None, KvPort, args, supervisor).await?.0)
}

#[cfg(test)]
mod tests;
