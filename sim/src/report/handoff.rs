//! What went from worker to worker, and how the work is shared among workers of a role.

use std::collections::BTreeMap;

use config::WorkerRole;
use policies::order::offload::End;
use serde::Serialize;

use super::WorkerFigures;
use crate::node::worker::{Handoffs, Offloaded};

/// KV pages that went from one worker to another, as their receivers saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Transfers {
    /// Transfers by how they ended: `committed`, `cancelled`, or why they failed.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// How many were taken over: prompts that were computed on another worker than the answer.
    pub committed: u64,
    /// Pages that came.
    pub pages: u64,
    /// Bytes of those.
    pub bytes: u64,
}

impl From<&Handoffs> for Transfers {
    fn from(handoffs: &Handoffs) -> Self {
        let Handoffs { outcomes, pages, bytes, offloaded: _ } = handoffs;
        Self { outcomes: outcomes.clone(), committed: handoffs.committed(), pages: *pages, bytes: *bytes }
    }
}

impl Transfers {
    /// All of them.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// In one line.
    pub(super) fn text(&self) -> String {
        if self.count() == 0 {
            return "none".to_owned();
        }
        let ends: Vec<String> = self.outcomes.iter().map(|(end, count)| format!("{count} {end}")).collect();
        format!("{}; {} pages, {:.1} MB", ends.join(", "), self.pages, megabytes(self.bytes))
    }
}

/// Prompts that busy workers had computed by others (policy `offload`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offloads {
    /// Prompts by how it went: `computed`, `failed` (and computed where they came from), `withdrawn`.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Prompt tokens that were computed elsewhere.
    pub tokens: u64,
}

impl From<&Offloaded> for Offloads {
    fn from(offloaded: &Offloaded) -> Self {
        let Offloaded { outcomes, tokens } = offloaded;
        Self { outcomes: outcomes.clone(), tokens: *tokens }
    }
}

impl Offloads {
    /// All of them.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// How many were computed elsewhere.
    #[must_use]
    pub fn computed(&self) -> u64 {
        self.outcomes.get(End::Computed.as_str()).copied().unwrap_or(0)
    }

    /// In one line.
    pub(super) fn text(&self) -> String {
        if self.count() == 0 {
            return "none".to_owned();
        }
        let ends: Vec<String> = self.outcomes.iter().map(|(end, count)| format!("{count} {end}")).collect();
        format!("{}; {} tokens computed elsewhere", ends.join(", "), self.tokens)
    }
}

pub(super) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// The workers of one role, by what each was last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoleFigures {
    /// `unified`, `prefill` or `decode`.
    pub role: &'static str,
    /// How many.
    pub workers: u32,
    /// Mean of their time in steps as a share of the run's, in `[0, 1]`.
    pub busy_share: f64,
    /// Tokens that they computed in prefill.
    pub prefilled_tokens: u64,
    /// The same of all workers' together, in `[0, 1]`.
    pub prefilled_share: f64,
    /// Tokens that they drew.
    pub drawn_tokens: u64,
    /// The same of all workers' together, in `[0, 1]`.
    pub drawn_share: f64,
}

/// The roles that there are among these.
pub(super) fn roles(workers: &[WorkerFigures]) -> Vec<RoleFigures> {
    let all = |of: fn(&WorkerFigures) -> u64| workers.iter().map(of).sum::<u64>().max(1) as f64;
    let (prefilled, drawn) = (all(|w| w.prefilled_tokens), all(|w| w.drawn_tokens));
    let figures = |role: WorkerRole| {
        let of_role = || workers.iter().filter(move |w| w.role == role.as_str());
        let count = of_role().count();
        let (p, d) = (
            of_role().map(|w| w.prefilled_tokens).sum::<u64>(),
            of_role().map(|w| w.drawn_tokens).sum::<u64>(),
        );
        (count > 0).then(|| RoleFigures {
            role: role.as_str(),
            workers: count as u32,
            busy_share: of_role().map(|w| w.busy_share).sum::<f64>() / count as f64,
            prefilled_tokens: p,
            prefilled_share: p as f64 / prefilled,
            drawn_tokens: d,
            drawn_share: d as f64 / drawn,
        })
    };
    WorkerRole::ALL.into_iter().filter_map(figures).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_roles() {
        let worker = |role, prefilled_tokens, drawn_tokens, busy_share| WorkerFigures {
            role,
            prefilled_tokens,
            drawn_tokens,
            busy_share,
            ..WorkerFigures::default()
        };
        let of = roles(&[
            worker("prefill", 60, 1, 0.5),
            worker("decode", 10, 5, 0.25),
            worker("prefill", 30, 2, 1.0),
        ]);
        let seen: Vec<_> =
            of.iter().map(|r| (r.role, r.workers, r.busy_share, r.prefilled_share, r.drawn_share)).collect();
        assert_eq!(seen, [("prefill", 2, 0.75, 0.9, 0.375), ("decode", 1, 0.25, 0.1, 0.625)]);
        // Nobody did anything.
        assert_eq!(roles(&[worker("unified", 0, 0, 0.0)])[0].drawn_share, 0.0);
    }

    #[test]
    fn transfers_in_a_line() {
        assert_eq!(Transfers::default().text(), "none");
        let outcomes = BTreeMap::from([("committed", 3), ("cancelled", 1)]);
        let some = Transfers { outcomes, committed: 3, pages: 40, bytes: 1_250_000 };
        assert_eq!(some.text(), "1 cancelled, 3 committed; 40 pages, 1.2 MB");
        assert_eq!(Offloads::default().text(), "none");
        let outcomes = BTreeMap::from([("failed", 2), ("computed", 5)]);
        let some = Offloads { outcomes, tokens: 4000 };
        assert_eq!(some.text(), "5 computed, 2 failed; 4000 tokens computed elsewhere");
        assert_eq!((some.count(), some.computed()), (7, 5));
    }
}
