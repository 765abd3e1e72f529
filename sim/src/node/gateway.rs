//! The gateway: a [`policies::session`] for each live request, and what clients saw of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{RequestId, WorkerId};
use policies::batch::{BatchEffect, TokenEvent};
use policies::cost::fake::FakeModel;
use policies::invariant::Broken;
use policies::order::deadline;
use policies::placement::PlacementEffect;
use policies::policy::Stage;
use policies::request::{RequestSpec, Token, prop_millis};
use policies::session::{Failure, Session, SessionConfig, SessionEffect};
use policies::time::{Span, Time};

use super::places::Places;
use crate::checks::Truth;
use crate::event::{ControllerMsg, Event, GatewayMsg, Outbox, WorkerMsg};
use crate::report::tally::{Outcome, Seen, Tally};

mod live;
mod moves;

use live::{Live, LiveRequests};
pub use moves::Moving;

/// Effects of a step for which the memory of their requests is fetched at once.
const FETCH: usize = 2;

/// Where a request was placed, and what policies said of it.
pub type Placed = (WorkerId, Arc<[Stage]>);

/// Every answer and every placement, for whoever looks at them when the run has ended.
#[derive(Debug, Default)]
pub struct History {
    /// What each request was answered, by choice; complete or not.
    pub answers: BTreeMap<RequestId, Vec<Vec<Token>>>,
    /// The placements of each request in turn.
    pub placements: BTreeMap<RequestId, Vec<Placed>>,
}

impl History {
    fn begins(&mut self, spec: &RequestSpec) {
        self.answers.insert(spec.id, vec![Vec::new(); spec.choices()]);
        self.placements.insert(spec.id, Vec::new());
    }

    fn ends(&mut self, session: &Session) {
        let choices = 0..session.spec().choices() as u32;
        let answers = choices.map(|choice| session.tokens(choice).to_vec()).collect();
        self.answers.insert(session.spec().id, answers);
    }
}

/// The simulated gateway.
#[derive(Debug)]
pub struct Gateway {
    config: SessionConfig,
    /// Tell the controller what workers have taken; without policies it makes no difference there.
    tells_accepted: bool,
    live: LiveRequests,
    /// What clients saw of all requests that have ended.
    tally: Tally,
    history: Option<History>,
    /// Requests that have ended since somebody asked, with the answers of their first choices.
    ended: Vec<(RequestId, Vec<Token>)>,
    /// Effects of the call under way; empty between two.
    fx: Vec<SessionEffect>,
    places: Places,
    /// What clients have to be told, where that is checked.
    truth: Option<Truth>,
}

impl Gateway {
    /// A gateway without requests.
    #[must_use]
    pub fn new(config: SessionConfig, tells_accepted: bool, tally: Tally) -> Self {
        Self {
            config,
            tells_accepted,
            live: LiveRequests::new(),
            tally,
            history: None,
            ended: Vec::new(),
            fx: Vec::new(),
            places: Places::new(),
            truth: None,
        }
    }

    /// From now on every answer and every placement is kept.
    pub fn keep_history(&mut self) {
        self.history = Some(History::default());
    }

    /// From now on each token is held against what this model says.
    pub fn check_answers(&mut self, model: FakeModel) {
        self.truth = Some(Truth::new(model));
    }

    /// A request arrives, from a client that reads what it gets at once or, for now, not at all.
    ///
    /// # Errors
    /// A broken invariant of its session.
    pub fn arrive(
        &mut self,
        now: Time,
        mut spec: RequestSpec,
        reads: bool,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        let id = spec.id;
        // As live, a client may say that it has less time than the gateway gives it.
        if let Some(hint) = prop_millis(&spec.props, deadline::PROP).filter(|hint| *hint > Span::ZERO) {
            spec.deadline = spec.deadline.min(now + hint);
        }
        let seen = Seen::new(now, &spec);
        if let Some(history) = &mut self.history {
            history.begins(&spec);
        }
        if let Some(truth) = &mut self.truth {
            truth.begins(&spec);
        }
        out.after(spec.deadline.since(now), Event::Timer(id));
        let session = Session::new(spec, self.config);
        self.live.insert(id, Live { session, seen, stalled: !reads });
        self.with(now, id, out, |session, fx| session.start(now, fx))
    }

    /// A client leaves.
    ///
    /// # Errors
    /// As [`Gateway::arrive`].
    pub fn leave(&mut self, now: Time, id: RequestId, out: &mut Outbox) -> Result<(), Broken> {
        self.with(now, id, out, |session, fx| session.cancel(now, fx))
    }

    /// A client that did not read reads all that there is, and from now on.
    ///
    /// # Errors
    /// As [`Gateway::arrive`].
    pub fn read(&mut self, now: Time, id: RequestId, out: &mut Outbox) -> Result<(), Broken> {
        if let Some(live) = self.live.get_mut(id) {
            live.stalled = false;
        }
        self.with(now, id, out, |session, fx| {
            for choice in 0..session.spec().choices() as u32 {
                session.consumed(now, choice, session.tokens(choice).len() as u32, fx);
            }
        })
    }

    /// The time that a session asked for has come, or another one that it asked for before.
    ///
    /// # Errors
    /// As [`Gateway::arrive`].
    pub fn timer(&mut self, now: Time, id: RequestId, out: &mut Outbox) -> Result<(), Broken> {
        self.with(now, id, out, |session, fx| session.expire(now, fx))
    }

    /// A message came.
    ///
    /// # Errors
    /// As [`Gateway::arrive`].
    pub fn handle(&mut self, now: Time, message: GatewayMsg, out: &mut Outbox) -> Result<(), Broken> {
        match message {
            GatewayMsg::Placement(PlacementEffect::Placed { request, attempt, plan }) => {
                // A place for a request that moves is one of its own when it has moved.
                let is_next = |live: &Live| live.session.spec().attempt == attempt;
                if self.live.get(request).is_some_and(is_next)
                    && let Some(placements) =
                        self.history.as_mut().and_then(|h| h.placements.get_mut(&request))
                {
                    placements.push((plan.worker.clone(), Arc::clone(&plan.stages)));
                }
                self.with(now, request, out, |s, fx| s.placed(now, attempt, plan, fx))
            }
            GatewayMsg::Placement(PlacementEffect::Rejected { request, attempt, reason }) => {
                let again = self.places.is_own_choice_next(request, &reason);
                self.with(now, request, out, |s, fx| {
                    let before = fx.len();
                    if again && attempt == s.spec().attempt {
                        s.ask_again(now, fx);
                    }
                    if fx.len() == before {
                        s.rejected(now, attempt, reason, fx);
                    }
                })?;
                self.places.was_rejected();
                Ok(())
            }
            GatewayMsg::Placement(PlacementEffect::Lost { request, attempt, worker }) => {
                let hearsay = self.places.is_hearsay(request, &worker.node);
                self.with(now, request, out, |s, fx| {
                    if attempt == s.spec().attempt && !hearsay {
                        s.worker_lost(now, &worker, fx);
                    }
                })
            }
            GatewayMsg::Unreachable(request, worker) => {
                self.with(now, request, out, |s, fx| s.worker_lost(now, &worker, fx))
            }
            GatewayMsg::NodeLost(node, known) => {
                self.places.node_lost(node.clone());
                self.each(now, out, |session, fx| {
                    let both = [session.moving_to(), session.worker()].into_iter().flatten();
                    let there: Vec<WorkerId> = both.filter(|worker| worker.node == node).cloned().collect();
                    for worker in known.iter().chain(&there) {
                        session.worker_lost(now, worker, fx);
                    }
                })
            }
            GatewayMsg::NodeFound(node) => {
                self.places.node_found(&node);
                Ok(())
            }
            GatewayMsg::ControllerLost | GatewayMsg::ControllerFound => {
                self.places.controller(matches!(message, GatewayMsg::ControllerFound));
                self.each(now, out, |session, fx| session.ask_again(now, fx))
            }
            GatewayMsg::Fetched(request, attempt, result) => {
                self.with(now, request, out, |s, fx| s.fetched(now, attempt, result, fx))
            }
            GatewayMsg::Accepted(request, attempt) => {
                if self.tells_accepted {
                    self.places.tell(request, ControllerMsg::Accepted(request, attempt), out);
                }
                self.with(now, request, out, |s, fx| s.accepted(now, attempt, fx))
            }
            GatewayMsg::Refused(request, attempt, refusal) => {
                self.with(now, request, out, |s, fx| s.refused(now, attempt, refusal, fx))
            }
            GatewayMsg::Produced(mut effects) => {
                if effects.len() >= FETCH {
                    self.live.fetch(effects.iter().filter_map(|effect| match effect {
                        BatchEffect::Token(event) => Some(event.seq.request),
                        _ => None,
                    }));
                }
                for effect in effects.drain(..) {
                    self.produced(now, effect, out)?;
                }
                out.reuse(effects);
                Ok(())
            }
        }
    }

    fn produced(&mut self, now: Time, effect: BatchEffect, out: &mut Outbox) -> Result<(), Broken> {
        match effect {
            BatchEffect::Token(event) => {
                self.with(now, event.seq.request, out, |s, fx| s.token(now, &event, fx))
            }
            BatchEffect::PromptLogprobs { request, attempt, first, tokens } => {
                self.with(now, request, out, |s, fx| s.prompt_logprobs(now, attempt, first, tokens, fx))
            }
            BatchEffect::Done { request, attempt, usage } => {
                self.with(now, request, out, |s, fx| s.done(now, attempt, usage, fx))
            }
            BatchEffect::Failed { request, attempt, reason } => {
                self.with(now, request, out, |s, fx| s.failed_at_worker(now, attempt, reason, fx))
            }
            BatchEffect::Late { request, attempt, reason } => {
                self.with(now, request, out, |s, fx| s.late_at_worker(attempt, reason, fx))
            }
            BatchEffect::TakenOver { request, attempt } => {
                self.with(now, request, out, |s, fx| s.taken_over(now, attempt, fx))
            }
            BatchEffect::Preempted { .. } => {
                self.tally.preempted();
                Ok(())
            }
        }
    }

    /// Calls every session.
    fn each(
        &mut self,
        now: Time,
        out: &mut Outbox,
        call: impl Fn(&mut Session, &mut Vec<SessionEffect>),
    ) -> Result<(), Broken> {
        let live: Vec<RequestId> = self.live.ids().collect();
        live.into_iter().try_for_each(|id| self.with(now, id, out, &call))
    }

    /// The gateway dies, and all requests with it.
    pub fn crash(&mut self, now: Time) {
        let live: Vec<RequestId> = self.live.ids().collect();
        for id in live {
            self.end(now, id, &Outcome::Failed(Failure::Unavailable("the gateway died".into())));
        }
        self.places = Places::new();
    }

    /// A request arrives while the gateway is dead.
    pub fn refuse(&mut self, now: Time, spec: &RequestSpec) {
        let outcome = Outcome::Failed(Failure::Unavailable("the gateway is dead".into()));
        self.tally.ended(&Seen::new(now, spec), 0, Some((now, &outcome)));
        if let Some(history) = &mut self.history {
            history.begins(spec);
        }
        self.ended.push((spec.id, Vec::new()));
    }

    /// A request is over.
    fn end(&mut self, now: Time, id: RequestId, outcome: &Outcome) {
        let Some(Live { session, seen, .. }) = self.live.remove(id) else { return };
        self.tally.ended(&seen, session.retries(), Some((now, outcome)));
        if let Some(history) = &mut self.history {
            history.ends(&session);
        }
        if let Some(truth) = &mut self.truth {
            truth.ends(id);
        }
        self.places.forget(id);
        self.ended.push((id, session.tokens(0).to_vec()));
    }

    /// Calls a session, if it is still there, and carries out what it wants.
    fn with(
        &mut self,
        now: Time,
        id: RequestId,
        out: &mut Outbox,
        call: impl FnOnce(&mut Session, &mut Vec<SessionEffect>),
    ) -> Result<(), Broken> {
        let Some(Live { session, seen, stalled }) = self.live.get_mut(id) else { return Ok(()) };
        let (fx, mut outcome) = (&mut self.fx, None);
        let due = session.next_deadline();
        call(session, fx);
        if !*stalled {
            for effect in 0..fx.len() {
                if let SessionEffect::Deliver(TokenEvent { seq, index, .. }) = &fx[effect] {
                    let (choice, total) = (seq.choice, index + 1);
                    session.consumed(now, choice, total, fx);
                }
            }
        }
        session.check()?;
        // The deadline itself has its timer since the request's arrival.
        if let Some(next) = session.next_deadline()
            && due != Some(next)
            && next != session.spec().deadline
        {
            out.after(next.since(now), Event::Timer(id));
        }
        // A token, mostly.
        if let [SessionEffect::Deliver(event)] = &fx[..] {
            deliver(now, event, session.spec(), seen, (&mut self.truth, &mut self.tally))?;
            fx.clear();
            return Ok(());
        }
        for effect in fx.drain(..) {
            match effect {
                SessionEffect::Place(request) => self.places.ask(request, out),
                SessionEffect::Release { request, attempt } => self.places.release(request, attempt, out),
                SessionEffect::Prefilled { request, attempt } => {
                    self.places.tell(request, ControllerMsg::Prefilled(request, attempt), out);
                }
                SessionEffect::Submit { worker, prefill, spec } => {
                    out.send(Event::Worker(worker, WorkerMsg::Submit(spec, prefill)));
                }
                SessionEffect::CancelAt { worker, request, attempt } => {
                    out.send(Event::Worker(worker, WorkerMsg::Cancel(request, attempt)));
                }
                SessionEffect::CancelChoice { worker, request, attempt, choice } => {
                    out.send(Event::Worker(worker, WorkerMsg::CancelChoice(request, attempt, choice)));
                }
                SessionEffect::Grant { worker, request, attempt, choice, upto } => {
                    out.send(Event::Worker(worker, WorkerMsg::Grant(request, attempt, choice, upto)));
                }
                SessionEffect::Deliver(event) => {
                    deliver(now, &event, session.spec(), seen, (&mut self.truth, &mut self.tally))?;
                }
                SessionEffect::DeliverPrompt { .. } => {}
                SessionEffect::Choose(request) => self.places.choose(request, out),
                SessionEffect::Unchoose { request, attempt } => self.places.unchoose(request, attempt, out),
                SessionEffect::Fetch { to, from, spec } => {
                    out.send(Event::Worker(to, WorkerMsg::Fetch(spec, from)));
                }
                SessionEffect::Take { to, from, takes, spec } => {
                    out.send(Event::Worker(to, WorkerMsg::Take(spec, from, takes)));
                }
                SessionEffect::Switched { worker, attempt } => {
                    self.places.switched(id);
                    seen.moved();
                    if self.tells_accepted {
                        self.places.tell(id, ControllerMsg::Accepted(id, attempt), out);
                    }
                    if let Some(placements) = self.history.as_mut().and_then(|h| h.placements.get_mut(&id)) {
                        placements.push((worker, Arc::default()));
                    }
                }
                SessionEffect::Migration(end) => {
                    self.places.moved(id);
                    self.tally.moved(&end);
                }
                SessionEffect::Finished => outcome = Some(Outcome::Finished),
                SessionEffect::Failed(failure) => outcome = Some(Outcome::Failed(failure)),
            }
        }
        if let Some(outcome) = outcome {
            self.end(now, id, &outcome);
        }
        Ok(())
    }

    /// Whether a request has arrived and not ended.
    #[must_use]
    pub fn is_live(&self, id: RequestId) -> bool {
        self.live.get(id).is_some()
    }

    /// Requests that a worker has, or is being sent.
    pub fn at_workers(&self) -> impl Iterator<Item = RequestId> {
        self.live.iter().filter(|live| live.session.worker().is_some()).map(|live| live.session.spec().id)
    }

    /// Requests that have not ended.
    #[must_use]
    pub const fn live(&self) -> usize {
        self.live.len()
    }

    /// Whether a request has ended since the last time that somebody asked which have.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Requests that have ended since the last time, with what their first choices were answered.
    pub fn take_ended(&mut self) -> Vec<(RequestId, Vec<Token>)> {
        std::mem::take(&mut self.ended)
    }

    /// What clients saw, those included that wait for ever, and all answers where those were kept.
    #[must_use]
    pub fn into_seen(mut self) -> (Tally, Option<History>) {
        for Live { session, seen, .. } in self.live.iter() {
            self.tally.ended(seen, session.retries(), None);
            if let Some(history) = &mut self.history {
                history.ends(session);
            }
        }
        (self.tally, self.history)
    }
}

/// A client is told a token.
fn deliver(
    now: Time,
    event: &TokenEvent,
    spec: &RequestSpec,
    seen: &mut Seen,
    (truth, tally): (&mut Option<Truth>, &mut Tally),
) -> Result<(), Broken> {
    if let Some(truth) = truth {
        truth.tells(spec, event)?;
    }
    tally.token(now, seen, event);
    Ok(())
}
