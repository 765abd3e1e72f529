//! A session moves to another worker while its stream runs.
//!
//! ```text
//!  (Choosing) ──▶ Fetching ───────▶ Taking ────────────────────────▶ moved
//!  the controller  the target        the target is booked, has the
//!  names a target  fetches pages     request and takes the rest over;
//!                                    its first token is the switch
//! ```
//!
//! The source goes on all the time. The target fetches the pages that are full; then it is booked and gets the request as
//! it stands, and when it has a place for it, it asks the source for the rest ([`SessionEffect::Take`]). The source stops at
//! the end of its step and hands over what the target lacks: the page that is not full and the tokens that were drawn
//! meanwhile. The target goes on with the next token, as the source would have. Its first token here is the switch: the
//! source's attempt is over then. Whatever fails before that leaves the session where it was, for a source whose pages are
//! not taken over after all goes on by itself. One that has let go says so ([`Session::taken_over`]), so that the loss of
//! the target in that moment is a loss like any other.
//!
//! Tokens that both ends have are counted by index and shown once. Those that the target repeats come without their
//! log-probabilities, which it does not know; where they are asked for, the source's are waited for.
//!
//! What the state beside the tokens consists of stays at the gateway (text held back, grammar) or is a function of the
//! tokens (draws, penalties), so that the tokens alone travel. Requests of several choices move like others: the target
//! fetches the prompt and the longest choice, and computes what it lacks of the others while the source goes on.
//!
//! Each part of a migration has an attempt number of its own, so that a late message of one is nothing to another.

use config::ids::{Attempt, WorkerId};

use super::{Failure, Phase, Session, SessionEffect};
use crate::batch::TokenEvent;
use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::placement::PlaceRequest;
use crate::request::{RequestSpec, ResumedChoice};
use crate::time::{Span, Time};

/// How long the target may take to be found and to have fetched the pages.
pub const MIGRATE_WITHIN: Span = Span::from_secs(30);

/// Times that a request may be moved.
pub const MAX_MIGRATIONS: u32 = 64;

/// Attempt numbers that one migration uses at most: for the choice, the fetch, what takes over, and for going on elsewhere.
const ATTEMPTS: u32 = 4;

/// Why a session cannot be moved now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    /// It has no worker whose tokens arrive.
    #[error("no worker is generating for the request now: it waits for its first token, or has ended")]
    NotRunning,
    /// It is where it shall go.
    #[error("the request runs on {0} already")]
    AlreadyThere(WorkerId),
    /// One at a time.
    #[error("the request is being moved already")]
    AlreadyMoving,
    /// Somebody moves it to and fro.
    #[error("the request has been moved {MAX_MIGRATIONS} times, which is the limit")]
    TooOften,
}

/// How a migration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Migrated {
    /// The target has taken it.
    Moved {
        /// The source.
        from: WorkerId,
        /// The target.
        to: WorkerId,
    },
    /// It was given up before the switch, for this reason; the session is where it was.
    Stayed(String),
    /// The source was lost; the session goes on where there is room.
    Elsewhere(String),
    /// The request ended meanwhile.
    Ended,
}

impl Migrated {
    /// Name in logs and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Moved { .. } => "moved",
            Self::Stayed(_) => "stayed",
            Self::Elsewhere(_) => "elsewhere",
            Self::Ended => "ended",
        }
    }
}

/// Where a migration stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Move {
    /// The controller is asked for a target.
    Choosing { attempt: Attempt, until: Time },
    /// The target fetches the pages.
    Fetching { to: WorkerId, attempt: Attempt, until: Time },
    /// The target is asked for, or has the request (`sent`) and has produced nothing of it.
    Taking { to: WorkerId, attempt: Attempt, until: Time, sent: Option<Sent> },
}

/// The request as the target got it, and what has come of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sent {
    /// How far each choice may go there.
    granted: Vec<u32>,
    /// Tokens of the target that are ahead of those of the source.
    early: Vec<TokenEvent>,
}

impl Move {
    /// When it is given up.
    pub(super) const fn until(&self) -> Option<Time> {
        match self {
            Self::Choosing { until, .. } | Self::Fetching { until, .. } | Self::Taking { until, .. } => {
                Some(*until)
            }
        }
    }
}

impl Session {
    /// Moves the request to `to`, or where the controller says; [`SessionEffect::Migration`] tells how it ended.
    ///
    /// # Errors
    /// It cannot be moved, or not now; nothing has changed.
    pub fn migrate(
        &mut self,
        now: Time,
        to: Option<WorkerId>,
        fx: &mut Vec<SessionEffect>,
    ) -> Result<(), MigrateError> {
        if self.moving.is_some() {
            return Err(MigrateError::AlreadyMoving);
        }
        let at = self.at.clone().filter(|_| self.phase == Phase::Streaming);
        let at = at.ok_or(MigrateError::NotRunning)?;
        if to.as_ref() == Some(&at) {
            return Err(MigrateError::AlreadyThere(at));
        }
        if self.moves >= MAX_MIGRATIONS {
            return Err(MigrateError::TooOften);
        }
        self.moves += 1;
        let until = now + MIGRATE_WITHIN;
        match to {
            Some(to) => self.fetch(to, at, until, fx),
            None => {
                let attempt = self.next_attempt();
                self.moving = Some(Move::Choosing { attempt, until });
                let mut request = PlaceRequest { attempt, ..self.place_request() };
                if !request.avoid.contains(&at) {
                    request.avoid.push(at);
                }
                fx.push(SessionEffect::Choose(request));
            }
        }
        Ok(())
    }

    /// The target has fetched the pages, or not, for this reason.
    pub fn fetched(
        &mut self,
        _now: Time,
        attempt: Attempt,
        result: Result<(), String>,
        fx: &mut Vec<SessionEffect>,
    ) {
        let Some(Move::Fetching { to, attempt: fetching, until }) = &self.moving else { return };
        if *fetching != attempt {
            return;
        }
        let (to, until) = (to.clone(), *until);
        match result {
            Ok(()) => {
                let attempt = self.next_attempt();
                self.moving = Some(Move::Taking { to, attempt, until, sent: None });
                fx.push(SessionEffect::Choose(PlaceRequest { attempt, ..self.place_request() }));
            }
            Err(why) => {
                self.moving = None;
                fx.push(SessionEffect::Migration(Migrated::Stayed(why)));
            }
        }
    }

    /// Whether a migration is under way.
    #[must_use]
    pub const fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// The worker that this session is about to move to, from when it fetches pages.
    #[must_use]
    pub const fn moving_to(&self) -> Option<&WorkerId> {
        match &self.moving {
            Some(Move::Fetching { to, .. } | Move::Taking { to, .. }) => Some(to),
            Some(Move::Choosing { .. }) | None => None,
        }
    }

    /// Whether this attempt is that of a target which has the request, to take it over.
    #[must_use]
    pub fn is_taken_over_as(&self, attempt: Attempt) -> bool {
        matches!(&self.moving, Some(Move::Taking { attempt: a, sent: Some(_), .. }) if *a == attempt)
    }

    /// Whether the controller is asked for a target, or for a place at it, under this attempt.
    pub(super) fn is_choosing(&self, attempt: Attempt) -> bool {
        match &self.moving {
            Some(Move::Choosing { attempt: asked, .. } | Move::Taking { attempt: asked, sent: None, .. }) => {
                *asked == attempt
            }
            _ => false,
        }
    }

    /// The controller names a target, or has booked the one that was named. What is booked for a choice is given back: the
    /// pages are fetched first.
    pub(super) fn chosen(&mut self, to: WorkerId, fx: &mut Vec<SessionEffect>) {
        if matches!(self.moving, Some(Move::Taking { .. })) {
            return self.booked(&to, fx);
        }
        let Some(Move::Choosing { until, .. }) = self.moving else { return };
        if self.at.as_ref() == Some(&to) {
            return self.drop_move(Migrated::Stayed("no other worker can take the request".to_owned()), fx);
        }
        if let Some(Move::Choosing { attempt, .. }) = self.moving.take() {
            fx.push(SessionEffect::Unchoose { request: self.spec.id, attempt });
        }
        if let Some(at) = self.at.clone() {
            self.fetch(to, at, until, fx);
        }
    }

    /// The target is booked: it gets the request as it stands now. A controller that knows of no pins has booked another.
    fn booked(&mut self, worker: &WorkerId, fx: &mut Vec<SessionEffect>) {
        let (Some(Move::Taking { to, attempt, .. }), Some(from)) = (&self.moving, self.at.clone()) else {
            return;
        };
        if to != worker {
            let why = format!("the controller has chosen {worker}");
            return self.drop_move(Migrated::Stayed(why), fx);
        }
        let (to, attempt) = (to.clone(), *attempt);
        let spec = RequestSpec { attempt, ..self.submission() };
        let granted = spec.resumed.iter().map(|choice| spec.allowance(choice)).collect();
        if let Some(Move::Taking { sent, .. }) = &mut self.moving {
            *sent = Some(Sent { granted, early: Vec::new() });
        }
        let takes = self.spec.attempt;
        self.lent = Some(takes);
        fx.push(SessionEffect::Take { to, from, takes, spec: Box::new(spec) });
    }

    /// A token of the target; says whether it is one. The first one of use is the switch.
    pub(super) fn token_of_target(
        &mut self,
        now: Time,
        event: &TokenEvent,
        fx: &mut Vec<SessionEffect>,
    ) -> bool {
        if !self.is_taken_over_as(event.seq.attempt) {
            return false;
        }
        // One that the target repeats.
        let repeated = self.spec.sampling.logprobs.is_some() && event.logprobs.is_none();
        if !repeated && let Some(Move::Taking { sent: Some(sent), .. }) = &mut self.moving {
            sent.early.push(event.clone());
            self.switch_if_due(now, fx);
        }
        true
    }

    /// Switches where the target has come as far as the source, and the source's tokens have come as far as the target's.
    pub(super) fn switch_if_due(&mut self, now: Time, fx: &mut Vec<SessionEffect>) {
        let Some(Move::Taking { sent: Some(sent), .. }) = &self.moving else { return };
        let shown = |choice: u32| self.choices.get(choice as usize).map_or(0, |c| c.tokens.len() as u32);
        if sent.early.iter().any(|event| event.index <= shown(event.seq.choice)) {
            self.switch(now, fx);
        }
    }

    /// From now on the target is the worker. The source has stopped, or does so.
    fn switch(&mut self, now: Time, fx: &mut Vec<SessionEffect>) {
        let Some(Move::Taking { to, attempt, sent: Some(sent), .. }) =
            self.moving.take_if(|moving| matches!(moving, Move::Taking { sent: Some(_), .. }))
        else {
            return;
        };
        let from = self.at.clone().unwrap_or_else(|| to.clone());
        self.leave(true, fx);
        self.tally.asked += 1;
        self.phase = Phase::Streaming;
        self.spec.attempt = attempt;
        (self.at, self.accepted) = (Some(to.clone()), true);
        fx.push(SessionEffect::Switched { worker: to.clone(), attempt });
        let (request, credit, most) = (self.spec.id, self.spec.credit, self.spec.max_tokens);
        for ((choice, state), granted) in (0..).zip(&mut self.choices).zip(sent.granted) {
            state.granted = granted;
            let (worker, upto) = (to.clone(), state.consumed.saturating_add(credit));
            if state.ended.is_some() {
                // It may have ended since the target got the request.
                fx.push(SessionEffect::CancelChoice { worker, request, attempt, choice });
            } else if credit > 0 && upto > granted && granted < most {
                state.granted = upto;
                fx.push(SessionEffect::Grant { worker, request, attempt, choice, upto });
            }
        }
        fx.push(SessionEffect::Migration(Migrated::Moved { from, to }));
        for event in sent.early {
            self.token(now, &event, fx);
        }
    }

    /// The worker has let go of the attempt, which another one has taken over, or because it cannot keep it. All its tokens
    /// have come before this.
    pub fn taken_over(&mut self, now: Time, attempt: Attempt, fx: &mut Vec<SessionEffect>) {
        if self.not_taken(attempt, "the target let go of it", fx) || !self.is_at_worker(attempt) {
            return;
        }
        if self.lent.take_if(|lent| *lent == attempt).is_none() {
            let text = "the worker let go of the request unasked".to_owned();
            return self.retry(now, Failure::WorkerLost(text), false, fx);
        }
        self.switch(now, fx);
        if self.is_at_worker(attempt) {
            // The target was given up in the meantime. That is nobody's fault, and no retry.
            self.drop_move(Migrated::Stayed("the worker let go of it".to_owned()), fx);
            self.leave(false, fx);
            self.spec.attempt = self.next_attempt();
            self.place(fx);
        }
    }

    /// The target does not go on with the request, for this reason; says whether the attempt was its.
    pub(super) fn not_taken(&mut self, attempt: Attempt, why: &str, fx: &mut Vec<SessionEffect>) -> bool {
        let its = self.is_taken_over_as(attempt);
        if its {
            self.drop_move(Migrated::Stayed(why.to_owned()), fx);
        }
        its
    }

    /// The controller knows no target; nothing is booked.
    pub(super) fn not_chosen(&mut self, why: String, fx: &mut Vec<SessionEffect>) {
        self.moving = None;
        fx.push(SessionEffect::Migration(Migrated::Stayed(why)));
    }

    fn fetch(&mut self, to: WorkerId, from: WorkerId, until: Time, fx: &mut Vec<SessionEffect>) {
        let attempt = self.next_attempt();
        let spec = Box::new(self.to_fetch(attempt, until));
        self.moving = Some(Move::Fetching { to: to.clone(), attempt, until });
        fx.push(SessionEffect::Fetch { to, from, spec });
    }

    /// What is fetched: the prompt with the longest choice. Of that one as many tokens are left that neither end takes the
    /// request for one that is over with the next token.
    fn to_fetch(&self, attempt: Attempt, until: Time) -> RequestSpec {
        let open = self.choices.iter().filter(|c| c.ended.is_none());
        let tokens = open.map(|c| &c.tokens).max_by_key(|tokens| tokens.len()).cloned().unwrap_or_default();
        RequestSpec {
            attempt,
            max_tokens: (tokens.len() as u32).saturating_add(2),
            resumed: vec![ResumedChoice { tokens, ended: false, unread: 0 }],
            // A client that does not read holds up nothing here.
            credit: 0,
            ignore_end: true,
            prompt_logprobs: false,
            deadline: self.spec.deadline.min(until),
            ..self.spec.clone()
        }
    }

    /// The worker that the next place has to be.
    pub(super) const fn pin(&self) -> Option<&WorkerId> {
        match &self.moving {
            Some(Move::Taking { to, .. }) => Some(to),
            _ => None,
        }
    }

    /// Gives a migration up, wherever it stands.
    pub(super) fn drop_move(&mut self, end: Migrated, fx: &mut Vec<SessionEffect>) {
        let request = self.spec.id;
        match self.moving.take() {
            None => return,
            Some(Move::Choosing { attempt, .. }) => fx.push(SessionEffect::Unchoose { request, attempt }),
            Some(Move::Fetching { to: worker, attempt, .. }) => {
                fx.push(SessionEffect::CancelAt { worker, request, attempt });
            }
            Some(Move::Taking { to: worker, attempt, sent, .. }) => {
                if sent.is_some() {
                    fx.push(SessionEffect::CancelAt { worker, request, attempt });
                    // The source may have stopped for a target that is silent: it goes on at once.
                    let source = self.at.clone();
                    fx.extend(source.map(|worker| SessionEffect::CancelAt { worker, request, attempt }));
                }
                fx.push(SessionEffect::Unchoose { request, attempt });
            }
        }
        fx.push(SessionEffect::Migration(end));
    }

    /// Gives a migration up that takes too long.
    pub(super) fn expire_move(&mut self, now: Time, fx: &mut Vec<SessionEffect>) {
        if self.moving.as_ref().and_then(Move::until).is_some_and(|until| until <= now) {
            let why = format!("it took longer than {MIGRATE_WITHIN}");
            self.drop_move(Migrated::Stayed(why), fx);
        }
    }

    /// A number for the next attempt, or for a part of a migration.
    pub(super) const fn next_attempt(&mut self) -> Attempt {
        self.last = self.last.next();
        self.last
    }

    /// Whether no more attempt numbers were used than retries and migrations need.
    pub(super) const fn are_attempts_few(&self) -> bool {
        let most = self.retries.saturating_add(self.moves.saturating_mul(ATTEMPTS));
        self.last.0.saturating_sub(self.first.0) <= most
    }

    pub(super) fn check_move(&self) -> Result<(), Broken> {
        let fits = match &self.moving {
            None => true,
            Some(Move::Choosing { .. }) => self.at.is_some(),
            Some(Move::Fetching { to, .. } | Move::Taking { to, .. }) => {
                self.at.as_ref().is_some_and(|at| at != to)
            }
        };
        ensure_invariant!(
            fits,
            "session_move_matches_phase",
            "{:?} at {:?} while {:?}",
            self.phase,
            self.at,
            self.moving
        );
        Ok(())
    }
}
