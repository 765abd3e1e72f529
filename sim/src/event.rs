//! What happens, and to whom.

use std::sync::Arc;

use config::WorkerRole;
use config::ids::{Attempt, NodeId, RequestId, WorkerId};
use policies::batch::{BatchEffect, BatchLoad, Refusal};
use policies::kv::PageHash;
use policies::kv::events::KvEvent;
use policies::kv::handoff::{Asked, RefusalCode, TransferKey};
use policies::placement::{PlaceRequest, PlacementEffect, Prefix, WorkerInfo};
use policies::request::RequestSpec;
use policies::step::{Drawn, StepOutcome};
use policies::time::{Span, Time};

use crate::network::{Addr, Silence, Way, Wire, addr_of};
use crate::node::worker::WorkerAd;
use crate::workload::Arrival;

mod pool;

pub use pool::{PoolEvent, PoolMsg, PoolNews};

/// Something that happens at a point in time.
#[derive(Clone, Debug)]
pub enum Event {
    /// A worker dies.
    Crash(u32),
    /// A worker starts.
    Start(u32),
    /// A worker that lives is taken for dead.
    FalseAlarm(u32),
    /// A worker that was taken for dead is seen again.
    Rejoin(u32),
    /// A message reaches the gateway.
    Gateway(GatewayMsg),
    /// A message reaches the controller.
    Controller(ControllerMsg),
    /// A message reaches the node of a worker, which may have ended since it was sent.
    Worker(WorkerId, WorkerMsg),
    /// A worker's engine has run a step.
    StepDone(WorkerId, Box<StepOutcome>),
    /// A request arrives at the gateway.
    Arrive(Box<Arrival>, Came),
    /// A client leaves.
    Leave(RequestId),
    /// A client that has read nothing so far reads all that there is, and from now on.
    Read(RequestId),
    /// A session asked to be called.
    Timer(RequestId),
    /// The controller asked to be called.
    ControllerTick,
    /// An end of a transfer of pages asked to be called: its worker and its request.
    KvTimer(WorkerId, RequestId, Attempt),
    /// A message reaches the controller that stands in at the gateway's node.
    StandIn(ControllerMsg),
    /// That one asked to be called.
    StandInTick,
    /// A message is at the end of a link.
    Wire(Box<Wire>),
    /// A node may notice that there is no link to another one.
    Notice {
        /// Who.
        who: Addr,
        /// Whom it is about.
        whom: Addr,
        /// What it may notice.
        why: Silence,
    },
    /// Two nodes try to make a link again.
    Relink(Addr, Addr),
    /// A bulk transfer may end, if nothing has changed since this change.
    Flow(u64),
    /// A fault of the scenario begins, by its index.
    Fault(u32),
    /// A fault is over.
    FaultOver(u32),
    /// Somebody moves requests, as the scenario says at this index.
    Move(u32),
    /// A worker that takes nothing new has nothing left.
    Drained(WorkerId),
    /// Something happens to a pool.
    Pool(Box<PoolEvent>),
}

/// Why a request comes when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// Whatever becomes of others.
    ByItself,
    /// Because another one has ended.
    AfterAnother,
}

/// Messages to the gateway.
#[derive(Clone, Debug)]
pub enum GatewayMsg {
    /// The controller's answer, or news of a loss.
    Placement(PlacementEffect),
    /// A worker took a request.
    Accepted(RequestId, Attempt),
    /// A worker did not.
    Refused(RequestId, Attempt, Refusal),
    /// What a step of a worker brought: one message for all its requests.
    Produced(Vec<BatchEffect>),
    /// A request could not be delivered: its worker is gone.
    Unreachable(RequestId, WorkerId),
    /// The link to a worker is gone; the life of it that was known, if one was.
    NodeLost(NodeId, Option<WorkerId>),
    /// There is a link to a worker again.
    NodeFound(NodeId),
    /// The link to the controller is gone.
    ControllerLost,
    /// There is one again, perhaps to another life of it.
    ControllerFound,
    /// A worker has fetched the pages of a request that is to move there, or not, for this reason.
    Fetched(RequestId, Attempt, Result<(), String>),
}

/// Messages to the controller.
#[derive(Clone, Debug)]
pub enum ControllerMsg {
    /// A worker is ready.
    Joined(Box<WorkerInfo>),
    /// A worker was seen to be gone.
    Left(WorkerId),
    /// A worker's report.
    Load(WorkerId, BatchLoad),
    /// A session asks for a place.
    Place(Box<PlaceRequest>),
    /// An attempt is over.
    Release(RequestId, Attempt),
    /// A worker has taken an attempt.
    Accepted(RequestId, Attempt),
    /// The prompt of an attempt is computed.
    Prefilled(RequestId, Attempt),
    /// What has changed of a worker's pages: message number, changes.
    KvEvents(WorkerId, u64, Vec<KvEvent>),
    /// All pages of a worker, after the message of this number.
    KvSnapshot(WorkerId, u64, Vec<PageHash>),
    /// The link to the gateway is gone: what this process asked for interests nobody.
    GatewayLeft(u64),
    /// A worker takes nothing new.
    Draining(WorkerId),
    /// About a pool.
    Pool(Box<PoolNews>),
}

/// Messages to a worker.
#[derive(Clone, Debug)]
pub enum WorkerMsg {
    /// Serve a request, whose prompt this worker is to compute; none: the one that it goes to. And what that one fetches of it.
    Submit(Box<RequestSpec>, Option<WorkerId>, Option<Box<Prefix>>),
    /// Stop an attempt.
    Cancel(RequestId, Attempt),
    /// Stop one choice of it.
    CancelChoice(RequestId, Attempt, u32),
    /// One choice of it may go on up to this index.
    Grant(RequestId, Attempt, u32, u32),
    /// Tell the controller all pages.
    Resync,
    /// From the other end of a transfer of pages.
    Kv(Box<KvMail>),
    /// The link to the gateway is gone: its requests are cancelled.
    GatewayLeft,
    /// The link to another worker is gone.
    PeerLost(NodeId),
    /// Have another role, when what is here is done.
    SetRole(WorkerRole),
    /// What the heartbeat of another worker said.
    Beat(Arc<WorkerAd>),
    /// Time for its own.
    BeatDue,
    /// Time to look again for prompts that others could compute.
    Look,
    /// Fetch the pages of a request from the worker that generates for it.
    Fetch(Box<RequestSpec>, WorkerId),
    /// Take a request over from that worker, where it runs as this attempt.
    Take(Box<RequestSpec>, WorkerId, Attempt),
    /// Take nothing new, and leave when nothing is left.
    Drain,
}

impl WorkerMsg {
    /// Whether this comes by itself, whatever clients ask, so that a run does not last longer for it.
    #[must_use]
    pub const fn is_routine(&self) -> bool {
        matches!(self, Self::Beat(_) | Self::BeatDue | Self::Look)
    }
}

/// A message between the two ends of a transfer of pages.
#[derive(Clone, Debug)]
pub struct KvMail {
    /// The request.
    pub id: (RequestId, Attempt),
    /// The transfer.
    pub key: TransferKey,
    /// Who sent it.
    pub from: WorkerId,
    /// When.
    pub at: Time,
    /// What.
    pub message: KvMessage,
}

/// What the two ends of a transfer of pages say to each other.
#[derive(Clone, Debug)]
pub enum KvMessage {
    /// To the sender: compute this prompt and give its pages.
    Ask {
        /// Which pages.
        asked: Asked,
        /// The request.
        spec: Box<RequestSpec>,
        /// Or give away what runs there as this attempt.
        takes: Option<Attempt>,
        /// Or only what is there of it, and compute nothing.
        held: bool,
        /// Who holds the start of what is to be computed.
        prefix: Option<Box<Prefix>>,
    },
    /// To the receiver: it will be done.
    Accepted,
    /// To the receiver: it is the prompt's turn, and pages are needed for it.
    Begun,
    /// To the receiver: it will not.
    Refused(RefusalCode),
    /// To the receiver: pages.
    Pages(PageBlock),
    /// To the receiver: the last pages, and what goes with them.
    Last {
        /// Tokens in all pages.
        tokens: u32,
        /// Tokens of the prompt that the sender had cached.
        cached: u32,
        /// The first token of each choice.
        drawn: Vec<Drawn>,
        /// Pages; may be none.
        block: PageBlock,
    },
    /// To the sender: there are pages now.
    Open {
        /// The first that is needed.
        first_page: u32,
        /// Pages that may be sent.
        window: u32,
    },
    /// To the sender: so many more pages may be sent.
    Credit(u32),
    /// To the sender: the pages are not needed there any more.
    Ack,
    /// The other end has given up.
    Cancel,
    /// To the sender, from its link: a message of pages is through.
    Sent {
        /// The first page.
        first: u32,
        /// How many.
        count: u32,
        /// How long it took.
        took: Span,
    },
    /// From the link: the other end is gone.
    LinkLost,
}

/// Consecutive pages of a sequence, with what the fake engine keeps in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageBlock {
    /// Number in the sequence of the first.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// The slots of all, one after the other.
    pub slots: Vec<u64>,
}

impl Event {
    /// The class of messages.
    pub const MESSAGE: u8 = 1;

    /// What arrives at an end of a transfer, which is at a worker or at a pool.
    #[must_use]
    pub fn mail(to: WorkerId, mail: KvMail) -> Self {
        match addr_of(&to) {
            Addr::Pool(_) => Self::pool(PoolEvent::Message(to, PoolMsg::Kv(Box::new(mail)))),
            _ => Self::Worker(to, WorkerMsg::Kv(Box::new(mail))),
        }
    }

    /// What happens to a pool.
    #[must_use]
    pub fn pool(event: PoolEvent) -> Self {
        Self::Pool(Box::new(event))
    }

    /// What comes first among events of the same time: faults, messages, engines, clients, timers.
    #[must_use]
    pub const fn class(&self) -> u8 {
        match self {
            Self::Crash(_)
            | Self::Start(_)
            | Self::FalseAlarm(_)
            | Self::Rejoin(_)
            | Self::Fault(_)
            | Self::FaultOver(_)
            | Self::Drained(_) => 0,
            Self::Gateway(_)
            | Self::Controller(_)
            | Self::StandIn(_)
            | Self::Worker(..)
            | Self::Wire(_)
            | Self::Notice { .. }
            | Self::Relink(..)
            | Self::Flow(_) => Self::MESSAGE,
            Self::StepDone(..) => 2,
            Self::Arrive(..) | Self::Leave(_) | Self::Read(_) | Self::Move(_) => 3,
            Self::Timer(_) | Self::ControllerTick | Self::StandInTick | Self::KvTimer(..) => 4,
            Self::Pool(event) => event.class(),
        }
    }
}

/// Where a driver puts what it sends; the network takes it from there.
#[derive(Debug)]
pub struct Outbox {
    /// The node that is at work.
    pub(crate) from: Addr,
    /// Who sends, how, what.
    pub(crate) sent: Vec<(Addr, Way, Event)>,
    /// Empty lists, for their memory: each step of a worker sends one.
    spare: Vec<Vec<BatchEffect>>,
}

impl Outbox {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self { from: Addr::Gateway, sent: Vec::new(), spare: Vec::new() }
    }

    /// An empty list for what a step brings.
    pub fn effects(&mut self) -> Vec<BatchEffect> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back the memory of a list that has been carried out.
    pub fn reuse(&mut self, mut effects: Vec<BatchEffect>) {
        effects.clear();
        if effects.capacity() > 0 {
            self.spare.push(effects);
        }
    }

    /// Sends a message to another node, the one that the event is for.
    #[inline(always)]
    pub fn send(&mut self, message: Event) {
        self.sent.push((self.from, Way::Link, message));
    }

    /// Sends `bytes` to a worker or a pool over the bulk link; the event happens there when the last one has arrived.
    pub fn bulk(&mut self, to: &WorkerId, bytes: u64, event: Event) {
        self.sent.push((self.from, Way::Bulk(addr_of(to), bytes), event));
    }

    /// Schedules an event after `span`.
    #[inline(always)]
    pub fn after(&mut self, span: Span, event: Event) {
        self.sent.push((self.from, Way::After(span), event));
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each event is moved some ten times between who sends it and whom it is for.
    #[test]
    fn events_are_small() {
        assert!(size_of::<Event>() <= 128, "{}", size_of::<Event>());
    }
}
