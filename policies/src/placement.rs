//! Controller core: where each request runs.
//!
//! One path: admit → (queue) → select → book → reply; an undeliverable reply, a rejection by the worker, the end of the
//! request and the loss of the worker all release the booking by the same call. Bookings are keyed by request and
//! attempt, so that leftovers of an earlier attempt release nothing.
//!
//! Where there are policies, "select" asks each of them about the workers that could take the request now, and waits for
//! their opinions up to a deadline ([`consult`]). While it waits nothing is booked; what was free may be taken by the
//! time the choice is made, so the choice looks again. Without policies there is no such step.
//!
//! A worker's load is counted from the moment of choice, not from its first answer: a burst of requests then spreads
//! although no worker has reported anything yet. What a worker reports beyond what is booked here at the time is taken
//! for work that others have sent there (gateways without a controller, a controller that led before) and counts too,
//! until the next report.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use config::ids::{Attempt, ModelId, RequestId, SessionId, WorkerId};

use crate::batch::BatchLoad;
use crate::kv::PageHash;
use crate::kv::directory::{Directory, Feed};
use crate::kv::events::KvEvent;
use crate::policy::PolicyEvent;
use crate::rng::Rng;
use crate::time::{Span, Time};

mod book;
mod consult;
mod handoff;
mod pair;
mod pinned;
mod policies;
mod pools;
mod route;
mod rows;
mod select;
mod types;

pub use pair::KvPeer;
pub use route::{Route, RouteNote};
pub use types::{
    Choice, PlaceRequest, PlacementConfig, PlacementEffect, Plan, PolicyView, PolicyWork, PoolInfo, Prefix,
    Rejection, SwitchCause, Ticket, WorkerInfo, WorkerView,
};

#[cfg(test)]
mod tests;

/// The name that stands for "whatever model is served here".
pub const DEFAULT_MODEL: &str = "default";

/// Tokens that a choice is expected to generate at most, for load: answers mostly end long before their limit, and a
/// client that sets none should not look like a heavy one.
pub const GENERATION_ESTIMATE: u32 = 256;

/// How often the directory is looked after; as long as a worker may take to answer with its pages.
const KEEP_DIRECTORY: Span = Span::from_secs(1);
/// Parts of the directory's maps (of 256) that are swept each time.
const TIDY_PARTS: usize = 32;

/// The controller's state machine.
#[derive(Debug)]
pub struct Placement {
    config: PlacementConfig,
    rng: Rng,
    workers: rows::Rows,
    /// Models in the order in which they were first offered, kept when their workers are gone.
    models: Vec<ModelId>,
    bookings: BTreeMap<(RequestId, Attempt), Booking>,
    queue: VecDeque<Waiting>,
    /// Counts choices, for "least recently used".
    choices: u64,
    policies: policies::PolicySet,
    /// Requests about which policies are being asked.
    pending: BTreeMap<Ticket, consult::Consultation>,
    tickets: u64,
    directory: Directory,
    directory_kept: Time,
    routes: route::Routes,
    pools: pools::Pools,
}

#[derive(Debug)]
struct Row {
    info: Arc<WorkerInfo>,
    offer: select::Offer,
    draining: bool,
    load: BatchLoad,
    booked: u32,
    booked_tokens: u64,
    /// Tokens of the longest sequences of what is booked, as they were when it was.
    booked_context: u64,
    /// Requests whose prompts it computes for another worker, and the tokens of those that it has to compute.
    handoffs: u32,
    handoff_tokens: u64,
    /// Requests and tokens that the last report had beyond what was booked at the time.
    foreign: u32,
    foreign_tokens: u64,
    /// Prompt tokens of bookings that the worker has not taken yet; it reports those that it has.
    fresh_prefill: u64,
    /// Those of bookings that it has taken since its last report.
    taken_prefill: u64,
    /// Reports so far.
    reports: u64,
    placed: u64,
    last_chosen: u64,
}

#[derive(Debug)]
struct Booking {
    plan: Plan,
    tokens: u64,
    /// Of those, prompt tokens to compute.
    prefill: u64,
    /// Tokens of its longest sequence, when it was booked.
    context: u64,
    /// The part of another worker, until it has done it or is gone.
    handoff: Option<handoff::Handoff>,
    session: Option<SessionId>,
    /// Hashes of its prompt's pages.
    pages: Arc<[PageHash]>,
    /// The worker has taken the request.
    accepted: bool,
    /// What is counted for it at its worker from then on, until that one reports.
    taken: Option<Taken>,
}

/// Prompt tokens that a worker has taken, after so many reports.
#[derive(Clone, Copy, Debug)]
struct Taken {
    tokens: u64,
    reports: u64,
}

#[derive(Debug)]
struct Waiting {
    request: Arc<PlaceRequest>,
    since: Time,
    until: Time,
    /// It has been in the queue, so its model is known; it waits where a new one would be turned away.
    queued: bool,
}

impl Waiting {
    fn key(&self) -> (RequestId, Attempt) {
        (self.request.request, self.request.attempt)
    }
}

impl Placement {
    /// A controller that knows no worker yet.
    #[must_use]
    pub fn new(config: PlacementConfig) -> Self {
        Self {
            rng: Rng::new(config.seed),
            config,
            workers: rows::Rows::default(),
            models: Vec::new(),
            bookings: BTreeMap::new(),
            queue: VecDeque::new(),
            choices: 0,
            policies: policies::PolicySet::default(),
            pending: BTreeMap::new(),
            tickets: 0,
            directory: Directory::new(),
            directory_kept: Time::ZERO,
            routes: route::Routes::default(),
            pools: pools::Pools::default(),
        }
    }

    /// A worker is ready, or says again what it offers. A higher incarnation of a node takes the place of a lower one,
    /// whose requests are lost; a lower one than known is a message from the past and changes nothing.
    pub fn worker_joined(&mut self, now: Time, info: WorkerInfo, fx: &mut Vec<PlacementEffect>) {
        let lives: Vec<WorkerId> =
            self.workers.keys().filter(|id| id.node == info.id.node && **id != info.id).cloned().collect();
        if lives.iter().any(|id| id.incarnation > info.id.incarnation) {
            return;
        }
        for former in lives {
            self.forget(now, &former, fx);
        }
        for model in &info.models {
            if !self.models.contains(model) {
                self.models.push(model.clone());
            }
        }
        let id = info.id.clone();
        if self.config.directory && info.page_tokens > 0 && self.directory.join(&id) {
            self.policies.resync(id.clone());
        }
        let offer = select::Offer::of(&info, &self.models);
        match self.workers.get_mut(&id) {
            Some(row) => (row.info, row.offer) = (Arc::new(info), offer),
            None => {
                let row = Row {
                    info: Arc::new(info),
                    offer,
                    draining: false,
                    load: BatchLoad::default(),
                    booked: 0,
                    booked_tokens: 0,
                    booked_context: 0,
                    handoffs: 0,
                    handoff_tokens: 0,
                    foreign: 0,
                    foreign_tokens: 0,
                    fresh_prefill: 0,
                    taken_prefill: 0,
                    reports: 0,
                    placed: 0,
                    last_chosen: 0,
                };
                self.workers.insert(id.clone(), row);
                self.policies.tell(now, &PolicyEvent::WorkerJoined(id));
            }
        }
        self.place_waiting(now, fx);
    }

    /// A worker reports its load. Reports of unknown workers are dropped. Frees a place only where others had taken it:
    /// our own are counted by bookings.
    pub fn worker_load(
        &mut self,
        now: Time,
        worker: &WorkerId,
        load: BatchLoad,
        fx: &mut Vec<PlacementEffect>,
    ) {
        let Some(row) = self.workers.get_mut(worker) else { return };
        let before = row.foreign;
        row.foreign = load.requests.saturating_sub(row.booked + row.handoffs);
        row.foreign_tokens = load.outstanding_tokens.saturating_sub(row.booked_tokens + row.handoff_tokens);
        row.load = load;
        row.reports += 1;
        row.taken_prefill = 0;
        if row.foreign < before {
            self.place_waiting(now, fx);
        }
    }

    /// A worker takes nothing new from now on; what is booked on it stays there.
    pub fn worker_draining(&mut self, worker: &WorkerId) {
        if let Some(row) = self.workers.get_mut(worker) {
            row.draining = true;
        }
    }

    /// This life of a worker is over: its bookings are lost.
    pub fn worker_left(&mut self, now: Time, worker: &WorkerId, fx: &mut Vec<PlacementEffect>) {
        self.forget(now, worker, fx);
        // A request may have waited only because this worker was another one than those to avoid.
        self.place_waiting(now, fx);
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
        if self.queue.iter().any(|w| w.key() == key) || self.pending.values().any(|c| c.key() == key) {
            return;
        }
        let until = (now + self.config.queue_timeout).min(request.deadline);
        let waiting = Waiting { request: Arc::new(request), since: now, until, queued: false };
        if let Some(waiting) = self.consider(now, waiting, fx) {
            self.wait(waiting, fx);
        }
    }

    /// As [`Placement::place`], for a gateway of another node: what no worker known here serves is turned away at once
    /// instead of waiting for one, since that gateway may see workers that this controller does not and then looks for
    /// itself.
    pub fn place_elsewhere(&mut self, now: Time, request: PlaceRequest, fx: &mut Vec<PlacementEffect>) {
        match self.resolve(&request.model) {
            Ok(model) if !self.is_served(&model) => {
                let (request, attempt) = (request.request, request.attempt);
                fx.push(PlacementEffect::Rejected { request, attempt, reason: Rejection::NoWorker(model) });
            }
            // What is not known at all is turned away there.
            Ok(_) | Err(_) => self.place(now, request, fx),
        }
    }

    /// The worker has taken the request. Only now a session is bound to it.
    pub fn accepted(&mut self, now: Time, request: RequestId, attempt: Attempt) {
        let Some(booking) = self.bookings.get_mut(&(request, attempt)) else { return };
        if std::mem::replace(&mut booking.accepted, true) {
            return;
        }
        if let Some(row) = self.workers.get_mut(&booking.plan.worker) {
            row.fresh_prefill -= booking.prefill;
            // Its next report has it; until then it must not be forgotten, or whoever comes meanwhile is sent there too.
            row.taken_prefill += booking.prefill;
            booking.taken = Some(Taken { tokens: booking.prefill, reports: row.reports });
        }
        if self.policies.are_any() {
            let event = PolicyEvent::Accepted(booking.placed_at(request, attempt));
            self.policies.tell(now, &event);
        }
    }

    /// An attempt is over, wherever it stands. Unknown ones (an earlier attempt, a worker that is gone) are nothing.
    pub fn release(
        &mut self,
        now: Time,
        request: RequestId,
        attempt: Attempt,
        fx: &mut Vec<PlacementEffect>,
    ) {
        let key = (request, attempt);
        let before = self.pending.len();
        self.pending.retain(|_, c| c.key() != key);
        if self.unbook(now, request, attempt) || self.pending.len() < before {
            self.place_waiting(now, fx);
        } else {
            self.queue.retain(|w| w.key() != key);
        }
    }

    /// A gateway process is gone ([`RequestId::gateway`]): what it asked for is released or no longer waits.
    pub fn gateway_left(&mut self, now: Time, gateway: u64, fx: &mut Vec<PlacementEffect>) {
        self.queue.retain(|w| w.request.request.gateway != gateway);
        self.pending.retain(|_, c| c.key().0.gateway != gateway);
        let keys = self.bookings.keys();
        let booked: Vec<_> = keys.copied().filter(|(request, _)| request.gateway == gateway).collect();
        for (request, attempt) in booked {
            self.unbook(now, request, attempt);
        }
        self.place_waiting(now, fx);
    }

    /// Goes on without opinions that are late, and turns away what has waited too long.
    pub fn tick(&mut self, now: Time, fx: &mut Vec<PlacementEffect>) {
        self.conclude_late(now, fx);
        self.keep_directory(now);
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
        let waiting = self.queue.iter().map(|w| w.until);
        waiting.chain(self.pending.values().map(consult::Consultation::until)).min()
    }

    /// Requests that wait for a worker.
    #[must_use]
    pub fn queued(&self) -> u32 {
        self.queue.len() as u32
    }

    /// Workers that are known.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// Requests about which policies are being asked.
    #[must_use]
    pub fn consulting(&self) -> u32 {
        self.pending.len() as u32
    }

    /// Requests that are booked on a worker.
    #[must_use]
    pub fn booked(&self) -> u32 {
        self.bookings.len() as u32
    }

    /// Whether any attempt of `request` waits here, is being thought about, or is booked.
    #[must_use]
    pub fn is_booked(&self, request: RequestId) -> bool {
        let attempts = (request, Attempt(0))..=(request, Attempt(u32::MAX));
        self.bookings.range(attempts).next().is_some()
            || self.queue.iter().any(|w| w.request.request == request)
            || self.pending.values().any(|c| c.key().0 == request)
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
            info: WorkerInfo::clone(&row.info),
            draining: row.draining,
            load: row.load,
            booked: row.booked,
            booked_tokens: row.booked_tokens,
            handoffs: row.handoffs,
            handoff_tokens: row.handoff_tokens,
            foreign: row.foreign,
            placed: row.placed,
        };
        self.workers.values().map(view).collect()
    }

    /// Message `seq` of what a worker tells about its pages. A gap asks for a snapshot by [`PolicyWork::Resync`].
    pub fn kv_events(&mut self, worker: &WorkerId, seq: u64, events: &[KvEvent]) -> Feed {
        let feed = self.directory.events(worker, seq, events);
        self.fed(worker, feed)
    }

    /// A part of a snapshot of a worker's pages, as [`Directory::snapshot`] takes it.
    pub fn kv_snapshot(
        &mut self,
        worker: &WorkerId,
        seq: u64,
        part: u32,
        parts: u32,
        pages: &[PageHash],
    ) -> Feed {
        let feed = self.directory.snapshot(worker, seq, part, parts, pages);
        self.fed(worker, feed)
    }

    fn fed(&mut self, worker: &WorkerId, feed: Feed) -> Feed {
        if matches!(feed, Feed::Gap { .. }) {
            self.policies.resync(worker.clone());
        }
        feed
    }

    /// Sweeps up what removed workers have left in the directory, and asks again whoever has not answered.
    fn keep_directory(&mut self, now: Time) {
        if self.config.directory && now.since(self.directory_kept) >= KEEP_DIRECTORY {
            self.directory_kept = now;
            self.directory.tidy(TIDY_PARTS);
            for worker in self.directory.overdue() {
                self.policies.resync(worker);
            }
            self.keep_pools();
        }
    }

    /// Who holds which pages. Empty without [`PlacementConfig::directory`].
    #[must_use]
    pub const fn directory(&self) -> &Directory {
        &self.directory
    }
}
