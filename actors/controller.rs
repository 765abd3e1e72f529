//! Controller role: an actor around [`policies::placement`]. It decides nothing itself; it carries effects to doors.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::wire::{ToController, ToGateway, ToPool, ToWorker};
use config::ids::{NodeId, PolicyName, RequestId};
use config::{Choice, ControllerConfig};
use policies::placement::{
    Placement, PlacementConfig, PlacementEffect, PolicyWork, Route, RouteNote, SwitchCause, Ticket,
};
use policies::policy::pool_replicate::PoolReplicate;
use policies::policy::{PolicyAction, PolicyMode, Stage};
use policies::time::Span;
use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use tracing::{debug, error, info, trace, warn};

use crate::clock;
use crate::doors::{ControllerMsg, DirectoryView, Doors};

pub mod consulted;

use consulted::{Maker, Policies};

/// Pause before a policy that does not even start is tried again.
const RESTART_AGAIN: Duration = Duration::from_secs(5);
/// How often queued requests are looked at for their time limit, and the figures are set. A tenth of the shortest
/// sensible `queue-timeout`.
const TICK: Duration = Duration::from_millis(100);

/// The controller of a node.
#[derive(Debug)]
pub struct Controller;

/// What a controller is started with.
#[derive(Clone, Debug)]
pub struct ControllerArgs {
    /// This node.
    pub node: NodeId,
    /// The node's doors.
    pub doors: Doors,
    /// Limits.
    pub config: ControllerConfig,
    /// Seed of the random choices.
    pub seed: u64,
    /// It places for this node's gateway alone, and only while no node of the cluster is a controller.
    pub stand_in: bool,
    /// The policies that it asks, in order. A stand-in has none.
    pub policies: Vec<Maker>,
}

/// The controller's mutable state.
#[derive(Debug)]
pub struct ControllerState {
    doors: Doors,
    core: Placement,
    /// Who waits for news about a request; an entry lives from `Place` to `Release` or rejection.
    owners: BTreeMap<RequestId, NodeId>,
    node: NodeId,
    policies: Policies,
    /// How long opinions are waited for.
    opinion_deadline: Duration,
    /// A timer for opinions that are late is running.
    awaiting: bool,
}

impl Actor for Controller {
    type Msg = ControllerMsg;
    type State = ControllerState;
    type Arguments = ControllerArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<ControllerMsg>,
        args: ControllerArgs,
    ) -> Result<ControllerState, ActorProcessingErr> {
        args.doors.set_controller(args.node.clone(), myself.clone(), args.stand_in);
        myself.send_interval(TICK, || ControllerMsg::Tick);
        // What a controller before this one was asked and did not answer is asked again.
        args.doors.to_gateways(&ToGateway::ControllerStarted(args.node.clone()));
        let mut state = ControllerState {
            doors: args.doors,
            core: Placement::new(placement_config(&args.config, args.seed, !args.stand_in)),
            owners: BTreeMap::new(),
            node: args.node,
            policies: Policies::default(),
            opinion_deadline: args.config.opinion_deadline.into(),
            awaiting: false,
        };
        state.set_policies(&myself, args.policies).await?;
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<ControllerMsg>,
        message: ControllerMsg,
        state: &mut ControllerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ControllerMsg::SetPolicies(makers, reply) => {
                let result = state.set_policies(&myself, makers).await;
                // Whoever reloads may have given up.
                let _ = reply.send(result.map_err(|e| e.to_string()));
            }
            ControllerMsg::RestartPolicy(name) => {
                let known = state.core.policy_events();
                if let Err(e) = state.policies.restart(&name, known, &myself).await {
                    error!(policy = %name, error = %e, "a policy cannot be started again");
                    myself.send_after(RESTART_AGAIN, move || ControllerMsg::RestartPolicy(name));
                }
            }
            message => state.handle(message),
        }
        if state.core.consulting() > 0 && !state.awaiting {
            state.awaiting = true;
            myself.send_after(state.opinion_deadline, || ControllerMsg::Due);
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<ControllerMsg>,
        event: SupervisionEvent,
        state: &mut ControllerState,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(who, why) = event
            && let Some((name, open, delay)) = state.policies.failed(who.get_id())
        {
            error!(policy = %name, why = %why, "a policy failed; requests go on without it until it is back");
            metrics::counter!(crate::metrics::RESTARTS, "actor" => "policy").increment(1);
            let mut effects = Vec::new();
            let now = clock::now();
            for ticket in open {
                let why = "it failed".to_owned();
                state.core.opinion_failed(now, Ticket(ticket), &name, why, Span::ZERO, &mut effects);
            }
            state.carry_out(effects);
            myself.send_after(delay, move || ControllerMsg::RestartPolicy(name));
        }
        Ok(())
    }
}

impl ControllerState {
    fn handle(&mut self, message: ControllerMsg) {
        let now = clock::now();
        let mut effects = Vec::new();
        let ticked = matches!(message, ControllerMsg::Tick);
        match message {
            ControllerMsg::WorkerJoined(info) => self.core.worker_joined(now, info, &mut effects),
            ControllerMsg::Wire(ToController::WorkerLoad { worker, load }) => {
                self.core.worker_load(now, &worker, load, &mut effects);
            }
            ControllerMsg::WorkerDraining(worker) => self.core.worker_draining(&worker),
            ControllerMsg::WorkerLeft(worker) => self.core.worker_left(now, &worker, &mut effects),
            ControllerMsg::PoolJoined(info) => {
                let unused =
                    !self.core.policies().iter().any(|p| p.config.name == PoolReplicate::NAME.into());
                if unused && !self.core.knows_pool(&info.id) {
                    let why = "cluster.cluster-policies does not list \"pool-replicate\"";
                    info!(pool = %info.id, why, "a pool is there that nothing is kept at");
                }
                self.core.pool_joined(info);
            }
            ControllerMsg::PoolLeft(pool) => self.core.pool_left(&pool),
            ControllerMsg::GatewayLeft(gateway) => {
                let lives: BTreeSet<u64> = self
                    .owners
                    .iter()
                    .filter(|(_, owner)| **owner == gateway)
                    .map(|(r, _)| r.gateway)
                    .collect();
                self.owners.retain(|_, owner| *owner != gateway);
                for life in lives {
                    self.core.gateway_left(now, life, &mut effects);
                }
            }
            ControllerMsg::Wire(ToController::Place { gateway, request }) => {
                let own = gateway == self.node;
                self.owners.insert(request.request, gateway);
                if own {
                    self.core.place(now, request, &mut effects);
                } else {
                    self.core.place_elsewhere(now, request, &mut effects);
                }
            }
            ControllerMsg::Wire(ToController::Release { request, attempt }) => {
                self.core.release(now, request, attempt, &mut effects);
                if !self.core.is_booked(request) {
                    self.owners.remove(&request);
                }
            }
            ControllerMsg::Wire(ToController::Accepted { request, attempt }) => {
                self.core.accepted(now, request, attempt);
            }
            ControllerMsg::Wire(ToController::Prefilled { request, attempt }) => {
                self.core.prefilled(now, request, attempt, &mut effects);
            }
            ControllerMsg::Wire(ToController::KvEvents { worker, seq, events }) => {
                let feed = self.core.kv_events(&worker, seq, &events);
                trace!(%worker, seq, events = events.len(), ?feed, "pages changed");
            }
            ControllerMsg::Wire(ToController::KvSnapshot { worker, seq, part, parts, pages }) => {
                let feed = self.core.kv_snapshot(&worker, seq, part, parts, &pages);
                debug!(%worker, seq, part, parts, pages = pages.len(), ?feed, "pages of a worker");
            }
            ControllerMsg::Wire(ToController::PoolEvents { pool, seq, events }) => {
                let feed = self.core.pool_events(&pool, seq, &events);
                trace!(%pool, seq, events = events.len(), ?feed, "pages of a pool changed");
            }
            ControllerMsg::Wire(ToController::PoolSnapshot { pool, seq, part, parts, pages }) => {
                let feed = self.core.pool_snapshot(&pool, seq, part, parts, &pages);
                debug!(%pool, seq, part, parts, pages = pages.len(), ?feed, "pages of a pool");
            }
            ControllerMsg::Tick => {
                self.core.tick(now, &mut effects);
                metrics::gauge!(crate::metrics::BOOKED).set(f64::from(self.core.booked()));
                metrics::gauge!(crate::metrics::QUEUED).set(f64::from(self.core.queued()));
                if self.policies.are_due(now) {
                    self.policies.tick(now, &self.core.workers().into());
                }
            }
            ControllerMsg::Observe(reply) => {
                // Whoever asked may have given up; then the answer interests nobody.
                let _ = reply.send(self.core.workers());
            }
            ControllerMsg::ObservePolicies(reply) => {
                let _ = reply.send(self.core.policies());
            }
            ControllerMsg::ObserveDirectory(reply) => {
                let directory = self.core.directory();
                let (pages, bytes, workers) = (directory.pages(), directory.bytes(), directory.workers());
                let pools = self.core.pool_directory();
                let (pages, bytes) = (pages + pools.pages(), bytes + pools.bytes());
                let _ = reply.send(DirectoryView { pages, bytes, workers, pools: pools.workers() });
            }
            ControllerMsg::Opinion { ticket, policy, opinion, took } => {
                self.policies.answered(ticket, &policy);
                self.core.opinion(now, ticket, &policy, opinion, took, &mut effects);
            }
            ControllerMsg::Proposed { policy, actions } => self.core.proposed(&policy, actions),
            ControllerMsg::Due => {
                self.awaiting = false;
                self.core.tick(now, &mut effects);
            }
            // Handled before.
            ControllerMsg::SetPolicies(..) | ControllerMsg::RestartPolicy(_) => {}
        }
        self.carry_out(effects);
        // A walk over all bookings: too much for every message, cheap enough a few times a second.
        if !ticked {
            return;
        }
        crate::metrics::enforce("placement", self.core.check());
    }

    /// Sends each effect to the gateway that owns its request. What cannot be delivered is released: nothing stays
    /// booked for a gateway that is gone.
    fn carry_out(&mut self, mut effects: Vec<PlacementEffect>) {
        loop {
            let mut more = Vec::new();
            for effect in effects {
                let (request, attempt, over) = match &effect {
                    PlacementEffect::Placed { request, attempt, plan } => {
                        debug!(request = %request, worker = %plan.worker, why = plan.why, "placed");
                        record(*request, &plan.stages);
                        (*request, *attempt, false)
                    }
                    PlacementEffect::Rejected { request, attempt, reason } => {
                        debug!(request = %request, %reason, "rejected");
                        (*request, *attempt, true)
                    }
                    PlacementEffect::Lost { request, attempt, .. } => (*request, *attempt, true),
                };
                let owner = self.owners.get(&request).cloned();
                let delivered = owner
                    .is_some_and(|gateway| self.doors.to_gateway(&gateway, ToGateway::Placement(effect)));
                if over || !delivered {
                    self.core.release(clock::now(), request, attempt, &mut more);
                    // One that is about to move has another attempt where it is.
                    if !self.core.is_booked(request) {
                        self.owners.remove(&request);
                    }
                }
            }
            let worked = self.policy_work(&mut more);
            if !worked && more.is_empty() {
                return;
            }
            effects = more;
        }
    }

    /// Asks and tells the policies what the core wants; whether it wanted anything.
    fn policy_work(&mut self, effects: &mut Vec<PlacementEffect>) -> bool {
        let mut work = Vec::new();
        self.core.take_policy_work(&mut work);
        let any = !work.is_empty();
        for item in work {
            match item {
                PolicyWork::Resync(worker) => {
                    // One that cannot be reached, or whose answer is lost, is asked again by a tick of the core.
                    self.doors.to_worker(&worker, ToWorker::KvResync { controller: self.node.clone() });
                }
                PolicyWork::ResyncPool(pool) => {
                    // As above.
                    self.doors.to_pool(&pool, ToPool::KvResync { controller: self.node.clone() });
                }
                PolicyWork::Note(note) => say(&note),
                PolicyWork::Act { policy, mode, action } => self.act(&policy, mode, action),
                PolicyWork::Observe(_) | PolicyWork::Consult { .. } => {
                    if let Some((ticket, policy)) = self.policies.work(item) {
                        let why = "it is being restarted".to_owned();
                        self.core.opinion_failed(clock::now(), ticket, &policy, why, Span::ZERO, effects);
                    }
                }
            }
        }
        any
    }

    /// Does what a policy proposes, where this controller is the one that decides: others see the same, and would do it
    /// again.
    fn act(&self, policy: &PolicyName, mode: PolicyMode, action: PolicyAction) {
        if !self.doors.leads() {
            return;
        }
        let word = if mode == PolicyMode::Prod { action.as_str() } else { action.would() };
        metrics::counter!(
            crate::metrics::POLICY_DECISIONS,
            "policy" => policy.to_string(), "mode" => mode.as_str(), "action" => word
        )
        .increment(1);
        let PolicyAction::SwitchRole { worker, role, why } = action;
        info!(%policy, %mode, action = word, %worker, %role, why, "a policy proposes");
        if mode == PolicyMode::Prod {
            // One that cannot be reached has what it has; the policy looks again after its pause.
            self.doors.to_worker(&worker, ToWorker::SetRole { role, cause: SwitchCause::Policy });
        }
    }

    /// Puts these policies in the place of those before: all of them, or none.
    async fn set_policies(
        &mut self,
        myself: &ActorRef<ControllerMsg>,
        makers: Vec<Maker>,
    ) -> Result<(), SpawnErr> {
        self.policies.start(makers, myself).await?;
        let mut effects = Vec::new();
        self.core.set_policies(clock::now(), self.policies.configs(), &mut effects);
        self.carry_out(effects);
        Ok(())
    }
}

/// Which way prompts go that are worth a prefill worker: each that has to go another way in the figures, and once in the
/// log where that changes.
fn say(note: &RouteNote) {
    let RouteNote { model, route, reason, before, changed } = note;
    if let Some(reason) = *reason {
        metrics::counter!(crate::metrics::PD_FALLBACKS, "reason" => reason).increment(1);
    }
    let (route, before) = (route.as_str(), before.map_or("none", Route::as_str));
    match reason {
        Some(reason) if *changed => {
            warn!(%model, route, before, reason, "requests go another way than by a prefill and a decode worker");
        }
        None if *changed => info!(%model, route, before, "requests go the usual way again"),
        _ => {}
    }
}

/// What was thought about a request: in the log and the figures.
fn record(request: RequestId, stages: &[Stage]) {
    for stage in stages {
        debug!(%request, policy = %stage.policy, mode = %stage.mode, action = %stage.action, why = stage.why,
               saved = ?stage.saved, took = %stage.took, "stage");
        metrics::counter!(
            crate::metrics::POLICY_DECISIONS,
            "policy" => stage.policy.to_string(), "mode" => stage.mode.as_str(), "action" => stage.action.to_string()
        )
        .increment(1);
        metrics::histogram!(crate::metrics::POLICY_SECONDS, "policy" => stage.policy.to_string())
            .record(stage.took.to_duration().as_secs_f64());
    }
}

fn placement_config(config: &ControllerConfig, seed: u64, directory: bool) -> PlacementConfig {
    PlacementConfig {
        max_queued: u32::try_from(config.queue_limit).unwrap_or(u32::MAX),
        queue_timeout: Span::from(std::time::Duration::from(config.queue_timeout)),
        choice: match config.choice {
            Choice::LeastLoaded => policies::placement::Choice::LeastLoaded,
            Choice::PowerOfTwo => policies::placement::Choice::PowerOfTwo,
            Choice::RoundRobin => policies::placement::Choice::RoundRobin,
            Choice::Random => policies::placement::Choice::Random,
        },
        seed,
        opinion_deadline: Duration::from(config.opinion_deadline).into(),
        directory,
    }
}
