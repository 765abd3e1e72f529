//! The role of a worker: a policy may want another one.

use config::WorkerRole;
use policies::time::Time;

use super::Worker;
use crate::event::{ControllerMsg, Event, Outbox};

impl Worker {
    /// A policy wants another role, or the present one again. As live: first it says that it is about to change, and the
    /// controller gives it nothing new.
    pub(super) fn set_role(&mut self, now: Time, role: WorkerRole, out: &mut Outbox) {
        let next = (role != self.info.role).then_some(role);
        if self.info.switchable && self.info.switching_to != next {
            self.info.switching_to = next;
            self.tell_role(now, out);
        }
    }

    /// Is what it was about to be, when nothing is left of what it had.
    pub(super) fn take_role(&mut self, now: Time, out: &mut Outbox) {
        if let Some(role) = self.info.switching_to
            && self.core.requests() == 0
        {
            (self.info.role, self.info.switching_to) = (role, None);
            self.tell_role(now, out);
        }
    }

    /// As live, all hear of it, also who places while there is no controller.
    fn tell_role(&mut self, now: Time, out: &mut Outbox) {
        self.beat(now, out);
        out.send(Event::Controller(ControllerMsg::Joined(Box::new(self.info.clone()))));
        out.send(Event::StandIn(ControllerMsg::Joined(Box::new(self.info.clone()))));
    }
}
