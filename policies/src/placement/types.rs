//! What the controller is told and what it says.

use std::sync::Arc;

use config::WorkerRole;
use config::ids::{Attempt, ModelId, PolicyName, RequestId, SessionId, WorkerId};

use super::pair::KvPeer;
use super::route::RouteNote;
use crate::batch::BatchLoad;
use crate::cost::{HardwareProfile, ModelShape};
use crate::kv::PageHash;
use crate::policy::{PolicyAction, PolicyConfig, PolicyEvent, PolicyMode, PolicyQuery, Stage};
use crate::request::Props;
use crate::time::{Span, Time};

/// How a worker is chosen among those that can take a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The one with the least work booked; ties by least recently used.
    #[default]
    LeastLoaded,
    /// The less loaded of two drawn at random (Mitzenmacher, 2001).
    PowerOfTwo,
    /// The one that was chosen longest ago, whatever it has to do.
    RoundRobin,
    /// Any, each as likely.
    Random,
}

/// Limits of the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementConfig {
    /// Requests that wait for a worker at most.
    pub max_queued: u32,
    /// Longest wait for a worker.
    pub queue_timeout: Span,
    /// How to choose where no policy does.
    pub choice: Choice,
    /// Seed of the random choices.
    pub seed: u64,
    /// How long a request waits for the opinions of policies; those that are later do not count.
    pub opinion_deadline: Span,
    /// Keep a directory of the pages that workers hold. Needs their page events.
    pub directory: bool,
}

/// A worker as the controller knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Name and incarnation.
    pub id: WorkerId,
    /// Models that it serves.
    pub models: Vec<ModelId>,
    /// Longest sequence in tokens.
    pub max_context: u32,
    /// Requests that it takes at once (running and waiting).
    pub max_requests: u32,
    /// Tokens of a KV page; 0: its pages are not shared (an engine that keeps its own cache).
    pub page_tokens: u32,
    /// Which requests it is for.
    pub role: WorkerRole,
    /// The role that it takes when what it has is done; until then it is given nothing new.
    pub switching_to: Option<WorkerRole>,
    /// Policies may change its role.
    pub switchable: bool,
    /// Its machine.
    pub hardware: HardwareProfile,
    /// Size of its model; none: not known, then nothing is predicted of it.
    pub shape: Option<ModelShape>,
    /// Where it exchanges KV pages; none: it does not.
    pub kv: Option<KvPeer>,
}

impl WorkerInfo {
    /// A unified worker of one model that exchanges no pages, on a machine of the default kind.
    #[must_use]
    pub fn unified(
        id: WorkerId,
        model: ModelId,
        max_context: u32,
        max_requests: u32,
        page_tokens: u32,
    ) -> Self {
        Self {
            id,
            models: vec![model],
            max_context,
            max_requests,
            page_tokens,
            role: WorkerRole::Unified,
            switching_to: None,
            switchable: false,
            hardware: HardwareProfile::default(),
            shape: None,
            kv: None,
        }
    }
}

/// A pool as the controller knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// Name and incarnation of its node.
    pub id: WorkerId,
    /// `HOST:PORT` of its door for pages.
    pub address: String,
    /// Its machine; the link as fast as the pool gives ([`crate::pool::pace`]).
    pub hardware: HardwareProfile,
}

/// Who wants a worker to have another role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchCause {
    /// Somebody who runs the cluster.
    Admin,
    /// A policy.
    Policy,
}

impl SwitchCause {
    /// The cause in one word, for metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Policy => "policy",
        }
    }
}

/// What a session asks.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaceRequest {
    /// The request.
    pub request: RequestId,
    /// Its attempt.
    pub attempt: Attempt,
    /// The model.
    pub model: ModelId,
    /// Tokens to prefill at most (prompt and resumed output of all choices).
    pub prompt_tokens: u32,
    /// Tokens of the longest sequence so far: the prompt and the longest resumed output.
    pub context_tokens: u32,
    /// Tokens that may be generated.
    pub max_tokens: u32,
    /// Choices that are not over.
    pub choices: u32,
    /// Some of them have produced tokens, in an earlier attempt.
    pub resumed: bool,
    /// Log-probabilities of the prompt are asked for.
    pub prompt_logprobs: bool,
    /// Workers that failed this request before; used only when no other serves the model, and never to compute its prompt
    /// for another.
    pub avoid: Vec<WorkerId>,
    /// The worker that it has to be, now: the request moves there. No policy is asked, and it does not wait.
    pub pin: Option<WorkerId>,
    /// Hashes of the prompt's full pages, in order.
    pub hashes: Arc<[PageHash]>,
    /// The conversation that it belongs to, where the client named one.
    pub session: Option<SessionId>,
    /// Hints for policies.
    pub props: Arc<Props>,
    /// When the gateway gives up.
    pub deadline: Time,
}

/// Where a request runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The worker.
    pub worker: WorkerId,
    /// The worker that computes the prompt for it; none: it does so itself.
    pub prefill: Option<WorkerId>,
    /// What whoever computes the prompt fetches of it from another worker, or from a pool.
    pub fetch: Option<Box<Prefix>>,
    /// The pool that is told to keep the prompt's pages when they are computed.
    pub store: Option<Box<WorkerId>>,
    /// Why, for logs and the client: `least-loaded`, `only-worker`, …
    pub why: &'static str,
    /// What was thought on the way there: of each policy that was asked, in their order, and of the choice itself.
    pub stages: Arc<[Stage]>,
}

/// The start of a prompt, at a worker or a pool that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The worker, or the pool.
    pub from: WorkerId,
    /// It is the pool of that node.
    pub pool: bool,
    /// Its tokens, as far as is known: it may hold fewer by now.
    pub tokens: u32,
}

/// Why a request was turned away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// No worker has ever offered the model.
    #[error("the model `{0}` is not served here")]
    UnknownModel(ModelId),
    /// The model is known, and no worker is ready for it.
    #[error("no worker is ready for the model `{0}`")]
    NoWorker(ModelId),
    /// Its prompt is for a prefill worker, none can have it, and nobody else shall compute it.
    #[error(
        "no prefill worker can take the prompt for the model `{0}`, and policy.disaggregate.fallback is none; try again later"
    )]
    NoPrefill(ModelId),
    /// The controller's queue is full.
    #[error("{queued} requests wait for a worker, the limit of controller.queue-limit")]
    QueueFull {
        /// Requests waiting.
        queued: u32,
    },
    /// It is for one worker, which cannot take it.
    #[error("the worker {worker} cannot take the request: {why}")]
    Pinned {
        /// The worker.
        worker: WorkerId,
        /// Why not.
        why: String,
    },
    /// It waited too long.
    #[error("no worker took the request within {0}")]
    Timeout(Span),
    /// No worker has a window that it fits in.
    #[error(
        "the request has {tokens} tokens and the context window has {window}; at least one is needed for the answer"
    )]
    TooLong {
        /// Its tokens.
        tokens: u32,
        /// The longest window of a worker of this model.
        window: u32,
    },
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum PlacementEffect {
    /// Tell the session where to go. The plan is booked; if the reply cannot be delivered, call `release`.
    Placed {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// Where.
        plan: Plan,
    },
    /// Tell the session that there is no place.
    Rejected {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// Why.
        reason: Rejection,
    },
    /// The worker that this request was booked on is gone; its session has to place itself again.
    Lost {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// The worker.
        worker: WorkerId,
    },
}

/// What the driver has to do for policies that live elsewhere, in this order; see [`super::Placement::take_policy_work`].
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyWork {
    /// Show an event to every policy of the list that is not off.
    Observe(PolicyEvent),
    /// Ask a policy, and tell [`super::Placement::opinion`] what it said.
    Consult {
        /// The consultation.
        ticket: Ticket,
        /// Whom.
        policy: PolicyName,
        /// What.
        query: PolicyQuery,
    },
    /// Ask a worker for a snapshot of its pages.
    Resync(WorkerId),
    /// Ask a pool for one.
    ResyncPool(WorkerId),
    /// Do what a policy proposes, or say that it would be done where the mode is shadow.
    Act {
        /// Whose proposal.
        policy: PolicyName,
        /// Its mode: `shadow` or `prod`.
        mode: PolicyMode,
        /// What.
        action: PolicyAction,
    },
    /// Count that a request did not go the way of prefill worker and decode worker, and say so where that is new.
    Note(RouteNote),
}

/// One consultation about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A policy of the list, for admin views and metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyView {
    /// How it is configured.
    pub config: PolicyConfig,
    /// Times that it was asked.
    pub asked: u64,
    /// Of those, times that its answer came too late.
    pub late: u64,
    /// Of those, times that it failed.
    pub failed: u64,
}

/// A worker's row for admin views and tests.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// What it offers.
    pub info: WorkerInfo,
    /// It takes no new requests.
    pub draining: bool,
    /// Its last report.
    pub load: BatchLoad,
    /// Requests booked on it.
    pub booked: u32,
    /// Prompt tokens and expected output tokens booked on it.
    pub booked_tokens: u64,
    /// Requests of others whose prompts it computes.
    pub handoffs: u32,
    /// Prompt tokens of those.
    pub handoff_tokens: u64,
    /// Requests that it had beyond those booked here when it last reported.
    pub foreign: u32,
    /// Requests placed on it in all.
    pub placed: u64,
}
