//! Gateway core: the life of one request.
//!
//! `New → Placing → Submitted → Streaming → Ended`, with a way back from `Submitted` and `Streaming` to `Placing` when
//! the worker is lost: the request is placed again with its prompt and the tokens already produced, and since draws are
//! counter-based the stream goes on as if nothing had happened. The core counts tokens by index and drops what it has.

//!
//! Ways out are few: whatever ends a request goes through one function, which stops the work that may still be at a
//! worker, releases the attempt's booking and emits the one last effect.

use config::ids::{Attempt, RequestId, WorkerId};

use crate::batch::TokenEvent;
use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::placement::{PlaceRequest, Prefix};
use crate::request::{Finish, Logprobs, RequestSpec, Token};
use crate::time::{Span, Time};

mod events;

mod migrate;

pub use migrate::{MAX_MIGRATIONS, MIGRATE_WITHIN, MigrateError, Migrated};

#[cfg(test)]
mod tests;

/// Limits of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// How many times a request is placed again after a worker was lost or turned it away.
    pub retry_limit: u32,
    /// Wait before the second retry, doubled before each one after it; the first is made at once. The controller needs
    /// a moment to notice that a worker is gone, and until then it has nothing better to offer.
    pub backoff: Span,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not started.
    New,
    /// Waits for the controller, or for the time to ask it again.
    Placing,
    /// Sent to a worker, which has produced nothing in this attempt.
    Submitted,
    /// Tokens arrive.
    Streaming,
    /// Over; nothing is held anywhere.
    Ended,
}

/// Why a request ended without all its choices finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The model is unknown.
    UnknownModel(String),
    /// Nobody can take it now; try later.
    Overloaded(String),
    /// No worker is ready.
    Unavailable(String),
    /// It can never run (too long); the client has to change it.
    Invalid(String),
    /// The worker died, and no retry is left.
    WorkerLost(String),
    /// The worker's engine failed on it.
    Engine(String),
    /// It could not be done in the time that its client gives it, and was not computed.
    Hopeless(String),
    /// The deadline passed.
    Deadline,
    /// The client is gone.
    Cancelled,
}

/// What the driver has to do, in the order given.
#[derive(Clone, Debug)]
pub enum SessionEffect {
    /// Ask the controller.
    Place(PlaceRequest),
    /// Send the request to the worker.
    Submit {
        /// Where.
        worker: WorkerId,
        /// The worker that computes the prompt for it; none: it does so itself.
        prefill: Option<WorkerId>,
        /// What whoever computes the prompt fetches of it from another worker.
        fetch: Option<Box<Prefix>>,
        /// What.
        spec: Box<RequestSpec>,
    },
    /// Show a token to the client. In index order for each choice, each index once.
    Deliver(TokenEvent),
    /// Tell the controller that the prompt of this attempt is computed. Said once, and only where another worker was to
    /// compute it: that one has room again.
    Prefilled {
        /// The request.
        request: RequestId,
        /// The attempt.
        attempt: Attempt,
    },
    /// Show the prompt's log-probabilities.
    DeliverPrompt {
        /// Position of the first.
        first: u32,
        /// One a token.
        tokens: Vec<Logprobs>,
    },
    /// Tell a pool to keep the pages of the prompt, which is computed: it asks a worker for those that it lacks. Said at the
    /// first token of an attempt; nobody waits for what comes of it.
    Store {
        /// The pool.
        pool: WorkerId,
        /// Who has computed the prompt.
        from: WorkerId,
        /// The prompt, as [`RequestSpec::prompt_to_store`].
        spec: Box<RequestSpec>,
    },
    /// Tell the worker to stop this attempt, if it is still at it.
    CancelAt {
        /// The worker.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// The attempt.
        attempt: Attempt,
    },
    /// Tell the worker to stop one choice (a stop string was found); the others go on.
    CancelChoice {
        /// The worker.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// The attempt.
        attempt: Attempt,
        /// The choice.
        choice: u32,
    },
    /// Tell the worker how far a choice may go, since the client has taken some of it.
    Grant {
        /// The worker.
        worker: WorkerId,
        /// The request.
        request: RequestId,
        /// The attempt.
        attempt: Attempt,
        /// The choice.
        choice: u32,
        /// Tokens with an index below this may be produced.
        upto: u32,
    },
    /// Tell the controller that this attempt is over, whether it waits in the controller's queue or is booked. Comes
    /// after the attempt's [`SessionEffect::Place`] and has to arrive after it.
    Release {
        /// The request.
        request: RequestId,
        /// The attempt.
        attempt: Attempt,
    },
    /// Ask the controller where the session could move to; the answer comes like one to a [`SessionEffect::Place`].
    Choose(PlaceRequest),
    /// Tell the controller that what this attempt asked for is not needed (any more). Comes after its
    /// [`SessionEffect::Choose`] and has to arrive after it.
    Unchoose {
        /// The request.
        request: RequestId,
        /// The attempt.
        attempt: Attempt,
    },
    /// Have a worker fetch the pages of the sequence so far from the one that computes it; [`Session::fetched`] takes the
    /// answer. A [`SessionEffect::CancelAt`] with its attempt calls it off.
    Fetch {
        /// Who fetches.
        to: WorkerId,
        /// From whom.
        from: WorkerId,
        /// What: the prompt and the output so far.
        spec: Box<RequestSpec>,
    },
    /// Have a worker take the request over from the one that generates for it: sent once a place is booked under the
    /// attempt of `spec`. A [`SessionEffect::CancelAt`] with that, to both workers, calls it off: the source goes on.
    Take {
        /// Who takes it over.
        to: WorkerId,
        /// From whom.
        from: WorkerId,
        /// The attempt that it has there.
        takes: Attempt,
        /// The request as it stands.
        spec: Box<RequestSpec>,
    },
    /// The session is at this worker now, under this attempt, which was asked for with [`SessionEffect::Choose`] and is
    /// from now on released like any other.
    Switched {
        /// Where it is.
        worker: WorkerId,
        /// The attempt.
        attempt: Attempt,
    },
    /// A migration is over; one for each that [`Session::migrate`] began.
    Migration(Migrated),
    /// All choices ended. Last effect.
    Finished,
    /// The request failed. Last effect.
    Failed(Failure),
}

/// One request's state machine. Made by the gateway, driven by one session actor or by the simulator.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    /// The request as it was accepted; its `attempt` is the current one, its `resumed` the first attempt's.
    spec: RequestSpec,
    first: Attempt,
    phase: Phase,
    /// The worker of the current attempt, from the reply of the controller on.
    at: Option<WorkerId>,
    /// The worker that was to compute the prompt of the current attempt for that one.
    prefill: Option<WorkerId>,
    /// The pool that is to keep its prompt when that is computed.
    store: Option<WorkerId>,
    /// The worker took the current attempt.
    accepted: bool,
    choices: Vec<ChoiceState>,
    /// Position of the next prompt token whose log-probability is not delivered yet.
    next_prompt: u32,
    avoid: Vec<WorkerId>,
    retries: u32,
    /// When to ask the controller again.
    retry_at: Option<Time>,
    /// More than one controller was asked about the current attempt.
    asked_again: bool,
    /// The last attempt number that was given out, for a placement or for a part of a migration.
    last: Attempt,
    moving: Option<migrate::Move>,
    /// Migrations begun.
    moves: u32,
    /// An attempt that a target was sent for to take it over, so that its worker may let go of it.
    lent: Option<Attempt>,
    tally: Tally,
}

/// What a choice has delivered.
#[derive(Clone, Debug, Default)]
struct ChoiceState {
    tokens: Vec<Token>,
    ended: Option<Finish>,
    /// Tokens that the client has taken.
    consumed: u32,
    /// How far the worker of the current attempt may go; meaningless without credit.
    granted: u32,
}

/// Counts for [`Session::check`].
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    asked: u32,
    rejected: u32,
    released: u32,
    last_effects: u32,
}

impl Session {
    /// A session for `spec`, which has not asked for a place yet.
    #[must_use]
    pub fn new(spec: RequestSpec, config: SessionConfig) -> Self {
        let choices = spec
            .resumed
            .iter()
            .map(|r| ChoiceState {
                tokens: r.tokens.clone(),
                ended: r.ended.then_some(Finish::EndToken),
                consumed: (r.tokens.len() as u32).saturating_sub(r.unread),
                granted: 0,
            })
            .collect();
        Self {
            config,
            first: spec.attempt,
            last: spec.attempt,
            spec,
            phase: Phase::New,
            at: None,
            prefill: None,
            store: None,
            accepted: false,
            choices,
            next_prompt: 1,
            avoid: Vec::new(),
            retries: 0,
            retry_at: None,
            asked_again: false,
            moving: None,
            moves: 0,
            lent: None,
            tally: Tally::default(),
        }
    }

    /// Where the request stands.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// The request, with the current attempt.
    #[must_use]
    pub const fn spec(&self) -> &RequestSpec {
        &self.spec
    }

    /// The worker that the current attempt was placed on.
    #[must_use]
    pub const fn worker(&self) -> Option<&WorkerId> {
        self.at.as_ref()
    }

    /// Whether the worker has taken the current attempt; affinity is bound only then.
    #[must_use]
    pub const fn is_accepted(&self) -> bool {
        self.accepted
    }

    /// Placements after the first.
    #[must_use]
    pub const fn retries(&self) -> u32 {
        self.retries
    }

    /// Tokens of `choice` delivered so far; empty for a choice that does not exist.
    #[must_use]
    #[inline]
    pub fn tokens(&self, choice: u32) -> &[Token] {
        self.choices.get(choice as usize).map_or(&[], |c| &c.tokens)
    }

    /// Why `choice` ended; none while it goes on.
    #[must_use]
    pub fn finish(&self, choice: u32) -> Option<Finish> {
        self.choices.get(choice as usize).and_then(|c| c.ended)
    }

    /// When [`Session::expire`] has to be called; it may change with every event.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<Time> {
        let moved = self.moving.as_ref().and_then(migrate::Move::until).unwrap_or(Time::NEVER);
        let next = self.retry_at.unwrap_or(Time::NEVER).min(moved).min(self.spec.deadline);
        (self.phase != Phase::Ended && next != Time::NEVER).then_some(next)
    }

    /// The first broken invariant.
    ///
    /// # Errors
    /// When the phase and what is held disagree, a booking was released twice or never, or there was not exactly one
    /// last effect.
    pub fn check(&self) -> Result<(), Broken> {
        let t = self.tally;
        let at_worker = matches!(self.phase, Phase::Submitted | Phase::Streaming);
        ensure_invariant!(
            self.at.is_some() == at_worker,
            "session_worker_matches_phase",
            "{:?} with worker {:?}",
            self.phase,
            self.at
        );
        let open = u32::from(at_worker || self.is_asking());
        ensure_invariant!(
            t.asked == t.rejected + t.released + open,
            "session_releases_each_attempt_once",
            "{:?}: {t:?}",
            self.phase
        );
        ensure_invariant!(
            t.last_effects == u32::from(self.phase == Phase::Ended),
            "session_ends_once",
            "{:?}: {t:?}",
            self.phase
        );
        ensure_invariant!(
            self.retries <= self.config.retry_limit
                && self.spec.attempt <= self.last
                && self.are_attempts_few(),
            "session_retries_bounded",
            "attempt {} of {} after {} retries of {} and {} migrations",
            self.spec.attempt,
            self.last,
            self.retries,
            self.config.retry_limit,
            self.moves
        );
        self.check_move()?;
        let credit = self.spec.credit;
        let wrong = self.choices.iter().find(|c| {
            c.consumed as usize > c.tokens.len()
                || (credit > 0 && c.granted > c.consumed.saturating_add(credit).max(c.tokens.len() as u32))
        });
        ensure_invariant!(
            wrong.is_none(),
            "session_grants_what_is_due",
            "credit {credit}: {:?}",
            wrong.map(|c| (c.tokens.len(), c.consumed, c.granted))
        );
        let long = self.choices.iter().find(|c| c.tokens.len() > self.spec.max_tokens as usize);
        ensure_invariant!(
            long.is_none(),
            "session_keeps_max_tokens",
            "a choice has more than {} tokens",
            self.spec.max_tokens
        );
        Ok(())
    }
}
