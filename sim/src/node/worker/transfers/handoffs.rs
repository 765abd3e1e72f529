//! How transfers ended.

use std::collections::BTreeMap;

use policies::kv::handoff::{Outcome, TransferReport};

use crate::node::worker::Offloaded;

/// How transfers ended, as their receivers saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handoffs {
    /// Transfers by how they ended: `committed`, `cancelled`, or why they failed.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Pages that came.
    pub pages: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Of the prompts, those that workers had computed by others of their own accord.
    pub offloaded: Offloaded,
}

impl Handoffs {
    pub(super) fn add(&mut self, report: &TransferReport) {
        *self.outcomes.entry(report.outcome.as_str()).or_default() += 1;
        self.pages += u64::from(report.pages);
        self.bytes += report.bytes;
    }

    /// Adds those of another worker.
    pub fn merge(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.pages += other.pages;
        self.bytes += other.bytes;
        self.offloaded.merge(&other.offloaded);
    }

    /// Transfers whose receivers took the sequence over.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.outcomes.get(Outcome::Committed.as_str()).copied().unwrap_or(0)
    }
}
