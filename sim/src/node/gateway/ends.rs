//! How requests end: each by its session, all of them when the gateway dies, and what is known of them then.

use config::ids::RequestId;
use policies::request::{RequestSpec, Token};
use policies::session::Failure;
use policies::time::Time;

use super::{Gateway, History, Live, Places};
use crate::report::tally::{Outcome, Seen, Tally};

impl Gateway {
    /// A request is over.
    pub(super) fn end(&mut self, now: Time, id: RequestId, outcome: &Outcome) {
        let Some(Live { session, seen, .. }) = self.live.remove(id) else { return };
        self.tally.ended(&seen, session.retries(), Some((now, outcome)));
        if let Some(history) = &mut self.history {
            history.ends(&session);
        }
        if let Some(truth) = &mut self.truth {
            truth.ends(id);
        }
        self.places.forget(id);
        self.ended.push((id, session.tokens(0).to_vec()));
    }

    /// The gateway dies, and all requests with it.
    pub fn crash(&mut self, now: Time) {
        let live: Vec<RequestId> = self.live.ids().collect();
        for id in live {
            self.end(now, id, &Outcome::Failed(Failure::Unavailable("the gateway died".into())));
        }
        self.places = Places::new();
    }

    /// A request arrives while the gateway is dead.
    pub fn refuse(&mut self, now: Time, spec: &RequestSpec) {
        let outcome = Outcome::Failed(Failure::Unavailable("the gateway is dead".into()));
        self.tally.ended(&Seen::new(now, spec), 0, Some((now, &outcome)));
        if let Some(history) = &mut self.history {
            history.begins(spec);
        }
        self.ended.push((spec.id, Vec::new()));
    }

    /// Whether a request has ended since the last time that somebody asked which have.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Requests that have ended since the last time, with what their first choices were answered.
    pub fn take_ended(&mut self) -> Vec<(RequestId, Vec<Token>)> {
        std::mem::take(&mut self.ended)
    }

    /// What clients saw, those included that wait for ever, and all answers where those were kept.
    #[must_use]
    pub fn into_seen(mut self) -> (Tally, Option<History>) {
        for Live { session, seen, .. } in self.live.iter() {
            self.tally.ended(seen, session.retries(), None);
            if let Some(history) = &mut self.history {
                history.ends(session);
            }
        }
        (self.tally, self.history)
    }
}
