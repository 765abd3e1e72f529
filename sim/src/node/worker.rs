//! A worker: [`policies::batch`] over the fake engine's pages, a step at a time.

use std::collections::BTreeSet;

use config::ids::WorkerId;
use policies::batch::{Batch, BatchConfig, BatchEffect};
use policies::cost::CostModel;
use policies::cost::fake::{FakeModel, FakePages};
use policies::invariant::Broken;
use policies::step::StepOutcome;
use policies::time::Time;

use crate::event::{ControllerMsg, Event, GatewayMsg, Outbox, WorkerMsg};

/// One life of a simulated worker.
#[derive(Debug)]
pub struct Worker {
    id: WorkerId,
    core: Batch,
    pages: FakePages,
    cost: CostModel,
    /// Messages about pages so far.
    kv_messages: u64,
    /// Names that it had before, in this life of its process.
    former: Vec<WorkerId>,
}

impl Worker {
    /// A worker with nothing in its pages.
    #[must_use]
    pub fn new(id: WorkerId, config: BatchConfig, model: FakeModel, cost: CostModel) -> Self {
        let pages = FakePages::new(model, config.pages, config.page_tokens);
        Self { id, core: Batch::new(config), pages, cost, kv_messages: 0, former: Vec::new() }
    }

    /// It was cut off from all others, who have given up what it did: it goes on as a new one, with the pages that it has.
    pub fn renew(&mut self, id: WorkerId) {
        self.former.push(std::mem::replace(&mut self.id, id));
    }

    /// Its name.
    #[must_use]
    pub const fn id(&self) -> &WorkerId {
        &self.id
    }

    /// Whether this process has, or had, that name.
    #[must_use]
    pub fn was(&self, id: &WorkerId) -> bool {
        self.id == *id || self.former.contains(id)
    }

    /// A message came.
    ///
    /// # Errors
    /// A broken invariant of the core.
    pub fn handle(&mut self, now: Time, message: WorkerMsg, out: &mut Outbox) -> Result<(), Broken> {
        let requests = self.core.load().requests;
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
            WorkerMsg::GatewayLeft => {
                let core = &self.core;
                let theirs = core.running().chain(core.waiting()).chain(core.paused());
                let theirs: BTreeSet<_> = theirs.map(|view| (view.seq.request, view.seq.attempt)).collect();
                for (request, attempt) in theirs {
                    self.core.cancel(now, request, attempt);
                }
            }
            // No pages travel here.
            WorkerMsg::PeerLost(_) => {}
        }
        self.go_on(now, Vec::new(), out)?;
        // No step may follow to report that there is room.
        if self.core.load().requests < requests {
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
        if let Some(plan) = self.core.plan(now) {
            let computed = self.pages.step(&plan);
            let mut outcome = computed.map_err(|detail| Broken { name: "sim_step_runs", detail })?;
            outcome.took = self.cost.plan(&plan);
            if let Some((seq, reason)) = outcome.failed.first() {
                return Err(Broken { name: "sim_slices_run", detail: format!("{seq:?}: {reason}") });
            }
            out.after(outcome.took, Event::StepDone(self.id.clone(), Box::new(outcome)));
        }
        self.core.take_effects(&mut fx);
        if !fx.is_empty() {
            out.send(Event::Gateway(GatewayMsg::Produced(fx)));
        }
        self.tell_pages(out);
        self.core.check()
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
