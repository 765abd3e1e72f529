//! Requests that changed their workers while their streams ran.

use std::collections::BTreeMap;

use policies::time::Span;
use serde::Serialize;

use super::{Distribution, Percentiles};

/// Moves as they happen.
#[derive(Debug, Default)]
pub(super) struct MoveTally {
    outcomes: BTreeMap<&'static str, u64>,
    gaps: Distribution,
}

impl MoveTally {
    /// A move is over, or was refused.
    pub(super) fn ended(&mut self, outcome: &'static str) {
        *self.outcomes.entry(outcome).or_default() += 1;
    }

    /// The first token of the target has come so long after the last one of the source.
    pub(super) fn gap(&mut self, gap: Span) {
        self.gaps.add(gap);
    }

    pub(super) fn figures(&self) -> Moves {
        Moves { outcomes: self.outcomes.clone(), gap_ms: self.gaps.percentiles() }
    }
}

/// Moves of running requests to other workers, and what their clients saw of that.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Moves {
    /// Moves by how they ended: `moved`, `stayed` (given up; the request runs on where it was), `elsewhere` (its worker was
    /// lost meanwhile), `ended` (the request was), `refused`.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// From the last token of the source to the first one of the target, in milliseconds.
    pub gap_ms: Percentiles,
}

impl Moves {
    /// All of them.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// How many requests have moved.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.outcomes.get(MOVED).copied().unwrap_or(0)
    }

    /// In one line.
    pub(super) fn text(&self) -> String {
        if self.count() == 0 {
            return "none".to_owned();
        }
        let ends: Vec<String> = self.outcomes.iter().map(|(end, count)| format!("{count} {end}")).collect();
        let Percentiles { p50, max, .. } = self.gap_ms;
        format!("{}; gap {p50:.3} ms median, {max:.3} ms at most", ends.join(", "))
    }
}

/// As [`policies::session::Migrated::as_str`] says it.
const MOVED: &str = "moved";

#[cfg(test)]
mod tests {
    use policies::session::Migrated;

    use super::*;

    #[test]
    fn moves_in_a_line() {
        assert_eq!(Moves::default().text(), "none");
        let mut tally = MoveTally::default();
        let id = |name: &str| config::ids::WorkerId::new(name.into(), 1);
        tally.ended(Migrated::Moved { from: id("a"), to: id("b") }.as_str());
        tally.ended(Migrated::Stayed("its target is full".into()).as_str());
        tally.gap(Span::from_millis(7));
        let moves = tally.figures();
        assert_eq!((moves.count(), moves.moved(), moves.gap_ms.count), (2, 1, 1));
        assert_eq!(moves.text(), "1 moved, 1 stayed; gap 7.000 ms median, 7.000 ms at most");
    }
}
