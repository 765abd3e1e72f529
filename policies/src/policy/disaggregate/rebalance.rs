//! Which worker should change sides: between those that compute prompts and those that generate.
//!
//! Looked at for each kind of pages (the same models and fingerprint), of the workers that take requests:
//!
//! ```text
//! waiting = prompt tokens that wait at prefill workers, a prefill worker
//! drawing = tokens that are still to be drawn, a decode or unified worker
//! ratio   = waiting / drawing
//! ratio > rebalance-high ∧ waiting ≥ rebalance-least-tokens:  prefill lacks workers
//! ratio < rebalance-low  ∧ drawing ≥ rebalance-least-tokens:  decode lacks workers
//! ```
//!
//! Prompt tokens at decode workers are left out of `drawing`: what they compute for want of room at prefill workers would
//! look like load of their own, and hide the want. One worker is switched where a side has lacked workers for
//! `rebalance-after` without a break; then nothing for `rebalance-pause` after the last change of any role, whoever made
//! it. The last worker of a side stays. Two thresholds, a time to hold and a pause are what keeps pools from swinging.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use config::ids::{ModelId, WorkerId};
use config::{DisaggregateConfig, WorkerRole};

use crate::kv::Fingerprint;
use crate::placement::WorkerView;
use crate::policy::PolicyAction;
use crate::time::{Span, Time};

/// When workers change sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RebalanceOptions {
    /// A higher ratio is a want of prefill workers.
    pub high: f64,
    /// A lower ratio is a want of decode workers.
    pub low: f64,
    /// For how long before something is done.
    pub after: Span,
    /// How long nothing is done after a change.
    pub pause: Span,
    /// Tokens a worker of the side that lacks workers, below which it lacks none.
    pub least_tokens: u64,
}

impl RebalanceOptions {
    /// Those of the configuration; none where nothing is to be done.
    pub(super) fn configured(disaggregate: &DisaggregateConfig) -> Option<Self> {
        disaggregate.rebalance.then(|| Self {
            high: disaggregate.rebalance_high,
            low: disaggregate.rebalance_low,
            after: Duration::from(disaggregate.rebalance_after).into(),
            pause: Duration::from(disaggregate.rebalance_pause).into(),
            least_tokens: disaggregate.rebalance_least_tokens,
        })
    }
}

/// Workers that can exchange pages.
type Kind = (Vec<ModelId>, Fingerprint);

/// What is remembered between ticks.
#[derive(Clone, Debug, Default)]
pub(super) struct Rebalance {
    watches: BTreeMap<Kind, Watch>,
    /// As they were last seen.
    roles: BTreeMap<WorkerId, WorkerRole>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    /// A side lacks workers, since then.
    lacks: Option<(Side, Time)>,
    paused_until: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Prefill,
    Decode,
}

/// The workers of a kind that take requests, by side.
#[derive(Debug, Default)]
struct Pool<'a> {
    prefill: Vec<&'a WorkerView>,
    decode: Vec<&'a WorkerView>,
    /// One of them is changing its role, or has since the last tick.
    changes: bool,
}

/// Tokens a worker.
#[derive(Clone, Copy, Debug)]
struct Load {
    waiting: f64,
    drawing: f64,
}

impl Rebalance {
    pub(super) fn tick(
        &mut self,
        now: Time,
        options: &RebalanceOptions,
        workers: &[WorkerView],
        actions: &mut Vec<PolicyAction>,
    ) {
        let mut pools: BTreeMap<Kind, Pool<'_>> = BTreeMap::new();
        for worker in workers {
            let info = &worker.info;
            let Some(kv) = &info.kv else { continue };
            let pool = pools.entry((info.models.clone(), kv.fingerprint)).or_default();
            pool.changes |= info.switching_to.is_some()
                || self.roles.get(&info.id).is_some_and(|former| *former != info.role);
            if worker.draining || info.switching_to.is_some() {
                continue;
            }
            match info.role {
                WorkerRole::Prefill => pool.prefill.push(worker),
                WorkerRole::Decode | WorkerRole::Unified => pool.decode.push(worker),
            }
        }
        self.roles = workers.iter().map(|worker| (worker.info.id.clone(), worker.info.role)).collect();
        self.watches.retain(|kind, _| pools.contains_key(kind));
        for (kind, pool) in pools {
            actions.extend(self.watches.entry(kind).or_default().look(now, options, &pool));
        }
    }
}

impl Watch {
    fn look(&mut self, now: Time, options: &RebalanceOptions, pool: &Pool<'_>) -> Option<PolicyAction> {
        if pool.changes {
            self.paused_until = now + options.pause;
        }
        let load = pool.load().filter(|_| now >= self.paused_until);
        let lacks = load.and_then(|load| Some((load.lacks(options)?, load)));
        let Some((side, load)) = lacks else {
            self.lacks = None;
            return None;
        };
        let since = self.lacks.filter(|(former, _)| *former == side).map_or(now, |(_, since)| since);
        self.lacks = Some((side, since));
        let held = now.since(since);
        if held < options.after {
            return None;
        }
        let (worker, role) = pool.volunteer(side)?;
        *self = Self { lacks: None, paused_until: now + options.pause };
        Some(PolicyAction::SwitchRole { worker, role, why: load.why(side, options, held) })
    }
}

impl Load {
    fn ratio(self) -> f64 {
        self.waiting / self.drawing.max(1.0)
    }

    fn lacks(self, options: &RebalanceOptions) -> Option<Side> {
        let least = options.least_tokens as f64;
        if self.waiting >= least && self.ratio() > options.high {
            Some(Side::Prefill)
        } else if self.drawing >= least && self.ratio() < options.low {
            Some(Side::Decode)
        } else {
            None
        }
    }

    fn why(self, side: Side, options: &RebalanceOptions, held: Span) -> String {
        let Self { waiting, drawing } = self;
        let bound = match side {
            Side::Prefill => format!("over rebalance-high = {}", options.high),
            Side::Decode => format!("under rebalance-low = {}", options.low),
        };
        format!(
            "{waiting:.0} prompt tokens wait at a prefill worker and {drawing:.0} are to be drawn at another: \
             {:.2}, {bound} for {held}",
            self.ratio()
        )
    }
}

impl Pool<'_> {
    /// None where a side is empty.
    fn load(&self) -> Option<Load> {
        if self.prefill.is_empty() || self.decode.is_empty() {
            return None;
        }
        let sum = |side: &[&WorkerView], of: fn(&WorkerView) -> u64| {
            side.iter().map(|worker| of(worker) as f64).sum::<f64>() / side.len() as f64
        };
        Some(Load { waiting: sum(&self.prefill, waiting), drawing: sum(&self.decode, drawing) })
    }

    /// Who can best be spared for a side that lacks workers, and its next role.
    fn volunteer(&self, side: Side) -> Option<(WorkerId, WorkerRole)> {
        let (from, role) = match side {
            Side::Prefill => (&self.decode, WorkerRole::Prefill),
            Side::Decode if self.decode.iter().all(|w| w.info.role == WorkerRole::Decode) => {
                (&self.prefill, WorkerRole::Decode)
            }
            Side::Decode => (&self.prefill, WorkerRole::Unified),
        };
        if from.len() < 2 {
            return None;
        }
        // One of many alike; the one that is soonest done with what it has.
        let alike = |role: WorkerRole| from.iter().filter(|worker| worker.info.role == role).count();
        let allowed = from.iter().filter(|worker| worker.info.switchable);
        let key = |worker: &&&WorkerView| {
            (Reverse(alike(worker.info.role)), worker.load.outstanding_tokens, worker.info.id.clone())
        };
        allowed.min_by_key(key).map(|worker| (worker.info.id.clone(), role))
    }
}

/// Prompt tokens that wait at a prefill worker: what it reports, or what is booked on it and on its way.
fn waiting(worker: &WorkerView) -> u64 {
    worker.load.queued_prefill_tokens.max(worker.handoff_tokens)
}

/// Tokens that are still to be drawn at a worker.
fn drawing(worker: &WorkerView) -> u64 {
    worker.load.outstanding_tokens.saturating_sub(worker.load.queued_prefill_tokens)
}

#[cfg(test)]
mod tests;
