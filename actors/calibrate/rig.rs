//! Runs chosen steps of an engine through the scheduler that serves, and times them.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use config::ids::RequestId;
use engine::Engine;
use policies::batch::{Batch, BatchConfig};
use policies::cost::Work;
use policies::cost::fit::Measured;
use policies::kv::page_hashes;
use policies::request::{RequestSpec, Sampling, Token};
use policies::step::StepPlan;
use policies::time::{Span, Time};

/// An engine, and what its steps took.
pub(super) struct Rig {
    engine: Box<dyn Engine>,
    limits: BatchConfig,
    steps: Vec<Measured>,
    requests: u64,
}

/// Requests under way.
struct Load<'a> {
    rig: &'a mut Rig,
    batch: Batch,
    now: Time,
}

impl Rig {
    pub(super) const fn new(engine: Box<dyn Engine>, limits: BatchConfig) -> Self {
        Self { engine, limits, steps: Vec::new(), requests: 0 }
    }

    /// Limits of its scheduler.
    pub(super) const fn limits(&self) -> &BatchConfig {
        &self.limits
    }

    /// What was measured since it was last taken.
    pub(super) fn take(&mut self) -> Vec<Measured> {
        std::mem::take(&mut self.steps)
    }

    /// Runs `streams` new prompts of `prompt` tokens until each has `generated` tokens, and keeps what the steps took.
    /// What does not fit this engine is left out.
    ///
    /// # Errors
    /// An engine that fails.
    pub(super) fn run(&mut self, streams: u32, prompt: u32, generated: u32) -> Result<()> {
        if !self.fits(streams, prompt + generated) {
            return Ok(());
        }
        let mut load = Load::new(self);
        load.submit(streams, prompt, generated)?;
        while load.step()? {}
        Ok(())
    }

    /// Prompts of these lengths, one after the other, while `streams` streams with `context` tokens before them generate.
    ///
    /// # Errors
    /// As [`Rig::run`].
    pub(super) fn mixed(&mut self, streams: u32, context: u32, prompts: &[u32]) -> Result<()> {
        let longest = prompts.iter().copied().max().unwrap_or(1);
        // Two steps between prompts, and as many as a prompt takes by pieces.
        let pieces = prompts.iter().map(|p| p.div_ceil(self.limits.max_batch_tokens) + 2).sum::<u32>();
        if !self.fits(streams + 1, context.max(longest) + pieces + 2) {
            return Ok(());
        }
        let mut load = Load::new(self);
        load.submit(streams, context, pieces + 2)?;
        while load.batch.load().queued_prefill_tokens > 0 {
            load.step()?;
        }
        for &prompt in prompts {
            load.submit(1, prompt, 1)?;
            load.step()?;
            load.step()?;
        }
        while load.step()? {}
        Ok(())
    }

    fn fits(&self, streams: u32, whole: u32) -> bool {
        let most = self.limits.concurrent(whole).min(self.limits.max_running);
        whole <= self.limits.window() && streams <= most
    }
}

impl<'a> Load<'a> {
    fn new(rig: &'a mut Rig) -> Self {
        let batch = Batch::new(rig.limits.clone());
        Self { rig, batch, now: Time::ZERO }
    }

    fn submit(&mut self, streams: u32, prompt: u32, generated: u32) -> Result<()> {
        for _ in 0..streams {
            self.rig.requests += 1;
            let spec = request(&self.rig.limits, self.rig.requests, prompt, generated);
            self.batch.submit(self.now, spec).context("a request of the calibration is refused")?;
        }
        Ok(())
    }

    /// Whether there was a step to run.
    fn step(&mut self) -> Result<bool> {
        let Some(plan) = self.batch.plan(self.now) else { return Ok(false) };
        let work = work(&plan);
        let began = Instant::now();
        let outcome = self.rig.engine.step(&plan).context("a step of the calibration failed")?;
        let took = Span::from(began.elapsed());
        self.now = self.now + took;
        let mut effects = Vec::new();
        self.batch.complete(self.now, &outcome, &mut effects);
        self.rig.steps.push(Measured { work, took });
        Ok(true)
    }
}

/// What a step computes.
pub(super) fn work(plan: &StepPlan) -> Vec<Work> {
    plan.slices.iter().map(|s| Work { start: s.start, tokens: s.tokens.len() as u32 }).collect()
}

/// A prompt that no other one begins with.
fn request(limits: &BatchConfig, number: u64, tokens: u32, generated: u32) -> RequestSpec {
    let prompt: Vec<Token> =
        (0..tokens).map(|i| 1 + (policies::rng::bits(number, 0, u64::from(i)) % 200) as Token).collect();
    RequestSpec {
        hashes: page_hashes(&limits.fingerprint, limits.page_tokens, &prompt).into(),
        ignore_end: true,
        sampling: Arc::new(Sampling { seed: number, ..Sampling::default() }),
        ..RequestSpec::plain(RequestId::new(0, number), "calibrated".into(), prompt, generated)
    }
}
