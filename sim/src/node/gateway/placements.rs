//! What a controller answers: a place, none, or that one is lost.

use std::sync::Arc;

use policies::invariant::Broken;
use policies::placement::PlacementEffect;
use policies::time::Time;

use super::{Gateway, Live};
use crate::event::Outbox;

impl Gateway {
    /// A controller has something to say of a request.
    pub(super) fn placement(
        &mut self,
        now: Time,
        answer: PlacementEffect,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        match answer {
            PlacementEffect::Placed { request, attempt, plan } => {
                // A place for a request that moves is one of its own when it has moved.
                let is_next = |live: &Live| live.session.spec().attempt == attempt;
                if let Some(history) = &mut self.history
                    && self.live.get(request).is_some_and(is_next)
                {
                    history.placed(request, plan.worker.clone(), Arc::clone(&plan.stages));
                }
                self.with(now, request, out, |s, fx| s.placed(now, attempt, plan, fx))
            }
            PlacementEffect::Rejected { request, attempt, reason } => {
                let again = self.places.is_own_choice_next(request, &reason);
                self.with(now, request, out, |s, fx| {
                    let before = fx.len();
                    if again && attempt == s.spec().attempt {
                        s.ask_again(now, fx);
                    }
                    if fx.len() == before {
                        s.rejected(now, attempt, reason, fx);
                    }
                })?;
                self.places.was_rejected();
                Ok(())
            }
            PlacementEffect::Lost { request, attempt, worker } => {
                let hearsay = self.places.is_hearsay(request, &worker.node);
                self.with(now, request, out, |s, fx| {
                    if attempt == s.spec().attempt && !hearsay {
                        s.worker_lost(now, &worker, fx);
                    }
                })
            }
        }
    }
}
