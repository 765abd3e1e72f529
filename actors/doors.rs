//! The doors of a node: the only actors that other roles talk to, and the messages they take.
//!
//! Messages are plain data (no channels, no references into another role), because roles may run in different
//! processes. Addresses are ids; [`Doors`] finds the actor behind one. Sessions and schedulers are local to their role
//! and are addressed by request id through its door.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use config::ids::{Attempt, NodeId, RequestId, WorkerId};
use engine::ModelCard;
use policies::batch::{BatchEffect, BatchLoad, Refusal};
use policies::placement::{PlaceRequest, PlacementEffect, WorkerInfo, WorkerView};
use policies::request::RequestSpec;
use policies::time::Span;
use ractor::{ActorRef, DerivedActorRef, RpcReplyPort};

/// What a gateway's door takes.
#[derive(Debug)]
pub enum GatewayMsg {
    /// A controller's answer about a request of this gateway.
    Placement(PlacementEffect),
    /// A worker took a request, or did not.
    Admission {
        /// The worker.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// Taken, or why not.
        result: Result<(), Refusal>,
    },
    /// What one step of a worker produced for requests of this gateway, in order: one message a step, not one a token.
    Step {
        /// The worker.
        worker: WorkerId,
        /// The events.
        events: Vec<BatchEffect>,
    },
    /// A worker is gone; its requests of this gateway go elsewhere.
    WorkerLost(WorkerId),
    /// A model is served by at least one ready worker.
    ModelReady(Arc<ModelCard>),
    /// No worker serves the model any more.
    ModelGone(String),
    /// Takes no new requests; those under way go on.
    Drain,
    /// Asks for figures.
    Observe(RpcReplyPort<GatewayStats>),
}

/// Figures of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayStats {
    /// Sessions that live.
    pub sessions: usize,
    /// Models that can be asked for.
    pub models: Vec<String>,
    /// Takes no new requests.
    pub draining: bool,
}

/// What a controller's door takes.
#[derive(Debug)]
pub enum ControllerMsg {
    /// A gateway that places requests.
    GatewayJoined(NodeId),
    /// A worker that is ready, with the model that it serves.
    WorkerJoined {
        /// What it offers.
        info: WorkerInfo,
        /// Its model.
        card: Arc<ModelCard>,
    },
    /// A worker's figures; sent when they change and at least every heartbeat.
    WorkerLoad {
        /// The worker.
        worker: WorkerId,
        /// Its figures.
        load: BatchLoad,
    },
    /// The worker takes nothing new.
    WorkerDraining(WorkerId),
    /// The worker is gone.
    WorkerLeft(WorkerId),
    /// Choose a worker for a request.
    Place {
        /// Who asks.
        gateway: NodeId,
        /// What for.
        request: PlaceRequest,
    },
    /// The booking of this attempt is over.
    Release {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
    },
    /// Looks for queued requests whose time is up.
    Tick,
    /// Asks for the workers as placement sees them.
    Observe(RpcReplyPort<Vec<WorkerView>>),
}

/// What a worker's door takes.
#[derive(Debug)]
pub enum WorkerMsg {
    /// Run a request; answered by [`GatewayMsg::Admission`].
    Submit {
        /// Who asks.
        gateway: NodeId,
        /// What.
        spec: Box<RequestSpec>,
    },
    /// Stop an attempt; nothing is sent about it any more.
    Cancel {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
    },
    /// Stop one choice of an attempt.
    CancelChoice {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// The choice.
        choice: u32,
    },
    /// Take nothing new; finish what is there.
    Drain,
    /// Asks for figures.
    Observe(RpcReplyPort<WorkerStats>),
}

/// Figures of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// The scheduler's figures.
    pub load: BatchLoad,
    /// The model is loaded and requests are taken.
    pub ready: bool,
    /// Takes nothing new.
    pub draining: bool,
    /// How long the step under way has been running; none when the engine is idle.
    pub step_age: Option<Span>,
    /// Times that the engine or the scheduler was restarted.
    pub restarts: u32,
}

/// Finds the actor behind an address. One per node, shared by its roles.
///
/// Gateways and workers are kept as derived references: their actors take messages of their own besides the door's.
#[derive(Clone, Debug, Default)]
pub struct Doors {
    known: Arc<RwLock<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    gateways: BTreeMap<NodeId, DerivedActorRef<GatewayMsg>>,
    workers: BTreeMap<WorkerId, DerivedActorRef<WorkerMsg>>,
    controller: Option<ActorRef<ControllerMsg>>,
}

impl Doors {
    /// Makes a gateway reachable.
    pub fn add_gateway(&self, id: NodeId, door: DerivedActorRef<GatewayMsg>) {
        self.write(|known| known.gateways.insert(id, door));
    }

    /// Makes a worker reachable.
    pub fn add_worker(&self, id: WorkerId, door: DerivedActorRef<WorkerMsg>) {
        self.write(|known| known.workers.insert(id, door));
    }

    /// Forgets a worker.
    pub fn remove_worker(&self, id: &WorkerId) {
        self.write(|known| known.workers.remove(id));
    }

    /// Makes the controller reachable; a restarted one replaces the old.
    pub fn set_controller(&self, door: ActorRef<ControllerMsg>) {
        self.write(|known| known.controller = Some(door));
    }

    /// Sends to a gateway; false when there is none or its mailbox is closed.
    pub fn to_gateway(&self, id: &NodeId, message: GatewayMsg) -> bool {
        self.read(|known| known.gateways.get(id).cloned())
            .is_some_and(|door| door.send_message(message).is_ok())
    }

    /// Sends to every gateway.
    pub fn to_gateways(&self, mut message: impl FnMut() -> GatewayMsg) {
        for door in self.read(|known| known.gateways.values().cloned().collect::<Vec<_>>()) {
            // A gateway that is stopping needs no news.
            let _ = door.send_message(message());
        }
    }

    /// Sends to a worker; false when there is none or its mailbox is closed.
    pub fn to_worker(&self, id: &WorkerId, message: WorkerMsg) -> bool {
        self.read(|known| known.workers.get(id).cloned())
            .is_some_and(|door| door.send_message(message).is_ok())
    }

    /// Sends to the controller; false when there is none or its mailbox is closed.
    pub fn to_controller(&self, message: ControllerMsg) -> bool {
        self.read(|known| known.controller.clone()).is_some_and(|door| door.send_message(message).is_ok())
    }

    /// The controller's door, for questions.
    #[must_use]
    pub fn controller(&self) -> Option<ActorRef<ControllerMsg>> {
        self.read(|known| known.controller.clone())
    }

    /// The workers' doors, for questions.
    #[must_use]
    pub fn workers(&self) -> Vec<(WorkerId, DerivedActorRef<WorkerMsg>)> {
        self.read(|known| known.workers.iter().map(|(id, door)| (id.clone(), door.clone())).collect())
    }

    fn read<T>(&self, f: impl FnOnce(&Known) -> T) -> T {
        f(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, f: impl FnOnce(&mut Known) -> T) {
        f(&mut self.known.write().unwrap_or_else(PoisonError::into_inner));
    }
}
