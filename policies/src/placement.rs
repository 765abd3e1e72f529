//! Controller core: where each request runs.
//!
//! One path: admit → (queue) → select → book → reply; an undeliverable reply, a rejection by the worker, the end of the
//! request and the loss of the worker all release the booking by the same call. Bookings are keyed by request and
//! attempt, so that leftovers of an earlier attempt release nothing.

//!
//! A worker's load is counted from the moment of choice, not from its first answer: a burst of requests then spreads
//! although no worker has reported anything yet. What a worker reports beyond what is booked here at the time is taken
//! for work that others have sent there (gateways without a controller, a controller that led before) and counts too,
//! until the next report.

use std::collections::{BTreeMap, VecDeque};

use config::ids::{Attempt, ModelId, RequestId, WorkerId};

use crate::batch::BatchLoad;
use crate::rng::Rng;
use crate::time::{Span, Time};

mod book;
mod select;

#[cfg(test)]
mod tests;

/// The name that stands for "whatever model is served here".
pub const DEFAULT_MODEL: &str = "default";

/// Tokens that a choice is expected to generate at most, for load: answers mostly end long before their limit, and a
/// client that sets none should not look like a heavy one.
pub const GENERATION_ESTIMATE: u32 = 256;

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
    /// Tokens to prefill at most (prompt and resumed output of all choices).
    pub prompt_tokens: u32,
    /// Tokens of the longest sequence so far: the prompt and the longest resumed output.
    pub context_tokens: u32,
    /// Tokens that may be generated.
    pub max_tokens: u32,
    /// Choices that are not over.
    pub choices: u32,
    /// Workers that failed this request before; used only when no other serves the model.
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
    /// Requests that it had beyond those booked here when it last reported.
    pub foreign: u32,
    /// Requests placed on it in all.
    pub placed: u64,
}

/// The controller's state machine.
#[derive(Debug)]
pub struct Placement {
    config: PlacementConfig,
    rng: Rng,
    workers: BTreeMap<WorkerId, Row>,
    /// Models in the order in which they were first offered, kept when their workers are gone.
    models: Vec<ModelId>,
    bookings: BTreeMap<(RequestId, Attempt), Booking>,
    queue: VecDeque<Waiting>,
    /// Counts choices, for "least recently used".
    choices: u64,
}

#[derive(Debug)]
struct Row {
    info: WorkerInfo,
    draining: bool,
    load: BatchLoad,
    booked: u32,
    booked_tokens: u64,
    /// Requests and tokens that the last report had beyond what was booked at the time.
    foreign: u32,
    foreign_tokens: u64,
    placed: u64,
    last_chosen: u64,
}

#[derive(Debug)]
struct Booking {
    plan: Plan,
    tokens: u64,
}

#[derive(Debug)]
struct Waiting {
    request: PlaceRequest,
    since: Time,
    until: Time,
}

impl Placement {
    /// A controller that knows no worker yet.
    #[must_use]
    pub fn new(config: PlacementConfig) -> Self {
        Self {
            rng: Rng::new(config.seed),
            config,
            workers: BTreeMap::new(),
            models: Vec::new(),
            bookings: BTreeMap::new(),
            queue: VecDeque::new(),
            choices: 0,
        }
    }

    /// A worker is ready, or says again what it offers. A higher incarnation of a node takes the place of a lower one,
    /// whose requests are lost; a lower one than known is a message from the past and changes nothing.
    pub fn worker_joined(&mut self, _now: Time, info: WorkerInfo, fx: &mut Vec<PlacementEffect>) {
        let lives: Vec<WorkerId> =
            self.workers.keys().filter(|id| id.node == info.id.node && **id != info.id).cloned().collect();
        if lives.iter().any(|id| id.incarnation > info.id.incarnation) {
            return;
        }
        for former in lives {
            self.forget(&former, fx);
        }
        for model in &info.models {
            if !self.models.contains(model) {
                self.models.push(model.clone());
            }
        }
        match self.workers.get_mut(&info.id) {
            Some(row) => row.info = info,
            None => {
                let row = Row {
                    info,
                    draining: false,
                    load: BatchLoad::default(),
                    booked: 0,
                    booked_tokens: 0,
                    foreign: 0,
                    foreign_tokens: 0,
                    placed: 0,
                    last_chosen: 0,
                };
                self.workers.insert(row.info.id.clone(), row);
            }
        }
        self.place_waiting(fx);
    }

    /// A worker reports its load. Reports of unknown workers are dropped. Frees a place only where others had taken it:
    /// our own are counted by bookings.
    pub fn worker_load(
        &mut self,
        _now: Time,
        worker: &WorkerId,
        load: BatchLoad,
        fx: &mut Vec<PlacementEffect>,
    ) {
        let Some(row) = self.workers.get_mut(worker) else { return };
        let before = row.foreign;
        row.foreign = load.requests.saturating_sub(row.booked);
        row.foreign_tokens = load.outstanding_tokens.saturating_sub(row.booked_tokens);
        row.load = load;
        if row.foreign < before {
            self.place_waiting(fx);
        }
    }

    /// A worker takes nothing new from now on; what is booked on it stays there.
    pub fn worker_draining(&mut self, worker: &WorkerId) {
        if let Some(row) = self.workers.get_mut(worker) {
            row.draining = true;
        }
    }

    /// This life of a worker is over: its bookings are lost.
    pub fn worker_left(&mut self, _now: Time, worker: &WorkerId, fx: &mut Vec<PlacementEffect>) {
        self.forget(worker, fx);
        // A request may have waited only because this worker was another one than those to avoid.
        self.place_waiting(fx);
    }

    /// A session asks for a place: the answer comes at once or when there is room. Asking again for an attempt that is
    /// booked repeats the answer.
    pub fn place(&mut self, now: Time, request: PlaceRequest, fx: &mut Vec<PlacementEffect>) {
        let key = (request.request, request.attempt);
        if let Some(booking) = self.bookings.get(&key) {
            let plan = booking.plan.clone();
            fx.push(PlacementEffect::Placed { request: key.0, attempt: key.1, plan });
            return;
        }
        if self.queue.iter().any(|w| (w.request.request, w.request.attempt) == key) {
            return;
        }
        match self.select(&request) {
            select::Selected::Place(worker, why) => self.book(&request, worker, why, fx),
            select::Selected::Wait => self.wait(now, request, fx),
            select::Selected::Reject(reason) => {
                fx.push(PlacementEffect::Rejected { request: key.0, attempt: key.1, reason });
            }
        }
    }

    /// An attempt is over, wherever it stands. Unknown ones (an earlier attempt, a worker that is gone) are nothing.
    pub fn release(
        &mut self,
        _now: Time,
        request: RequestId,
        attempt: Attempt,
        fx: &mut Vec<PlacementEffect>,
    ) {
        if self.unbook(request, attempt) {
            self.place_waiting(fx);
        } else {
            self.queue.retain(|w| (w.request.request, w.request.attempt) != (request, attempt));
        }
    }

    /// A gateway process is gone ([`RequestId::gateway`]): what it asked for is released or no longer waits.
    pub fn gateway_left(&mut self, _now: Time, gateway: u64, fx: &mut Vec<PlacementEffect>) {
        self.queue.retain(|w| w.request.request.gateway != gateway);
        let keys = self.bookings.keys();
        let booked: Vec<_> = keys.copied().filter(|(request, _)| request.gateway == gateway).collect();
        for (request, attempt) in booked {
            self.unbook(request, attempt);
        }
        self.place_waiting(fx);
    }

    /// Turns away what has waited too long.
    pub fn tick(&mut self, now: Time, fx: &mut Vec<PlacementEffect>) {
        self.queue.retain(|waiting| {
            let over = waiting.until <= now;
            if over {
                fx.push(PlacementEffect::Rejected {
                    request: waiting.request.request,
                    attempt: waiting.request.attempt,
                    reason: Rejection::Timeout(now.since(waiting.since)),
                });
            }
            !over
        });
    }

    /// When [`Placement::tick`] has to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.queue.iter().map(|w| w.until).min()
    }

    /// Requests that wait for a worker.
    #[must_use]
    pub fn queued(&self) -> u32 {
        self.queue.len() as u32
    }

    /// Requests that are booked on a worker.
    #[must_use]
    pub fn booked(&self) -> u32 {
        self.bookings.len() as u32
    }

    /// Whether any attempt of `request` waits here or is booked.
    #[must_use]
    pub fn is_booked(&self, request: RequestId) -> bool {
        let attempts = (request, Attempt(0))..=(request, Attempt(u32::MAX));
        self.bookings.range(attempts).next().is_some()
            || self.queue.iter().any(|w| w.request.request == request)
    }

    /// Models that at least one worker offers now (a draining one included), in the order in which they appeared.
    #[must_use]
    pub fn models(&self) -> Vec<ModelId> {
        self.models.iter().filter(|m| self.is_served(m)).cloned().collect()
    }

    /// The workers, by name.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerView> {
        let view = |row: &Row| WorkerView {
            info: row.info.clone(),
            draining: row.draining,
            load: row.load,
            booked: row.booked,
            booked_tokens: row.booked_tokens,
            foreign: row.foreign,
            placed: row.placed,
        };
        self.workers.values().map(view).collect()
    }
}
