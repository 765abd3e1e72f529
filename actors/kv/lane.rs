//! A link to another worker as page sets see it: a queue to send by, and a place where to be found.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::kv::{Closer, Inbound, Kind, KvHeader, KvLink, KvPeer, KvQueue, KvRecv, Outbound, RefusalCode};
use ractor::{ActorId, ActorRef};
use tracing::{debug, warn};

use super::KvPortMsg;
use crate::supervise::{TaskKind, spawn};
use crate::worker::pages::PageSetMsg;

/// Messages that wait before the link, beside the one that is being sent: the next one has to be there when that is done,
/// and nothing is gained by more.
const DEPTH: usize = 1;

/// Messages that wait for a page set that is being started, at most: its transfer may be called off by then, and little else is
/// said before there is an answer.
const EARLY: usize = 4;

/// Who gets what comes over a link, by transfer; none once it has ended.
type Routes = Arc<Mutex<Option<BTreeMap<u64, Route>>>>;

/// Where the messages of a transfer go.
#[derive(Debug)]
enum Route {
    Set(ActorRef<PageSetMsg>),
    /// To a page set that is being started for a question; what has come for it meanwhile.
    Asked(Vec<Inbound>),
}

/// A link. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Lane {
    id: u64,
    peer: KvPeer,
    queue: KvQueue,
    closer: Closer,
    routes: Routes,
}

/// A question of another worker.
#[derive(Debug)]
pub struct Asked {
    /// The link that it came over.
    pub lane: Lane,
    /// The question.
    pub ask: Inbound,
}

/// Where there is no page set by then, none comes.
impl Drop for Asked {
    fn drop(&mut self) {
        let transfer = self.ask.header().transfer().0;
        if let Some(routes) = self.lane.routes().as_mut()
            && matches!(routes.get(&transfer), Some(Route::Asked(_)))
        {
            routes.remove(&transfer);
        }
    }
}

impl Asked {
    /// Says no.
    pub async fn refuse(&self, code: RefusalCode, why: &str) {
        let (transfer, generation) = self.ask.header().transfer();
        let why = why.to_owned();
        self.lane.send(KvHeader::Refused { transfer, generation, code, why }.into()).await;
    }
}

impl Lane {
    /// The link number `id`, and the work of sending and receiving; questions go to `port`, which hears of the end too.
    pub(super) fn over(
        id: u64,
        link: Box<dyn KvLink>,
        port: ActorRef<KvPortMsg>,
    ) -> (Self, impl Future<Output = ()> + Send, impl Future<Output = ()> + Send) {
        let (peer, closer) = (link.peer().clone(), link.closer());
        let (send, recv) = link.split();
        let worker = peer.worker.clone();
        let (queue, sending) = KvQueue::before(send, DEPTH, move |error| {
            warn!(%worker, %error, "a KV message cannot be sent");
        });
        let routes = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let lane = Self { id, peer, queue, closer, routes };
        let sending = async move {
            // Why it ended is the closer's to say.
            let _ = sending.await;
        };
        let receiving = receive(lane.clone(), recv, port);
        (lane, sending, receiving)
    }

    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// Who is at the other end.
    #[must_use]
    pub const fn peer(&self) -> &KvPeer {
        &self.peer
    }

    pub(super) fn close(&self, why: &str) {
        self.closer.close(why);
    }

    /// From now on what comes for `transfer` goes to `set`, as long as that keeps its seat; none where the link has ended.
    pub fn join(&self, transfer: u64, set: &ActorRef<PageSetMsg>) -> Option<Seat> {
        let before = self.routes().as_mut()?.insert(transfer, Route::Set(set.clone()));
        if let Some(Route::Asked(early)) = before {
            for message in early {
                // One that has ended in this moment does not care.
                let _ = set.cast(PageSetMsg::Message(Box::new(message)));
            }
        }
        Some(Seat { lane: self.clone(), transfer, set: set.get_id() })
    }

    /// Transfers whose messages go somewhere.
    #[cfg(test)]
    pub(crate) fn seats(&self) -> usize {
        self.routes().as_ref().map_or(0, BTreeMap::len)
    }

    /// Sends a message, waiting while the link has enough to do; false where it has ended.
    pub async fn send(&self, message: Outbound) -> bool {
        self.queue.send(message).await.is_ok()
    }

    fn routes(&self) -> MutexGuard<'_, Option<BTreeMap<u64, Route>>> {
        // Nothing panics while it is held.
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A page set's place on a link. It is given up with the page set, whatever that ends by: what comes for the transfer goes
/// nowhere from then on.
#[derive(Debug)]
pub struct Seat {
    lane: Lane,
    transfer: u64,
    set: ActorId,
}

impl Seat {
    /// Who is at the other end.
    #[must_use]
    pub const fn peer(&self) -> &KvPeer {
        &self.lane.peer
    }

    /// As [`Lane::send`].
    pub async fn send(&self, message: Outbound) -> bool {
        self.lane.send(message).await
    }

    /// Tells the other end that this one does not go on, as soon as the link has room. For a page set that cannot wait for
    /// that, because it has ended.
    pub fn abandon(&self, generation: u64) {
        // A page set that is dropped with the runtime takes the link along, which says the same.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (lane, why) = (self.lane.clone(), "its page set has ended".to_owned());
        let cancel = KvHeader::Cancel { transfer: self.transfer, generation, why };
        spawn(TaskKind::Role, "kv-abandon", async move {
            // A link that has ended has told the other end.
            let _ = lane.send(cancel.into()).await;
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Another life of the worker may have given its number to another transfer.
        let own = |route: &Route| matches!(route, Route::Set(set) if set.get_id() == self.set);
        if let Some(routes) = self.lane.routes().as_mut()
            && routes.get(&self.transfer).is_some_and(own)
        {
            routes.remove(&self.transfer);
        }
    }
}

async fn receive(lane: Lane, mut recv: Box<dyn KvRecv>, port: ActorRef<KvPortMsg>) {
    let why = loop {
        match recv.recv().await {
            Ok(Some(message)) => route(&lane, message, &port),
            Ok(None) => break "the other end has closed it".to_owned(),
            Err(e) => break e.to_string(),
        }
    };
    lane.closer.close(why.as_str());
    let routes = lane.routes().take().unwrap_or_default();
    for route in routes.into_values() {
        if let Route::Set(set) = route {
            // One that has ended does not care.
            let _ = set.cast(PageSetMsg::LinkLost(why.clone()));
        }
    }
    // The port may have stopped.
    let _ = port.cast(KvPortMsg::Ended { link: lane.id, why });
}

fn route(lane: &Lane, message: Inbound, port: &ActorRef<KvPortMsg>) {
    let header = message.header();
    let (transfer, kind) = (header.transfer().0, header.kind());
    if kind == Kind::Ask {
        if let Some(routes) = lane.routes().as_mut() {
            routes.entry(transfer).or_insert_with(|| Route::Asked(Vec::new()));
        }
        let asked = Asked { lane: lane.clone(), ask: message };
        // A port that stops closes the link.
        let _ = port.cast(KvPortMsg::Asked(Box::new(asked)));
        return;
    }
    let taken = match lane.routes().as_mut().and_then(|routes| routes.get_mut(&transfer)) {
        Some(Route::Set(set)) => set.cast(PageSetMsg::Message(Box::new(message))).is_ok(),
        Some(Route::Asked(early)) if message.pages().is_empty() && early.len() < EARLY => {
            early.push(message);
            true
        }
        Some(Route::Asked(_)) | None => false,
    };
    if !taken {
        debug!(transfer, kind = kind.as_str(), "a KV message for a transfer that is over");
        metrics::counter!(crate::metrics::KV_IGNORED).increment(1);
    }
}
