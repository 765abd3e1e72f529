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
mod types;

pub use types::{
    Choice, PlaceRequest, PlacementConfig, PlacementEffect, Plan, Rejection, WorkerInfo, WorkerView,
};

#[cfg(test)]
mod tests;

/// The name that stands for "whatever model is served here".
pub const DEFAULT_MODEL: &str = "default";

/// Tokens that a choice is expected to generate at most, for load: answers mostly end long before their limit, and a
/// client that sets none should not look like a heavy one.
pub const GENERATION_ESTIMATE: u32 = 256;

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
    /// The worker has taken the request.
    accepted: bool,
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

    /// The worker has taken the request. Only now a session is bound to it.
    pub fn accepted(&mut self, _now: Time, request: RequestId, attempt: Attempt) {
        if let Some(booking) = self.bookings.get_mut(&(request, attempt)) {
            booking.accepted = true;
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
