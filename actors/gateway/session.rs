//! One actor a request (a prompt with its choices), around `policies::session`: carries out the core's effects, turns
//! tokens into text and hands both to the HTTP side.
//!
//! The way out is a channel that has room for all that the request can produce, so that a session never waits for a
//! client. A client that stops reading stops its own generation and nobody else's: what it has taken is what grants the
//! worker more (`gateway.stream-credit`). Dropping the [`SessionStream`] is how a client leaves.

use std::sync::Arc;

use cluster::wire::ToController;
use config::ids::{Attempt, NodeId, WorkerId};
use engine::text::{StopSet, TextModel};
use policies::batch::{BatchEffect, Refusal};
use policies::kv::Fingerprint;
use policies::placement::{PlacementEffect, Rejection};
use policies::request::RequestSpec;
use policies::session::{Failure, Phase, Session, SessionConfig, SessionEffect};
use policies::time::{Span, Time};
use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr};
use ractor_cluster::RactorMessage;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::clock;
use crate::doors::{GatewayMsg, Placer};

use super::Shared;
use super::assemble::Assembler;
use super::sessions::Track;
use super::stages::Placed;

mod effects;
mod migrate;
mod out;
mod timing;

pub(crate) use migrate::{BegunReply, DoneReply};
pub(crate) use out::{Delta, SessionOut, SessionStream, SessionUsage};
pub(crate) use timing::Measured;
use timing::Timing;

/// Wait before the second retry of a request; a lost worker is noticed within a few of these.
const RETRY_BACKOFF: Span = Span::from_millis(100);

/// What a session takes.
#[derive(Debug, RactorMessage)]
pub(crate) enum SessionMsg {
    /// Ask for a place.
    Start,
    /// The controller answered.
    Placement(PlacementEffect),
    /// The worker answered.
    Admission { worker: WorkerId, attempt: Attempt, result: Result<(), Refusal> },
    /// A worker has fetched the pages that it was asked to, or not.
    Fetched { attempt: Attempt, result: Result<(), String> },
    /// Move to this worker, or where the controller says.
    Migrate { to: Option<WorkerId>, begun: BegunReply, done: DoneReply },
    /// A worker's step produced something for this request.
    Events(Vec<BatchEffect>),
    /// A worker is gone.
    WorkerLost(WorkerId),
    /// A node is gone, and with it whatever life of its worker.
    NodeLost(NodeId),
    /// Another controller answers now.
    AskAgain,
    /// The client has taken the first `total` tokens of a choice.
    Taken { choice: u32, total: u32 },
    /// The client is gone.
    ClientGone,
    /// End with this failure.
    Abort(Failure),
    /// The core's deadline.
    Deadline,
    /// Panics, as a defect would.
    #[cfg(test)]
    Crash,
}

/// What a session is made of.
#[derive(Debug)]
pub(crate) struct SessionArgs {
    pub(crate) shared: Arc<Shared>,
    pub(crate) spec: RequestSpec,
    pub(crate) text: Arc<TextModel>,
    pub(crate) stops: Option<Arc<StopSet>>,
    /// Nothing was asked to be generated (`max_tokens: 0`): one token is drawn, since a worker does no less, and
    /// neither shown nor counted.
    pub(crate) discard_output: bool,
    /// Tokens of a KV page.
    pub(crate) page_tokens: u32,
    /// What its pages are hashed with.
    pub(crate) fingerprint: Fingerprint,
}

/// Starts a session under `supervisor`.
///
/// # Errors
/// When the supervisor has stopped.
pub(crate) async fn start(
    args: SessionArgs,
    supervisor: &ActorRef<GatewayMsg>,
) -> Result<SessionStream, SpawnErr> {
    let (out, rx) = mpsc::channel(room(&args.spec));
    let (credit, told) = (args.spec.credit, vec![0; args.spec.choices()]);
    let track = Arc::new(Track { request: args.spec.id, held: Default::default(), out });
    let (actor, _) = Actor::spawn_linked(None, SessionActor, (args, track), supervisor.get_cell()).await?;
    let stream = SessionStream { rx, actor, done: false, step: credit.div_ceil(2).max(1), told };
    // A session that has died already has said so on its channel.
    let _ = stream.actor.cast(SessionMsg::Start);
    Ok(stream)
}

/// Messages that a request can produce at most: one a token and choice, one a prompt token, one acceptance an attempt,
/// one end.
fn room(spec: &RequestSpec) -> usize {
    let tokens = (spec.max_tokens as usize).saturating_add(2).saturating_mul(spec.choices());
    let prompt = if spec.prompt_logprobs { spec.prompt.len() } else { 0 };
    tokens.saturating_add(prompt).saturating_add(128).min(tokio::sync::Semaphore::MAX_PERMITS)
}

/// The actor.
#[derive(Debug)]
pub(crate) struct SessionActor;

/// Its state.
#[derive(Debug)]
pub(crate) struct SessionState {
    shared: Arc<Shared>,
    core: Session,
    track: Arc<Track>,
    choices: Vec<Assembler>,
    discard_output: bool,
    cached: Option<u32>,
    /// What the client is told instead of `Cancelled`, when it was not the client who left.
    abort: Option<Failure>,
    timing: Timing,
    /// The timer for the core's next deadline, with that deadline.
    timer: Option<(Time, AbortHandle)>,
    /// The next place is this node's own choice.
    own_choice: bool,
    /// Where the current attempt was placed, until the worker has it.
    placed: Option<Placed>,
    /// Where a target was booked that takes it over.
    target: Option<Placed>,
    /// Where it was placed last.
    last_worker: Option<WorkerId>,
    /// Prompt tokens that the directory expects at the worker; none where no directory was asked.
    predicted: Option<u32>,
    page_tokens: u32,
    fingerprint: Fingerprint,
    /// Who asked for the migration under way.
    mover: Option<DoneReply>,
}

impl Actor for SessionActor {
    type Msg = SessionMsg;
    type State = SessionState;
    type Arguments = (SessionArgs, Arc<Track>);

    async fn pre_start(
        &self,
        _myself: ActorRef<SessionMsg>,
        (args, track): Self::Arguments,
    ) -> Result<SessionState, ActorProcessingErr> {
        let SessionArgs { shared, spec, text, stops, discard_output, page_tokens, fingerprint } = args;
        let choices =
            (0..spec.choices()).map(|_| Assembler::new(&text, &spec.prompt, stops.as_ref())).collect();
        let timing = Timing::new(clock::now(), spec.choices());
        let config = SessionConfig { retry_limit: shared.limits().retry_limit, backoff: RETRY_BACKOFF };
        let core = Session::new(spec, config);
        let (cached, abort, timer) = (None, None, None);
        Ok(SessionState {
            shared,
            core,
            track,
            choices,
            discard_output,
            cached,
            abort,
            timing,
            timer,
            own_choice: false,
            placed: None,
            target: None,
            last_worker: None,
            predicted: None,
            page_tokens,
            fingerprint,
            mover: None,
        })
    }

    async fn post_start(
        &self,
        myself: ActorRef<SessionMsg>,
        state: &mut SessionState,
    ) -> Result<(), ActorProcessingErr> {
        // Only now is it linked, so that whoever is in the directory is also cleaned up after.
        state.shared.sessions.insert(myself, Arc::clone(&state.track));
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<SessionMsg>,
        message: SessionMsg,
        state: &mut SessionState,
    ) -> Result<(), ActorProcessingErr> {
        let now = clock::now();
        state.take(message, now);
        crate::metrics::enforce("session", state.core.check());
        if state.core.phase() == Phase::Ended {
            myself.stop(None);
        } else {
            state.set_timer(&myself, now);
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<SessionMsg>,
        state: &mut SessionState,
    ) -> Result<(), ActorProcessingErr> {
        if let Some((_, timer)) = state.timer.take() {
            timer.abort();
        }
        // Stopped from outside before its end: everything is given back all the same.
        let mut fx = Vec::new();
        state.core.cancel(clock::now(), &mut fx);
        state.carry_out(fx, clock::now());
        state.shared.sessions.remove(state.track.request);
        Ok(())
    }
}

impl SessionState {
    /// Keeps a timer for the core's next deadline, which moves when a retry has to wait.
    fn set_timer(&mut self, myself: &ActorRef<SessionMsg>, now: Time) {
        let next = self.core.next_deadline();
        if self.timer.as_ref().map(|(at, _)| *at) == next {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            timer.abort();
        }
        self.timer = next.map(|at| {
            let timer = myself.send_after(at.since(now).to_duration(), || SessionMsg::Deadline);
            (at, timer.abort_handle())
        });
    }

    fn take(&mut self, message: SessionMsg, now: Time) {
        let mut fx = Vec::new();
        match message {
            SessionMsg::Start => {
                let tokens = self.core.spec().prompt.len() as u64;
                metrics::counter!(crate::metrics::PROMPT_TOKENS).increment(tokens);
                self.core.start(now, &mut fx);
            }
            SessionMsg::Placement(effect) => self.placement(effect, now, &mut fx),
            SessionMsg::Admission { worker, attempt, result: Ok(()) } => {
                self.core.accepted(now, attempt, &mut fx);
                if self.core.is_accepted() && self.core.worker() == Some(&worker) {
                    self.taken();
                }
            }
            SessionMsg::Admission { worker: _, attempt, result: Err(why) } => {
                self.core.refused(now, attempt, why, &mut fx);
            }
            SessionMsg::Events(events) => {
                for event in events {
                    self.event(event, now, &mut fx);
                    // Before the next one, so that nothing is shown after a stop string.
                    self.carry_out(std::mem::take(&mut fx), now);
                }
            }
            SessionMsg::Fetched { attempt, result } => self.core.fetched(now, attempt, result, &mut fx),
            SessionMsg::Migrate { to, begun, done } => self.migrate(now, to, begun, done, &mut fx),
            SessionMsg::WorkerLost(worker) => self.core.worker_lost(now, &worker, &mut fx),
            SessionMsg::NodeLost(node) => {
                let there = |worker: &&WorkerId| worker.node == node;
                let target = self.core.moving_to().filter(there).cloned();
                let running = self.core.worker().filter(there).cloned();
                for worker in target.into_iter().chain(running) {
                    self.core.worker_lost(now, &worker, &mut fx);
                }
            }
            SessionMsg::AskAgain => self.core.ask_again(now, &mut fx),
            SessionMsg::Taken { choice, total } => self.core.consumed(now, choice, total, &mut fx),
            SessionMsg::ClientGone => self.core.cancel(now, &mut fx),
            SessionMsg::Abort(failure) => {
                self.abort = Some(failure);
                self.core.cancel(now, &mut fx);
            }
            SessionMsg::Deadline => {
                // It has fired; what comes next gets another one.
                self.timer = None;
                self.core.expire(now, &mut fx);
            }
            #[cfg(test)]
            SessionMsg::Crash => panic!("asked to"),
        }
        self.carry_out(fx, now);
    }

    fn placement(&mut self, effect: PlacementEffect, now: Time, fx: &mut Vec<SessionEffect>) {
        match effect {
            PlacementEffect::Placed { request, attempt, plan } => {
                let placed = Placed {
                    request,
                    attempt,
                    worker: plan.worker.clone(),
                    why: plan.why,
                    stages: Arc::clone(&plan.stages),
                };
                let remote = plan.prefill.is_some();
                self.core.placed(now, attempt, plan, fx);
                if self.core.worker() == Some(&placed.worker) && attempt == self.core.spec().attempt {
                    self.timing.remote = placed.splits_prompts().then_some(remote);
                    self.last_worker = Some(placed.worker.clone());
                    self.predicted = placed.predicted_hits();
                    self.shared.recent.placed(placed.clone());
                    self.placed = Some(placed);
                } else if self.core.is_taken_over_as(attempt) {
                    self.target = Some(placed);
                }
            }
            PlacementEffect::Rejected { attempt, reason, .. } => {
                if !self.asked_here(attempt, &reason, now, fx) {
                    self.core.rejected(now, attempt, reason, fx);
                }
            }
            PlacementEffect::Lost { attempt, worker, .. } => {
                // What a controller elsewhere cannot reach may be fine for this node, whose own links tell what is lost.
                let hearsay = self.asked_elsewhere() && self.shared.doors.is_linked(&worker.node);
                if attempt == self.core.spec().attempt && !hearsay {
                    self.core.worker_lost(now, &worker, fx);
                }
            }
        }
    }

    /// A controller that has just started, or come back, may not have met the workers yet that this node sees: where one
    /// of another node knows none, this node's own choice counts.
    fn asked_here(
        &mut self,
        attempt: Attempt,
        reason: &Rejection,
        now: Time,
        fx: &mut Vec<SessionEffect>,
    ) -> bool {
        let knows_none = matches!(reason, Rejection::UnknownModel(_) | Rejection::NoWorker(_));
        if !knows_none || !self.asked_elsewhere() || attempt != self.core.spec().attempt {
            return false;
        }
        let before = fx.len();
        self.core.ask_again(now, fx);
        self.own_choice = fx.len() > before;
        self.own_choice
    }

    /// Another node's controller was asked for the place.
    fn asked_elsewhere(&self) -> bool {
        matches!(self.track.update(|held| held.booked.clone()), Some(Placer::At(_)))
    }

    /// The worker has the request: the client may know, and the controller, which binds a session only now.
    fn taken(&mut self) {
        let Some(placed) = self.placed.take() else { return };
        let (request, attempt) = (placed.request, placed.attempt);
        if let Some(placer) = self.track.update(|held| held.booked.clone()) {
            self.shared.doors.to_placer(&placer, ToController::Accepted { request, attempt });
        }
        self.send(SessionOut::Accepted(placed));
    }

    fn event(&mut self, event: BatchEffect, now: Time, fx: &mut Vec<SessionEffect>) {
        match event {
            BatchEffect::Token(token) => self.core.token(now, &token, fx),
            BatchEffect::PromptLogprobs { attempt, first, tokens, .. } => {
                self.core.prompt_logprobs(now, attempt, first, tokens, fx);
            }
            BatchEffect::Done { attempt, usage, .. } => self.core.done(now, attempt, usage, fx),
            BatchEffect::Failed { attempt, reason, .. } => {
                self.core.failed_at_worker(now, attempt, reason, fx);
            }
            BatchEffect::TakenOver { attempt, .. } => self.core.taken_over(now, attempt, fx),
            BatchEffect::Late { attempt, reason, .. } => self.core.late_at_worker(attempt, reason, fx),
            // The worker counts it; the stream only has a gap in time.
            BatchEffect::Preempted { .. } => {}
        }
    }
}
