//! What holds at a receiver after every event.

use super::{Phase, Receiver, Room};
use crate::ensure_invariant;
use crate::invariant::Broken;

impl Receiver {
    /// The first broken invariant.
    ///
    /// # Errors
    /// More pages than the window are under way or wait, or some without pages to write them to; the pages are not one run; there were two ends, or one while
    /// an import was in flight.
    pub fn check(&self) -> Result<(), Broken> {
        let waiting = self.allowed.checked_sub(self.run);
        ensure_invariant!(
            waiting.is_some_and(|pages| pages <= self.config.window_pages) && self.received <= self.allowed,
            "handoff_receiver_credit",
            "pages {}..{} imported, came to {}, window {}",
            self.run,
            self.allowed,
            self.received,
            self.config.window_pages
        );
        ensure_invariant!(
            self.room == Room::Reserved || (self.allowed == 0 && self.imports.is_empty()),
            "handoff_reserves_before_credit",
            "credit up to page {} without pages",
            self.allowed
        );
        let end = self.imports.iter().try_fold(self.run, |at, (p, _)| (p.first == at).then(|| p.end()));
        ensure_invariant!(
            end == Some(self.received) && self.run >= self.wanted.cached_pages && self.received <= self.limit,
            "handoff_pages_contiguous",
            "{} pages imported, {} came of {}: {:?}",
            self.run,
            self.received,
            self.limit,
            self.imports
        );
        let ended = u32::from(self.phase == Phase::Ended);
        ensure_invariant!(
            self.tally.last_effects == ended && self.tally.done == ended,
            "handoff_receiver_ends_once",
            "{:?} after {:?}",
            self.phase,
            self.tally
        );
        ensure_invariant!(
            ended == 0 || self.flying() == 0,
            "handoff_fence",
            "{} imports in flight after the end",
            self.flying()
        );
        Ok(())
    }
}
