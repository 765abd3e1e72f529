//! Prompts that wait here and are computed by another worker meanwhile ([`policies::order::offload`]).
//!
//! As live: from when it leaves such a request is one whose prompt comes from another worker, like those for which the
//! controller has chosen one. Where it does not come, the scheduler's core puts it back to its place.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::NodeId;
use policies::batch::Batch;
use policies::invariant::Broken;
use policies::order::RequestKey;
use policies::order::offload::{End, Offload, OffloadOptions, Peer};
use policies::placement::WorkerInfo;
use policies::time::{Span, Time};

use super::beats::WorkerAd;
use super::transfers::{Id, Transfers};

/// The live scheduler looks at what waits this often, whatever else happens.
pub(super) const LOOK: Span = Span::from_millis(250);

/// What became of prompts that had left their workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// Prompts by how it went: `computed`, `failed` (and computed where they came from), `withdrawn`.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Prompt tokens that were computed elsewhere.
    pub tokens: u64,
}

impl Offloaded {
    /// Adds those of another worker.
    pub fn merge(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.tokens += other.tokens;
    }

    /// Prompts with this outcome.
    #[must_use]
    pub fn count(&self, outcome: End) -> u64 {
        self.outcomes.get(outcome.as_str()).copied().unwrap_or(0)
    }
}

/// What one worker knows of its peers, what is away, and by which rule more may go.
#[derive(Debug, Default)]
pub(super) struct Offloads {
    core: Offload,
    /// Whether any may leave.
    on: bool,
    peers: BTreeMap<NodeId, Arc<WorkerAd>>,
    /// It is called again in a moment.
    looks: bool,
    pub(super) ended: Offloaded,
}

impl Offloads {
    pub(super) fn new(options: Option<OffloadOptions>) -> Self {
        let mut core = Offload::default();
        let on = options.is_some();
        core.set_options(options);
        Self { core, on, ..Self::default() }
    }

    /// What a peer's heartbeat said.
    pub(super) fn heard(&mut self, ad: Arc<WorkerAd>) {
        self.peers.insert(ad.info.id.node.clone(), ad);
    }

    /// The link to a peer is gone.
    pub(super) fn lost(&mut self, node: &NodeId) {
        self.peers.remove(node);
    }

    /// It is called as was asked.
    pub(super) const fn looked(&mut self) {
        self.looks = false;
    }

    /// A transfer has ended. Nothing where its prompt did not leave from here.
    pub(super) fn end(&mut self, now: Time, (request, attempt): Id, end: End) {
        let Some(away) = self.core.ended(now, RequestKey { request, attempt }, end) else { return };
        *self.ended.outcomes.entry(end.as_str()).or_default() += 1;
        if end == End::Computed {
            self.ended.tokens += u64::from(away.missing);
        }
    }

    /// Sends what had better be computed elsewhere; says whether it is to be called again in a moment.
    pub(super) fn send(
        &mut self,
        now: Time,
        me: &WorkerInfo,
        core: &mut Batch,
        transfers: &mut Transfers,
    ) -> bool {
        if !self.on {
            return false;
        }
        while let Some(options) = self.core.wants(core.load().queued_prefill_tokens) {
            let (least, busy) = (options.min_suffix, options.busy_tokens);
            let others = self.peers.values().filter(|ad| self.core.may_ask(&ad.info.id));
            let peers: Vec<Peer> =
                others.filter_map(|ad| Peer::of(me, &ad.info, ad.draining, &ad.load)).collect();
            let prompts = if peers.is_empty() { Vec::new() } else { core.waiting_prompts(least, busy) };
            let Some(choice) = self.core.choose(now, &prompts, &peers) else {
                return !std::mem::replace(&mut self.looks, true);
            };
            let key = choice.prompt.key;
            let id = (key.request, key.attempt);
            let Some(spec) = core.offload(now, id.0, id.1) else {
                self.end(now, id, End::Withdrawn);
                return false;
            };
            transfers.leaves(spec, choice.to);
        }
        false
    }

    pub(super) fn outstanding(&self) -> usize {
        self.core.outstanding()
    }

    pub(super) fn check(&self) -> Result<(), Broken> {
        self.core.check()
    }
}
