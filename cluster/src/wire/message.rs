//! The messages, one enum a door. A door is one of the few remotely reachable actors of a node.

use std::fmt;

use config::WorkerRole;
use config::ids::{Attempt, NodeId, RequestId, WorkerId};
use policies::batch::{BatchEffect, BatchLoad, Refusal};
use policies::kv::PageHash;
use policies::kv::events::KvEvent;
use policies::placement::{PlaceRequest, PlacementEffect, Prefix, SwitchCause};
use policies::request::RequestSpec;
use policies::time::Time;

use super::ad::Beat;
use super::form::Form;

/// Who a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Door {
    /// A node's membership.
    Node,
    /// A node's gateway.
    Gateway,
    /// A node's controller.
    Controller,
    /// A node's worker.
    Worker,
    /// A node's pool.
    Pool,
}

impl Door {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Node, Self::Gateway, Self::Controller, Self::Worker, Self::Pool];

    /// The door's name in logs and metrics, and that of its process group.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Gateway => "gateway",
            Self::Controller => "controller",
            Self::Worker => "worker",
            Self::Pool => "pool",
        }
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One of the five enums below; nothing else can be one.
pub trait Message: Form {
    /// Who reads it.
    const DOOR: Door;

    /// The request and attempt that it is about, where it is about one.
    fn request(&self) -> Option<(RequestId, Attempt)>;

    /// When the sender gives up on the request, where the message says so.
    fn deadline(&self) -> Option<Time>;

    /// Sets what [`Message::deadline`] gives, where the message has one.
    fn set_deadline(&mut self, deadline: Time);
}

/// To a node's membership.
#[derive(Clone, Debug, PartialEq)]
pub enum ToNode {
    /// The sender lives.
    Beat(Box<Beat>),
    /// The sender leaves on purpose; it is not to be dialled again.
    Goodbye {
        /// Who.
        id: NodeId,
        /// Which life of it.
        incarnation: u64,
        /// Why, for the log.
        reason: String,
    },
}

/// To the gateway that a request came from.
#[derive(Clone, Debug, PartialEq)]
pub enum ToGateway {
    /// The controller's word on a request.
    Placement(PlacementEffect),
    /// Whether the worker took the request.
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
    /// What one step of a worker produced for requests of this gateway, in order.
    Step {
        /// The worker.
        worker: WorkerId,
        /// The events.
        events: Vec<BatchEffect>,
    },
    /// Whether a worker has fetched what [`ToWorker::Fetch`] asked for.
    Fetched {
        /// The worker.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// The attempt that was asked for.
        attempt: Attempt,
        /// Its full pages can be found there, or why not.
        result: Result<(), String>,
    },
    /// The worker's engine is gone and with it all that it ran.
    WorkerLost(WorkerId),
    /// The controller of that node has started: it knows nothing of what one before it was asked.
    ControllerStarted(NodeId),
    /// A part of a model's descriptor.
    ModelPart {
        /// BLAKE3 hash of the whole.
        descriptor: [u8; 32],
        /// Which part, from 0.
        part: u32,
        /// How many there are.
        parts: u32,
        /// The part.
        bytes: Vec<u8>,
    },
}

/// Pages in a part of a snapshot at most: 1 MiB, so that no message holds up those behind it.
pub const KV_SNAPSHOT_PAGES: usize = 65_536;

/// To the controller.
#[derive(Clone, Debug, PartialEq)]
pub enum ToController {
    /// Find a worker for a request.
    Place {
        /// Whom to answer.
        gateway: NodeId,
        /// What is asked.
        request: PlaceRequest,
    },
    /// The attempt is over; what is booked for it is free.
    Release {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
    },
    /// The worker has taken the request.
    Accepted {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
    },
    /// The first token of the attempt has come, so its prompt is computed. Said where another worker was to do that.
    Prefilled {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
    },
    /// A worker's figures have changed.
    WorkerLoad {
        /// The worker.
        worker: WorkerId,
        /// The figures.
        load: BatchLoad,
    },
    /// The set of pages that can be found at a worker has changed.
    KvEvents {
        /// The worker.
        worker: WorkerId,
        /// One more than that of its last message of this kind.
        seq: u64,
        /// The changes, in order.
        events: Vec<KvEvent>,
    },
    /// A part of all pages that can be found at a worker, at most [`KV_SNAPSHOT_PAGES`] of them.
    KvSnapshot {
        /// The worker.
        worker: WorkerId,
        /// Its events up to this number are contained.
        seq: u64,
        /// Which part, from 0.
        part: u32,
        /// How many there are.
        parts: u32,
        /// The pages.
        pages: Vec<PageHash>,
    },
    /// As [`ToController::KvEvents`], of a pool.
    PoolEvents {
        /// The pool.
        pool: WorkerId,
        /// One more than that of its last message of this kind.
        seq: u64,
        /// The changes, in order.
        events: Vec<KvEvent>,
    },
    /// As [`ToController::KvSnapshot`], of a pool.
    PoolSnapshot {
        /// The pool.
        pool: WorkerId,
        /// Its events up to this number are contained.
        seq: u64,
        /// Which part, from 0.
        part: u32,
        /// How many there are.
        parts: u32,
        /// The pages.
        pages: Vec<PageHash>,
    },
}

/// To a pool.
#[derive(Clone, Debug)]
pub enum ToPool {
    /// Keep the pages of a prompt: ask the worker that has computed it for those that are not here.
    Store {
        /// The life of the pool that is meant.
        to: WorkerId,
        /// The worker.
        from: WorkerId,
        /// The prompt.
        spec: Box<RequestSpec>,
    },
    /// As [`ToWorker::KvResync`].
    KvResync {
        /// Whom to answer.
        controller: NodeId,
    },
}

/// To a worker.
#[derive(Clone, Debug)]
pub enum ToWorker {
    /// Run a request.
    Submit {
        /// The life of the worker that the request was placed on; a later one refuses.
        to: WorkerId,
        /// Where the tokens go.
        gateway: NodeId,
        /// The request.
        spec: Box<RequestSpec>,
        /// The worker that computes its prompt; none: this one does.
        prefill: Option<WorkerId>,
        /// What whoever computes the prompt fetches of it from another worker, or from a pool.
        fetch: Option<Box<Prefix>>,
    },
    /// Fetch the pages of a running request from the worker that computes it, which goes on; answered by
    /// [`ToGateway::Fetched`].
    Fetch {
        /// The life of the worker that is meant.
        to: WorkerId,
        /// Who has the pages.
        from: WorkerId,
        /// Whom to answer.
        gateway: NodeId,
        /// The sequence so far: the prompt, and the output as resumed tokens of one choice.
        spec: Box<RequestSpec>,
    },
    /// Take a running request over from the worker that generates for it, as soon as there is a place for it; answered like
    /// [`ToWorker::Submit`].
    Take {
        /// The life of the worker that is meant.
        to: WorkerId,
        /// Who generates.
        from: WorkerId,
        /// The attempt that it has there.
        takes: Attempt,
        /// Where the tokens go.
        gateway: NodeId,
        /// The request with its output so far.
        spec: Box<RequestSpec>,
    },
    /// Nobody waits for the attempt any more.
    Cancel {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
    },
    /// Nobody waits for the rest of a choice (a stop string was found).
    CancelChoice {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// The choice, from 0.
        choice: u32,
    },
    /// The gateway has room for more tokens of a choice.
    Grant {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// The choice, from 0.
        choice: u32,
        /// Tokens with an index below this may be produced. Never less than granted before.
        upto: u32,
    },
    /// Send the descriptor of a model in parts.
    DescribeModel {
        /// Whom to answer.
        gateway: NodeId,
        /// BLAKE3 hash of the descriptor.
        descriptor: [u8; 32],
    },
    /// Send all pages that can be found now, and from now on every change.
    KvResync {
        /// Whom to answer.
        controller: NodeId,
    },
    /// Take another role when what is there is done; the present one to stay as it is.
    SetRole {
        /// The role.
        role: WorkerRole,
        /// Who wants that.
        cause: SwitchCause,
    },
}

impl Message for ToNode {
    const DOOR: Door = Door::Node;

    fn request(&self) -> Option<(RequestId, Attempt)> {
        None
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn set_deadline(&mut self, _deadline: Time) {}
}

impl Message for ToGateway {
    const DOOR: Door = Door::Gateway;

    fn request(&self) -> Option<(RequestId, Attempt)> {
        match self {
            Self::Placement(
                PlacementEffect::Placed { request, attempt, .. }
                | PlacementEffect::Rejected { request, attempt, .. }
                | PlacementEffect::Lost { request, attempt, .. },
            )
            | Self::Admission { request, attempt, .. }
            | Self::Fetched { request, attempt, .. } => Some((*request, *attempt)),
            Self::Step { .. } | Self::WorkerLost(_) | Self::ControllerStarted(_) | Self::ModelPart { .. } => {
                None
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn set_deadline(&mut self, _deadline: Time) {}
}

impl Message for ToController {
    const DOOR: Door = Door::Controller;

    fn request(&self) -> Option<(RequestId, Attempt)> {
        match self {
            Self::Place { request, .. } => Some((request.request, request.attempt)),
            Self::Release { request, attempt }
            | Self::Accepted { request, attempt }
            | Self::Prefilled { request, attempt } => Some((*request, *attempt)),
            Self::WorkerLoad { .. }
            | Self::KvEvents { .. }
            | Self::KvSnapshot { .. }
            | Self::PoolEvents { .. }
            | Self::PoolSnapshot { .. } => None,
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Self::Place { request, .. } => Some(request.deadline),
            Self::Release { .. }
            | Self::Accepted { .. }
            | Self::Prefilled { .. }
            | Self::WorkerLoad { .. }
            | Self::KvEvents { .. }
            | Self::KvSnapshot { .. }
            | Self::PoolEvents { .. }
            | Self::PoolSnapshot { .. } => None,
        }
    }

    fn set_deadline(&mut self, deadline: Time) {
        if let Self::Place { request, .. } = self {
            request.deadline = deadline;
        }
    }
}

impl Message for ToPool {
    const DOOR: Door = Door::Pool;

    fn request(&self) -> Option<(RequestId, Attempt)> {
        match self {
            Self::Store { spec, .. } => Some((spec.id, spec.attempt)),
            Self::KvResync { .. } => None,
        }
    }

    // A pool goes on when the request is over.
    fn deadline(&self) -> Option<Time> {
        None
    }

    fn set_deadline(&mut self, _deadline: Time) {}
}

impl Message for ToWorker {
    const DOOR: Door = Door::Worker;

    fn request(&self) -> Option<(RequestId, Attempt)> {
        match self {
            Self::Submit { spec, .. } | Self::Fetch { spec, .. } | Self::Take { spec, .. } => {
                Some((spec.id, spec.attempt))
            }
            Self::Cancel { request, attempt }
            | Self::CancelChoice { request, attempt, .. }
            | Self::Grant { request, attempt, .. } => Some((*request, *attempt)),
            Self::DescribeModel { .. } | Self::KvResync { .. } | Self::SetRole { .. } => None,
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Self::Submit { spec, .. } | Self::Fetch { spec, .. } | Self::Take { spec, .. } => {
                Some(spec.deadline)
            }
            Self::Cancel { .. }
            | Self::CancelChoice { .. }
            | Self::Grant { .. }
            | Self::DescribeModel { .. }
            | Self::KvResync { .. }
            | Self::SetRole { .. } => None,
        }
    }

    fn set_deadline(&mut self, deadline: Time) {
        if let Self::Submit { spec, .. } | Self::Fetch { spec, .. } | Self::Take { spec, .. } = self {
            spec.deadline = deadline;
        }
    }
}
