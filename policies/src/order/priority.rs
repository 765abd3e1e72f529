//! `priority`: the prop `priority` decides, higher sooner; first come, first served among equals.
//!
//! Strict: a request of a higher priority takes the slot and the pages of running ones of a lower one, never of an equal
//! one, so that equals never push each other out. With `age-every`, a request that waits gains one priority each time
//! that much has passed, so that a flood of higher ones cannot keep it out for ever: compared with one that came `t`
//! later and asks for `p` more, it goes first when `t` is more than `p` times `age-every`. Age lets it go first and
//! protects it once it runs; it takes nothing away from those that run.
//!
//! Linear ageing makes the order of two requests independent of the time at which they are compared, so that a rank is
//! said once: the arrival, less the priority times `age-every`.

use config::ids::PolicyName;

use super::{Arrival, OrderEvent, Ranks, Standing, WorkerPolicy};
use crate::invariant::Broken;
use crate::request::Prop;
use crate::time::{Span, Time};

/// The prop.
pub const PROP: &str = "priority";

/// Options of [`Priority`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityOptions {
    /// Priority of a request that says nothing.
    pub default: i64,
    /// Running requests of a lower priority give way where slots or pages are short.
    pub preempt: bool,
    /// What waits so long counts as one priority more; zero is never.
    pub age_every: Span,
}

impl Default for PriorityOptions {
    fn default() -> Self {
        Self { default: 0, preempt: true, age_every: Span::ZERO }
    }
}

/// The policy. It remembers nothing: a request's rank follows from the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Priority {
    options: PriorityOptions,
}

impl Priority {
    /// The name by which it is configured.
    pub const NAME: &'static str = "priority";

    /// A policy with these options.
    #[must_use]
    pub const fn new(options: PriorityOptions) -> Self {
        Self { options }
    }

    /// Where a request stands.
    #[must_use]
    pub fn standing(&self, arrival: &Arrival) -> Standing {
        let level = match arrival.props.get(PROP) {
            Some(Prop::Int(level)) => *level,
            _ => self.options.default,
        };
        let ageing = self.options.age_every;
        let place = if ageing == Span::ZERO {
            0_i64.saturating_sub(level)
        } else {
            let head_start = level.saturating_mul(i64::try_from(ageing.0).unwrap_or(i64::MAX));
            i64::try_from(arrival.since.0).unwrap_or(i64::MAX).saturating_sub(head_start)
        };
        Standing { place, level, ageing, displaces: self.options.preempt, ..Standing::EQUAL }
    }
}

impl WorkerPolicy for Priority {
    fn name(&self) -> PolicyName {
        Self::NAME.into()
    }

    fn observe(&mut self, _now: Time, events: &[OrderEvent], ranks: &mut Ranks) {
        for event in events {
            if let OrderEvent::Arrived(arrival) = event {
                ranks.standings.push((arrival.key, self.standing(arrival)));
            }
        }
    }

    fn tick(&mut self, _now: Time, _ranks: &mut Ranks) {}

    /// # Errors
    /// None: there is no state.
    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
