//! The gateway: a [`policies::session`] for each live request, and what clients saw of it.

use std::collections::{BTreeMap, BTreeSet};
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

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All choices ended.
    Finished,
    /// It failed.
    Failed(Failure),
}

/// Where a request was placed, and what policies said of it.
pub type Placed = (WorkerId, Arc<[Stage]>);

/// What a client saw of its request.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it came.
    pub arrived: Time,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the first worker to answer had in its cache; none before the first token.
    pub cached_tokens: Option<u32>,
    /// The answer, by choice, with the time of each token.
    pub answers: Vec<Vec<(Time, Token)>>,
    /// Each of its placements in turn.
    pub placements: Vec<Placed>,
    /// Placements after the first.
    pub retries: u32,
    /// Times that a choice was preempted.
    pub preemptions: u32,
    /// How it ended and when; none while it runs.
    pub end: Option<(Time, Outcome)>,
}

impl Record {
    /// Of a request that has just come.
    fn new(now: Time, spec: &RequestSpec) -> Self {
        Self {
            arrived: now,
            prompt_tokens: spec.prompt.len() as u32,
            cached_tokens: None,
            answers: vec![Vec::new(); spec.choices()],
            placements: Vec::new(),
            retries: 0,
            preemptions: 0,
            end: None,
        }
    }
}

/// The simulated gateway.
#[derive(Debug)]
pub struct Gateway {
    config: SessionConfig,
    /// Tell the controller what workers have taken; without policies it makes no difference there.
    tells_accepted: bool,
    sessions: BTreeMap<RequestId, Session>,
    records: BTreeMap<RequestId, Record>,
    /// Live requests whose clients read nothing yet.
    stalled: BTreeSet<RequestId>,
    /// Requests that have ended since somebody asked.
    ended: Vec<RequestId>,
    /// Effects of the call under way; empty between two.
    fx: Vec<SessionEffect>,
    places: Places,
    /// What clients have to be told, where that is checked.
    truth: Option<Truth>,
}

impl Gateway {
    /// A gateway without requests.
    #[must_use]
    pub const fn new(config: SessionConfig, tells_accepted: bool) -> Self {
        Self {
            config,
            tells_accepted,
            sessions: BTreeMap::new(),
            records: BTreeMap::new(),
            stalled: BTreeSet::new(),
            ended: Vec::new(),
            fx: Vec::new(),
            places: Places::new(),
            truth: None,
        }
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
        if !reads {
            self.stalled.insert(id);
        }
        self.records.insert(id, Record::new(now, &spec));
        if let Some(truth) = &mut self.truth {
            truth.begins(&spec);
        }
        out.after(spec.deadline.since(now), Event::Timer(id));
        self.sessions.insert(id, Session::new(spec, self.config));
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
        self.stalled.remove(&id);
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
                if let Some(record) = self.records.get_mut(&request) {
                    record.placements.push((plan.worker.clone(), Arc::clone(&plan.stages)));
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
                    let there = session.worker().filter(|worker| worker.node == node).cloned();
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
            GatewayMsg::Accepted(request, attempt) => {
                if self.tells_accepted {
                    self.places.tell(request, ControllerMsg::Accepted(request, attempt), out);
                }
                self.with(now, request, out, |s, fx| s.accepted(now, attempt, fx))
            }
            GatewayMsg::Refused(request, attempt, refusal) => {
                self.with(now, request, out, |s, fx| s.refused(now, attempt, refusal, fx))
            }
            GatewayMsg::Produced(effects) => {
                effects.into_iter().try_for_each(|effect| self.produced(now, effect, out))
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
            BatchEffect::Preempted { seq, .. } => {
                if let Some(record) = self.records.get_mut(&seq.request) {
                    record.preemptions += 1;
                }
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
        let live: Vec<RequestId> = self.sessions.keys().copied().collect();
        live.into_iter().try_for_each(|id| self.with(now, id, out, &call))
    }

    /// The gateway dies, and all requests with it.
    pub fn crash(&mut self, now: Time) {
        let failure = || Failure::Unavailable("the gateway died".into());
        for id in std::mem::take(&mut self.sessions).into_keys() {
            if let Some(record) = self.records.get_mut(&id) {
                record.end = Some((now, Outcome::Failed(failure())));
            }
            if let Some(truth) = &mut self.truth {
                truth.ends(id);
            }
            self.ended.push(id);
        }
        self.stalled.clear();
        self.places = Places::new();
    }

    /// A request arrives while the gateway is dead.
    pub fn refuse(&mut self, now: Time, spec: &RequestSpec) {
        let failure = Failure::Unavailable("the gateway is dead".into());
        let end = Some((now, Outcome::Failed(failure)));
        self.records.insert(spec.id, Record { end, ..Record::new(now, spec) });
        self.ended.push(spec.id);
    }

    /// Calls a session, if it is still there, and carries out what it wants.
    fn with(
        &mut self,
        now: Time,
        id: RequestId,
        out: &mut Outbox,
        call: impl FnOnce(&mut Session, &mut Vec<SessionEffect>),
    ) -> Result<(), Broken> {
        let (Some(session), Some(record)) = (self.sessions.get_mut(&id), self.records.get_mut(&id)) else {
            return Ok(());
        };
        let fx = &mut self.fx;
        let due = session.next_deadline();
        call(session, fx);
        if !self.stalled.contains(&id) {
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
        record.retries = session.retries();
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
                    if let Some(truth) = &mut self.truth {
                        truth.tells(session.spec(), &event)?;
                    }
                    record.cached_tokens.get_or_insert(event.cached_tokens);
                    record.answers[event.seq.choice as usize].push((now, event.token));
                }
                SessionEffect::DeliverPrompt { .. } => {}
                // Nobody asks for a migration here.
                SessionEffect::Choose(_)
                | SessionEffect::Unchoose { .. }
                | SessionEffect::Fetch { .. }
                | SessionEffect::Take { .. }
                | SessionEffect::Switched { .. }
                | SessionEffect::Migration(_) => {}
                SessionEffect::Finished => record.end = Some((now, Outcome::Finished)),
                SessionEffect::Failed(failure) => record.end = Some((now, Outcome::Failed(failure))),
            }
        }
        if record.end.is_some() {
            self.sessions.remove(&id);
            self.stalled.remove(&id);
            self.ended.push(id);
            self.places.forget(id);
            if let Some(truth) = &mut self.truth {
                truth.ends(id);
            }
        }
        Ok(())
    }

    /// Whether a request has arrived and not ended.
    #[must_use]
    pub fn is_live(&self, id: RequestId) -> bool {
        self.sessions.contains_key(&id)
    }

    /// Requests that a worker has, or is being sent.
    pub fn at_workers(&self) -> impl Iterator<Item = RequestId> {
        self.sessions.iter().filter(|(_, session)| session.worker().is_some()).map(|(id, _)| *id)
    }

    /// Requests that have not ended.
    #[must_use]
    pub fn live(&self) -> usize {
        self.sessions.len()
    }

    /// Requests that have ended since the last time.
    pub fn take_ended(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.ended)
    }

    /// What the first choice of a request was answered so far.
    #[must_use]
    pub fn answer(&self, id: RequestId) -> Vec<Token> {
        let first = self.records.get(&id).and_then(|record| record.answers.first());
        first.map(|answer| answer.iter().map(|&(_, token)| token).collect()).unwrap_or_default()
    }

    /// What clients saw.
    #[must_use]
    pub fn into_records(self) -> BTreeMap<RequestId, Record> {
        self.records
    }
}
