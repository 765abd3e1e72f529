//! A worker: [`policies::batch`] over the fake engine's pages, a step at a time.

use config::ids::WorkerId;
use policies::batch::{Batch, BatchConfig, BatchEffect};
use policies::cost::fake::{FakeModel, FakePages};
use policies::cost::{CostModel, KvUse};
use policies::invariant::Broken;
use policies::step::StepOutcome;
use policies::time::Time;

use crate::event::{ControllerMsg, Event, GatewayMsg, Outbox, WorkerMsg};
use crate::watch::{Checks, Watch};

/// One life of a simulated worker.
#[derive(Debug)]
pub struct Worker {
    id: WorkerId,
    core: Batch,
    pages: FakePages,
    cost: CostModel,
    /// Messages about pages so far.
    kv_messages: u64,
    watch: Watch,
}

impl Worker {
    /// A worker with nothing in its pages.
    #[must_use]
    pub fn new(id: WorkerId, config: BatchConfig, model: FakeModel, cost: CostModel) -> Self {
        let pages = FakePages::new(model, config.pages, config.page_tokens);
        Self { id, core: Batch::new(config), pages, cost, kv_messages: 0, watch: Watch::default() }
    }

    /// From now on it is checked so often.
    #[must_use]
    pub fn checked(mut self, checks: Checks) -> Self {
        self.watch = Watch::new(checks);
        self
    }

    /// A message came.
    ///
    /// # Errors
    /// A broken invariant of the core.
    pub fn handle(&mut self, now: Time, message: WorkerMsg, out: &mut Outbox) -> Result<(), Broken> {
        let requests = self.core.requests();
        match message {
            WorkerMsg::Submit(spec) => {
                let (request, attempt) = (spec.id, spec.attempt);
                out.send(Event::Gateway(match self.core.submit(now, *spec) {
                    Ok(()) => GatewayMsg::Accepted(request, attempt),
                    Err(refusal) => GatewayMsg::Refused(request, attempt, refusal),
                }));
            }
            // What is not here any more needs no stopping.
            WorkerMsg::Cancel(request, attempt) => {
                self.core.cancel(now, request, attempt);
            }
            WorkerMsg::CancelChoice(request, attempt, choice) => {
                self.core.cancel_choice(now, request, attempt, choice);
            }
            WorkerMsg::Grant(request, attempt, choice, upto) => {
                self.core.grant(now, request, attempt, choice, upto);
            }
            WorkerMsg::Resync => {
                self.tell_pages(out);
                let (id, pages) = (self.id.clone(), self.core.kv_snapshot());
                out.send(Event::Controller(ControllerMsg::KvSnapshot(id, self.kv_messages, pages)));
            }
        }
        self.go_on(now, Vec::new(), out)?;
        // No step may follow to report that there is room.
        if self.core.requests() < requests {
            out.send(Event::Controller(ControllerMsg::Load(self.id.clone(), self.core.load())));
        }
        Ok(())
    }

    /// The engine has run the step.
    ///
    /// # Errors
    /// As [`Worker::handle`].
    pub fn step_done(&mut self, now: Time, outcome: &StepOutcome, out: &mut Outbox) -> Result<(), Broken> {
        let mut fx = Vec::new();
        self.core.complete(now, outcome, &mut fx);
        self.go_on(now, fx, out)?;
        out.send(Event::Controller(ControllerMsg::Load(self.id.clone(), self.core.load())));
        Ok(())
    }

    /// Starts the next step if the engine is free and there is one, and sends what there is to send.
    fn go_on(&mut self, now: Time, mut fx: Vec<BatchEffect>, out: &mut Outbox) -> Result<(), Broken> {
        let mut planned = false;
        if let Some(plan) = self.core.plan(now) {
            let computed = self.pages.step(&plan);
            let mut outcome = computed.map_err(|detail| Broken { name: "sim_step_runs", detail })?;
            let (used, total) = (self.core.pages_used(), self.core.config().pages);
            outcome.took = self.cost.plan_in(&plan, KvUse { used, total });
            if let Some((seq, reason)) = outcome.failed.first() {
                return Err(Broken { name: "sim_slices_run", detail: format!("{seq:?}: {reason}") });
            }
            out.after(outcome.took, Event::StepDone(self.id.clone(), Box::new(outcome)));
            self.core.reuse(plan);
            planned = true;
        }
        self.core.take_effects(&mut fx);
        if !fx.is_empty() {
            out.send(Event::Gateway(GatewayMsg::Produced(fx)));
        }
        self.tell_pages(out);
        let core = &self.core;
        let part = || if planned { core.check_step() } else { core.check_counts() };
        self.watch.check(core.config().pages.into(), || core.check(), part)
    }

    /// Tells the controller what has changed of the pages.
    fn tell_pages(&mut self, out: &mut Outbox) {
        let mut events = Vec::new();
        self.core.take_kv_events(&mut events);
        if !events.is_empty() {
            self.kv_messages += 1;
            out.send(Event::Controller(ControllerMsg::KvEvents(self.id.clone(), self.kv_messages, events)));
        }
    }

    /// The core, to look at.
    #[must_use]
    pub const fn core(&self) -> &Batch {
        &self.core
    }
}
