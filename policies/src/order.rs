//! Policies inside a worker: which waiting request comes next, and who has to make room for it.
//!
//! An ordering policy is pure, like every core. It watches what becomes of requests ([`OrderEvent`]) and publishes what
//! it thinks ([`Ranks`]): a [`Standing`] for each request, and how far each *flow* of requests is. [`crate::batch`] goes
//! by what was published last and never waits for more. Live, each policy sits in an actor of its own, so that one that
//! panics costs nothing but news: the scheduler goes on with the ranks that it has. The simulator and the tests call the
//! same objects inline.
//!
//! A request's rank is its flow's `base` plus its own `place`, the smallest first, first come first served among equals.
//! What changes with every token is the base, of which there is one a tenant; a request's place is said once. So ten
//! thousand waiting requests cost no more to keep in order than ten.
//!
//! | policy | orders by | source |
//! |---|---|---|
//! | (none) | arrival | |
//! | [`fair`] | service received, by tenant | Virtual Token Counter (Sheng et al., OSDI'24) |
//! | [`priority`] | prop `priority`, higher sooner | strict priority with linear ageing |
//! | [`deadline`] | prop `deadline-ms` or `slo-ttft-ms`, earliest first | EDF (Liu and Layland, 1973) |
//!
//! Two do not order: [`keep_session`] says which pages stay pinned between the turns of a conversation, [`offload`] which
//! prompts that wait other workers compute.

use std::fmt;
use std::sync::Arc;

use config::ids::{Attempt, PolicyName, RequestId, TenantId};

use crate::invariant::Broken;
use crate::request::Props;
use crate::time::{Span, Time};

pub mod deadline;
pub mod fair;
pub mod keep_session;
pub mod offload;
pub mod priority;

pub mod configured;

#[cfg(test)]
mod testing;

/// An attempt of a request, which is what a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    /// The request.
    pub request: RequestId,
    /// Its attempt.
    pub attempt: Attempt,
}

/// A policy that orders the requests of one worker. Object-safe and pure.
pub trait WorkerPolicy: Send + fmt::Debug {
    /// The name by which it is configured.
    fn name(&self) -> PolicyName;

    /// Things happened, in this order. Adds what it now thinks differently to `ranks`. Events of a request that it never
    /// saw arrive are ignored; a request that arrives twice (it is told again after a restart) changes nothing.
    fn observe(&mut self, now: Time, events: &[OrderEvent], ranks: &mut Ranks);

    /// Called about once a second: the time to forget.
    fn tick(&mut self, now: Time, ranks: &mut Ranks);

    /// The first broken invariant.
    ///
    /// # Errors
    /// As each policy says.
    fn check(&self) -> Result<(), Broken>;
}

/// What becomes of requests at a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderEvent {
    /// The policy is new and takes over from one whose accounts were these. Comes first, if at all, and in one list with
    /// all requests that are here; those that run are told as [`OrderEvent::Admitted`] with nothing to compute.
    Reloaded(Vec<Account>),
    /// A request came.
    Arrived(Arc<Arrival>),
    /// It began to run, with so many prompt tokens from the cache.
    Admitted {
        /// Which.
        key: RequestKey,
        /// Prompt tokens that need not be computed.
        cached: u32,
    },
    /// Prompt tokens of it came from another worker, and are not computed here. They were not in the cache when it was
    /// admitted.
    Received {
        /// Which.
        key: RequestKey,
        /// So many.
        tokens: u32,
    },
    /// A step computed this much of it.
    Computed {
        /// Which.
        key: RequestKey,
        /// Prompt tokens, those computed again after a preemption not counted.
        prefill: u32,
        /// Tokens drawn, of all choices.
        drawn: u32,
    },
    /// It lost its pages and waits again.
    Preempted {
        /// Which.
        key: RequestKey,
    },
    /// Nothing of it is left.
    Ended {
        /// Which.
        key: RequestKey,
    },
    /// A step is over.
    Stepped {
        /// How long it took.
        took: Span,
        /// Prompt tokens that it computed.
        prefill: u32,
    },
}

/// A request as an ordering policy sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Which.
    pub key: RequestKey,
    /// Whose, where clients are told apart.
    pub tenant: Option<TenantId>,
    /// The tenant's share, in thousandths; 1000 where nothing is configured.
    pub weight: u32,
    /// Its hints.
    pub props: Arc<Props>,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// When it came to this worker.
    pub since: Time,
    /// When its gateway gives up.
    pub deadline: Time,
}

/// What a tenant has used, as a policy counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Whose; none for all who are not told apart.
    pub tenant: Option<TenantId>,
    /// In the policy's own unit.
    pub counter: i64,
}

/// Requests that are served in their own order; flows are ordered among each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow(pub u64);

/// What is published about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its flow.
    pub flow: Flow,
    /// Where it is in its flow; the smaller the sooner.
    pub place: i64,
    /// Among running ones, those of a lower level give up their pages first.
    pub level: i64,
    /// The level grows by one each time this much has passed since its arrival; never where zero.
    pub ageing: Span,
    /// It may take slot and pages of running ones whose level is lower than its own, ageing not counted.
    pub displaces: bool,
}

impl Standing {
    /// First come, first served, with all others that have it.
    pub const EQUAL: Self = Self { flow: Flow(0), place: 0, level: 0, ageing: Span::ZERO, displaces: false };

    /// Behind all that are ranked, until the policy has said more.
    pub const UNRANKED: Self = Self { flow: Flow(u64::MAX), place: i64::MAX, ..Self::EQUAL };

    /// The level of a request that came at `since`.
    #[must_use]
    pub fn level_at(&self, now: Time, since: Time) -> i64 {
        let steps = now.since(since).0.checked_div(self.ageing.0).unwrap_or(0);
        self.level.saturating_add(i64::try_from(steps).unwrap_or(i64::MAX))
    }
}

/// What a policy publishes: what has changed since it published last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranks {
    /// Standings of requests.
    pub standings: Vec<(RequestKey, Standing)>,
    /// Bases of flows, with the account that each stands for.
    pub flows: Vec<(Flow, i64, Account)>,
    /// Flows that are no more.
    pub dropped: Vec<(Flow, Option<TenantId>)>,
    /// A request whose prompt takes longer than it has left at this time a token is refused.
    pub pace: Option<Span>,
}

impl Ranks {
    /// Whether nothing has changed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.standings.is_empty() && self.flows.is_empty() && self.dropped.is_empty() && self.pace.is_none()
    }
}
