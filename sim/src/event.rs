//! What happens, and to whom.

use config::WorkerRole;
use config::ids::{Attempt, RequestId, WorkerId};
use policies::batch::{BatchEffect, BatchLoad, Refusal};
use policies::kv::PageHash;
use policies::kv::events::KvEvent;
use policies::kv::handoff::{Asked, RefusalCode, TransferKey};
use policies::placement::{PlaceRequest, PlacementEffect, WorkerInfo};
use policies::request::RequestSpec;
use policies::step::{Drawn, StepOutcome};
use policies::time::{Span, Time};

use crate::workload::Arrival;

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
}

/// Messages to the controller.
#[derive(Clone, Debug)]
pub enum ControllerMsg {
    /// A worker is ready.
    Joined(WorkerInfo),
    /// A worker was seen to be gone.
    Left(WorkerId),
    /// A worker's report.
    Load(WorkerId, BatchLoad),
    /// A session asks for a place.
    Place(PlaceRequest),
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
}

/// Messages to a worker.
#[derive(Clone, Debug)]
pub enum WorkerMsg {
    /// Serve a request, whose prompt this worker is to compute; none: the one that it goes to.
    Submit(Box<RequestSpec>, Option<WorkerId>),
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
    /// The links to this worker are broken.
    KvLost(WorkerId),
    /// Have another role, when what is here is done.
    SetRole(WorkerRole),
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
    },
    /// To the receiver: it will be done.
    Accepted,
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
    /// What comes first among events of the same time: faults, messages, engines, clients, timers.
    #[must_use]
    pub const fn class(&self) -> u8 {
        match self {
            Self::Crash(_) | Self::Start(_) | Self::FalseAlarm(_) | Self::Rejoin(_) => 0,
            Self::Gateway(_) | Self::Controller(_) | Self::Worker(..) => 1,
            Self::StepDone(..) => 2,
            Self::Arrive(..) | Self::Leave(_) | Self::Read(_) => 3,
            Self::Timer(_) | Self::ControllerTick | Self::KvTimer(..) => 4,
        }
    }
}

/// Where a driver puts what it sends; the world schedules it.
#[derive(Debug)]
pub struct Outbox {
    network: Span,
    /// Events with the time from now.
    pub(crate) sent: Vec<(Span, Event)>,
    /// Messages with this many bytes of pages, to a worker.
    pub(crate) bulk: Vec<(WorkerId, u64, Event)>,
}

impl Outbox {
    /// An empty one; messages take `network`.
    #[must_use]
    pub const fn new(network: Span) -> Self {
        Self { network, sent: Vec::new(), bulk: Vec::new() }
    }

    /// Sends a message to another node.
    pub fn send(&mut self, message: Event) {
        self.sent.push((self.network, message));
    }

    /// Sends a message with `bytes` bytes of pages to a worker: it takes the link's time for them besides.
    pub fn bulk(&mut self, to: WorkerId, bytes: u64, message: Event) {
        self.bulk.push((to, bytes, message));
    }

    /// Schedules an event after `span`.
    pub fn after(&mut self, span: Span, event: Event) {
        self.sent.push((span, event));
    }
}
