//! `actor-node calibrate`: measures the configured model on this machine, a step at a time, and prints what its steps
//! cost as a scenario's `[cost.steps]`; in comments a coarser model, by which `[engine.fake]` can be as fast as this machine.
//!
//! The steps are those of the scheduler that serves: requests go through it, and what it plans is run and timed. Prompts
//! of several lengths, several streams at a time after short and long prompts, and prompts that come while streams
//! generate. In turn with them a node serves for a while, for what serving does to the steps. It is up all the time, so
//! that the model is in memory twice.

use std::fmt::Write;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use config::{CalibrateArgs, Config, Dur};
use policies::batch::BatchConfig;
use policies::cost::fit::{self, Kind, Measured, Residual};
use policies::cost::{Affine, CostModel, StepCosts};
use policies::time::Span;
use serde_json::json;
use tracing::info;

use crate::worker::load::{Executor, load};

use rig::Rig;
use serving::Node;
use turns::{Round, Serving};

mod rig;
mod serving;
mod turns;

/// Lengths of prompts that are measured, as far as the model's window goes.
const PROMPTS: [u32; 9] = [10, 16, 32, 64, 110, 180, 320, 512, 1200];
/// Streams at a time, and the tokens before those that they generate. Few of those with many: their prompts have to be
/// computed first.
const STREAMS: [(u32, u32); 14] = [
    (1, 24),
    (2, 24),
    (3, 24),
    (4, 24),
    (6, 24),
    (8, 24),
    (9, 24),
    (12, 24),
    (16, 24),
    (32, 24),
    (1, 600),
    (2, 600),
    (4, 300),
    (8, 200),
];
/// Tokens that each of them generates in all.
const GENERATED: u32 = 8;
/// Streams that generate while prompts come.
const BESIDE: [(u32, u32); 4] = [(1, 100), (2, 100), (4, 100), (8, 100)];
/// Those prompts: one is as long as the pieces that the CPU takes beside streams.
const COMING: [u32; 5] = [16, 48, 128, 240, 480];

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
    let mut rig = Rig::new(engine, limits);
    let without = "cannot measure a node that serves; `--serve 0s` leaves it out";
    let mut node = match args.serve.as_nanos() {
        0 => None,
        _ => Some(Node::start(config, rig.limits()).context(without)?),
    };
    // The first steps touch memory for the first time, and no load below has more of it.
    rig.run(1, 64, 1)?;
    rig.run(8, 200, GENERATED)?;
    rig.take();
    let mut rounds = Vec::new();
    for number in 0..args.rounds {
        info!(round = number, of = args.rounds, "measuring");
        let mut serve = || match &mut node {
            Some(node) => node.serve(args.serve.get() / args.rounds).context(without),
            None => Ok(Vec::new()),
        };
        // Each begins with what the one before it ended with.
        let (alone, served);
        if number % 2 == 0 {
            alone = measure(&mut rig)?;
            served = serve()?;
        } else {
            served = serve()?;
            alone = measure(&mut rig)?;
        }
        rounds.push(Round { alone, served });
    }
    drop(rig);
    let steps: Vec<Measured> = rounds.iter().flat_map(|round| round.alone.iter().cloned()).collect();
    if let Some(path) = &args.steps {
        write(path, &steps).with_context(|| format!("cannot write --steps {}", path.display()))?;
    }
    let alike = "the steps that were measured are too much alike";
    let alone = fit::steps(&steps).context(alike)?;
    let coarse = fit::affine(&steps).context(alike)?;
    let serving = node.map(|_| turns::compare(&rounds, alone).context(without)).transpose()?;
    Ok(report(&loaded.card.name, config, &steps, &Found { alone, coarse, serving })?)
}

/// All steps of a round, alone.
fn measure(rig: &mut Rig) -> Result<Vec<Measured>> {
    for prompt in PROMPTS {
        rig.run(1, prompt, 1)?;
    }
    for (streams, context) in STREAMS {
        rig.run(streams, context, GENERATED)?;
    }
    for (streams, context) in BESIDE {
        rig.mixed(streams, context, &COMING)?;
    }
    Ok(rig.take())
}

/// What explains the steps.
struct Found {
    alone: StepCosts,
    coarse: Affine,
    serving: Option<Serving>,
}

/// A line of JSON a step: its slices as `[tokens before, tokens]`, and what it took.
fn write(path: &Path, steps: &[Measured]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for step in steps {
        let slices: Vec<[u32; 2]> = step.work.iter().map(|w| [w.start, w.tokens]).collect();
        writeln!(file, "{}", json!({"slices": slices, "took_ns": step.took.0}))?;
    }
    file.flush()
}

fn report(
    model: &str,
    config: &Config,
    steps: &[Measured],
    found: &Found,
) -> Result<String, std::fmt::Error> {
    let Found { alone, coarse, serving } = found;
    let mut out = String::new();
    writeln!(out, "# {model}, engine.threads = {}: {} steps measured.", config.engine.threads, steps.len())?;
    writeln!(out, "# How far they are from what is said of them, for half of them and for nine tenths:")?;
    for (name, cost) in
        [("cost.steps", CostModel::Steps(*alone)), ("cost.affine", CostModel::Affine(*coarse))]
    {
        for kind in Kind::ALL {
            let of_kind = steps.iter().filter(|step| Kind::of(&step.work) == kind);
            let Some(Residual { steps, median, p90, sum }) = Residual::of(&cost, of_kind) else { continue };
            writeln!(
                out,
                "#   {name:<11} {:<7} {steps:>4} steps: {:>4.1} % and {:>4.1} %; all together {:+.1} %",
                kind.as_str(),
                100.0 * median,
                100.0 * p90,
                100.0 * (sum - 1.0)
            )?;
        }
    }
    let dur = |span: Span| Dur::from_nanos(span.0);
    let joined = |parts: Vec<String>| parts.join(", ");
    writeln!(out, "[cost.steps]")?;
    writeln!(out, "rows = [{}]", joined(alone.table().map(|(rows, _)| rows.to_string()).collect()))?;
    writeln!(
        out,
        "took = [{}]",
        joined(alone.table().map(|(_, took)| format!("\"{}\"", dur(took))).collect())
    )?;
    let prices = alone.prices();
    for (name, price) in [
        ("per-slice", prices.per_slice),
        ("attention-decode", prices.attention_decode),
        ("attention-prefill", prices.attention_prefill),
    ] {
        writeln!(out, "{name} = \"{}\"", dur(price))?;
    }
    match serving {
        Some(Serving { factor, between, steps, rounds, kinds }) => {
            writeln!(
                out,
                "# {steps} steps of a node that served streams, clients on the same machine. What they took of what is"
            )?;
            let rounds = rounds.iter().map(|factor| format!("{factor:.3}")).collect();
            writeln!(
                out,
                "# said of them, at the speed of all rounds alone, round by round: {}.",
                joined(rounds)
            )?;
            writeln!(out, "# By kind, without regard to the speed of a round:")?;
            for (kind, steps, alone, served) in kinds {
                let alone = alone.map_or_else(|| "none".into(), |level| format!("{level:.3}"));
                let kind = kind.as_str();
                writeln!(out, "#   {kind:<7} {steps:>5} steps: {served:.3}; alone: {alone}")?;
            }
            writeln!(out, "serving = {:.3}", f64::from(*factor) / 1000.0)?;
            writeln!(out, "between = \"{}\"", dur(*between))?;
        }
        None => writeln!(out, "# The engine alone: what serving does to its steps was not measured.")?,
    }
    writeln!(out, "# Coarser, and in place of the above: as [cost.affine], or as [engine.fake] of a node.")?;
    for (name, price) in [
        ("step-overhead", coarse.step_overhead),
        ("prefill-per-token", coarse.prefill_per_token),
        ("decode-per-sequence", coarse.decode_per_sequence),
        ("attention-per-token", coarse.attention_per_token),
    ] {
        writeln!(out, "# {name} = \"{}\"", dur(price))?;
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
        let text = run(&CalibrateArgs { rounds: 1, ..CalibrateArgs::default() }, &config).unwrap();
        let price = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("# {name} = ")));
            line.unwrap().trim_matches('"').parse::<Dur>().unwrap().as_nanos()
        };
        // A machine that is slow makes sleeps longer and never shorter: only the least is certain.
        assert!(price("decode-per-sequence") > 0 && price("step-overhead") > 0, "{text}");
        assert!(price("prefill-per-token") > 0, "{text}");
        for key in ["\nrows = [1, ", "\ntook = [\"", "\nper-slice = \""] {
            assert!(text.contains(key), "{text}");
        }
        // No node was asked to serve.
        assert!(!text.contains("\nserving = ") && text.contains("was not measured"), "{text}");
    }
}
