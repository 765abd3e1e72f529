//! What holds at a sender after every event.

use super::{Phase, Sender};
use crate::ensure_invariant;
use crate::invariant::Broken;

impl Sender {
    /// The first broken invariant.
    ///
    /// # Errors
    /// Something was sent to a receiver without pages; more was exported than computed or than there was credit for; pages are not in order; there was no release at
    /// the end, or more than one, or one while an export was in flight.
    pub fn check(&self) -> Result<(), Broken> {
        let moved = self.next > self.asked.first_page;
        ensure_invariant!(
            self.open || (!moved && self.exporting.is_none() && self.sending.is_none()),
            "handoff_sends_when_open",
            "{:?} exported and {:?} sent to a receiver without pages",
            self.exporting,
            self.sending
        );
        ensure_invariant!(
            !moved || (self.next <= self.allowed && self.next <= self.computed && self.asked.want_pages),
            "handoff_sender_credit",
            "pages up to {} exported, {} computed, credit up to {}",
            self.next,
            self.computed,
            self.allowed
        );
        let mut order = [self.exported, self.exporting].into_iter().flatten();
        let end = order.try_fold(self.sent, |at, p| (p.first == at).then(|| p.end()));
        // What was exported is dropped where the first tokens end everything, and at the end.
        let bare = self.is_bare() || matches!(self.phase, Phase::Closing | Phase::Ended);
        ensure_invariant!(
            bare || end == Some(self.next),
            "handoff_sender_in_order",
            "sent up to {}, exported {:?} and {:?}, next {}",
            self.sent,
            self.exported,
            self.exporting,
            self.next
        );
        let ended = u32::from(self.phase == Phase::Ended);
        ensure_invariant!(
            self.tally.released == ended && self.tally.done == ended,
            "handoff_releases_once",
            "{:?} after {:?}",
            self.phase,
            self.tally
        );
        ensure_invariant!(
            ended == 0 || self.exporting.is_none(),
            "handoff_sender_fence",
            "released while {:?} is exported",
            self.exporting
        );
        Ok(())
    }
}
