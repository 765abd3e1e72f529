//! Drawn requests in phases: each waits for the end of the one before, as load generators do that measure rate by rate.

use policies::rng;
use policies::time::Time;

use super::draw::Gaps;
use super::drawn::Drawn;
use super::{Ask, Source};
use crate::SimError;
use crate::scenario::{Phase, Scenario, Workload};

/// The requests of all phases, numbered through.
#[derive(Debug)]
pub(super) struct Phased {
    drawn: Drawn,
    workload: Workload,
    seed: u64,
    /// Phases that are still to come.
    later: std::vec::IntoIter<Phase>,
    /// Phases that have begun.
    begun: u64,
    /// When it began.
    since: Time,
    gaps: Gaps,
    /// Requests of it that are not sent.
    left: u64,
    /// Requests that are sent and have not ended.
    out: u64,
    /// [`Source::next`] has been answered with none: from then on, requests come because others have ended.
    dry: bool,
}

impl Phased {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let workload = scenario.workload.clone();
        let mut phased = Self {
            drawn: Drawn::new(scenario),
            gaps: Gaps::new(&workload, 1, scenario.seed),
            later: workload.phases.clone().into_iter(),
            workload,
            seed: scenario.seed,
            begun: 0,
            since: Time::ZERO,
            left: 0,
            out: 0,
            dry: false,
        };
        phased.turn(Time::ZERO);
        phased
    }

    /// Begins the next phase, if there is one.
    fn turn(&mut self, now: Time) {
        let Some(phase) = self.later.next() else { return };
        let workload = Workload { rate: phase.rate, ..self.workload.clone() };
        self.gaps = Gaps::new(&workload, 1, rng::bits(self.seed, 10, self.begun));
        (self.since, self.left, self.begun) = (now, phase.requests, self.begun + 1);
    }

    /// The next request of the phase, if clients may send one.
    fn send(&mut self, now: Time) -> Option<Ask> {
        let most = u64::from(self.workload.at_once);
        if self.left == 0 || (most > 0 && self.out >= most) {
            return None;
        }
        let due = self.since + self.gaps.next().since(Time::ZERO);
        self.left -= 1;
        self.out += 1;
        self.drawn.begin(due.max(now))
    }
}

impl Source for Phased {
    fn next(&mut self) -> Result<Option<Ask>, SimError> {
        let next = self.send(Time::ZERO);
        self.dry = next.is_none();
        Ok(next)
    }

    fn is_followed(&self, _number: u64) -> bool {
        true
    }

    fn ended(
        &mut self,
        now: Time,
        _number: u64,
        _answer: &[policies::request::Token],
    ) -> Result<Vec<Ask>, SimError> {
        self.out -= 1;
        if !self.dry {
            return Ok(Vec::new());
        }
        if self.left == 0 && self.out == 0 {
            self.turn(now);
        }
        Ok(std::iter::from_fn(|| self.send(now)).collect())
    }

    fn check_all_came(&self) -> Result<(), SimError> {
        Ok(())
    }
}
