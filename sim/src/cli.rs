//! `actor-node sim`.

use std::collections::BTreeSet;
use std::path::Path;

use config::SimArgs;
use serde::Serialize;
use toml::{Table, Value};

use crate::arms::{Arm, laid_over};
use crate::progress::Progress;
use crate::report::{json, page, table};
use crate::{FailedSeed, Report, Scenario, SimError, seeds_each, simulate_watched};

/// Runs what the arguments name (the default scenario where they name none), with what they override, writes the page
/// that they ask for and gives back the text to print.
///
/// # Errors
/// A scenario that cannot be read or makes no sense, a broken invariant, a page that cannot be written.
pub fn run_cli(args: &SimArgs) -> Result<String, SimError> {
    let arms = arms(args)?;
    // Nothing runs for minutes before it is said that another arm makes no sense.
    let alone = arms.len() == 1;
    let from_file = args.scenario.is_some() || !args.compare.is_empty();
    let named = |arm: &Arm, source: SimError| {
        let source = match source {
            SimError::Invalid { .. } if from_file => {
                SimError::InFile { origin: arm.origin.clone(), source: Box::new(source) }
            }
            source => source,
        };
        match alone {
            true => source,
            false => SimError::InArm { arm: arm.name.clone(), source: Box::new(source) },
        }
    };
    arms.iter().try_for_each(|arm| arm.scenario.validate().map_err(|e| named(arm, e)))?;
    if let Some(n) = args.seeds {
        return seeds(args, &arms, n, &named);
    }
    let run = |arm: &Arm| {
        let run = simulate_watched(&arm.scenario, watch(arm, arm.name.clone()));
        run.map(|run| run.report).map_err(|e| named(arm, e))
    };
    let reports = arms.iter().map(run).collect::<Result<Vec<Report>, SimError>>()?;
    if let Some(path) = &args.html {
        let shown: Vec<page::Shown<'_>> = arms
            .iter()
            .zip(&reports)
            .map(|(arm, report)| page::Shown { name: &arm.name, scenario: &arm.scenario, report })
            .collect();
        std::fs::write(path, page::html(&shown)?)
            .map_err(|source| SimError::Page { path: path.clone(), source })?;
    }
    let text = match (&arms[..], &reports[..]) {
        ([_], [report]) if args.json => report.to_json()?,
        ([_], [report]) => report.to_table(),
        _ => {
            let named: Vec<(&str, &Report)> =
                arms.iter().map(|arm| arm.name.as_str()).zip(&reports).collect();
            if args.json { to_json(&arms, &reports)? } else { table::several(&named) }
        }
    };
    Ok(text)
}

/// All arms that the arguments name; their names differ.
fn arms(args: &SimArgs) -> Result<Vec<Arm>, SimError> {
    let over = overrides(args);
    let files: Vec<&Path> = args.scenario.iter().chain(&args.compare).map(AsRef::as_ref).collect();
    if files.is_empty() {
        return Arm::from_toml("", "scenario", &over);
    }
    let mut arms: Vec<Arm> = Vec::new();
    for path in &files {
        for mut arm in Arm::load(path, &over)? {
            let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            if files.len() > 1 && arm.name != stem {
                arm.name = format!("{stem}: {}", arm.name);
            }
            arms.push(arm);
        }
    }
    let names: BTreeSet<&String> = arms.iter().map(|arm| &arm.name).collect();
    if names.len() < arms.len() {
        for (at, arm) in arms.iter_mut().enumerate() {
            arm.name = format!("{}. {}", at + 1, arm.name);
        }
    }
    Ok(arms)
}

/// What the arguments lay over each scenario.
fn overrides(args: &SimArgs) -> Table {
    let mut over = Table::new();
    let mut set = |section: &str, key: &str, value: Option<Value>| {
        if let Some(value) = value {
            let table = Table::from_iter([(key.to_owned(), value)]);
            let whole = if section.is_empty() {
                table
            } else {
                Table::from_iter([(section.to_owned(), table.into())])
            };
            over = laid_over(std::mem::take(&mut over), &whole);
        }
    };
    // The greatest whole number in TOML is 2^63 - 1.
    let whole = |n: u64| Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
    set("", "seed", args.seed.map(whole));
    set("workload", "requests", args.requests.map(whole));
    set("workload", "rate", args.rate.map(Value::Float));
    set("", "config", args.config.as_ref().map(|path| Value::String(path.display().to_string())));
    set("workload", "trace", args.trace.as_ref().map(|path| Value::String(path.display().to_string())));
    let speeds = args.speed.iter().map(|path| Value::String(path.display().to_string()));
    set("cost", "speed", (!args.speed.is_empty()).then(|| Value::Array(speeds.collect())));
    set("cluster", "workers", args.workers.map(|n| whole(n.into())));
    over
}

fn watch(arm: &Arm, name: String) -> Box<dyn FnMut(crate::report::Glance)> {
    // How long a trace is turns out at its end.
    let table = Table::try_from(&arm.scenario).unwrap_or_default();
    let replayed = table.get("workload").is_some_and(|workload| workload.get("trace").is_some());
    Progress::new(name, (!replayed).then_some(arm.scenario.workload.drawn())).into_watch()
}

/// Runs each arm with its seed and the `n` - 1 after it, up to the first that breaks something.
fn seeds(
    args: &SimArgs,
    arms: &[Arm],
    n: u64,
    named: &dyn Fn(&Arm, SimError) -> SimError,
) -> Result<String, SimError> {
    let mut all: Vec<(&str, Vec<Report>)> = Vec::new();
    for arm in arms {
        let mut reports = Vec::new();
        let held = seeds_each(&arm.scenario, n, |scenario| {
            let name = format!("{}, seed {}", arm.name, scenario.seed);
            reports.push(simulate_watched(scenario, watch(arm, name))?.report);
            Ok(())
        });
        held.map_err(|FailedSeed { seed, held, source }| {
            named(arm, SimError::Seed { held, command: repeat(args, seed), source: Box::new(source) })
        })?;
        all.push((&arm.name, reports));
    }
    if args.json {
        let named = all.iter().map(|(name, reports)| Seeds { name, reports }).collect();
        return Ok(json::pretty(&AllSeeds { arms: named })?);
    }
    Ok(table::seeds(&all))
}

/// The command that runs the same with one seed.
fn repeat(args: &SimArgs, seed: u64) -> String {
    let mut command = "actor-node sim".to_owned();
    let mut add = |flag: &str, value: Option<String>| {
        if let Some(value) = value {
            command.extend([" ", flag, if flag.is_empty() { "" } else { " " }, &value]);
        }
    };
    let show = |path: &Path| path.display().to_string();
    add("", args.scenario.as_deref().map(show));
    add("--seed", Some(seed.to_string()));
    add("--requests", args.requests.map(|n| n.to_string()));
    add("--rate", args.rate.map(|n| n.to_string()));
    add("--workers", args.workers.map(|n| n.to_string()));
    add("--trace", args.trace.as_deref().map(show));
    add("--config", args.config.as_deref().map(show));
    let compared: Vec<String> = args.compare.iter().map(|path| show(path)).collect();
    add("--compare", (!compared.is_empty()).then(|| compared.join(" ")));
    command
}

#[derive(Serialize)]
struct AllSeeds<'a> {
    arms: Vec<Seeds<'a>>,
}

#[derive(Serialize)]
struct Seeds<'a> {
    name: &'a str,
    reports: &'a [Report],
}

#[derive(Serialize)]
struct All<'a> {
    arms: Vec<One<'a>>,
}

#[derive(Serialize)]
struct One<'a> {
    name: &'a str,
    scenario: &'a Scenario,
    report: &'a Report,
}

fn to_json(arms: &[Arm], reports: &[Report]) -> Result<String, SimError> {
    let all = arms.iter().zip(reports);
    let arms = all.map(|(arm, report)| One { name: &arm.name, scenario: &arm.scenario, report }).collect();
    Ok(json::pretty(&All { arms })?)
}

#[cfg(test)]
mod tests;
