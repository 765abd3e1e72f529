//! Requests that are moved to another worker while their streams run.

use std::sync::Arc;

use config::ids::{Attempt, NodeId, RequestId, WorkerId};
use policies::invariant::Broken;
use policies::session::Phase;
use policies::time::Time;

use super::Gateway;
use crate::event::{ControllerMsg, Outbox};

/// What is asked for when requests are moved.
#[derive(Clone, Debug)]
pub struct Moving {
    /// From the worker of this node; none: from any.
    pub from: Option<NodeId>,
    /// To this worker; none: where the controller says.
    pub to: Option<WorkerId>,
    /// How many at most, the oldest ones.
    pub sessions: u32,
}

impl Gateway {
    /// Moves some of the requests whose tokens arrive, and which are not moving yet.
    ///
    /// # Errors
    /// A broken invariant of a session.
    pub fn move_some(&mut self, now: Time, moving: &Moving, out: &mut Outbox) -> Result<(), Broken> {
        let Moving { from, to, sessions } = moving;
        let there = |worker: &WorkerId| {
            from.as_ref().is_none_or(|from| worker.node == *from)
                && to.as_ref().is_none_or(|to| worker.node != to.node)
        };
        let live = self.live.iter().map(|live| &live.session);
        let may =
            live.filter(|s| s.phase() == Phase::Streaming && !s.is_moving() && s.worker().is_some_and(there));
        let ids: Vec<RequestId> = may.map(|s| s.spec().id).take(*sessions as usize).collect();
        for id in ids {
            let mut refused = false;
            self.with(now, id, out, |s, fx| refused = s.migrate(now, to.clone(), fx).is_err())?;
            if refused {
                self.tally.move_refused();
            }
        }
        Ok(())
    }

    /// A request is at its target.
    pub(super) fn switched(&mut self, id: RequestId, to: WorkerId, attempt: Attempt, out: &mut Outbox) {
        self.places.switched(id);
        if let Some(live) = self.live.get_mut(id) {
            live.seen.moved();
        }
        if self.tells_accepted {
            self.places.tell(id, ControllerMsg::Accepted(id, attempt), out);
        }
        if let Some(history) = &mut self.history {
            history.placed(id, to, Arc::default());
        }
    }
}
