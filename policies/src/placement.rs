//! Controller core: where each request runs.
//!
//! One path: admit → (queue) → select → book → reply; an undeliverable reply, a rejection by the worker, the end of the
//! request and the loss of the worker all release the booking by the same call. Bookings are keyed by request and
//! attempt, so that leftovers of an earlier attempt release nothing.

use config::ids::{Attempt, ModelId, RequestId, WorkerId};

use crate::batch::BatchLoad;
use crate::time::{Span, Time};

/// How a worker is chosen among those that can take a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The one with the least work booked; ties by least recently used.
    #[default]
    LeastLoaded,
    /// The less loaded of two drawn at random (Mitzenmacher, 2001).
    PowerOfTwo,
}

/// Limits of the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementConfig {
    /// Requests that wait for a worker at most.
    pub max_queued: u32,
    /// Longest wait for a worker.
    pub queue_timeout: Span,
    /// How to choose.
    pub choice: Choice,
    /// Seed of the random choices.
    pub seed: u64,
}

/// A worker as the controller knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerInfo {
    /// Name and incarnation.
    pub id: WorkerId,
    /// Models that it serves.
    pub models: Vec<ModelId>,
    /// Longest sequence in tokens.
    pub max_context: u32,
    /// Requests that it takes at once (running and waiting).
    pub max_requests: u32,
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
    /// Tokens to prefill at most (prompt and resumed output).
    pub prompt_tokens: u32,
    /// Tokens that may be generated.
    pub max_tokens: u32,
    /// Choices.
    pub choices: u32,
    /// Workers that failed this request before; used only when there is no other.
    pub avoid: Vec<WorkerId>,
    /// When the gateway gives up.
    pub deadline: Time,
}

/// Where a request runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The worker.
    pub worker: WorkerId,
    /// Why, for logs and the client: `least-loaded`, `only-worker`, …
    pub why: &'static str,
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
    /// The controller's queue is full.
    #[error("{queued} requests wait for a worker, the limit of controller.queue-limit")]
    QueueFull {
        /// Requests waiting.
        queued: u32,
    },
    /// It waited too long.
    #[error("no worker took the request within {0}")]
    Timeout(Span),
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
    /// Prompt tokens booked on it.
    pub booked_tokens: u64,
    /// Requests placed on it in all.
    pub placed: u64,
}
