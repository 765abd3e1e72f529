//! A worker that is to leave: it takes nothing new, does what it has, and says when nothing is left.

use policies::time::{Span, Time};

use super::Worker;
use crate::event::{ControllerMsg, Event, Outbox};

impl Worker {
    /// Takes nothing new. As live, all hear of it.
    pub(super) fn drain(&mut self, now: Time, out: &mut Outbox) {
        if self.draining.is_none() {
            self.draining = Some(false);
            self.core.drain();
            self.beat(now, out);
            let id = self.info.id.clone();
            out.send(Event::Controller(ControllerMsg::Draining(id.clone())));
            out.send(Event::StandIn(ControllerMsg::Draining(id)));
        }
    }

    /// Whether it takes nothing new.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Whether it takes nothing new and has nothing left, not even pages that others still take over.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_draining() && self.core.is_idle() && self.transfers.len() == 0
    }

    /// Something has come after it said that nothing was left.
    pub fn goes_on(&mut self) {
        self.draining = self.draining.map(|_| false);
    }

    /// Says so, once.
    pub(super) fn tell_drained(&mut self, out: &mut Outbox) {
        if self.draining == Some(false) && self.is_drained() {
            self.draining = Some(true);
            out.after(Span::ZERO, Event::Drained(self.info.id.clone()));
        }
    }
}
