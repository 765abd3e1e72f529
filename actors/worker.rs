//! Worker role: loads the model, then serves requests through a scheduler.
//!
//! The worker actor is the role's door and its supervisor. Under it: the scheduler actor ([`scheduler`]) around the
//! batch core, which drives an engine on a thread of its own; or, for the whole mistral.rs engine, the bridge actor
//! ([`whole`]). Loading runs off the async threads, so that the node answers while it lasts. When the scheduler or the
//! engine fails, its requests are reported lost (their sessions go elsewhere), and the engine is loaded again under a
//! new incarnation, with backoff.

pub mod load;
pub mod orderer;
pub mod pages;
mod port;
mod role;
pub mod scheduler;
pub mod steps;
pub mod whole;

use std::sync::Arc;
use std::time::Duration;

use cluster::identity::next_incarnation;
use cluster::kv_events::Feed;
use cluster::wire::{ModelAd, ToGateway, ToWorker, WorkerAd};
use config::ids::{NodeId, WorkerId};
use config::{Config, Dur};
use engine::{EngineError, ModelCard};
use policies::batch::BatchLoad;
use policies::kv::PageLayout;
use policies::placement::WorkerInfo;
use policies::time::{Span, Time};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use ractor_cluster::RactorMessage;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::card::{self, Described};
use crate::clock;
use crate::doors::{Doors, WorkerMsg, WorkerStats};
use crate::kv::{KvEntry, KvPortMsg};
use crate::membership::MembershipMsg;
use crate::reload::Reloader;
use crate::supervise::{Backoff, TaskKind, spawn};
use crate::worker::load::{Executor, Loaded};
use crate::worker::orderer::orders;
use crate::worker::pages::KvMsg;
use crate::worker::role::Role;
use crate::worker::scheduler::{Scheduler, SchedulerArgs, SchedulerMsg};
use crate::worker::steps::StepLog;
use crate::worker::whole::{Whole, WholeArgs};

/// How often the watchdog looks at the step under way.
const WATCH: Duration = Duration::from_millis(500);

/// What the node has to know about its worker, for readiness and for a failed start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerHealth {
    /// The model is being fetched or loaded.
    Loading,
    /// Requests are taken.
    Ready,
    /// The engine failed after it had been ready and is being loaded again.
    Restarting(String),
    /// A step has been running for longer than `engine.stall-after` while work is there.
    Stalled(Dur),
    /// Nothing new is taken.
    Draining,
    /// The first load failed: the configuration or the model has to change.
    Failed(String),
}

/// What a worker is started with.
#[derive(Clone, Debug)]
pub struct WorkerArgs {
    /// The node's name.
    pub node: NodeId,
    /// First incarnation; grows with each reload.
    pub incarnation: u64,
    /// The node's doors.
    pub doors: Doors,
    /// The effective configuration.
    pub config: Arc<Config>,
    /// Knows what a reload has changed of it; none where there is nothing to reload from.
    pub reloader: Option<Arc<Reloader>>,
    /// Where health is published.
    pub health: watch::Sender<WorkerHealth>,
    /// Its KV port; none for a node alone.
    pub kv: Option<Arc<KvEntry>>,
    /// Where routers of others are told about pages, if they are.
    pub kv_events: Option<Feed>,
    /// Where some of its steps are written down, if they are.
    pub step_log: Option<Arc<StepLog>>,
}

/// The worker of a node.
#[derive(Debug)]
pub struct Worker;

/// Messages of the worker actor: the door's and its own.
#[derive(Debug, RactorMessage)]
pub enum Msg {
    /// From another role.
    Door(WorkerMsg),
    /// The loader has ended.
    Loaded(Box<Result<(Loaded, Described), EngineError>>),
    /// Time to try again.
    Reload,
    /// Time to start the KV port again.
    RestartPort,
    /// Time to look at the step under way.
    Watch,
    /// The membership is new and knows nobody.
    Announce,
    /// Time to look whether what is here is done, for a change of role.
    LookDone,
    /// So many requests are here.
    Left(u32),
}

impl From<WorkerMsg> for Msg {
    fn from(message: WorkerMsg) -> Self {
        Self::Door(message)
    }
}

impl TryFrom<Msg> for WorkerMsg {
    type Error = Msg;

    fn try_from(message: Msg) -> Result<Self, Msg> {
        match message {
            Msg::Door(message) => Ok(message),
            own => Err(own),
        }
    }
}

/// The worker's mutable state.
#[derive(Debug)]
pub struct WorkerState {
    args: WorkerArgs,
    id: WorkerId,
    serving: Option<Serving>,
    backoff: Backoff,
    restarts: u32,
    draining: bool,
    was_ready: bool,
    role: Role,
    /// From the first load on.
    port: Option<ActorRef<KvPortMsg>>,
    /// Of the pages that it moves.
    layout: Option<PageLayout>,
}

/// What serves once the model is there.
#[derive(Debug)]
struct Serving {
    child: ActorRef<SchedulerMsg>,
    info: WorkerInfo,
    card: Arc<ModelCard>,
    described: Described,
    age: load::StepAge,
}

impl Actor for Worker {
    type Msg = Msg;
    type State = WorkerState;
    type Arguments = WorkerArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        args: WorkerArgs,
    ) -> Result<WorkerState, ActorProcessingErr> {
        let id = WorkerId::new(args.node.clone(), args.incarnation);
        let role = Role::new(&args.config.cluster);
        let state = WorkerState {
            args,
            id,
            serving: None,
            backoff: Backoff::default(),
            restarts: 0,
            draining: false,
            was_ready: false,
            role,
            port: None,
            layout: None,
        };
        state.start_loading(&myself);
        myself.send_interval(WATCH, || Msg::Watch);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::Door(WorkerMsg::Wire(ToWorker::SetRole { role, cause })) => {
                state.set_role(&myself, role, cause);
            }
            Msg::Door(message) => state.door(message),
            Msg::Loaded(result) => state.loaded(&myself, *result).await?,
            Msg::Reload => state.start_loading(&myself),
            Msg::RestartPort => state.restart_port(&myself).await,
            Msg::Watch => state.watch(),
            Msg::Announce => state.announce(),
            Msg::LookDone => state.look_done(&myself),
            Msg::Left(requests) => state.left(&myself, requests),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Msg>,
        event: SupervisionEvent,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        let (who, why) = match event {
            SupervisionEvent::ActorFailed(who, why) => (who.get_id(), Some(why.to_string())),
            SupervisionEvent::ActorTerminated(who, _, why) => (who.get_id(), why),
            _ => return Ok(()),
        };
        if state.serving.as_ref().is_some_and(|serving| serving.child.get_id() == who) {
            state.lost_engine(&myself, &why.unwrap_or_else(|| "the scheduler ended".to_owned()));
        } else if state.port.as_ref().is_some_and(|port| port.get_id() == who) {
            state.port_lost(&myself, why);
        } else if !pages::is_over(why.as_deref()) {
            // A page set: its request is looked after.
            state.forward(SchedulerMsg::Kv(Box::new(KvMsg::SetGone(who))));
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Msg>, state: &mut WorkerState) -> Result<(), ActorProcessingErr> {
        state.withdraw();
        Ok(())
    }
}

impl WorkerState {
    fn set_health(&self, health: WorkerHealth) {
        self.args.health.send_if_modified(|now| {
            let changed = *now != health;
            *now = health;
            changed
        });
    }

    fn start_loading(&self, myself: &ActorRef<Msg>) {
        let (config, worker) = (self.args.config.clone(), myself.clone());
        spawn(TaskKind::Role, "load-model", async move {
            let work = move || {
                let loaded = load::load(&config)?;
                let described = card::describe(&loaded.card).map_err(|e| EngineError::Load(e.to_string()))?;
                Ok((loaded, described))
            };
            let loading = tokio::task::spawn_blocking(work).await;
            let result = loading
                .unwrap_or_else(|e| Err(EngineError::Load(format!("loading the model panicked: {e}"))));
            // A worker that has stopped meanwhile needs no model.
            let _ = worker.cast(Msg::Loaded(Box::new(result)));
        });
    }

    async fn loaded(
        &mut self,
        myself: &ActorRef<Msg>,
        result: Result<(Loaded, Described), EngineError>,
    ) -> Result<(), ActorProcessingErr> {
        let (Loaded { executor, card, batch, max_requests, shape }, described) = match result {
            Ok(loaded) => loaded,
            Err(e) if !self.was_ready => {
                error!(error = %e, "the model cannot be served");
                self.set_health(WorkerHealth::Failed(e.to_string()));
                return Ok(());
            }
            Err(e) => {
                self.retry(myself, &e.to_string());
                return Ok(());
            }
        };
        let info = WorkerInfo {
            id: self.id.clone(),
            models: vec![card.name.as_str().into()],
            max_context: card.max_context,
            max_requests,
            // An engine that schedules for itself has no pages that others could look for.
            page_tokens: if matches!(executor, Executor::Steps(_)) { batch.page_tokens } else { 0 },
            role: self.role.taken_at_load(),
            switching_to: None,
            switchable: self.args.config.cluster.role_switch,
            hardware: (&self.args.config.cluster.hardware).into(),
            shape,
            kv: self.kv_peer(&executor, batch.fingerprint),
        };
        let (doors, worker) = (self.args.doors.clone(), self.id.clone());
        let (child, age) = match executor {
            Executor::Steps(engine) => {
                let age = load::StepAge::default();
                // Whoever changes them from now on finds this worker among the doors.
                self.args.doors.add_worker(self.id.clone(), myself.get_derived());
                let config =
                    self.args.reloader.as_ref().map_or_else(|| self.args.config.clone(), |r| r.config());
                let orders = orders(&config);
                let kv = self.kv_side(myself, engine.kv().layout).await?;
                let (kv_events, step_log) = (self.args.kv_events.clone(), self.args.step_log.clone());
                let running = age.clone();
                let args =
                    SchedulerArgs { doors, worker, batch, engine, age, orders, kv, kv_events, step_log };
                (Actor::spawn_linked(None, Scheduler, args, myself.get_cell()).await?.0, running)
            }
            Executor::Requests(engine) => {
                let args = WholeArgs { doors, worker, engine };
                (Actor::spawn_linked(None, Whole, args, myself.get_cell()).await?.0, load::StepAge::default())
            }
        };
        self.args.doors.add_card(described.hash, card.clone());
        self.serving = Some(Serving { child, info, card, described, age });
        self.was_ready = true;
        self.args.doors.add_worker(self.id.clone(), myself.get_derived());
        self.set_health(if self.draining { WorkerHealth::Draining } else { WorkerHealth::Ready });
        self.announce();
        Ok(())
    }

    fn is_stalled(&self) -> bool {
        matches!(*self.args.health.borrow(), WorkerHealth::Stalled(_))
    }

    /// Tells the node, and through it all others, what this worker offers; nothing while it cannot serve.
    fn announce(&self) {
        let ad = self.serving.as_ref().filter(|_| !self.is_stalled()).map(|serving| WorkerAd {
            info: serving.info.clone(),
            draining: self.draining,
            load: BatchLoad::default(),
            models: vec![ModelAd {
                name: serving.card.name.as_str().into(),
                descriptor: serving.described.hash,
                bytes: serving.described.bytes.len() as u64,
            }],
        });
        self.args.doors.to_membership(MembershipMsg::Worker(ad));
    }

    fn door(&mut self, message: WorkerMsg) {
        match message {
            WorkerMsg::Drain => {
                self.draining = true;
                self.stay();
                self.set_health(WorkerHealth::Draining);
                self.announce();
                self.forward(SchedulerMsg::Drain);
            }
            WorkerMsg::Observe(reply) => {
                let base = WorkerStats {
                    ready: self.serving.is_some() && !self.draining,
                    draining: self.draining,
                    step_age: self.serving.as_ref().and_then(|s| s.age.get(clock::now())),
                    restarts: self.restarts,
                    ..WorkerStats::default()
                };
                match &self.serving {
                    Some(serving) => {
                        // A scheduler that has just died drops the port, and the caller sees that.
                        let _ = serving.child.cast(SchedulerMsg::Observe { base, reply });
                    }
                    None => {
                        let _ = reply.send(base);
                    }
                }
            }
            WorkerMsg::Wire(ToWorker::DescribeModel { gateway, descriptor }) => {
                self.send_description(&gateway, &descriptor);
            }
            // Placed on a life of this worker that is over, or on one whose engine is being loaded again or does not answer:
            // whoever placed it had not heard yet.
            WorkerMsg::Wire(
                ToWorker::Submit { to, gateway, .. }
                | ToWorker::Fetch { to, gateway, .. }
                | ToWorker::Take { to, gateway, .. },
            ) if to != self.id || self.serving.is_none() || self.is_stalled() => {
                self.args.doors.to_gateway(&gateway, ToGateway::WorkerLost(to));
            }
            // If the scheduler has died, its supervision event is on its way and reports all requests lost.
            WorkerMsg::Wire(message) => self.forward(SchedulerMsg::Wire(message)),
            WorkerMsg::GatewayLeft(gateway) => self.forward(SchedulerMsg::GatewayLeft(gateway)),
            WorkerMsg::Renew => self.renew(),
            WorkerMsg::SetOrders(orders, reply) => {
                match &self.serving {
                    // A scheduler that has just died drops the port; the next one reads them from the configuration.
                    Some(serving) => _ = serving.child.cast(SchedulerMsg::SetOrders(orders, reply)),
                    None => _ = reply.send(Ok(())),
                }
            }
        }
    }

    fn forward(&self, message: SchedulerMsg) {
        if let Some(serving) = &self.serving {
            let _ = serving.child.cast(message);
        }
    }

    /// Sends a gateway what it needs to speak to the model. One that asks for another model has an old view.
    fn send_description(&self, gateway: &NodeId, descriptor: &[u8; 32]) {
        let Some(serving) = self.serving.as_ref().filter(|s| s.described.hash == *descriptor) else { return };
        let parts = card::parts(&serving.described.bytes);
        let count = parts.len() as u32;
        for (part, bytes) in parts.enumerate() {
            let message = ToGateway::ModelPart {
                descriptor: *descriptor,
                part: part as u32,
                parts: count,
                bytes: bytes.to_vec(),
            };
            if !self.args.doors.to_gateway(gateway, message) {
                return;
            }
        }
    }

    /// Takes a new name for a new life, after the others have given up the old one. The engine and its cached pages
    /// stay.
    fn renew(&mut self) {
        let Some(serving) = &mut self.serving else { return };
        let former = self.id.clone();
        self.id.incarnation = next_incarnation();
        serving.info.id = self.id.clone();
        let _ = serving.child.cast(SchedulerMsg::Rename(self.id.clone()));
        self.args.doors.rename_worker(&former, self.id.clone());
        info!(%former, now = %self.id, "the worker goes on as a new one");
        self.announce();
    }

    /// Takes the worker out of placement; all nodes hear that what it ran is lost.
    fn withdraw(&mut self) {
        if let Some(serving) = self.serving.take() {
            if let Some(port) = &self.port {
                // One that fails is started again without a scheduler.
                let _ = port.cast(KvPortMsg::Serve(None));
            }
            if let Some(feed) = &self.args.kv_events {
                feed.publish_whole(serving.info.page_tokens, Vec::new());
            }
            self.args.doors.remove_worker(&self.id);
            self.announce();
        }
    }

    fn lost_engine(&mut self, myself: &ActorRef<Msg>, reason: &str) {
        self.withdraw();
        self.retry(myself, reason);
    }

    fn retry(&mut self, myself: &ActorRef<Msg>, reason: &str) {
        let delay = self.backoff.next_delay(std::time::Instant::now());
        error!(reason, retry_in = ?delay, "the engine is lost; loading it again");
        metrics::counter!(crate::metrics::RESTARTS, "actor" => "scheduler").increment(1);
        self.restarts += 1;
        self.id.incarnation = next_incarnation();
        self.set_health(WorkerHealth::Restarting(reason.to_owned()));
        myself.send_after(delay, || Msg::Reload);
    }

    /// Notices a step that does not end: the process looks alive, and its clients wait for ever.
    fn watch(&mut self) {
        let Some(serving) = &self.serving else { return };
        let limit = Span::from(Duration::from(self.args.config.engine.stall_after));
        let age = serving.age.get(clock::now()).unwrap_or(Span::ZERO);
        let stalled = self.is_stalled();
        if age > limit {
            if stalled {
                return;
            }
            warn!(age = %age, limit = %limit, "the engine's step does not end");
            self.set_health(WorkerHealth::Stalled(self.args.config.engine.stall_after));
            // Nobody can stop the engine's thread, but its clients need not wait for it.
            self.announce();
        } else if stalled {
            info!("the engine answers again");
            self.set_health(if self.draining { WorkerHealth::Draining } else { WorkerHealth::Ready });
            self.announce();
        }
    }
}

/// When a step began, shared between the scheduler (which sets it) and the watchdog.
impl load::StepAge {
    fn get(&self, now: Time) -> Option<Span> {
        self.began().map(|began| now.since(began))
    }
}

#[cfg(test)]
mod tests;
