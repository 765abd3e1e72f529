//! The doors of a node: the only actors that other roles talk to, and the messages they take.
//!
//! What roles say to each other is plain data ([`cluster::wire`]), whether they run in one process or in several.
//! [`Doors`] finds the actor behind an address: in this process a reference changes hands, to another node the message
//! is sealed into a parcel for its port. Sessions and schedulers are local to their role and are addressed by request
//! id through its door.

use std::sync::Arc;

use cluster::wire::{ModelAd, ToController, ToGateway, ToWorker};
use config::GatewayConfig;
use config::ids::{NodeId, PolicyName, WorkerId};
use policies::batch::BatchLoad;
use policies::kv::directory::HolderView;
use policies::placement::{PolicyView, PoolInfo, Ticket, WorkerInfo, WorkerView};
use policies::policy::{Opinion, PolicyAction};
use policies::time::Span;
use ractor::RpcReplyPort;
use ractor_cluster::RactorMessage;

use crate::controller::consulted::Maker;
use crate::gateway::auth::Keys;
use crate::worker::orderer::Orders;

mod directory;
mod ports;

pub(crate) use directory::sealed;
pub use directory::{Doors, Placer, SessionSink};
pub use ports::handler;

/// What a gateway's door takes.
#[derive(Debug, RactorMessage)]
pub enum GatewayMsg {
    /// From a controller or a worker, here or elsewhere.
    Wire(ToGateway),
    /// All models that are offered now, with a worker for each: a snapshot, so that nothing missed stays missed.
    Offers(Vec<Offer>),
    /// That node is gone, or cannot be reached any more: whatever runs there runs for nobody, under whichever name.
    NodeLost(NodeId),
    /// Another controller leads now, or none: requests without an answer are placed again.
    ControllerChanged,
    /// Time to look whether something that was asked for does not come.
    Tick,
    /// `[gateway]` from now on.
    SetLimits(GatewayConfig),
    /// Whose requests are taken from now on; answered when it is so.
    SetKeys(Arc<Keys>, RpcReplyPort<()>),
    /// Takes no new requests; those under way go on.
    Drain,
}

/// A model as a worker offers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The model.
    pub model: ModelAd,
    /// Who can describe it.
    pub worker: WorkerId,
}

/// What a controller's door takes.
#[derive(Debug, RactorMessage)]
pub enum ControllerMsg {
    /// From a gateway or a worker, here or elsewhere.
    Wire(ToController),
    /// A worker is ready, or offers something else now.
    WorkerJoined(WorkerInfo),
    /// The worker takes nothing new.
    WorkerDraining(WorkerId),
    /// The worker is gone.
    WorkerLeft(WorkerId),
    /// A pool is there, or is another one now.
    PoolJoined(PoolInfo),
    /// The pool is gone.
    PoolLeft(WorkerId),
    /// The gateway is gone: what it asked for interests nobody.
    GatewayLeft(NodeId),
    /// Looks for queued requests whose time is up.
    Tick,
    /// A policy's answer.
    Opinion {
        /// Of the question.
        ticket: Ticket,
        /// Whose.
        policy: PolicyName,
        /// What it thinks.
        opinion: Opinion,
        /// Since it was asked.
        took: Span,
    },
    /// What a policy proposes, not empty.
    Proposed {
        /// Whose proposals.
        policy: PolicyName,
        /// What.
        actions: Vec<PolicyAction>,
    },
    /// Looks for answers that are late.
    Due,
    /// Start a policy again that has failed.
    RestartPolicy(PolicyName),
    /// Ask these policies from now on; all of them, or the answer says why not and those before go on.
    SetPolicies(Vec<Maker>, RpcReplyPort<Result<(), String>>),
    /// Asks for the policies and their counters.
    ObservePolicies(RpcReplyPort<Vec<PolicyView>>),
    /// Asks for the size of the directory of prefixes.
    ObserveDirectory(RpcReplyPort<DirectoryView>),
    /// Asks for the workers as placement sees them.
    Observe(RpcReplyPort<Vec<WorkerView>>),
}

/// The directory of prefixes.
#[derive(Clone, Debug, Default)]
pub struct DirectoryView {
    /// Pages that at least one worker holds.
    pub pages: usize,
    /// Memory that it takes, in bytes.
    pub bytes: usize,
    /// Who holds how much of it.
    pub workers: Vec<HolderView>,
    /// What pools hold.
    pub pools: Vec<HolderView>,
}

/// What a worker's door takes.
#[derive(Debug, RactorMessage)]
pub enum WorkerMsg {
    /// From a gateway, here or elsewhere.
    Wire(ToWorker),
    /// The gateway is gone: its requests are cancelled.
    GatewayLeft(NodeId),
    /// This node was cut off from all others, who have given up what it did: it goes on as a new one.
    Renew,
    /// Take nothing new; finish what is there.
    Drain,
    /// Go by these policies from now on, or say why not and go on as before.
    SetOrders(Orders, RpcReplyPort<Result<(), String>>),
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
