//! `deadline`: earliest deadline first (Liu and Layland, 1973), by the prop `deadline-ms`, or by `slo-ttft-ms` where that
//! is earlier: both say how much time a request had left when it came, on whichever clock. A request with neither comes
//! after all that have one.
//!
//! EDF meets all deadlines that can be met and may miss all of them once some cannot. Hence hopeless work is refused
//! early: a prompt that at the speed measured here takes longer than the request has left is not computed.

use config::ids::PolicyName;

use super::{Arrival, OrderEvent, Ranks, Standing, WorkerPolicy};
use crate::invariant::Broken;
use crate::request::{Props, prop_millis};
use crate::time::{Span, Time};

/// How long the whole answer may take.
pub const PROP: &str = "deadline-ms";
/// How long the first token may take.
pub const TTFT_PROP: &str = "slo-ttft-ms";

/// Steps with fewer prompt tokens say little about the speed of prefill.
const TELLING: u32 = 16;
/// The weight of a step in the measured speed is one in so many.
const SMOOTHING: u64 = 8;
/// The place of a request without a deadline: behind those that have one, before what is not ranked yet.
const LAST: i64 = i64::MAX - 1;

/// Options of [`Deadline`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineOptions {
    /// Refuse what cannot be done in time.
    pub refuse_hopeless: bool,
}

impl Default for DeadlineOptions {
    fn default() -> Self {
        Self { refuse_hopeless: true }
    }
}

/// The policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deadline {
    options: DeadlineOptions,
    /// Nanoseconds a prompt token, measured; none before the first telling step.
    pace: Option<u64>,
}

impl Deadline {
    /// The name by which it is configured.
    pub const NAME: &'static str = "deadline";

    /// A policy that has measured nothing, and therefore refuses nothing.
    #[must_use]
    pub const fn new(options: DeadlineOptions) -> Self {
        Self { options, pace: None }
    }

    /// When a request is due: its end where it asks for one, its first token where that is sooner; [`Time::NEVER`] where
    /// it asks for neither.
    #[must_use]
    pub fn due(props: &Props, since: Time, deadline: Time) -> Time {
        let end = if props.contains_key(PROP) { deadline } else { Time::NEVER };
        let first = prop_millis(props, TTFT_PROP).map_or(Time::NEVER, |slo| since + slo);
        end.min(first)
    }

    fn standing(arrival: &Arrival) -> Standing {
        let due = Self::due(&arrival.props, arrival.since, arrival.deadline);
        let place = i64::try_from(due.0).map_or(LAST, |due| due.min(LAST));
        Standing { place, ..Standing::EQUAL }
    }

    fn stepped(&mut self, took: Span, prefill: u32) {
        if prefill < TELLING {
            return;
        }
        let seen = took.0 / u64::from(prefill);
        let pace = self.pace.map_or(seen, |pace| pace - pace / SMOOTHING + seen / SMOOTHING);
        self.pace = Some(pace);
    }
}

impl WorkerPolicy for Deadline {
    fn name(&self) -> PolicyName {
        Self::NAME.into()
    }

    fn observe(&mut self, _now: Time, events: &[OrderEvent], ranks: &mut Ranks) {
        let before = self.pace;
        for event in events {
            match event {
                OrderEvent::Arrived(arrival) => {
                    ranks.standings.push((arrival.key, Self::standing(arrival)));
                }
                OrderEvent::Stepped { took, prefill } => self.stepped(*took, *prefill),
                OrderEvent::Reloaded(_)
                | OrderEvent::Admitted { .. }
                | OrderEvent::Received { .. }
                | OrderEvent::Computed { .. }
                | OrderEvent::Preempted { .. }
                | OrderEvent::Ended { .. } => {}
            }
        }
        if self.options.refuse_hopeless && self.pace != before {
            ranks.pace = self.pace.map(Span);
        }
    }

    fn tick(&mut self, _now: Time, _ranks: &mut Ranks) {}

    /// # Errors
    /// None: nothing that it keeps can be wrong.
    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
