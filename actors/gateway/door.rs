//! The gateway's door, and the root that restarts it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::wire::ToGateway;
use config::ids::RequestId;
use engine::ModelCard;
use policies::batch::BatchEffect;
use policies::placement::PlacementEffect;
use policies::session::Failure;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use ractor_cluster::RactorMessage;

use crate::doors::{GatewayMsg, SessionSink};
use crate::membership::MembershipMsg;
use crate::supervise::{Backoff, TaskKind, spawn};

use super::Shared;
use super::error::outcome;
use super::fetch::Fetches;
use super::session::SessionMsg;
use super::sessions::Sessions;

/// What the root takes.
#[derive(Debug, RactorMessage)]
pub(crate) enum RootMsg {
    /// Start the door again.
    Restart,
}

/// What the root is made of.
#[derive(Debug)]
pub(crate) struct RootArgs {
    pub(crate) shared: Arc<Shared>,
}

/// Supervises the door.
#[derive(Debug)]
pub(crate) struct Root;

/// The root's state.
#[derive(Debug)]
pub(crate) struct RootState {
    shared: Arc<Shared>,
    backoff: Backoff,
}

impl Actor for Root {
    type Msg = RootMsg;
    type State = RootState;
    type Arguments = RootArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<RootMsg>,
        RootArgs { shared }: RootArgs,
    ) -> Result<RootState, ActorProcessingErr> {
        open(&shared, &myself).await?;
        Ok(RootState { shared, backoff: Backoff::default() })
    }

    async fn handle(
        &self,
        myself: ActorRef<RootMsg>,
        message: RootMsg,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RootMsg::Restart => {
                // Once more, for one that entered the directory while it was being stopped.
                state.bury_sessions();
                open(&state.shared, &myself).await?;
                // The new door has not heard which models are offered.
                state.shared.doors.to_membership(MembershipMsg::Reintroduce);
                Ok(())
            }
        }
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<RootMsg>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        let why = match event {
            SupervisionEvent::ActorFailed(_, why) => why.to_string(),
            SupervisionEvent::ActorTerminated(_, _, why) => why.unwrap_or_else(|| "stopped".into()),
            _ => return Ok(()),
        };
        let delay = state.backoff.next_delay(std::time::Instant::now());
        tracing::error!(why, delay_ms = delay.as_millis() as u64, "the gateway's door ended; restarting it");
        metrics::counter!(crate::metrics::RESTARTS, "actor" => "gateway").increment(1);
        // The sessions were the door's children and have died with it.
        state.bury_sessions();
        myself.send_after(delay, || RootMsg::Restart);
        Ok(())
    }
}

impl RootState {
    fn bury_sessions(&self) {
        let failure = Failure::Unavailable("the gateway was restarted".into());
        self.shared.sessions.bury_all(&self.shared.doors, &failure);
    }
}

/// Starts a door and makes it the one that others find.
async fn open(shared: &Arc<Shared>, root: &ActorRef<RootMsg>) -> Result<(), ActorProcessingErr> {
    let (door, _) = Actor::spawn_linked(None, Door, Arc::clone(shared), root.get_cell()).await?;
    shared.set_door(&door);
    shared.doors.add_gateway(shared.node.clone(), door.get_derived());
    let sessions = Arc::downgrade(shared);
    let sink = move |message| match sessions.upgrade() {
        Some(shared) => to_sessions(&shared.sessions, message),
        // The gateway has stopped, and its sessions with it.
        None => None,
    };
    shared.doors.add_sessions(shared.node.clone(), SessionSink(Arc::new(sink)));
    Ok(())
}

/// How long nothing may come of a model's descriptor before it is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Hands what workers and the controller send to the session that it is for, and supervises the sessions.
#[derive(Debug)]
pub(crate) struct Door;

/// The door's state.
#[derive(Debug)]
pub(crate) struct DoorState {
    shared: Arc<Shared>,
    fetches: Fetches,
}

impl Actor for Door {
    type Msg = GatewayMsg;
    type State = DoorState;
    type Arguments = Arc<Shared>;

    async fn pre_start(
        &self,
        myself: ActorRef<GatewayMsg>,
        shared: Arc<Shared>,
    ) -> Result<DoorState, ActorProcessingErr> {
        myself.send_interval(ASK_AGAIN, || GatewayMsg::Tick);
        Ok(DoorState { shared, fetches: Fetches::default() })
    }

    async fn handle(
        &self,
        _myself: ActorRef<GatewayMsg>,
        message: GatewayMsg,
        state: &mut DoorState,
    ) -> Result<(), ActorProcessingErr> {
        let DoorState { shared, fetches } = state;
        match message {
            // Here only while the way past the door is not open yet.
            GatewayMsg::Wire(
                message @ (ToGateway::Placement(_)
                | ToGateway::Admission { .. }
                | ToGateway::Fetched { .. }
                | ToGateway::Step { .. }),
            ) => {
                to_sessions(&shared.sessions, message);
            }
            GatewayMsg::Wire(ToGateway::WorkerLost(worker)) => {
                shared.sessions.broadcast(|| SessionMsg::WorkerLost(worker.clone()));
            }
            GatewayMsg::NodeLost(node) => {
                shared.sessions.broadcast(|| SessionMsg::NodeLost(node.clone()));
            }
            GatewayMsg::Wire(ToGateway::ModelPart { descriptor, part, parts, bytes }) => {
                if let Some(card) = fetches.part(&descriptor, part, parts, bytes) {
                    shared.doors.add_card(descriptor, Arc::clone(&card));
                    model_ready(shared, card);
                }
            }
            GatewayMsg::Wire(ToGateway::ControllerStarted(_)) | GatewayMsg::ControllerChanged => {
                shared.sessions.broadcast(|| SessionMsg::AskAgain);
            }
            GatewayMsg::Offers(offers) => {
                let offered: BTreeSet<&str> = offers.iter().map(|o| o.model.name.as_str()).collect();
                for name in shared.models.ready_names() {
                    if !offered.contains(name.as_str()) {
                        tracing::warn!(model = name, "no worker serves the model any more");
                        shared.models.gone(&name);
                    }
                }
                for card in fetches.offered(&offers, &shared.doors, &shared.node) {
                    model_ready(shared, card);
                }
            }
            GatewayMsg::Tick => fetches.ask_again(&shared.doors, &shared.node),
            GatewayMsg::SetLimits(limits) => shared.set_limits(limits),
            GatewayMsg::SetKeys(keys, reply) => {
                shared.set_keys(keys);
                // Whoever reloads may wait no more.
                let _ = reply.send(());
            }
            GatewayMsg::Drain => shared.draining.store(true, Ordering::Relaxed),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<GatewayMsg>,
        event: SupervisionEvent,
        DoorState { shared, .. }: &mut DoorState,
    ) -> Result<(), ActorProcessingErr> {
        let (cell, why) = match event {
            SupervisionEvent::ActorFailed(cell, why) => (cell, why.to_string()),
            SupervisionEvent::ActorTerminated(cell, _, why) => {
                (cell, why.unwrap_or_else(|| "stopped".into()))
            }
            _ => return Ok(()),
        };
        // A session that ended properly is in the directory no more.
        let failure = Failure::Engine("its session failed".into());
        let label = outcome(&failure);
        if let Some(request) = shared.sessions.bury(cell.get_id(), &shared.doors, failure) {
            tracing::error!(%request, why, "a session died; its request is cancelled");
            metrics::counter!(crate::metrics::REQUESTS, "outcome" => label).increment(1);
        }
        Ok(())
    }
}

/// Hands what is for single sessions to them; gives back what is for the door.
fn to_sessions(sessions: &Sessions, message: ToGateway) -> Option<ToGateway> {
    match message {
        ToGateway::Placement(effect) => {
            sessions.send(placed_request(&effect), SessionMsg::Placement(effect));
        }
        ToGateway::Admission { worker, request, attempt, result } => {
            sessions.send(request, SessionMsg::Admission { worker, attempt, result });
        }
        ToGateway::Fetched { worker: _, request, attempt, result } => {
            sessions.send(request, SessionMsg::Fetched { attempt, result });
        }
        ToGateway::Step { worker: _, events } => {
            let mut by_request: BTreeMap<RequestId, Vec<BatchEffect>> = BTreeMap::new();
            for event in events {
                by_request.entry(event_request(&event)).or_default().push(event);
            }
            for (request, events) in by_request {
                sessions.send(request, SessionMsg::Events(events));
            }
        }
        ToGateway::WorkerLost(_) | ToGateway::ControllerStarted(_) | ToGateway::ModelPart { .. } => {
            return Some(message);
        }
    }
    None
}

fn model_ready(shared: &Arc<Shared>, card: Arc<ModelCard>) {
    if !shared.models.ready(&card) {
        return;
    }
    let shared = Arc::clone(shared);
    spawn(TaskKind::Role, "build-tokenizer", async move {
        let name = card.name.clone();
        let built = tokio::task::spawn_blocking(move || shared.models.build(&card)).await;
        match built {
            Ok(Ok(())) => tracing::info!(model = name, "model ready"),
            Ok(Err(e)) => tracing::error!(model = name, error = %e, "the model's tokenizer cannot be built"),
            Err(e) => tracing::error!(model = name, error = %e, "building the model's tokenizer panicked"),
        }
    });
}

const fn placed_request(effect: &PlacementEffect) -> RequestId {
    match effect {
        PlacementEffect::Placed { request, .. }
        | PlacementEffect::Rejected { request, .. }
        | PlacementEffect::Lost { request, .. } => *request,
    }
}

const fn event_request(event: &BatchEffect) -> RequestId {
    match event {
        BatchEffect::Token(token) => token.seq.request,
        BatchEffect::Preempted { seq, .. } => seq.request,
        BatchEffect::PromptLogprobs { request, .. }
        | BatchEffect::Done { request, .. }
        | BatchEffect::Failed { request, .. }
        | BatchEffect::Late { request, .. }
        | BatchEffect::TakenOver { request, .. } => *request,
    }
}
