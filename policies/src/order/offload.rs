//! `offload`: a prompt that would wait here is computed by a worker that has time, which sends its KV pages back.
//!
//! The rule is that of Pie's offload and of Dynamo's conditional disaggregation, seen from the worker that generates: a
//! prompt leaves where at least `min-suffix` of its tokens are missing, more than `busy-tokens` are computed here before
//! it, and a peer with room would have it done sooner; no more than `max-outstanding` are away. Tokens stand for time: peers
//! have the same model, and where their machine is another one its FLOP/s count. A prompt that is computed for another
//! worker never leaves, so that there are no chains.
//!
//! This is the decision and its bookkeeping. What waits comes from the scheduler ([`Batch::waiting_prompts`]), what peers
//! have to do from their last heartbeats, to which is added what went there from here. A peer that failed is left alone,
//! longer each time.
//!
//! [`Batch::waiting_prompts`]: crate::batch::Batch::waiting_prompts

use std::collections::BTreeMap;

use config::WorkerRole;
use config::ids::WorkerId;

use super::RequestKey;
use crate::batch::{BatchLoad, WaitingPrompt};
use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::placement::WorkerInfo;
use crate::time::{Span, Time};

/// The name by which it is configured.
pub const NAME: &str = "offload";

/// How long a peer is left alone after its first failure; twice as long after each one that follows.
const FIRST_REST: Span = Span::from_secs(1);
/// How long at most.
const LONGEST_REST: Span = Span::from_secs(60);

/// Options of `offload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadOptions {
    /// Nodes whose workers may be asked; empty: all.
    pub peers: Vec<String>,
    /// Fewer missing tokens are computed here.
    pub min_suffix: u32,
    /// Prompt tokens computed here before a prompt, above which it may leave.
    pub busy_tokens: u64,
    /// Prompts that others compute at once.
    pub max_outstanding: u32,
}

/// A worker that may be asked, by what it said last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Which.
    pub worker: WorkerId,
    /// Prompt tokens that it has to compute.
    pub queued_tokens: u64,
    /// Requests that it may take beside those that it has.
    pub free_requests: u32,
    /// Tokens that fit into its pages beside what it holds.
    pub free_tokens: u64,
    /// Longest sequence in tokens.
    pub max_context: u32,
    /// FLOP/s of our machine and of its own; 0: not known, then they are alike.
    pub flops: (u64, u64),
}

impl Peer {
    /// The worker as a peer of `own`, whose load is this; none where it cannot compute prompts for it, or is not to be given
    /// any.
    #[must_use]
    pub fn of(own: &WorkerInfo, other: &WorkerInfo, draining: bool, load: &BatchLoad) -> Option<Self> {
        let computes = other.role != WorkerRole::Decode && other.switching_to.is_none() && !draining;
        let serves = other.models.iter().any(|model| own.models.contains(model));
        if own.role == WorkerRole::Prefill
            || own.id.node == other.id.node
            || !(computes && serves && other.pairs_with(own))
        {
            return None;
        }
        let free = load.pages_total.saturating_sub(load.pages_used);
        Some(Self {
            worker: other.id.clone(),
            queued_tokens: load.queued_prefill_tokens,
            free_requests: other.max_requests.saturating_sub(load.requests),
            free_tokens: u64::from(free) * u64::from(other.page_tokens),
            max_context: other.max_context,
            flops: (own.hardware.figures.flops, other.hardware.figures.flops),
        })
    }

    /// Tokens that we would compute in the time in which it computes `tokens`.
    fn in_ours(&self, tokens: u64) -> u64 {
        match self.flops {
            (0, _) | (_, 0) => tokens,
            (ours, its) => {
                u64::try_from(u128::from(tokens) * u128::from(ours) / u128::from(its)).unwrap_or(u64::MAX)
            }
        }
    }
}

/// A prompt leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which prompt, and why.
    pub prompt: WaitingPrompt,
    /// To whom.
    pub to: WorkerId,
    /// When it is done there, in tokens that we would compute until then; fewer than `ahead` and `missing`.
    pub done_there: u64,
}

/// How it went with a prompt that had left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was computed there.
    Computed,
    /// It was refused, lost or late, and is computed here.
    Failed,
    /// Nobody wants it any more, or its pages were needed for what was to come before it.
    Withdrawn,
}

impl End {
    /// As a metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Computed => "computed",
            Self::Failed => "failed",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// A prompt that is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// Where.
    pub at: WorkerId,
    /// Its tokens.
    pub tokens: u32,
    /// Tokens that are computed there instead of here.
    pub missing: u32,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Time,
    failures: u32,
}

/// The decision, and what is away.
#[derive(Debug, Default)]
pub struct Offload {
    options: Option<OffloadOptions>,
    away: BTreeMap<RequestKey, Away>,
    resting: BTreeMap<WorkerId, Rest>,
    /// More than `max-outstanding` where that has been lowered since.
    most: usize,
}

impl Offload {
    /// Goes by these options from now on, or sends nothing any more. What is away stays away.
    pub fn set_options(&mut self, options: Option<OffloadOptions>) {
        self.options = options;
        self.settle();
    }

    /// Its options, where it may send something now: few enough are away and more than `busy-tokens` are queued here.
    #[must_use]
    pub fn wants(&self, queued_tokens: u64) -> Option<&OffloadOptions> {
        let options = self.options.as_ref()?;
        let has_room = self.away.len() < options.max_outstanding as usize;
        (has_room && queued_tokens > options.busy_tokens).then_some(options)
    }

    /// Whether the worker may be asked at all.
    #[must_use]
    pub fn may_ask(&self, worker: &WorkerId) -> bool {
        let named = |o: &OffloadOptions| {
            o.peers.is_empty() || o.peers.iter().any(|name| *name == worker.node.as_str())
        };
        self.options.as_ref().is_some_and(named)
    }

    /// The first prompt that had better be computed elsewhere, and where: at the peer that is done with it first. It counts as
    /// away from now on.
    pub fn choose(&mut self, now: Time, prompts: &[WaitingPrompt], peers: &[Peer]) -> Option<Choice> {
        let options = self.options.as_ref()?;
        if self.away.len() >= options.max_outstanding as usize {
            return None;
        }
        let (least, busy) = (options.min_suffix, options.busy_tokens);
        let worth =
            |p: &&WaitingPrompt| p.missing >= least && p.ahead > busy && !self.away.contains_key(&p.key);
        let choice = prompts.iter().filter(worth).find_map(|prompt| {
            let able = peers.iter().filter(|peer| self.may_ask(&peer.worker) && self.can(now, peer, prompt));
            let missing = u64::from(prompt.missing);
            let done = |peer: &Peer| peer.in_ours(self.queued_at(peer) + missing);
            let (done_there, to) = able.map(|peer| (done(peer), &peer.worker)).min()?;
            (done_there < prompt.ahead + missing).then(|| Choice {
                prompt: *prompt,
                to: to.clone(),
                done_there,
            })
        })?;
        let WaitingPrompt { key, tokens, missing, .. } = choice.prompt;
        self.away.insert(key, Away { at: choice.to.clone(), tokens, missing });
        Some(choice)
    }

    /// A prompt is away no more. Gives what it was, where it had left.
    pub fn ended(&mut self, now: Time, key: RequestKey, end: End) -> Option<Away> {
        let away = self.away.remove(&key)?;
        self.settle();
        // What has rested long enough and is asked no more is a life that is over.
        self.resting.retain(|_, rest| now < rest.until + LONGEST_REST);
        match end {
            End::Computed => _ = self.resting.remove(&away.at),
            End::Failed => {
                let failures = self.resting.get(&away.at).map_or(0, |rest| rest.failures);
                let rest = Span(FIRST_REST.0.saturating_mul(1 << failures.min(16)).min(LONGEST_REST.0));
                self.resting.insert(away.at.clone(), Rest { until: now + rest, failures: failures + 1 });
            }
            End::Withdrawn => {}
        }
        Some(away)
    }

    /// Prompts that are away.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.away.len()
    }

    /// The first broken invariant.
    ///
    /// # Errors
    /// More prompts are away than allowed.
    pub fn check(&self) -> Result<(), Broken> {
        let (away, most) = (self.away.len(), self.most);
        ensure_invariant!(away <= most, "offload_outstanding", "{away} prompts are away, {most} allowed");
        Ok(())
    }

    fn settle(&mut self) {
        let allowed = self.options.as_ref().map_or(0, |options| options.max_outstanding as usize);
        self.most = allowed.max(self.away.len());
    }

    /// Whether a peer has room for a prompt and its first token.
    fn can(&self, now: Time, peer: &Peer, prompt: &WaitingPrompt) -> bool {
        let rests = self.resting.get(&peer.worker).is_some_and(|rest| now < rest.until);
        // They may or may not be in its figures.
        let ours = self.away.values().filter(|away| away.at == peer.worker);
        let (count, tokens) =
            ours.fold((0, 0), |(count, tokens), away| (count + 1, tokens + u64::from(away.tokens)));
        !rests
            && peer.free_requests > count
            && peer.free_tokens > tokens + u64::from(prompt.tokens)
            && peer.max_context > prompt.tokens
    }

    fn queued_at(&self, peer: &Peer) -> u64 {
        let ours = self.away.values().filter(|away| away.at == peer.worker);
        peer.queued_tokens + ours.map(|away| u64::from(away.missing)).sum::<u64>()
    }
}

#[cfg(test)]
mod tests;
