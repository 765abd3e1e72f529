//! How fast a machine was from second to second, against what is said of its steps.
//!
//! ```text
//! factor(s) = Σ took / Σ said     over the steps that began in second s
//! step      = factor(s) · (what is said of it)
//! ```
//!
//! Machines that others share, or that get warm, have no one speed: a replay of yesterday's requests that goes by one
//! speed is off by more than the policies that it compares. Seconds without a step have the factor of the second before.

use std::collections::BTreeMap;

use crate::time::{Span, Time};

/// Thousandths: a factor of one.
const ONE: u128 = 1000;
/// A factor beyond these is an error of a clock, or a table of another machine.
const LEAST: u128 = 10;
const MOST: u128 = 1_000_000;

/// A machine's speed over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Seconds with steps, in order, and their factors in thousandths; at least one.
    seconds: Vec<(u64, u32)>,
}

/// What the steps of each second took, and what is said of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeedSums(BTreeMap<u64, (u128, u128)>);

impl SpeedSums {
    /// Adds a step that began at `at`, took `took` and of which `said` is said. One of which nothing is said tells nothing.
    pub fn add(&mut self, at: Time, took: Span, said: Span) {
        if said > Span::ZERO {
            let sums = self.0.entry(second(at)).or_default();
            *sums = (sums.0 + u128::from(took.0), sums.1 + u128::from(said.0));
        }
    }

    /// The factors; none without a step.
    #[must_use]
    pub fn speed(&self) -> Option<Speed> {
        let factor = |&(took, said): &(u128, u128)| {
            let thousandths = (took * ONE + said / 2) / said;
            u32::try_from(thousandths.clamp(LEAST, MOST)).unwrap_or(u32::MAX)
        };
        let seconds: Vec<(u64, u32)> = self.0.iter().map(|(second, sums)| (*second, factor(sums))).collect();
        (!seconds.is_empty()).then_some(Speed { seconds })
    }
}

impl Speed {
    /// How long a step that begins at `at` takes, of which `said` is said.
    #[must_use]
    pub fn of(&self, at: Time, said: Span) -> Span {
        let ns = u128::from(said.0) * u128::from(self.thousandths(at)) / ONE;
        Span(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// The factor at a moment, in thousandths. Before the first second it is that of the first.
    #[must_use]
    pub fn thousandths(&self, at: Time) -> u32 {
        let after = self.seconds.partition_point(|&(from, _)| from <= second(at));
        self.seconds[after.saturating_sub(1)].1
    }
}

const fn second(at: Time) -> u64 {
    at.0 / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn sums(steps: &[(u64, u64, u64)]) -> SpeedSums {
        let mut sums = SpeedSums::default();
        for &(ms, took, said) in steps {
            sums.add(at(ms), Span(took), Span(said));
        }
        sums
    }

    #[test]
    fn figures_by_hand() {
        // Long steps count for more: 1000 of 800, not the mean of 2 and 1.
        let speed = sums(&[(2100, 400, 200), (2999, 600, 600), (5000, 90, 100)]).speed().unwrap();
        for (ms, thousandths) in
            [(0, 1250), (2000, 1250), (3000, 1250), (4999, 1250), (5000, 900), (99_000, 900)]
        {
            assert_eq!(speed.thousandths(at(ms)), thousandths, "{ms}");
        }
        assert_eq!(speed.of(at(2500), Span(1000)), Span(1250));
        assert_eq!(speed.of(at(2500), Span::ZERO), Span::ZERO);
    }

    #[test]
    fn what_tells_nothing_is_left_out() {
        assert_eq!(sums(&[]).speed(), None);
        assert_eq!(sums(&[(0, 5, 0)]).speed(), None);
        let wild = sums(&[(0, 0, 5), (1000, u64::MAX, 1)]).speed().unwrap();
        assert_eq!((wild.thousandths(at(0)), wild.thousandths(at(1000))), (10, 1_000_000));
        assert_eq!(wild.of(at(1000), Span(u64::MAX)), Span(u64::MAX));
    }
}
