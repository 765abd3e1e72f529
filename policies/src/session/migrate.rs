//! A session moves to another worker while its stream runs.
//!
//! ```text
//!  (Choosing) ──▶ Fetching ──▶ Switching ──▶ moved
//!  the controller  the target    the source stops, the target
//!  names a target  fetches pages  goes on from the last token
//! ```
//!
//! Nothing has changed for anybody before the switch: the source goes on decoding while the target fetches the pages that
//! are full, and whatever fails until then leaves the session where it was. The switch is a placement like any other,
//! pinned to the target, which then lacks what was produced meanwhile and has it from the source or computes it. Where the
//! target does not take it after all the session goes on wherever there is room; that is no retry, for nothing was lost.
//!
//! What the state beside the tokens consists of stays at the gateway (text held back, grammar) or is a function of the
//! tokens (draws, penalties), so that the tokens alone travel. Requests of several choices move like others: the target
//! fetches the prompt and the longest choice, and computes what it lacks of the others.
//!
//! Each part of a migration has an attempt number of its own, so that a late message of one is nothing to another.

use config::ids::{Attempt, WorkerId};

use super::{Phase, Session, SessionEffect};
use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::placement::PlaceRequest;
use crate::request::{RequestSpec, ResumedChoice};
use crate::time::{Span, Time};

/// How long the target may take to be found and to have fetched the pages.
pub const MIGRATE_WITHIN: Span = Span::from_secs(30);

/// Times that a request may be moved.
pub const MAX_MIGRATIONS: u32 = 64;

/// Attempt numbers that one migration uses at most: for the choice, the fetch, the switch, and for going on elsewhere.
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
    /// The source was lost, or the target did not take it after all; the session goes on where there is room.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// The controller is asked for a target.
    Choosing { attempt: Attempt, until: Time },
    /// The target fetches the pages.
    Fetching { to: WorkerId, attempt: Attempt, until: Time },
    /// The source is left; the target is asked for, or has the request and has not said that it takes it.
    Switching { from: WorkerId, to: WorkerId },
}

impl Move {
    /// When it is given up.
    pub(super) const fn until(&self) -> Option<Time> {
        match self {
            Self::Choosing { until, .. } | Self::Fetching { until, .. } => Some(*until),
            Self::Switching { .. } => None,
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
        let Some(Move::Fetching { to, attempt: fetching, .. }) = &self.moving else { return };
        if *fetching != attempt {
            return;
        }
        match (result, self.at.clone()) {
            (Ok(()), Some(from)) => {
                let to = to.clone();
                self.leave(true, fx);
                self.source = Some(from.clone());
                self.moving = Some(Move::Switching { from, to });
                self.spec.attempt = self.next_attempt();
                self.place(fx);
            }
            (Err(why), _) => {
                self.moving = None;
                fx.push(SessionEffect::Migration(Migrated::Stayed(why)));
            }
            (Ok(()), None) => {}
        }
    }

    /// Whether a migration is under way.
    #[must_use]
    pub const fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// The worker that fetches the pages of this session.
    #[must_use]
    pub const fn fetching_to(&self) -> Option<&WorkerId> {
        match &self.moving {
            Some(Move::Fetching { to, .. }) => Some(to),
            _ => None,
        }
    }

    /// Whether the controller is asked for a target under this attempt.
    pub(super) fn is_choosing(&self, attempt: Attempt) -> bool {
        matches!(&self.moving, Some(Move::Choosing { attempt: asked, .. }) if *asked == attempt)
    }

    /// The controller names a target. What it has booked is given back: the pages are fetched first.
    pub(super) fn chosen(&mut self, to: WorkerId, fx: &mut Vec<SessionEffect>) {
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
            Some(Move::Switching { to, .. }) => Some(to),
            _ => None,
        }
    }

    /// The target has the request.
    pub(super) fn end_move(&mut self, fx: &mut Vec<SessionEffect>) {
        if let Some(Move::Switching { from, to }) =
            self.moving.take_if(|moving| matches!(moving, Move::Switching { .. }))
        {
            fx.push(SessionEffect::Migration(Migrated::Moved { from, to }));
        }
    }

    /// The controller has placed the request, on another worker than the target where it knows of no pins.
    pub(super) fn moves_elsewhere(&mut self, worker: &WorkerId, fx: &mut Vec<SessionEffect>) {
        if self.pin().is_some_and(|pin| pin != worker) {
            self.drop_move(Migrated::Elsewhere(format!("the controller has chosen {worker}")), fx);
        }
    }

    /// The target does not take the request: it is placed where there is room, without counting as a retry. The attempt
    /// that it was asked under is over.
    pub(super) fn go_on_elsewhere(&mut self, why: String, fx: &mut Vec<SessionEffect>) {
        self.drop_move(Migrated::Elsewhere(why), fx);
        self.spec.attempt = self.next_attempt();
        self.place(fx);
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
            Some(Move::Switching { .. }) => {}
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
            Some(Move::Fetching { to, .. }) => self.at.as_ref().is_some_and(|at| at != to),
            Some(Move::Switching { to, .. }) => {
                self.is_asking() || (self.at.as_ref() == Some(to) && !self.accepted)
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
