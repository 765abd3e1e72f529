//! What leaves a worker: events to gateways, pages and load to controllers.

use std::collections::BTreeMap;

use cluster::wire::{KV_SNAPSHOT_PAGES, ToController, ToGateway};
use config::ids::{Attempt, NodeId, RequestId, WorkerId};
use policies::batch::{BatchEffect, BatchLoad};
use policies::kv::PageHash;
use policies::kv::events::KvEvent;
use policies::time::{Span, Time};
use tracing::debug;

use crate::doors::Doors;
use crate::membership::MembershipMsg;

/// The controller hears about load at most this often, except when the worker falls idle.
const LOAD_EVERY: Span = Span::from_millis(50);

/// Sends what a worker produces to the gateways that asked for it, and its load to the controller. Shared by the two
/// kinds of executor.
#[derive(Debug)]
pub struct Outbox {
    pub(super) doors: Doors,
    pub(super) worker: WorkerId,
    owners: BTreeMap<RequestId, (Attempt, NodeId)>,
    /// Attempts that are over since it was asked last.
    ended: Vec<(RequestId, Attempt)>,
    reported: (Time, BatchLoad),
    /// Number of the last message about pages.
    pages_seq: u64,
}

impl Outbox {
    /// An outbox of `worker`.
    #[must_use]
    pub fn new(doors: Doors, worker: WorkerId) -> Self {
        let reported = (Time::ZERO, BatchLoad::default());
        Self { doors, worker, owners: BTreeMap::new(), ended: Vec::new(), reported, pages_seq: 0 }
    }

    /// Answers a submission, and remembers whose request it is.
    pub fn admitted(
        &mut self,
        gateway: &NodeId,
        request: RequestId,
        attempt: Attempt,
        result: Result<(), policies::batch::Refusal>,
    ) {
        if result.is_ok()
            && let Some((former, _)) = self.owners.insert(request, (attempt, gateway.clone()))
        {
            self.ended.push((request, former));
        }
        let worker = self.worker.clone();
        self.doors.to_gateway(gateway, ToGateway::Admission { worker, request, attempt, result });
    }

    /// Answers the question for the pages of a request.
    pub fn fetched(&self, gateway: &NodeId, id: (RequestId, Attempt), result: Result<(), String>) {
        debug!(request = %id.0, attempt = %id.1, ?result, "fetched");
        let (worker, (request, attempt)) = (self.worker.clone(), id);
        self.doors.to_gateway(gateway, ToGateway::Fetched { worker, request, attempt, result });
    }

    /// The attempt was cancelled; later events of it go nowhere.
    pub fn forget(&mut self, request: RequestId, attempt: Attempt) {
        if self.owners.get(&request).is_some_and(|(owned, _)| *owned == attempt) {
            self.owners.remove(&request);
            self.ended.push((request, attempt));
        }
    }

    /// The attempts that are over since this was called last.
    pub fn take_ended(&mut self) -> Vec<(RequestId, Attempt)> {
        std::mem::take(&mut self.ended)
    }

    /// A gateway is gone: gives back what it had here.
    pub fn forget_gateway(&mut self, gateway: &NodeId) -> Vec<(RequestId, Attempt)> {
        let theirs = |owned: &(Attempt, NodeId)| owned.1 == *gateway;
        let gone: Vec<_> = self
            .owners
            .iter()
            .filter(|(_, owned)| theirs(owned))
            .map(|(request, owned)| (*request, owned.0))
            .collect();
        self.owners.retain(|_, owned| !theirs(owned));
        self.ended.extend(&gone);
        gone
    }

    /// The worker goes on under this name.
    pub fn rename(&mut self, worker: WorkerId) {
        self.worker = worker;
    }

    /// Sends the events of a step: one message a gateway, in order.
    pub fn send(&mut self, effects: Vec<BatchEffect>) {
        let mut by_gateway: BTreeMap<NodeId, Vec<BatchEffect>> = BTreeMap::new();
        for effect in effects {
            let (request, attempt, over) = match &effect {
                BatchEffect::Token(event) => (event.seq.request, event.seq.attempt, false),
                BatchEffect::PromptLogprobs { request, attempt, .. } => (*request, *attempt, false),
                BatchEffect::Done { request, attempt, .. }
                | BatchEffect::Failed { request, attempt, .. }
                | BatchEffect::Late { request, attempt, .. }
                | BatchEffect::TakenOver { request, attempt } => (*request, *attempt, true),
                BatchEffect::Preempted { seq, dropped } => {
                    debug!(request = %seq.request, choice = seq.choice, dropped, "preempted");
                    continue;
                }
            };
            let Some((owned, gateway)) = self.owners.get(&request) else { continue };
            if *owned != attempt {
                continue;
            }
            by_gateway.entry(gateway.clone()).or_default().push(effect);
            if over {
                self.owners.remove(&request);
                self.ended.push((request, attempt));
            }
        }
        for (gateway, events) in by_gateway {
            self.doors.to_gateway(&gateway, ToGateway::Step { worker: self.worker.clone(), events });
        }
    }

    /// Tells the controllers which pages can be found from now on, and which no longer.
    pub fn pages_changed(&mut self, events: Vec<KvEvent>) {
        if events.is_empty() {
            return;
        }
        self.pages_seq += 1;
        let (worker, seq) = (self.worker.clone(), self.pages_seq);
        self.doors.to_controllers(&ToController::KvEvents { worker, seq, events });
    }

    /// Tells a controller all pages that can be found, in parts.
    pub fn all_pages(&self, controller: &NodeId, pages: &[PageHash]) {
        let parts = pages.len().div_ceil(KV_SNAPSHOT_PAGES).max(1) as u32;
        for part in 0..parts {
            let at = part as usize * KV_SNAPSHOT_PAGES;
            let pages = pages[at..pages.len().min(at + KV_SNAPSHOT_PAGES)].to_vec();
            let (worker, seq) = (self.worker.clone(), self.pages_seq);
            let message = ToController::KvSnapshot { worker, seq, part, parts, pages };
            // If it does not arrive, the controller asks again.
            self.doors.to_controller_of(controller, message);
        }
    }

    /// Tells the controllers, the node and the metrics about the load, if it has changed and not too often.
    pub fn report(&mut self, now: Time, load: BatchLoad) {
        let (at, last) = self.reported;
        let idle = load.running == 0 && load.waiting == 0;
        if load == last || (now.since(at) < LOAD_EVERY && !idle) {
            return;
        }
        self.reported = (now, load);
        record(&last, &load);
        let worker = self.worker.clone();
        self.doors.to_membership(MembershipMsg::Load(worker.clone(), load));
        self.doors.to_controllers(&ToController::WorkerLoad { worker, load });
    }
}

/// Sets the levels and adds what the counters have grown by.
fn record(last: &BatchLoad, load: &BatchLoad) {
    use crate::metrics as m;
    metrics::gauge!(m::RUNNING).set(f64::from(load.running));
    metrics::gauge!(m::WAITING).set(f64::from(load.waiting));
    metrics::gauge!(m::KV_PAGES_USED).set(f64::from(load.pages_used));
    metrics::gauge!(m::KV_PAGES_CACHED).set(f64::from(load.pages_cached));
    metrics::gauge!(m::KV_PAGES_TOTAL).set(f64::from(load.pages_total));
    metrics::gauge!(m::KV_USAGE).set(f64::from(load.pages_used) / f64::from(load.pages_total.max(1)));
    let grown = |name: &'static str, before: u64, after: u64| {
        metrics::counter!(name).increment(after.saturating_sub(before));
    };
    grown(m::PREFIX_QUERIES, last.prefix_queries, load.prefix_queries);
    grown(m::PREFIX_HITS, last.prefix_hits, load.prefix_hits);
    grown(m::PREFILLED_TOKENS, last.prefilled_tokens, load.prefilled_tokens);
    grown(m::PREEMPTIONS, last.preemptions, load.preemptions);
}
