//! Who is where: the doors of this process, the ports of the others, and which controller leads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use cluster::port::PeerDoors;
use cluster::wire::{Message, ToController, ToGateway, ToPool, ToWorker, TraceContext, WorkerAd, seal};
use config::ids::{NodeId, WorkerId};
use engine::ModelCard;
use policies::placement::{KvPeer, Prefix};
use ractor::{ActorRef, DerivedActorRef};
use tracing::error;

use super::{ControllerMsg, GatewayMsg, WorkerMsg};
use crate::clock;
use crate::membership::MembershipMsg;
use crate::pool::PoolMsg;
use crate::worker::pages::HeldAt;

/// Hands a message that is for sessions to them, without the hop through their door; gives back what is for the door.
#[derive(Clone)]
pub struct SessionSink(pub Arc<dyn Fn(ToGateway) -> Option<ToGateway> + Send + Sync>);

impl std::fmt::Debug for SessionSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionSink")
    }
}

/// Finds the actor behind an address. One per node, shared by its roles.
///
/// Gateways and workers are kept as derived references: their actors take messages of their own besides the door's.
#[derive(Clone, Debug, Default)]
pub struct Doors {
    known: Arc<RwLock<Known>>,
    sessions: Arc<AtomicU32>,
}

#[derive(Debug, Default)]
struct Known {
    gateways: BTreeMap<NodeId, DerivedActorRef<GatewayMsg>>,
    /// The way past the gateway's door, for what goes to one session.
    sessions_of: BTreeMap<NodeId, SessionSink>,
    workers: BTreeMap<WorkerId, DerivedActorRef<WorkerMsg>>,
    /// This node's name goes with it.
    controller: Option<(NodeId, ActorRef<ControllerMsg>)>,
    membership: Option<ActorRef<MembershipMsg>>,
    /// This node's name goes with it.
    pool: Option<(NodeId, ActorRef<PoolMsg>)>,
    /// Where the pools of the cluster exchange pages.
    pools: BTreeMap<WorkerId, String>,
    /// The other nodes that there is a link to.
    peers: BTreeMap<NodeId, PeerDoors>,
    /// Another node whose controller leads. None: this node's own places, as the leader or in want of one.
    leader: Option<NodeId>,
    /// This node's own controller only stands in for one that is missing.
    stand_in: bool,
    /// What the workers of the cluster offer.
    offers: Arc<BTreeMap<WorkerId, WorkerAd>>,
    /// Models that this process serves or has been told about, by the hash of their descriptor.
    cards: BTreeMap<[u8; 32], Arc<ModelCard>>,
}

/// The controller that was asked for a place: it is the one that has booked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placer {
    /// This node's own.
    Here,
    /// That node's.
    At(NodeId),
}

impl Doors {
    /// Makes a gateway of this process reachable.
    pub fn add_gateway(&self, id: NodeId, door: DerivedActorRef<GatewayMsg>) {
        self.write(|known| known.gateways.insert(id, door));
    }

    /// Makes the sessions of a gateway of this process reachable without its door.
    pub fn add_sessions(&self, id: NodeId, sink: SessionSink) {
        self.write(|known| known.sessions_of.insert(id, sink));
    }

    /// Sends to the gateway of this process, whatever its name.
    pub(super) fn to_own_gateway(&self, message: ToGateway) {
        let id = self.read(|known| known.gateways.keys().next_back().cloned());
        if let Some(id) = id {
            self.to_gateway(&id, message);
        }
    }

    /// Makes a worker of this process reachable.
    pub fn add_worker(&self, id: WorkerId, door: DerivedActorRef<WorkerMsg>) {
        self.write(|known| known.workers.insert(id, door));
    }

    /// Forgets a worker of this process.
    pub fn remove_worker(&self, id: &WorkerId) {
        self.write(|known| known.workers.remove(id));
    }

    /// A worker of this process goes on under another name.
    pub fn rename_worker(&self, former: &WorkerId, now: WorkerId) {
        self.write(|known| {
            if let Some(door) = known.workers.remove(former) {
                known.workers.insert(now, door);
            }
        });
    }

    /// Makes this process's controller reachable; a restarted one replaces the old. `stand_in`: it places only where no
    /// node of the cluster is a controller.
    pub fn set_controller(&self, node: NodeId, door: ActorRef<ControllerMsg>, stand_in: bool) {
        self.write(|known| (known.controller, known.stand_in) = (Some((node, door)), stand_in));
    }

    /// Makes the membership reachable.
    pub fn set_membership(&self, door: ActorRef<MembershipMsg>) {
        self.write(|known| known.membership = Some(door));
    }

    /// Makes another node reachable, or its new doors.
    pub fn set_peer(&self, id: NodeId, doors: PeerDoors) {
        self.write(|known| known.peers.insert(id, doors));
    }

    /// Forgets another node.
    pub fn remove_peer(&self, id: &NodeId) {
        self.write(|known| known.peers.remove(id));
    }

    /// Whether there is a link to that node.
    #[must_use]
    pub fn is_linked(&self, id: &NodeId) -> bool {
        self.read(|known| known.peers.contains_key(id))
    }

    /// Names the other node whose controller leads; none when this node's own does, or stands in. Gives back whether
    /// that is news.
    pub fn set_leader(&self, leader: Option<&NodeId>) -> bool {
        self.write(|known| {
            let news = known.leader.as_ref() != leader;
            known.leader = leader.cloned();
            news
        })
    }

    /// Whether this node's controller places for the cluster.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.read(|known| known.leader.is_none() && !known.stand_in && known.controller.is_some())
    }

    /// Says what the workers of the cluster offer, this process's included.
    pub fn set_offers(&self, offers: BTreeMap<WorkerId, WorkerAd>) {
        let offers = Arc::new(offers);
        self.write(|known| known.offers = offers);
    }

    /// What the workers of the cluster offer, with their load at their last heartbeats.
    #[must_use]
    pub fn offers(&self) -> Arc<BTreeMap<WorkerId, WorkerAd>> {
        self.read(|known| Arc::clone(&known.offers))
    }

    /// Where a worker exchanges KV pages; none where it does not, or is not there.
    #[must_use]
    pub fn kv_peer(&self, worker: &WorkerId) -> Option<KvPeer> {
        self.read(|known| known.offers.get(worker)?.info.kv.clone())
    }

    /// Where the start of a prompt can be asked for; none where its worker exchanges no pages, or who holds it is not there.
    #[must_use]
    pub fn held_at(&self, prefix: &Prefix) -> Option<HeldAt> {
        let address = match prefix.pool {
            true => self.read(|known| known.pools.get(&prefix.from).cloned()),
            false => self.kv_peer(&prefix.from).map(|peer| peer.address),
        };
        address.map(|address| HeldAt { address, tokens: prefix.tokens })
    }

    /// Makes this process's pool reachable; a restarted one replaces the old.
    pub fn set_pool(&self, node: NodeId, door: ActorRef<PoolMsg>) {
        self.write(|known| known.pool = Some((node, door)));
    }

    /// Says where the pools of the cluster exchange pages, this process's included.
    pub fn set_pools(&self, pools: BTreeMap<WorkerId, String>) {
        self.write(|known| known.pools = pools);
    }

    /// Sends to a pool; false when there is none or its mailbox is closed.
    pub fn to_pool(&self, id: &WorkerId, message: ToPool) -> bool {
        let own = self.read(|known| known.pool.clone()).filter(|(node, _)| *node == id.node);
        match own {
            Some((_, door)) => door.cast(PoolMsg::Wire(message)).is_ok(),
            None => self.to_peer(&id.node, &message),
        }
    }

    /// Sends to the pool of this process, if there is one.
    pub fn to_own_pool(&self, message: impl FnOnce() -> PoolMsg) {
        if let Some((_, door)) = self.read(|known| known.pool.clone()) {
            // A pool that is stopping needs no news.
            let _ = door.cast(message());
        }
    }

    /// Keeps a model's card for the other roles of this process.
    pub fn add_card(&self, descriptor: [u8; 32], card: Arc<ModelCard>) {
        self.write(|known| known.cards.insert(descriptor, card));
    }

    /// The model with that descriptor, if this process knows it.
    #[must_use]
    pub fn card(&self, descriptor: &[u8; 32]) -> Option<Arc<ModelCard>> {
        self.read(|known| known.cards.get(descriptor).cloned())
    }

    /// Sends to a gateway; false when there is none or its mailbox is closed.
    pub fn to_gateway(&self, id: &NodeId, message: ToGateway) -> bool {
        let (door, sink) =
            self.read(|known| (known.gateways.get(id).cloned(), known.sessions_of.get(id).cloned()));
        let Some(door) = door else { return self.to_peer(id, &message) };
        let rest = match sink {
            Some(sink) => (sink.0)(message),
            None => Some(message),
        };
        rest.is_none_or(|message| door.send_message(GatewayMsg::Wire(message)).is_ok())
    }

    /// Sends to the gateways of this process.
    pub fn to_own_gateways(&self, mut message: impl FnMut() -> GatewayMsg) {
        for door in self.read(|known| known.gateways.values().cloned().collect::<Vec<_>>()) {
            // A gateway that is stopping needs no news.
            let _ = door.send_message(message());
        }
    }

    /// Sends to every gateway of the cluster.
    pub fn to_gateways(&self, message: &ToGateway) {
        self.to_own_gateways(|| GatewayMsg::Wire(message.clone()));
        self.to_peers(message);
    }

    /// Sends to a worker; false when there is none or its mailbox is closed.
    pub fn to_worker(&self, id: &WorkerId, message: ToWorker) -> bool {
        match self.read(|known| known.workers.get(id).cloned()) {
            Some(door) => door.send_message(WorkerMsg::Wire(message)).is_ok(),
            None => self.to_peer(&id.node, &message),
        }
    }

    /// Sends to the workers of this process.
    pub fn to_own_workers(&self, mut message: impl FnMut() -> WorkerMsg) {
        for (_, door) in self.workers() {
            // A worker that is stopping needs no news.
            let _ = door.send_message(message());
        }
    }

    /// Asks the controller that leads for a place, or this node's own where there is none. Gives back who was asked.
    pub fn place(&self, message: ToController) -> Option<Placer> {
        match self.read(|known| known.leader.clone()) {
            Some(leader) if self.to_peer(&leader, &message) => Some(Placer::At(leader)),
            // Its link is breaking; that will be news in a moment.
            Some(_) | None => self.place_here(message),
        }
    }

    /// Asks this node's own controller, or its stand-in, for a place.
    pub fn place_here(&self, message: ToController) -> Option<Placer> {
        if self.read(|known| known.stand_in) {
            metrics::counter!(crate::metrics::STAND_IN_PLACEMENTS).increment(1);
        }
        self.to_controller(ControllerMsg::Wire(message)).then_some(Placer::Here)
    }

    /// Sends to the controller that has placed a request.
    pub fn to_placer(&self, placer: &Placer, message: ToController) -> bool {
        match placer {
            Placer::Here => self.to_controller(ControllerMsg::Wire(message)),
            Placer::At(id) => self.to_peer(id, &message),
        }
    }

    /// Sends to this process's controller; false when there is none or its mailbox is closed.
    pub fn to_controller(&self, message: ControllerMsg) -> bool {
        self.controller().is_some_and(|door| door.send_message(message).is_ok())
    }

    /// Sends to the controller of a node, this one or another.
    pub fn to_controller_of(&self, node: &NodeId, message: ToController) -> bool {
        let own = self.read(|known| known.controller.as_ref().is_some_and(|(id, _)| id == node));
        if own { self.to_controller(ControllerMsg::Wire(message)) } else { self.to_peer(node, &message) }
    }

    /// Tells every controller, this process's included.
    pub fn to_controllers(&self, message: &ToController) {
        self.to_controller(ControllerMsg::Wire(message.clone()));
        self.to_peers(message);
    }

    /// Tells the membership of this node; false when there is none.
    pub fn to_membership(&self, message: MembershipMsg) -> bool {
        self.membership().is_some_and(|door| door.send_message(message).is_ok())
    }

    /// The membership of this node, for questions.
    #[must_use]
    pub fn membership(&self) -> Option<ActorRef<MembershipMsg>> {
        self.read(|known| known.membership.clone())
    }

    /// Client sessions that live here.
    #[must_use]
    pub fn sessions(&self) -> u32 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Says how many client sessions live here.
    pub fn set_sessions(&self, count: usize) {
        self.sessions.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// This process's controller, for questions.
    #[must_use]
    pub fn controller(&self) -> Option<ActorRef<ControllerMsg>> {
        self.read(|known| known.controller.as_ref().map(|(_, door)| door.clone()))
    }

    /// The workers of this process, for questions.
    #[must_use]
    pub fn workers(&self) -> Vec<(WorkerId, DerivedActorRef<WorkerMsg>)> {
        self.read(|known| known.workers.iter().map(|(id, door)| (id.clone(), door.clone())).collect())
    }

    /// Sends to the door of another node; false when it is not linked or the message cannot be sent.
    pub fn to_peer<M: Message>(&self, id: &NodeId, message: &M) -> bool {
        let Some(doors) = self.read(|known| known.peers.get(id).cloned()) else { return false };
        sealed(message).is_some_and(|bytes| doors.send(M::DOOR, bytes).is_ok())
    }

    /// Sends to the doors of all other nodes that have one of the kind.
    pub fn to_peers<M: Message>(&self, message: &M) {
        let doors: Vec<PeerDoors> = self.read(|known| {
            known.peers.values().filter(|doors| doors.get(M::DOOR).is_some()).cloned().collect()
        });
        if doors.is_empty() {
            return;
        }
        let Some(bytes) = sealed(message) else { return };
        for peer in doors {
            // A link that is breaking is reported as lost.
            let _ = peer.send(M::DOOR, bytes.clone());
        }
    }

    fn read<T>(&self, f: impl FnOnce(&Known) -> T) -> T {
        f(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, f: impl FnOnce(&mut Known) -> T) -> T {
        f(&mut self.known.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The bytes of a message, traced by its request. One that cannot be sent is a defect, and counted.
pub(crate) fn sealed<M: Message>(message: &M) -> Option<Vec<u8>> {
    let trace = message.request().map(|(request, attempt)| TraceContext {
        trace_id: u128::from(request.gateway) << 64 | u128::from(request.number),
        span_id: u64::from(attempt.0),
    });
    match seal(clock::now(), message, trace) {
        Ok(bytes) => Some(bytes),
        Err(e) => {
            error!(door = M::DOOR.as_str(), error = %e, "a message cannot be sent");
            metrics::counter!(crate::metrics::WIRE_FAILURES, "door" => M::DOOR.as_str()).increment(1);
            None
        }
    }
}
