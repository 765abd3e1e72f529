//! Requests that are moved to another worker while their streams run.

use config::ids::{NodeId, RequestId, WorkerId};
use policies::invariant::Broken;
use policies::session::Phase;
use policies::time::Time;

use super::Gateway;
use crate::event::Outbox;

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
}
