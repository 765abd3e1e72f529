//! Policies that the controller asks where a request should run: what they see, what they say, and what is recorded.
//!
//! A policy is pure, like every core: it is shown events ([`ClusterPolicy::observe`]) and asked about requests
//! ([`ClusterPolicy::opinion`]); it books nothing and decides nothing. [`crate::placement`] collects the opinions of all
//! and decides: filters first, then pins in the order of the policies, then the weighted sum of costs, then the least
//! load. Live, each policy sits in an actor of its own, so that one that panics or is slow costs its own opinion and
//! nothing else; the simulator calls the same objects inline.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

pub use config::Mode as PolicyMode;
use config::WorkerRole;
use config::ids::{Attempt, PolicyName, RequestId, SessionId, WorkerId};

use crate::invariant::Broken;
use crate::kv::PageHash;
use crate::placement::{PlaceRequest, PoolInfo, WorkerInfo, WorkerView};
use crate::time::{Span, Time};

pub mod cache_aware;
pub mod disaggregate;
mod fetching;
pub mod pool_replicate;
pub mod replicate;
pub mod session_affinity;

pub mod configured;

#[cfg(test)]
mod testing;

/// How long a request waits for opinions, where nothing else is configured.
pub const OPINION_DEADLINE: Span = Span::from_millis(20);

/// A policy of the cluster plane. Object-safe and pure.
pub trait ClusterPolicy: Send + fmt::Debug {
    /// The name by which it is configured.
    fn name(&self) -> PolicyName;

    /// Something happened. Events come in order; the same one may come twice (after a reload or a restart the
    /// controller tells again which workers there are and what is placed) and has to change nothing the second time.
    fn observe(&mut self, now: Time, event: &PolicyEvent);

    /// What it thinks of a request. Has to be quick: the request waits for it.
    fn opinion(&mut self, now: Time, query: &PolicyQuery) -> Opinion;

    /// Called about once a second: the time to forget, and to propose what should be done without being asked. `workers`
    /// are all that the controller knows now, by name, with their last reports and what is booked on them. A proposal may
    /// come to nothing (shadow, a controller that does not lead, a worker that is gone): what became of it is seen in
    /// `workers` later.
    fn tick(&mut self, now: Time, workers: &[WorkerView], actions: &mut Vec<PolicyAction>);

    /// The first broken invariant.
    ///
    /// # Errors
    /// As each policy says.
    fn check(&self) -> Result<(), Broken>;
}

/// What a policy may propose on a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// Give a worker another role, when what it has is done. For workers that are [`WorkerInfo::switchable`] alone.
    SwitchRole {
        /// The worker.
        worker: WorkerId,
        /// Its next role.
        role: WorkerRole,
        /// Why, for people.
        why: String,
    },
}

impl PolicyAction {
    /// What is done, in one word for metrics and logs.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::SwitchRole { .. } => "switch_role",
        }
    }

    /// The same as it is recorded in shadow.
    #[must_use]
    pub const fn would(&self) -> &'static str {
        match self {
            Self::SwitchRole { .. } => "would_switch_role",
        }
    }
}

/// How the controller treats one policy of its list.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyConfig {
    /// Which one. A name is in the list once.
    pub name: PolicyName,
    /// What is done with what it says.
    pub mode: PolicyMode,
    /// Factor of its costs beside those of other policies; 1 where only one has costs. Not negative.
    pub weight: f64,
}

impl PolicyConfig {
    /// The policy `name` in production, with weight 1.
    #[must_use]
    pub fn new(name: PolicyName) -> Self {
        Self { name, mode: PolicyMode::Prod, weight: 1.0 }
    }
}

/// A question to a policy: plain data that can cross a mailbox, shared by all policies that are asked.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyQuery {
    /// The request.
    pub request: Arc<PlaceRequest>,
    /// The workers that could take it now, by name. At least one.
    pub rows: Arc<[CandidateRow]>,
    /// Prefill workers that could compute its prompt for one of those, full ones included: those that serve the model, have
    /// a window for it and have not failed it before.
    pub prefill: Arc<[CandidateRow]>,
    /// Prefill workers that serve the model at all.
    pub prefill_known: u32,
    /// The pools, by name.
    pub pools: Arc<[PoolRow]>,
}

/// A pool, and what it holds of the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRow {
    /// What it has told of itself.
    pub info: Arc<PoolInfo>,
    /// Leading full pages of this prompt that it holds, as far as the directory knows.
    pub hit_pages: u32,
    /// Time until it has given what workers were sent to it for before, at the speed that it says of itself.
    pub wait: Span,
}

/// A worker that could take the request now, or compute its prompt for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateRow {
    /// The worker.
    pub worker: WorkerId,
    /// What it has told of itself.
    pub info: Arc<WorkerInfo>,
    /// Tokens to compute and to generate that are booked on it, here and by others.
    pub work_tokens: u64,
    /// Of those, tokens of prompts that are not computed yet, as far as that is known: what the worker reported last,
    /// and what was placed there and not accepted yet.
    pub prefill_tokens: u64,
    /// Requests that it has, placed here and by others.
    pub requests: u32,
    /// Of those, requests of other workers whose prompts it computes.
    pub handoffs: u32,
    /// Requests that it takes at once.
    pub max_requests: u32,
    /// KV pages that sequences held when it last reported.
    pub pages_used: u32,
    /// KV pages that held nothing then, neither for a sequence nor for whoever asks for the same again.
    pub pages_free: u32,
    /// KV pages that it has; 0: it has not said.
    pub pages_total: u32,
    /// Tokens whose keys and values it holds for sequences, or will for the prompts that are booked on it: whichever is
    /// more, its last report or its bookings. Each of its steps that generates takes the longer for it.
    pub kv_tokens: u64,
    /// Leading tokens of this prompt whose pages it holds, as far as the directory knows.
    pub hit_tokens: u32,
    /// Larger for a worker that was chosen later; 0: never.
    pub last_chosen: u64,
}

impl CandidateRow {
    /// Tokens of `request`'s prompt that this worker would have to compute.
    #[must_use]
    pub fn uncached(&self, request: &PlaceRequest) -> u64 {
        request.prompt_tokens.saturating_sub(self.hit_tokens).into()
    }

    /// The row with the least work, the least recently chosen one among equals. None only where there are no rows.
    #[must_use]
    pub fn least_loaded(rows: &[Self]) -> Option<&Self> {
        rows.iter().min_by_key(|r| (r.work_tokens, r.last_chosen))
    }
}

/// What happened in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyEvent {
    /// A worker takes requests.
    WorkerJoined(WorkerId),
    /// This life of a worker is over. Each request on it comes as `Failed` before.
    WorkerLeft(WorkerId),
    /// A request was placed; the worker has not taken it yet.
    Placed(PlacedAt),
    /// The worker took it.
    Accepted(PlacedAt),
    /// Its worker was lost.
    Failed(PlacedAt),
    /// The attempt is over: done, cancelled, or turned away by the worker (then it was never accepted).
    Released(PlacedAt),
}

/// An attempt of a request on a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedAt {
    /// The request.
    pub request: RequestId,
    /// Its attempt.
    pub attempt: Attempt,
    /// Its session, where the client named one.
    pub session: Option<SessionId>,
    /// Hashes of its prompt's full pages, in order.
    pub pages: Arc<[PageHash]>,
    /// The worker.
    pub worker: WorkerId,
}

/// What a policy thinks of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Opinion {
    /// Workers that should not take it. Where all policies together would leave nobody, none is excluded.
    pub exclude: Box<[WorkerId]>,
    /// The worker that should.
    pub pin: Option<Pin>,
    /// What it would cost on each worker, in tokens; the lower the better. Of a worker that is left out the cost is
    /// taken for the highest one named. Empty: no matter.
    pub costs: Vec<(WorkerId, u64)>,
    /// How many tokens of the prompt it takes each worker to hold, in the order of the rows, where it knows better than
    /// these. What is booked on a worker goes by it.
    pub hits: Vec<u32>,
    /// What it does about the request, in one word for metrics (`hit`, `cold`, `bound`, …).
    pub action: &'static str,
    /// Why, for people.
    pub why: String,
    /// The figures that it went by.
    pub numbers: Vec<(&'static str, f64)>,
    /// What it says besides in case that the request goes to this or that worker; the word, the text and the figures of
    /// the verdict on the worker that is chosen are recorded in place of those above.
    pub verdicts: Vec<Verdict>,
    /// What is fetched from other workers in case that this or that one computes the prompt; the word, the text and the
    /// figures of the one that does are recorded in place of those above.
    pub fetches: Box<[Fetch]>,
    /// The pool that is to keep the prompt's pages.
    pub store: Option<Box<StoreAt>>,
    /// Prompt tokens that need not be computed since it was heard, over the least loaded worker; negative where it costs
    /// some.
    pub saved: Option<i64>,
}

impl Opinion {
    /// Nothing to say on this request, and why.
    #[must_use]
    pub fn none(action: &'static str, why: impl Into<String>) -> Self {
        Self { action, why: why.into(), ..Self::default() }
    }

    /// What it says in case that the request goes to `worker`.
    #[must_use]
    pub fn verdict(&self, worker: &WorkerId) -> Option<&Verdict> {
        self.verdicts.iter().find(|verdict| verdict.worker == *worker)
    }
}

/// That a prompt's pages are to be kept at a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreAt {
    /// The pool.
    pub pool: WorkerId,
    /// As [`Opinion::why`].
    pub why: String,
    /// As [`Opinion::numbers`].
    pub numbers: Vec<(&'static str, f64)>,
}

/// What is to be fetched from another worker, or from a pool, in case that one certain worker computes the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetch {
    /// Who computes the prompt.
    pub to: WorkerId,
    /// Who holds its start.
    pub from: WorkerId,
    /// That is a pool.
    pub pool: bool,
    /// Tokens of that, as far as is known.
    pub tokens: u32,
    /// Time that it takes where the holder gives to nobody else.
    pub sending: Span,
    /// Time that the holder has to do with it.
    pub occupies: Span,
    /// Time to compute the same, where that is known: fetching is worth no more.
    pub computing: Option<Span>,
    /// As [`Opinion::why`].
    pub why: String,
    /// As [`Opinion::numbers`].
    pub numbers: Vec<(&'static str, f64)>,
}

/// What a policy says of a request in case that it goes to one certain worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The worker.
    pub worker: WorkerId,
    /// Who computes the prompt then.
    pub prompt: Prompt,
    /// As [`Opinion::action`].
    pub action: &'static str,
    /// The same as it is recorded in shadow.
    pub would: &'static str,
    /// As [`Opinion::why`].
    pub why: String,
    /// As [`Opinion::numbers`].
    pub numbers: Vec<(&'static str, f64)>,
    /// A prefill worker should have it, and none can: why, in one word for metrics.
    pub fallback: Option<&'static str>,
}

impl Verdict {
    /// The reason where those that could have computed a prompt were gone or full when it was placed.
    pub const GONE: &'static str = "prefill_gone";
}

/// Who computes the prompt of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// The worker that the request goes to.
    Here,
    /// One of these.
    By {
        /// Each with the prompt tokens that it would have to compute. The one that is soonest done with them is taken.
        pool: Arc<[(WorkerId, u64)]>,
        /// Prompts that one computes for others at most.
        limit: u32,
        /// Where none of them can by the time the request is placed, it is turned away.
        strict: bool,
    },
    /// Nobody: the request is turned away.
    Nobody,
}

/// A wish for one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The worker.
    pub worker: WorkerId,
    /// It counts although another policy excludes the worker. A worker that cannot take the request gets it in no case.
    pub hard: bool,
}

/// A decision on a request, or a part of one, as it is logged and shown to the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Whose: a policy's, or [`Stage::PLACEMENT`].
    pub policy: PolicyName,
    /// Whether it counted.
    pub mode: PolicyMode,
    /// What was done, in one word; `would_…` in shadow.
    pub action: Cow<'static, str>,
    /// Why, for people.
    pub why: String,
    /// The figures that it went by.
    pub numbers: Vec<(Cow<'static, str>, f64)>,
    /// As [`Opinion::saved`].
    pub saved: Option<i64>,
    /// How long it took; zero where it was asked inline.
    pub took: Span,
}

impl Stage {
    /// The name under which the controller's own choice is recorded, the last stage of every placement.
    pub const PLACEMENT: &'static str = "placement";

    /// The stage of a policy that was asked and said `opinion`, about a request that goes to `worker`.
    #[must_use]
    pub fn of(
        policy: &PolicyName,
        mode: PolicyMode,
        opinion: &Opinion,
        worker: &WorkerId,
        took: Span,
    ) -> Self {
        let verdict = opinion.verdict(worker);
        let (why, numbers) =
            verdict.map_or((&opinion.why, &opinion.numbers), |verdict| (&verdict.why, &verdict.numbers));
        let action = match (mode, verdict) {
            (PolicyMode::Shadow, Some(verdict)) => verdict.would.into(),
            (PolicyMode::Shadow, None) => format!("would_{}", opinion.action).into(),
            (PolicyMode::Off | PolicyMode::Prod, Some(verdict)) => verdict.action.into(),
            (PolicyMode::Off | PolicyMode::Prod, None) => opinion.action.into(),
        };
        Self {
            policy: Self::name_of(policy),
            mode,
            action,
            why: why.clone(),
            numbers: numbers.iter().map(|&(name, value)| (name.into(), value)).collect(),
            saved: opinion.saved,
            took,
        }
    }

    /// The name under which the stages of a policy are recorded.
    fn name_of(policy: &PolicyName) -> PolicyName {
        match policy.as_str() {
            disaggregate::Disaggregate::NAME => disaggregate::Disaggregate::STAGE.into(),
            _ => policy.clone(),
        }
    }

    /// The stage of a policy that was not heard (`late`, `failed`).
    #[must_use]
    pub fn skipped(policy: &PolicyName, mode: PolicyMode, why: String, took: Span) -> Self {
        Self {
            policy: Self::name_of(policy),
            mode,
            action: "skipped".into(),
            why,
            numbers: Vec::new(),
            saved: None,
            took,
        }
    }
}
