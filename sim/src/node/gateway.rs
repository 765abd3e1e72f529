//! The gateway: a [`policies::session`] for each live request, and what clients saw of it.

use std::collections::{BTreeMap, BTreeSet};

use config::ids::RequestId;
use policies::batch::{BatchEffect, TokenEvent};
use policies::invariant::Broken;
use policies::order::deadline;
use policies::placement::PlacementEffect;
use policies::request::{RequestSpec, Token, prop_millis};
use policies::session::{Failure, Session, SessionConfig, SessionEffect};
use policies::time::{Span, Time};

use crate::event::{ControllerMsg, Event, GatewayMsg, Outbox, WorkerMsg};

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All choices ended.
    Finished,
    /// It failed.
    Failed(Failure),
}

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
    /// Placements after the first.
    pub retries: u32,
    /// Times that a choice was preempted.
    pub preemptions: u32,
    /// How it ended and when; none while it runs.
    pub end: Option<(Time, Outcome)>,
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
        }
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
        let record = Record {
            arrived: now,
            prompt_tokens: spec.prompt.len() as u32,
            cached_tokens: None,
            answers: vec![Vec::new(); spec.choices()],
            retries: 0,
            preemptions: 0,
            end: None,
        };
        self.records.insert(id, record);
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
                self.with(now, request, out, |s, fx| s.placed(now, attempt, plan, fx))
            }
            GatewayMsg::Placement(PlacementEffect::Rejected { request, attempt, reason }) => {
                self.with(now, request, out, |s, fx| s.rejected(now, attempt, reason, fx))
            }
            GatewayMsg::Placement(PlacementEffect::Lost { request, worker, .. })
            | GatewayMsg::Unreachable(request, worker) => {
                self.with(now, request, out, |s, fx| s.worker_lost(now, &worker, fx))
            }
            GatewayMsg::Accepted(request, attempt) => {
                if self.tells_accepted {
                    out.send(Event::Controller(ControllerMsg::Accepted(request, attempt)));
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
            BatchEffect::Preempted { seq, .. } => {
                if let Some(record) = self.records.get_mut(&seq.request) {
                    record.preemptions += 1;
                }
                Ok(())
            }
        }
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
                SessionEffect::Place(request) => out.send(Event::Controller(ControllerMsg::Place(request))),
                SessionEffect::Release { request, attempt } => {
                    out.send(Event::Controller(ControllerMsg::Release(request, attempt)));
                }
                SessionEffect::Prefilled { request, attempt } => {
                    out.send(Event::Controller(ControllerMsg::Prefilled(request, attempt)));
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
                    record.cached_tokens.get_or_insert(event.cached_tokens);
                    record.answers[event.seq.choice as usize].push((now, event.token));
                }
                SessionEffect::DeliverPrompt { .. } => {}
                // Nobody asks for a migration here.
                SessionEffect::Choose(_)
                | SessionEffect::Unchoose { .. }
                | SessionEffect::Fetch { .. }
                | SessionEffect::Migration(_) => {}
                SessionEffect::Finished => record.end = Some((now, Outcome::Finished)),
                SessionEffect::Failed(failure) => record.end = Some((now, Outcome::Failed(failure))),
            }
        }
        if record.end.is_some() {
            self.sessions.remove(&id);
            self.stalled.remove(&id);
            self.ended.push(id);
        }
        Ok(())
    }

    /// Whether a request has arrived and not ended.
    #[must_use]
    pub fn is_live(&self, id: RequestId) -> bool {
        self.sessions.contains_key(&id)
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
