//! The scheduler actor: the batch core on one side, the engine's thread on the other.
//!
//! One step is in flight at most. Its report comes as a message; the core turns it into events, which leave as one
//! message a gateway, and the next plan goes to the engine before anything else is handled.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::kv_events::Feed;
use cluster::wire::{KV_SNAPSHOT_PAGES, ToController, ToGateway, ToWorker};
use config::ids::{Attempt, NodeId, RequestId, WorkerId};
use engine::host::{EngineHost, StepReport};
use engine::{Engine, EngineError};
use policies::batch::{Batch, BatchConfig, BatchEffect, BatchLoad};
use policies::kv::PageHash;
use policies::kv::events::{KvEvent, Recording};
use policies::time::{Span, Time};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use ractor_cluster::RactorMessage;
use tracing::{debug, error, info};

use crate::clock;
use crate::doors::{Doors, WorkerStats};
use crate::kv::KvPortMsg;
use crate::membership::MembershipMsg;
use crate::worker::load::StepAge;
use crate::worker::pages::KvMsg;

mod transfers;

pub use transfers::KvSide;
use transfers::Transfers;

/// The controller hears about load at most this often, except when the worker falls idle.
const LOAD_EVERY: Span = Span::from_millis(50);
/// Deadlines of waiting requests and the invariants are looked at this often.
const TICK: Duration = Duration::from_millis(250);

/// The scheduler of a worker.
#[derive(Debug)]
pub struct Scheduler;

/// What a scheduler is started with.
#[derive(Debug)]
pub struct SchedulerArgs {
    /// The node's doors.
    pub doors: Doors,
    /// The worker that it schedules for.
    pub worker: WorkerId,
    /// Limits.
    pub batch: BatchConfig,
    /// The engine; moves to its own thread.
    pub engine: Box<dyn Engine>,
    /// Where the watchdog reads how long the step under way has been running.
    pub age: StepAge,
    /// Its part of the links to other workers; none for a node alone.
    pub kv: Option<KvSide>,
    /// Where routers of others are told about pages, if they are.
    pub kv_events: Option<Feed>,
}

/// What a scheduler takes, from its worker and from its engine.
#[derive(Debug, RactorMessage)]
pub enum SchedulerMsg {
    /// From a gateway.
    Wire(ToWorker),
    /// A gateway is gone: its requests are cancelled.
    GatewayLeft(NodeId),
    /// The worker goes on under this name.
    Rename(WorkerId),
    /// From a page set.
    Kv(Box<KvMsg>),
    /// The KV port is another one now.
    Port(ActorRef<KvPortMsg>),
    /// The engine has ended a step.
    Step(StepReport),
    /// The whole mistral.rs engine produced events ([`super::whole`] alone).
    Events(Vec<BatchEffect>),
    /// Take nothing new.
    Drain,
    /// Look at the deadlines of what waits.
    Tick,
    /// Fill in the load and answer.
    Observe {
        /// What the worker knows.
        base: WorkerStats,
        /// Where to.
        reply: RpcReplyPort<WorkerStats>,
    },
}

/// The scheduler's mutable state.
#[derive(Debug)]
pub struct SchedulerState {
    outbox: Outbox,
    core: Batch,
    /// Some until the end.
    host: Option<EngineHost>,
    age: StepAge,
    transfers: Transfers,
    /// Tokens of the step under way.
    step_tokens: usize,
    /// Whether a controller has asked for the pages that can be found here.
    controllers_told: bool,
    kv_events: Option<Feed>,
}

impl Actor for Scheduler {
    type Msg = SchedulerMsg;
    type State = SchedulerState;
    type Arguments = SchedulerArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<SchedulerMsg>,
        args: SchedulerArgs,
    ) -> Result<SchedulerState, ActorProcessingErr> {
        let scheduler = myself.clone();
        let fingerprint = args.batch.fingerprint;
        let budget = args.batch.max_batch_tokens;
        let transfers = Transfers::new(args.kv, myself.clone(), args.engine.kv(), fingerprint, budget);
        transfers.serve();
        let host = EngineHost::start(
            args.engine,
            Box::new(move |report| {
                // After the scheduler's end nobody needs the report.
                let _ = scheduler.cast(SchedulerMsg::Step(report));
            }),
        )?;
        myself.send_interval(TICK, || SchedulerMsg::Tick);
        let mut state = SchedulerState {
            outbox: Outbox::new(args.doors, args.worker),
            core: Batch::new(args.batch),
            host: Some(host),
            age: args.age,
            transfers,
            step_tokens: 0,
            controllers_told: false,
            kv_events: args.kv_events,
        };
        if let Some(feed) = &state.kv_events {
            feed.begin();
            state.core.record_kv_events(Recording::Tokens);
            // Whoever remembers an earlier life hears at once that its pages are gone.
            state.tell_pages();
        }
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<SchedulerMsg>,
        message: SchedulerMsg,
        state: &mut SchedulerState,
    ) -> Result<(), ActorProcessingErr> {
        let now = clock::now();
        state.handle(message, now)?;
        state.transfers.start(&mut state.core, now).await;
        state.tell_fetched();
        Ok(())
    }
}

/// However the scheduler ends, the engine's thread is not joined: the step under way may take long or never end, and an
/// async thread must not wait for it.
impl Drop for SchedulerState {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            host.detach();
        }
    }
}

impl SchedulerState {
    fn handle(&mut self, message: SchedulerMsg, now: Time) -> Result<(), ActorProcessingErr> {
        let mut effects = Vec::new();
        match message {
            SchedulerMsg::Wire(ToWorker::Submit { to: _, gateway, prefill, spec }) => {
                let (request, attempt) = (spec.id, spec.attempt);
                // One that is not known (any more) computes nothing: the prompt is computed here.
                let peer = prefill.and_then(|worker| self.outbox.doors.kv_peer(&worker));
                let result = self.transfers.submit(&mut self.core, now, *spec, peer);
                debug!(request = %request, attempt = %attempt, ?result, "submitted");
                self.outbox.admitted(&gateway, request, attempt, result);
            }
            SchedulerMsg::Wire(ToWorker::Fetch { to: _, from, gateway, spec }) => {
                let peer = self.outbox.doors.kv_peer(&from);
                self.transfers.fetch(&mut self.core, now, *spec, peer, gateway);
            }
            SchedulerMsg::Wire(ToWorker::Cancel { request, attempt }) => {
                self.transfers.call_off(request, attempt);
                self.core.cancel(now, request, attempt);
                self.outbox.forget(request, attempt);
            }
            SchedulerMsg::Wire(ToWorker::CancelChoice { request, attempt, choice }) => {
                self.core.cancel_choice(now, request, attempt, choice);
            }
            SchedulerMsg::Wire(ToWorker::Grant { request, attempt, choice, upto }) => {
                self.core.grant(now, request, attempt, choice, upto);
            }
            SchedulerMsg::Wire(ToWorker::KvResync { controller }) => self.resync(&controller),
            // The worker describes its model and changes its role itself.
            SchedulerMsg::Wire(ToWorker::DescribeModel { .. } | ToWorker::SetRole { .. }) => {}
            SchedulerMsg::GatewayLeft(gateway) => {
                for (request, attempt) in self.outbox.forget_gateway(&gateway) {
                    debug!(%request, %attempt, %gateway, "cancelled: its gateway is gone");
                    self.core.cancel(now, request, attempt);
                }
                for (request, attempt) in self.transfers.gateway_left(&gateway) {
                    self.core.cancel(now, request, attempt);
                }
            }
            SchedulerMsg::Rename(worker) => self.outbox.rename(worker),
            SchedulerMsg::Port(port) => self.transfers.set_port(port),
            SchedulerMsg::Kv(message) => {
                if let Some(host) = &self.host {
                    self.transfers.handle(*message, &mut self.core, host, now);
                }
            }
            SchedulerMsg::Step(StepReport { step, result }) => {
                self.age.clear();
                match result {
                    Ok(outcome) => {
                        metrics::histogram!(crate::metrics::STEP).record(outcome.took.as_secs_f64());
                        self.transfers.stepped(self.step_tokens, outcome.took);
                        self.core.complete(now, &outcome, &mut effects);
                    }
                    Err(EngineError::Stopped(reason)) => {
                        return Err(EngineError::Stopped(reason).into());
                    }
                    Err(e) => {
                        error!(step, error = %e, "engine step failed");
                        self.core.step_failed(now, step, &e.to_string(), &mut effects);
                    }
                }
            }
            SchedulerMsg::Drain => {
                info!("the scheduler takes nothing new");
                self.core.drain();
            }
            SchedulerMsg::Tick => {
                self.check();
                self.count_published();
            }
            // Only the bridge to the whole mistral.rs engine has an engine that makes events by itself.
            SchedulerMsg::Events(_) => {}
            SchedulerMsg::Observe { mut base, reply } => {
                base.load = self.core.load();
                // Whoever asked may have given up.
                let _ = reply.send(base);
            }
        }
        // Pages leave the engine before the next step, and that begins before the events of the last one are carried out.
        self.move_pages(now);
        self.pump(now)?;
        self.move_pages(now);
        self.core.take_effects(&mut effects);
        self.outbox.send(effects);
        self.tell_pages();
        self.outbox.report(now, self.core.load());
        Ok(())
    }

    fn tell_fetched(&mut self) {
        for (gateway, id, result) in self.transfers.take_fetched() {
            self.outbox.fetched(&gateway, id, result);
        }
    }

    fn move_pages(&mut self, now: Time) {
        if let Some(host) = &self.host {
            self.transfers.news(&mut self.core, host, now, &self.outbox.worker);
        }
    }

    /// Tells what has changed in the set of pages that can be found here: the controllers if one has asked, and routers
    /// of others if the configuration says so.
    fn tell_pages(&mut self) {
        let mut events = Vec::new();
        self.core.take_kv_events(&mut events);
        if let Some(feed) = &self.kv_events {
            let hashes = events.iter().map(KvEvent::without_tokens).collect();
            let with_tokens = std::mem::replace(&mut events, hashes);
            let page_tokens = self.core.config().page_tokens;
            if feed.take_whole_wanted() {
                // It contains what the events tell.
                feed.publish_whole(page_tokens, self.core.kv_contents());
            } else {
                feed.publish(page_tokens, with_tokens);
            }
        }
        if self.controllers_told {
            self.outbox.pages_changed(events);
        }
    }

    /// A controller wants to know all pages, and every change from now on.
    fn resync(&mut self, controller: &NodeId) {
        if self.core.config().kv_events == Recording::Off {
            self.core.record_kv_events(Recording::Hashes);
        }
        // What the snapshot contains has numbers up to its own.
        self.tell_pages();
        self.controllers_told = true;
        let pages = self.core.kv_snapshot();
        debug!(%controller, pages = pages.len(), "all pages are told");
        self.outbox.all_pages(controller, &pages);
    }

    /// Brings the metrics up to what the publisher has done. Its totals outlive this scheduler.
    fn count_published(&self) {
        use crate::metrics as m;
        let Some(figures) = self.kv_events.as_ref().map(Feed::figures) else { return };
        metrics::counter!(m::KV_EVENT_BATCHES).absolute(figures.batches);
        metrics::counter!(m::KV_EVENTS).absolute(figures.events);
        metrics::counter!(m::KV_EVENTS_DROPPED).absolute(figures.dropped);
    }

    /// Walks over all pages and sequences: too much for every message, cheap enough a few times a second.
    fn check(&self) {
        crate::metrics::enforce("batch", self.core.check());
        let aside = self.core.set_aside();
        metrics::gauge!(crate::metrics::KV_PAGES_RECEIVING).set(f64::from(aside.receiving_pages));
        metrics::gauge!(crate::metrics::KV_PAGES_HELD).set(f64::from(aside.held_pages));
    }

    /// Hands the engine its next step, if it is idle and there is one.
    fn pump(&mut self, now: Time) -> Result<(), EngineError> {
        let Some(plan) = self.core.plan(now) else { return Ok(()) };
        let tokens: usize = plan.slices.iter().map(|slice| slice.tokens.len()).sum();
        self.step_tokens = tokens;
        metrics::histogram!(crate::metrics::STEP_TOKENS).record(tokens as f64);
        self.age.set(now);
        self.host.as_ref().map_or(Ok(()), |host| host.submit(plan))
    }
}

/// Sends what a worker produces to the gateways that asked for it, and its load to the controller. Shared by the two
/// kinds of executor.
#[derive(Debug)]
pub struct Outbox {
    doors: Doors,
    worker: WorkerId,
    owners: BTreeMap<RequestId, (Attempt, NodeId)>,
    reported: (Time, BatchLoad),
    /// Number of the last message about pages.
    pages_seq: u64,
}

impl Outbox {
    /// An outbox of `worker`.
    #[must_use]
    pub fn new(doors: Doors, worker: WorkerId) -> Self {
        let reported = (Time::ZERO, BatchLoad::default());
        Self { doors, worker, owners: BTreeMap::new(), reported, pages_seq: 0 }
    }

    /// Answers a submission, and remembers whose request it is.
    pub fn admitted(
        &mut self,
        gateway: &NodeId,
        request: RequestId,
        attempt: Attempt,
        result: Result<(), policies::batch::Refusal>,
    ) {
        if result.is_ok() {
            self.owners.insert(request, (attempt, gateway.clone()));
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
        }
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
                BatchEffect::Done { request, attempt, .. } | BatchEffect::Failed { request, attempt, .. } => {
                    (*request, *attempt, true)
                }
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
