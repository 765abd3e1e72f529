//! Controller role: an actor around [`policies::placement`]. It decides nothing itself; it carries effects to doors.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::wire::{ToController, ToGateway};
use config::ids::{NodeId, RequestId};
use config::{Choice, ControllerConfig};
use policies::invariant;
use policies::placement::{Placement, PlacementConfig, PlacementEffect};
use policies::time::Span;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tracing::{debug, error};

use crate::clock;
use crate::doors::{ControllerMsg, Doors};

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
}

/// The controller's mutable state.
#[derive(Debug)]
pub struct ControllerState {
    doors: Doors,
    core: Placement,
    /// Who waits for news about a request; an entry lives from `Place` to `Release` or rejection.
    owners: BTreeMap<RequestId, NodeId>,
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
        args.doors.set_controller(myself.clone(), args.stand_in);
        myself.send_interval(TICK, || ControllerMsg::Tick);
        // What a controller before this one was asked and did not answer is asked again.
        args.doors.to_gateways(&ToGateway::ControllerStarted(args.node));
        Ok(ControllerState {
            doors: args.doors,
            core: Placement::new(placement_config(&args.config, args.seed)),
            owners: BTreeMap::new(),
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<ControllerMsg>,
        message: ControllerMsg,
        state: &mut ControllerState,
    ) -> Result<(), ActorProcessingErr> {
        state.handle(message);
        Ok(())
    }
}

impl ControllerState {
    fn handle(&mut self, message: ControllerMsg) {
        let now = clock::now();
        let mut effects = Vec::new();
        match message {
            ControllerMsg::WorkerJoined(info) => self.core.worker_joined(now, info, &mut effects),
            ControllerMsg::Wire(ToController::WorkerLoad { worker, load }) => {
                self.core.worker_load(now, &worker, load, &mut effects);
            }
            ControllerMsg::WorkerDraining(worker) => self.core.worker_draining(&worker),
            ControllerMsg::WorkerLeft(worker) => self.core.worker_left(now, &worker, &mut effects),
            ControllerMsg::GatewayLeft(gateway) => {
                let lives: BTreeSet<u64> =
                    self.owners.iter().filter(|(_, owner)| **owner == gateway).map(|(r, _)| r.gateway).collect();
                self.owners.retain(|_, owner| *owner != gateway);
                for life in lives {
                    self.core.gateway_left(now, life, &mut effects);
                }
            }
            ControllerMsg::Wire(ToController::Place { gateway, request }) => {
                self.owners.insert(request.request, gateway);
                self.core.place(now, request, &mut effects);
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
            ControllerMsg::Tick => {
                self.core.tick(now, &mut effects);
                metrics::gauge!(crate::metrics::BOOKED).set(f64::from(self.core.booked()));
                metrics::gauge!(crate::metrics::QUEUED).set(f64::from(self.core.queued()));
            }
            ControllerMsg::Observe(reply) => {
                // Whoever asked may have given up; then the answer interests nobody.
                let _ = reply.send(self.core.workers());
            }
        }
        self.carry_out(effects);
        if let Some(broken) = invariant::enforce(self.core.check()) {
            error!(invariant = broken.name, detail = broken.detail, "placement invariant is broken");
            metrics::counter!(crate::metrics::BROKEN_INVARIANTS).increment(1);
        }
    }

    /// Sends each effect to the gateway that owns its request. What cannot be delivered is released: nothing stays
    /// booked for a gateway that is gone.
    fn carry_out(&mut self, mut effects: Vec<PlacementEffect>) {
        while !effects.is_empty() {
            let mut more = Vec::new();
            for effect in effects {
                let (request, attempt, over) = match &effect {
                    PlacementEffect::Placed { request, attempt, plan } => {
                        debug!(request = %request, worker = %plan.worker, why = plan.why, "placed");
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
                    self.owners.remove(&request);
                }
            }
            effects = more;
        }
    }
}

fn placement_config(config: &ControllerConfig, seed: u64) -> PlacementConfig {
    PlacementConfig {
        max_queued: u32::try_from(config.queue_limit).unwrap_or(u32::MAX),
        queue_timeout: Span::from(std::time::Duration::from(config.queue_timeout)),
        choice: match config.choice {
            Choice::LeastLoaded => policies::placement::Choice::LeastLoaded,
            Choice::PowerOfTwo => policies::placement::Choice::PowerOfTwo,
        },
        seed,
        opinion_deadline: policies::policy::OPINION_DEADLINE,
    }
}
