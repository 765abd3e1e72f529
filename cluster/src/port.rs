//! Doors: the few actors of a node that take messages from other nodes.
//!
//! ractor_cluster announces every actor whose messages can travel to every peer, so only these do; whatever lives behind
//! a door (sessions, page sets, policies) is a local actor that the door's handler finds by an id in the message.
//! A message crosses as bytes ([`Parcel`]) and is decoded by the handler: a bad one is then an error there, while ractor
//! would drop it without a word.

use std::fmt;
use std::sync::Arc;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, ActorStatus, SpawnErr, pg};
use ractor_cluster::{BytesConvertable, RactorClusterMessage};

pub use crate::wire::Door;

#[cfg(test)]
mod tests;

/// The scope of process groups that doors are found in.
pub(crate) const SCOPE: &str = "actor-node";

/// A message's bytes, as they travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel(pub Vec<u8>);

impl BytesConvertable for Parcel {
    fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// What a door takes.
#[derive(Debug, RactorClusterMessage)]
pub enum DoorMsg {
    /// An encoded message.
    Parcel(Parcel),
}

/// What a door does with the bytes of a message. Called in the door's actor, one message after the other; it must not block.
pub type Handler = Arc<dyn Fn(Vec<u8>) + Send + Sync>;

/// A door of this node. Closes with its actor, not with this handle.
#[derive(Clone, Debug)]
pub struct Port {
    door: Door,
    actor: ActorRef<DoorMsg>,
}

impl Port {
    /// Opens `door` under `supervisor`: from now on peers find it, and `handler` gets what they send. A handler that
    /// panics ends the door, and the supervisor is told.
    ///
    /// # Errors
    /// The actor does not start.
    pub async fn open(door: Door, handler: Handler, supervisor: ActorCell) -> Result<Self, SpawnErr> {
        let (actor, _) = Actor::spawn_linked(None, Keeper, (door, handler), supervisor).await?;
        Ok(Self { door, actor })
    }

    /// Which door it is.
    #[must_use]
    pub fn door(&self) -> Door {
        self.door
    }

    /// Its actor; messages sent here are handled like those of a peer.
    #[must_use]
    pub fn actor(&self) -> &ActorRef<DoorMsg> {
        &self.actor
    }

    /// Closes the door; peers are told.
    pub fn close(&self) {
        self.actor.stop(None);
    }
}

struct Keeper;

impl Actor for Keeper {
    type Msg = DoorMsg;
    type State = Handler;
    type Arguments = (Door, Handler);

    async fn pre_start(
        &self,
        myself: ActorRef<DoorMsg>,
        (door, handler): (Door, Handler),
    ) -> Result<Handler, ActorProcessingErr> {
        pg::join_scoped(SCOPE.to_owned(), door.as_str().to_owned(), vec![myself.get_cell()]);
        Ok(handler)
    }

    async fn handle(
        &self,
        _: ActorRef<DoorMsg>,
        DoorMsg::Parcel(Parcel(bytes)): DoorMsg,
        handler: &mut Handler,
    ) -> Result<(), ActorProcessingErr> {
        handler(bytes);
        Ok(())
    }
}

/// The doors of one peer, as far as it has opened them.
#[derive(Clone, Default, PartialEq)]
pub struct PeerDoors {
    /// Membership.
    pub node: Option<ActorRef<DoorMsg>>,
    /// Its gateway.
    pub gateway: Option<ActorRef<DoorMsg>>,
    /// Its controller.
    pub controller: Option<ActorRef<DoorMsg>>,
    /// Its worker.
    pub worker: Option<ActorRef<DoorMsg>>,
    /// Its pool.
    pub pool: Option<ActorRef<DoorMsg>>,
}

impl PeerDoors {
    /// The door `door`, if the peer has it open.
    #[must_use]
    pub fn get(&self, door: Door) -> Option<&ActorRef<DoorMsg>> {
        match door {
            Door::Node => self.node.as_ref(),
            Door::Gateway => self.gateway.as_ref(),
            Door::Controller => self.controller.as_ref(),
            Door::Worker => self.worker.as_ref(),
            Door::Pool => self.pool.as_ref(),
        }
    }

    /// Sends `bytes` to `door`; they may still be lost with the link.
    ///
    /// # Errors
    /// The door is not open, or its link is down: the bytes come back.
    pub fn send(&self, door: Door, bytes: Vec<u8>) -> Result<(), Vec<u8>> {
        let Some(actor) = self.get(door) else { return Err(bytes) };
        match actor.send_message(DoorMsg::Parcel(Parcel(bytes))) {
            Ok(()) => Ok(()),
            Err(ractor::MessagingErr::SendErr(DoorMsg::Parcel(Parcel(bytes)))) => Err(bytes),
            Err(_) => Err(Vec::new()),
        }
    }

    /// The doors that ractor's session `node_id` stands for.
    pub(crate) fn of_session(node_id: u64) -> Self {
        let find = |door: Door| {
            pg::get_scoped_members(&SCOPE.to_owned(), &door.as_str().to_owned())
                .into_iter()
                .filter(|cell| matches!(cell.get_id(), ActorId::Remote { node_id: id, .. } if id == node_id))
                .filter(|cell| cell.get_status() < ActorStatus::Draining)
                // A door that was reopened is there twice until the old one's end arrives.
                .max_by_key(|cell| cell.get_id().pid())
                .map(ActorRef::from)
        };
        Self {
            node: find(Door::Node),
            gateway: find(Door::Gateway),
            controller: find(Door::Controller),
            worker: find(Door::Worker),
            pool: find(Door::Pool),
        }
    }
}

impl fmt::Debug for PeerDoors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(Door::ALL.into_iter().filter(|door| self.get(*door).is_some()).map(Door::as_str))
            .finish()
    }
}

/// How many actors of this process are announced to every peer: its doors, and nothing that grows with work.
#[must_use]
pub fn announced_actors() -> usize {
    ractor::registry::get_all_pids().iter().filter(|actor| actor.supports_remoting()).count()
}
