//! `actor-node calibrate`: measures the configured model on this machine, a step at a time, and prints what its steps
//! cost as a scenario's `[cost.affine]`, which is also how `[engine.fake]` is told to be as fast as this machine.
//!
//! The steps are those of the scheduler that serves: requests go through it, and what it plans is run and timed. Prompts
//! of several lengths, whole and after a cached beginning, then several streams at a time after short and long prompts.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use config::ids::RequestId;
use config::{CalibrateArgs, Config, Dur};
use engine::Engine;
use policies::batch::{Batch, BatchConfig};
use policies::cost::Work;
use policies::cost::fit::{Fit, Measured};
use policies::kv::page_hashes;
use policies::request::{RequestSpec, Sampling, Token};
use policies::time::{Span, Time};
use tracing::info;

use crate::worker::load::{Executor, load};

/// Lengths of prompts that are measured, as far as the model's window goes.
const PROMPTS: [u32; 6] = [16, 48, 128, 320, 512, 1200];
/// Streams at a time, and the tokens before those that they generate. Few of those with many: their prompts have to be
/// computed first.
const STREAMS: [(u32, u32); 9] =
    [(1, 24), (2, 24), (4, 24), (8, 24), (16, 24), (32, 24), (1, 600), (3, 600), (6, 600)];
/// Tokens that each of them generates in all.
const GENERATED: u32 = 8;

/// Measures, and gives back the text to print.
///
/// # Errors
/// A model that cannot be loaded, an engine that schedules for itself, or one that fails.
pub fn run(args: &CalibrateArgs, config: &Config) -> Result<String> {
    let loaded = load(config)?;
    let Executor::Steps(engine) = loaded.executor else {
        bail!("engine.kind = \"{:?}\" schedules for itself; use --engine paged", config.engine.kind);
    };
    // Streams that wait for each other's prompts would not decode together.
    let limits = BatchConfig { max_mixed_tokens: u32::MAX, ..loaded.batch };
    let mut rig = Rig { engine, limits, steps: Vec::new(), requests: 0 };
    // The first steps touch memory for the first time.
    rig.run(1, 64, 1)?;
    rig.steps.clear();
    for round in 0..args.rounds {
        info!(round, of = args.rounds, "measuring");
        for prompt in PROMPTS {
            rig.run(1, prompt, 1)?;
        }
        for (streams, context) in STREAMS {
            rig.run(streams, context, GENERATED)?;
        }
    }
    let fit = Fit::of(&rig.steps).context("the steps that were measured are too much alike")?;
    Ok(report(&loaded.card.name, config, &rig.steps, &fit)?)
}

struct Rig {
    engine: Box<dyn Engine>,
    limits: BatchConfig,
    steps: Vec<Measured>,
    requests: u64,
}

impl Rig {
    /// Runs `streams` new prompts of `prompt` tokens until each has `generated` tokens, and keeps what the steps took.
    /// What does not fit this engine is left out.
    fn run(&mut self, streams: u32, prompt: u32, generated: u32) -> Result<()> {
        let whole = prompt + generated;
        if whole > self.limits.window()
            || streams > self.limits.concurrent(whole).min(self.limits.max_running)
        {
            return Ok(());
        }
        let mut batch = Batch::new(self.limits.clone());
        for _ in 0..streams {
            self.requests += 1;
            let spec = request(&self.limits, self.requests, prompt, generated);
            batch.submit(Time::ZERO, spec).context("a request of the calibration is refused")?;
        }
        let mut effects = Vec::new();
        let mut now = Time::ZERO;
        while let Some(plan) = batch.plan(now) {
            let work: Vec<Work> =
                plan.slices.iter().map(|s| Work { start: s.start, tokens: s.tokens.len() as u32 }).collect();
            let began = Instant::now();
            let outcome = self.engine.step(&plan).context("a step of the calibration failed")?;
            let took = Span::from(began.elapsed());
            now = now + took;
            batch.complete(now, &outcome, &mut effects);
            effects.clear();
            self.steps.push(Measured { work, took });
        }
        Ok(())
    }
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

fn report(model: &str, config: &Config, steps: &[Measured], fit: &Fit) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    writeln!(out, "# {model}, engine.threads = {}: {} steps measured.", config.engine.threads, steps.len())?;
    writeln!(
        out,
        "# Half of them are predicted to {:.1} % or better, nine tenths to {:.1} %.",
        100.0 * fit.median_error,
        100.0 * fit.p90_error
    )?;
    writeln!(out, "[cost.affine]")?;
    let prices = &fit.prices;
    for (name, price) in [
        ("step-overhead", prices.step_overhead),
        ("prefill-per-token", prices.prefill_per_token),
        ("decode-per-sequence", prices.decode_per_sequence),
        ("attention-per-token", prices.attention_per_token),
    ] {
        writeln!(out, "{name} = \"{}\"", Dur::from_nanos(price.0))?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use config::EngineKind;

    use super::*;

    /// The prices of an engine that sleeps for them come out again.
    #[test]
    fn the_prices_of_the_fake_engine_are_measured() {
        let mut config = Config::default();
        config.engine.kind = EngineKind::Fake;
        let fake = &mut config.engine.fake;
        fake.step_overhead = Dur::from_millis(1);
        fake.prefill_per_token = Dur::from_nanos(10_000);
        fake.decode_per_sequence = Dur::from_nanos(400_000);
        fake.attention_per_token = Dur::from_nanos(0);
        let text = run(&CalibrateArgs { rounds: 1 }, &config).unwrap();
        let price = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
            line.unwrap().trim_matches('"').parse::<Dur>().unwrap().as_nanos()
        };
        // A machine that is slow makes sleeps longer and never shorter: only the least is certain.
        assert!(price("decode-per-sequence") > 0 && price("step-overhead") > 0, "{text}");
        assert!(price("prefill-per-token") > 0, "{text}");
    }
}
