//! Calls the batch: after each step, and after whatever else may have given it something to do.

use policies::batch::BatchEffect;
use policies::invariant::Broken;
use policies::step::StepOutcome;
use policies::time::Time;

use super::Worker;
use super::offloads::LOOK;
use crate::event::{ControllerMsg, Event, GatewayMsg, Outbox, WorkerMsg};

impl Worker {
    /// The engine has run the step.
    ///
    /// # Errors
    /// A broken invariant of the core.
    pub fn step_done(
        &mut self,
        now: Time,
        outcome: Box<StepOutcome>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        let mut fx = out.effects();
        self.transfers.stepped(self.engine.step_tokens(), outcome.took);
        self.core.complete(now, &outcome, &mut fx);
        self.engine.reuse(outcome);
        self.go_on(now, fx, true, out)?;
        out.send(Event::Controller(ControllerMsg::Load(self.info.id.clone(), self.core.load())));
        Ok(())
    }

    /// Starts the next step if the engine is free and there is one, and sends what there is to send. Pages that the last
    /// step has filled leave before.
    pub(super) fn go_on(
        &mut self,
        now: Time,
        mut fx: Vec<BatchEffect>,
        offloads: bool,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        self.news(now, &mut fx, out)?;
        let mut planned = false;
        loop {
            self.orderer.order(now, &mut self.core)?;
            planned |= self.engine.start(&self.info.id, &mut self.core, now, out)?;
            // What is left in the queue waits for longer than this step.
            if offloads && self.offloads.send(now, &self.info, &mut self.core, &mut self.transfers) {
                out.after(LOOK, Event::Worker(self.info.id.clone(), WorkerMsg::Look));
            }
            if !self.news(now, &mut fx, out)? {
                break;
            }
        }
        if fx.is_empty() {
            out.reuse(fx);
        } else {
            out.send(Event::Gateway(GatewayMsg::Produced(fx)));
        }
        self.fetches.tell(out);
        self.tell_pages(out);
        self.take_role(now, out);
        self.tell_drained(out);
        if self.heart.beats() {
            self.heart.loaded(now, &self.info.id, &self.core.load(), out);
        }
        self.offloads.check()?;
        let core = &self.core;
        let part = || if planned { core.check_step() } else { core.check_counts() };
        self.watch.check(core.config().pages.into(), || core.check(), part)
    }
}
