//! The engine of a worker: it runs a step that was planned over the fake engine's pages, which takes as long as it costs.

use std::sync::Arc;

use config::ids::WorkerId;
use policies::batch::{Batch, BatchConfig};
use policies::cost::fake::{FakeModel, FakePages};
use policies::cost::{CostModel, KvUse, Speed};
use policies::invariant::Broken;
use policies::step::StepOutcome;
use policies::time::{Span, Time};

use crate::event::{Event, Outbox};

/// The engine of one worker.
#[derive(Debug)]
pub(super) struct Engine {
    pages: FakePages,
    cost: CostModel,
    /// By which the machine is faster or slower than that.
    speed: Option<Arc<Speed>>,
    /// Time of its steps so far, and what is said of them.
    took: (Span, Span),
    /// Tokens of the step under way.
    step_tokens: usize,
    /// The outcome of the last step, for its memory.
    spare: Option<Box<StepOutcome>>,
}

impl Engine {
    /// One with nothing in its pages.
    pub(super) fn new(
        model: FakeModel,
        (cost, speed): (CostModel, Option<Arc<Speed>>),
        batch: &BatchConfig,
    ) -> Self {
        let pages = FakePages::new(model, batch.pages, batch.page_tokens);
        Self { pages, cost, speed, took: (Span::ZERO, Span::ZERO), step_tokens: 0, spare: None }
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
        let said = self.cost.plan_in(&plan, KvUse { used, total });
        outcome.took = match &self.speed {
            None => said,
            Some(speed) => {
                let between = self.cost.between();
                let took = speed.of(now, Span(said.0.saturating_sub(between.0))) + between;
                self.took = (self.took.0 + took, self.took.1 + said);
                took
            }
        };
        if let Some((seq, reason)) = outcome.failed.first() {
            return Err(Broken { name: "sim_slices_run", detail: format!("{seq:?}: {reason}") });
        }
        out.after(outcome.took, Event::StepDone(me.clone(), outcome));
        core.reuse(plan);
        Ok(true)
    }

    /// Time of its steps so far over what is said of them; none where they take just that.
    pub(super) fn slowed(&self) -> Option<f64> {
        let (took, said) = self.took;
        (self.speed.is_some() && said > Span::ZERO).then(|| took.as_secs_f64() / said.as_secs_f64())
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
