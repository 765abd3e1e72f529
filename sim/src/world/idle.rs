//! What comes out of the queue and does nothing, or nothing that a run would last for.

use super::World;
use crate::event::{Event, PoolEvent};

impl World {
    /// What was asked for by something that is over is no event: it neither counts nor makes the run longer.
    #[inline]
    pub(super) fn is_nothing(&self, event: &Event) -> bool {
        match event {
            Event::Timer(id) | Event::Leave(id) | Event::Read(id) => !self.gateway.is_live(*id),
            Event::KvTimer(worker, request, attempt) => !self
                .process(worker)
                .and_then(|worker| self.workers.get(&worker))
                .is_some_and(|worker| worker.has_transfer((*request, *attempt))),
            _ => false,
        }
    }

    /// Whether nobody has waited for this, so that a run does not last longer for it.
    #[inline]
    pub(super) fn is_idle(&self, event: &Event) -> bool {
        match event {
            Event::ControllerTick => self.controller.core().next_deadline().is_none(),
            Event::StandInTick => self.stand_in.core().next_deadline().is_none(),
            Event::Worker(_, message) => message.is_routine(),
            // What somebody waits for comes in a message.
            Event::Pool(event) => matches!(**event, PoolEvent::Timer(_) | PoolEvent::DiskDone(_)),
            Event::Move(_) => self.gateway.live() == 0,
            _ => false,
        }
    }
}
