//! The engine of a worker: it runs a step that was planned over the fake engine's pages, which takes as long as it costs.

use config::ids::WorkerId;
use policies::batch::{Batch, BatchConfig};
use policies::cost::fake::{FakeModel, FakePages};
use policies::cost::{CostModel, KvUse};
use policies::invariant::Broken;
use policies::step::StepOutcome;
use policies::time::Time;

use crate::event::{Event, Outbox};

/// The engine of one worker.
#[derive(Debug)]
pub(super) struct Engine {
    pages: FakePages,
    cost: CostModel,
    /// Tokens of the step under way.
    step_tokens: usize,
    /// The outcome of the last step, for its memory.
    spare: Option<Box<StepOutcome>>,
}

impl Engine {
    /// One with nothing in its pages.
    pub(super) fn new(model: FakeModel, cost: CostModel, batch: &BatchConfig) -> Self {
        let pages = FakePages::new(model, batch.pages, batch.page_tokens);
        Self { pages, cost, step_tokens: 0, spare: None }
    }

    /// Starts the next step if the engine is free and there is one; says whether there was.
    pub(super) fn start(
        &mut self,
        me: &WorkerId,
        core: &mut Batch,
        now: Time,
        out: &mut Outbox,
    ) -> Result<bool, Broken> {
        let Some(plan) = core.plan(now) else { return Ok(false) };
        self.step_tokens = plan.slices.iter().map(|slice| slice.tokens.len()).sum();
        let mut outcome = self.spare.take().unwrap_or_default();
        let computed = self.pages.step_into(&plan, &mut outcome);
        computed.map_err(|detail| Broken { name: "sim_step_runs", detail })?;
        // Pages whose content is on its way are not read.
        let (used, total, aside) = (core.pages_used(), core.config().pages, core.set_aside());
        let used = used.saturating_sub(aside.receiving_pages + aside.held_pages);
        outcome.took = self.cost.plan_in(&plan, KvUse { used, total });
        if let Some((seq, reason)) = outcome.failed.first() {
            return Err(Broken { name: "sim_slices_run", detail: format!("{seq:?}: {reason}") });
        }
        out.after(outcome.took, Event::StepDone(me.clone(), outcome));
        core.reuse(plan);
        Ok(true)
    }

    /// Tokens of the step under way.
    pub(super) const fn step_tokens(&self) -> usize {
        self.step_tokens
    }

    /// Takes back the memory of an outcome that has been looked at.
    pub(super) fn reuse(&mut self, outcome: Box<StepOutcome>) {
        self.spare = Some(outcome);
    }

    /// What is in its pages.
    pub(super) const fn pages(&mut self) -> &mut FakePages {
        &mut self.pages
    }
}
