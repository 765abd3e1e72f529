//! The scheduler actor: the batch core on one side, the engine's thread on the other.
//!
//! One step is in flight at most. Its report comes as a message; the core turns it into events, which leave as one
//! message a gateway, and the next plan goes to the engine before anything else is handled.

use std::sync::Arc;
use std::time::Duration;

use cluster::kv_events::Feed;
use cluster::wire::ToWorker;
use config::ids::{Attempt, NodeId, RequestId, WorkerId};
use engine::host::{EngineHost, StepReport};
use engine::{Engine, EngineError};
use policies::batch::{Batch, BatchConfig, BatchEffect};
use policies::kv::events::Recording;
use policies::order::{Account, Ranks};
use policies::time::Time;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use ractor_cluster::RactorMessage;
use tracing::{debug, error, info};

use crate::clock;
use crate::doors::{Doors, WorkerStats};
use crate::kv::KvPortMsg;
use crate::worker::load::StepAge;
use crate::worker::orderer::{Orderer, Orders};
use crate::worker::pages::KvMsg;
use crate::worker::steps::{StepLog, Steps};

mod outbox;
mod published;
mod sets;
mod transfers;

pub use outbox::Outbox;
#[cfg(test)]
pub(crate) use sets::IDLE as IDLE_SETS;
use sets::Sets;
pub use transfers::KvSide;
use transfers::Transfers;

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
    /// Who runs next, and what is kept.
    pub orders: Orders,
    /// Its part of the links to other workers; none for a node alone.
    pub kv: Option<KvSide>,
    /// Where routers of others are told about pages, if they are.
    pub kv_events: Option<Feed>,
    /// Where some of its steps are written down, if they are.
    pub step_log: Option<Arc<StepLog>>,
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
    /// What the ordering policy thinks now.
    Ranks {
        /// Of which of the policies that were started.
        life: u64,
        /// What has changed.
        ranks: Ranks,
    },
    /// Start the ordering policy again that has failed.
    RestartOrder,
    /// Go by these policies from now on, or say why not and go on as before.
    SetOrders(Orders, RpcReplyPort<Result<(), String>>),
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
    orderer: Orderer,
    transfers: Transfers,
    sets: Sets,
    /// Tokens of the step under way.
    step_tokens: usize,
    steps: Steps,
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
            orderer: Orderer::new(args.orders),
            transfers,
            sets: Sets::default(),
            step_tokens: 0,
            steps: Steps::new(args.step_log),
            controllers_told: false,
            kv_events: args.kv_events,
        };
        state.core.keep_sessions(state.orderer.keep());
        state.transfers.set_offload(state.orderer.offload());
        if let Some(accounts) = state.orderer.start(&myself).await? {
            state.core.order_by_policy(true, accounts);
        }
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
        myself: ActorRef<SchedulerMsg>,
        message: SchedulerMsg,
        state: &mut SchedulerState,
    ) -> Result<(), ActorProcessingErr> {
        let message = match message {
            SchedulerMsg::RestartOrder => {
                state.restart_order(&myself).await;
                // What waits may have another order now.
                SchedulerMsg::Tick
            }
            SchedulerMsg::SetOrders(orders, reply) => {
                let result = state.set_orders(orders, &myself).await;
                // Whoever asked may have given up.
                let _ = reply.send(result);
                SchedulerMsg::Tick
            }
            message => message,
        };
        let now = clock::now();
        state.handle(message, now)?;
        state.start_sets(&myself, now).await;
        state.transfers.start(&mut state.core, now, &mut state.sets).await;
        state.tell_fetched();
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<SchedulerMsg>,
        event: SupervisionEvent,
        state: &mut SchedulerState,
    ) -> Result<(), ActorProcessingErr> {
        // Page sets are under the worker; without one, here.
        if let SupervisionEvent::ActorFailed(who, _) | SupervisionEvent::ActorTerminated(who, ..) = &event {
            let _ = myself.cast(SchedulerMsg::Kv(Box::new(KvMsg::SetGone(who.get_id()))));
        }
        if let SupervisionEvent::ActorFailed(who, reason) = event
            && let Some(delay) = state.orderer.failed(who.get_id())
        {
            error!(reason = %reason, retry_in = ?delay, "the worker's ordering policy failed; its last ranks count");
            metrics::counter!(crate::metrics::RESTARTS, "actor" => "worker-policy").increment(1);
            myself.send_after(delay, || SchedulerMsg::RestartOrder);
        }
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
        // All else changes little about what waits, and comes with every token.
        let offloads = matches!(
            message,
            SchedulerMsg::Wire(ToWorker::Submit { .. } | ToWorker::Take { .. })
                | SchedulerMsg::Step(_)
                | SchedulerMsg::Kv(_)
                | SchedulerMsg::Tick
        );
        match message {
            SchedulerMsg::Wire(ToWorker::Submit { to: _, gateway, prefill, fetch, spec }) => {
                let (request, attempt) = (spec.id, spec.attempt);
                // One that is not known (any more) computes nothing: the prompt is computed here.
                let peer = prefill.and_then(|worker| self.outbox.doors.kv_peer(&worker));
                let prefix = fetch.and_then(|fetch| self.outbox.doors.held_at(&fetch));
                let result = self.transfers.submit(&mut self.core, now, *spec, (peer, None), prefix);
                debug!(request = %request, attempt = %attempt, ?result, "submitted");
                if result.is_ok() {
                    self.sets.add((request, attempt));
                }
                self.outbox.admitted(&gateway, request, attempt, result);
            }
            SchedulerMsg::Wire(ToWorker::Take { to: _, from, takes, gateway, spec }) => {
                let (request, attempt) = (spec.id, spec.attempt);
                // One that is lost meanwhile gives nothing: the rest is computed here.
                let peer = self.outbox.doors.kv_peer(&from);
                let result = self.transfers.submit(&mut self.core, now, *spec, (peer, Some(takes)), None);
                debug!(request = %request, attempt = %attempt, ?result, "to be taken over");
                if result.is_ok() {
                    self.sets.add((request, attempt));
                }
                self.outbox.admitted(&gateway, request, attempt, result);
            }
            SchedulerMsg::Wire(ToWorker::Fetch { to: _, from, gateway, spec }) => {
                let peer = self.outbox.doors.kv_peer(&from);
                self.transfers.fetch(&mut self.core, now, *spec, peer, gateway);
            }
            SchedulerMsg::Wire(ToWorker::Cancel { request, attempt }) => {
                self.transfers.call_off(request, attempt);
                // Or nobody takes over what runs here.
                if !self.core.end_lending(now, request, attempt, false) {
                    self.core.cancel(now, request, attempt);
                }
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
            SchedulerMsg::Kv(message) => match *message {
                KvMsg::SetGone(actor) if let Some(id) = self.sets.gone(actor) => {
                    self.lose(now, id, &mut effects);
                }
                message => {
                    if let Some(host) = &self.host {
                        self.transfers.handle(message, &mut self.core, host, now);
                    }
                }
            },
            SchedulerMsg::Step(StepReport { step, result }) => {
                self.age.clear();
                match result {
                    Ok(outcome) => {
                        metrics::histogram!(crate::metrics::STEP).record(outcome.took.as_secs_f64());
                        self.steps.ended(now, &self.outbox.worker, step, outcome.took);
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
            SchedulerMsg::Ranks { life, ranks } => {
                if self.orderer.takes(life, &ranks) {
                    self.core.publish(&ranks);
                }
            }
            // They take a supervisor's hand.
            SchedulerMsg::RestartOrder | SchedulerMsg::SetOrders(..) => {}
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
        if offloads {
            // What is left in the queue waits for longer than this step.
            self.transfers.offload(&mut self.core, now, &self.outbox.doors, &self.outbox.worker);
        }
        self.move_pages(now);
        self.core.take_effects(&mut effects);
        self.outbox.send(effects);
        for id in self.outbox.take_ended() {
            self.sets.end(id);
        }
        self.tell_pages();
        self.tell_policy();
        self.outbox.report(now, self.core.load());
        metrics::gauge!(crate::metrics::KV_PAGES_KEPT).set(f64::from(self.core.kept().0));
        Ok(())
    }

    /// A request has lost its page set: its pages are free, and its gateway places it again.
    fn lose(&mut self, now: Time, (request, attempt): (RequestId, Attempt), effects: &mut Vec<BatchEffect>) {
        error!(%request, %attempt, "the page set of a request failed; the request goes on elsewhere, or here anew");
        metrics::counter!(crate::metrics::RESTARTS, "actor" => "page-set").increment(1);
        if self.core.cancel(now, request, attempt) {
            effects.push(BatchEffect::TakenOver { request, attempt });
        }
    }

    /// Starts the page sets of requests that were taken, after their first step was planned.
    async fn start_sets(&mut self, myself: &ActorRef<SchedulerMsg>, now: Time) {
        if !self.sets.are_due() {
            return;
        }
        let supervisor = myself.try_get_supervisor().unwrap_or_else(|| myself.get_cell());
        let mut effects = Vec::new();
        for id in self.sets.start(&supervisor).await {
            self.lose(now, id, &mut effects);
        }
        if !effects.is_empty() {
            self.outbox.send(effects);
        }
    }

    fn tell_fetched(&mut self) {
        for (gateway, id, result) in self.transfers.take_fetched() {
            self.outbox.fetched(&gateway, id, result);
        }
    }

    /// Tells the ordering policy what has happened; nothing waits for what it says to it.
    fn tell_policy(&mut self) {
        let mut events = Vec::new();
        self.core.take_order_events(&mut events);
        self.orderer.tell(events);
    }

    async fn restart_order(&mut self, myself: &ActorRef<SchedulerMsg>) {
        // After a reload there may be another one, which runs, or none.
        if !self.orderer.is_missing() {
            return;
        }
        match self.orderer.start(myself).await {
            Ok(accounts) => self.order_by(accounts),
            Err(e) => error!(error = %e, "the worker's ordering policy does not start"),
        }
    }

    async fn set_orders(&mut self, orders: Orders, myself: &ActorRef<SchedulerMsg>) -> Result<(), String> {
        if let Some(accounts) = self.orderer.replace(orders, myself).await.map_err(|e| e.to_string())? {
            self.order_by(accounts);
        }
        self.core.keep_sessions(self.orderer.keep());
        self.transfers.set_offload(self.orderer.offload());
        Ok(())
    }

    /// A new policy orders, which is told what is here; or none does.
    fn order_by(&mut self, accounts: Option<Vec<Account>>) {
        self.core.order_by_policy(accounts.is_some(), accounts.unwrap_or_default());
        self.tell_policy();
    }

    fn move_pages(&mut self, now: Time) {
        if let Some(host) = &self.host {
            self.transfers.news(&mut self.core, host, now, &self.outbox.worker);
        }
    }

    /// Walks over all pages and sequences: too much for every message, cheap enough a few times a second.
    fn check(&self) {
        crate::metrics::enforce("batch", self.core.check());
        let aside = self.core.set_aside();
        metrics::gauge!(crate::metrics::KV_PAGES_RECEIVING).set(f64::from(aside.receiving_pages));
        metrics::gauge!(crate::metrics::KV_PAGES_HELD).set(f64::from(aside.held_pages));
        self.transfers.check();
    }

    /// Hands the engine its next step, if it is idle and there is one.
    fn pump(&mut self, now: Time) -> Result<(), EngineError> {
        let Some(plan) = self.core.plan(now) else { return Ok(()) };
        let tokens: usize = plan.slices.iter().map(|slice| slice.tokens.len()).sum();
        self.step_tokens = tokens;
        metrics::histogram!(crate::metrics::STEP_TOKENS).record(tokens as f64);
        self.steps.begins(now, &plan);
        self.age.set(now);
        self.host.as_ref().map_or(Ok(()), |host| host.submit(plan))
    }
}
