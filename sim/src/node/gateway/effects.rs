//! Carries out what a session wants: messages to the controller and to workers, tokens for its client, and its end.

use config::ids::{RequestId, WorkerId};
use policies::invariant::Broken;
use policies::session::SessionEffect;
use policies::time::Time;

use super::clients::deliver;
use super::{Gateway, Live};
use crate::event::{ControllerMsg, Event, Outbox, PoolEvent, PoolMsg, WorkerMsg};
use crate::report::tally::Outcome;

impl Gateway {
    /// Carries out what a session has left in `fx`.
    pub(super) fn carry_out(&mut self, now: Time, id: RequestId, out: &mut Outbox) -> Result<(), Broken> {
        let mut fx = std::mem::take(&mut self.fx);
        let mut outcome = None;
        for effect in fx.drain(..) {
            match effect {
                SessionEffect::Finished => outcome = Some(Outcome::Finished),
                SessionEffect::Failed(failure) => outcome = Some(Outcome::Failed(failure)),
                effect => self.effect(now, id, effect, out)?,
            }
        }
        self.fx = fx;
        if let Some(outcome) = outcome {
            self.end(now, id, &outcome);
        }
        Ok(())
    }

    fn effect(
        &mut self,
        now: Time,
        id: RequestId,
        effect: SessionEffect,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        match effect {
            SessionEffect::Place(request) => self.places.ask(request, out),
            SessionEffect::Release { request, attempt } => self.places.release(request, attempt, out),
            SessionEffect::Prefilled { request, attempt } => {
                self.places.tell(request, ControllerMsg::Prefilled(request, attempt), out);
            }
            SessionEffect::Submit { worker, prefill, fetch, spec } => {
                tell(worker, WorkerMsg::Submit(spec, prefill, fetch), out);
            }
            SessionEffect::Store { pool, from, spec } => {
                out.send(Event::pool(PoolEvent::Message(pool, PoolMsg::Store(from, spec))));
            }
            SessionEffect::CancelAt { worker, request, attempt } => {
                tell(worker, WorkerMsg::Cancel(request, attempt), out);
            }
            SessionEffect::CancelChoice { worker, request, attempt, choice } => {
                tell(worker, WorkerMsg::CancelChoice(request, attempt, choice), out);
            }
            SessionEffect::Grant { worker, request, attempt, choice, upto } => {
                tell(worker, WorkerMsg::Grant(request, attempt, choice, upto), out);
            }
            SessionEffect::Deliver(event) => {
                if let Some(Live { session, seen, .. }) = self.live.get_mut(id) {
                    deliver(now, &event, session.spec(), seen, (&mut self.truth, &mut self.tally))?;
                }
            }
            SessionEffect::Choose(request) => self.places.choose(request, out),
            SessionEffect::Unchoose { request, attempt } => self.places.unchoose(request, attempt, out),
            SessionEffect::Fetch { to, from, spec } => tell(to, WorkerMsg::Fetch(spec, from), out),
            SessionEffect::Take { to, from, takes, spec } => {
                tell(to, WorkerMsg::Take(spec, from, takes), out);
            }
            SessionEffect::Switched { worker, attempt } => self.switched(id, worker, attempt, out),
            SessionEffect::Migration(end) => {
                self.places.moved(id);
                self.tally.moved(&end);
            }
            // The end comes when all else is done; and nobody looks at log-probabilities of prompts.
            SessionEffect::Finished | SessionEffect::Failed(_) | SessionEffect::DeliverPrompt { .. } => {}
        }
        Ok(())
    }
}

fn tell(worker: WorkerId, message: WorkerMsg, out: &mut Outbox) {
    out.send(Event::Worker(worker, message));
}
