//! Calls sessions: whatever comes for a request, comes this way.

use config::ids::RequestId;
use policies::batch::TokenEvent;
use policies::invariant::Broken;
use policies::session::{Session, SessionEffect};
use policies::time::Time;

use super::clients::deliver;
use super::{Gateway, Live};
use crate::event::{Event, Outbox};

impl Gateway {
    /// Calls a session, if it is still there, and carries out what it wants.
    pub(super) fn with(
        &mut self,
        now: Time,
        id: RequestId,
        out: &mut Outbox,
        call: impl FnOnce(&mut Session, &mut Vec<SessionEffect>),
    ) -> Result<(), Broken> {
        let Some(Live { session, seen, stalled }) = self.live.get_mut(id) else { return Ok(()) };
        let fx = &mut self.fx;
        let due = session.next_deadline();
        call(session, fx);
        if !*stalled {
            for effect in 0..fx.len() {
                if let SessionEffect::Deliver(TokenEvent { seq, index, .. }) = &fx[effect] {
                    let (choice, total) = (seq.choice, index + 1);
                    session.consumed(now, choice, total, fx);
                }
            }
        }
        session.check()?;
        // The deadline itself has its timer since the request's arrival.
        if let Some(next) = session.next_deadline()
            && due != Some(next)
            && next != session.spec().deadline
        {
            out.after(next.since(now), Event::Timer(id));
        }
        // A token, mostly.
        if let [SessionEffect::Deliver(event)] = &fx[..] {
            deliver(now, event, session.spec(), seen, (&mut self.truth, &mut self.tally))?;
            fx.clear();
            return Ok(());
        }
        self.carry_out(now, id, out)
    }

    /// Calls every session.
    pub(super) fn each(
        &mut self,
        now: Time,
        out: &mut Outbox,
        call: impl Fn(&mut Session, &mut Vec<SessionEffect>),
    ) -> Result<(), Broken> {
        let live: Vec<RequestId> = self.live.ids().collect();
        live.into_iter().try_for_each(|id| self.with(now, id, out, &call))
    }

    /// The time that a session asked for has come, or another one that it asked for before.
    ///
    /// # Errors
    /// A broken invariant of the session.
    pub fn timer(&mut self, now: Time, id: RequestId, out: &mut Outbox) -> Result<(), Broken> {
        self.with(now, id, out, |session, fx| session.expire(now, fx))
    }
}
