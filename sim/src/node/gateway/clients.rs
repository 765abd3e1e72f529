//! What clients do, and what they are told.

use config::ids::RequestId;
use policies::batch::TokenEvent;
use policies::invariant::Broken;
use policies::order::deadline;
use policies::request::{RequestSpec, prop_millis};
use policies::session::Session;
use policies::time::{Span, Time};

use super::{Gateway, Live};
use crate::checks::Truth;
use crate::event::{Event, Outbox};
use crate::report::tally::{Seen, Tally};

impl Gateway {
    /// A request arrives, from a client that reads what it gets at once, or nothing until [`Gateway::read`] says so.
    ///
    /// # Errors
    /// A broken invariant of its session.
    pub fn arrive(
        &mut self,
        now: Time,
        mut spec: RequestSpec,
        reads: bool,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        let id = spec.id;
        // As live, a client may say that it has less time than the gateway gives it.
        if let Some(hint) = prop_millis(&spec.props, deadline::PROP).filter(|hint| *hint > Span::ZERO) {
            spec.deadline = spec.deadline.min(now + hint);
        }
        let seen = Seen::new(now, &spec);
        if let Some(history) = &mut self.history {
            history.begins(&spec);
        }
        if let Some(truth) = &mut self.truth {
            truth.begins(&spec);
        }
        out.after(spec.deadline.since(now), Event::Timer(id));
        let session = Session::new(spec, self.config);
        self.live.insert(id, Live { session, seen, stalled: !reads });
        self.with(now, id, out, |session, fx| session.start(now, fx))
    }

    /// A client leaves.
    ///
    /// # Errors
    /// As [`Gateway::arrive`].
    pub fn leave(&mut self, now: Time, id: RequestId, out: &mut Outbox) -> Result<(), Broken> {
        self.with(now, id, out, |session, fx| session.cancel(now, fx))
    }

    /// A client that did not read reads all that there is, and from now on.
    ///
    /// # Errors
    /// As [`Gateway::arrive`].
    pub fn read(&mut self, now: Time, id: RequestId, out: &mut Outbox) -> Result<(), Broken> {
        if let Some(live) = self.live.get_mut(id) {
            live.stalled = false;
        }
        self.with(now, id, out, |session, fx| {
            for choice in 0..session.spec().choices() as u32 {
                session.consumed(now, choice, session.tokens(choice).len() as u32, fx);
            }
        })
    }
}

/// A client is told a token.
#[inline]
pub(super) fn deliver(
    now: Time,
    event: &TokenEvent,
    spec: &RequestSpec,
    seen: &mut Seen,
    (truth, tally): (&mut Option<Truth>, &mut Tally),
) -> Result<(), Broken> {
    if let Some(truth) = truth {
        truth.tells(spec, event)?;
    }
    tally.token(now, seen, event);
    Ok(())
}
