//! What a step of a worker brings: tokens and ends, of all its requests in one message.

use policies::batch::BatchEffect;
use policies::invariant::Broken;
use policies::time::Time;

use super::Gateway;
use crate::event::Outbox;

/// Effects of a step for which the memory of their requests is fetched at once.
const FETCH: usize = 2;

impl Gateway {
    /// A worker has run a step.
    pub(super) fn produced(
        &mut self,
        now: Time,
        mut effects: Vec<BatchEffect>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        if effects.len() >= FETCH {
            self.live.fetch(effects.iter().filter_map(|effect| match effect {
                BatchEffect::Token(event) => Some(event.seq.request),
                _ => None,
            }));
        }
        for effect in effects.drain(..) {
            self.hear(now, effect, out)?;
        }
        out.reuse(effects);
        Ok(())
    }

    fn hear(&mut self, now: Time, effect: BatchEffect, out: &mut Outbox) -> Result<(), Broken> {
        match effect {
            BatchEffect::Token(event) => {
                self.with(now, event.seq.request, out, |s, fx| s.token(now, &event, fx))
            }
            BatchEffect::PromptLogprobs { request, attempt, first, tokens } => {
                self.with(now, request, out, |s, fx| s.prompt_logprobs(now, attempt, first, tokens, fx))
            }
            BatchEffect::Done { request, attempt, usage } => {
                self.with(now, request, out, |s, fx| s.done(now, attempt, usage, fx))
            }
            BatchEffect::Failed { request, attempt, reason } => {
                self.with(now, request, out, |s, fx| s.failed_at_worker(now, attempt, reason, fx))
            }
            BatchEffect::Late { request, attempt, reason } => {
                self.with(now, request, out, |s, fx| s.late_at_worker(attempt, reason, fx))
            }
            BatchEffect::TakenOver { request, attempt } => {
                self.with(now, request, out, |s, fx| s.taken_over(now, attempt, fx))
            }
            BatchEffect::Preempted { .. } => {
                self.tally.preempted();
                Ok(())
            }
        }
    }
}
