//! `actor-node sim`.

use config::SimArgs;

use crate::{Scenario, SimError, run};

/// Runs the scenario that the arguments name (the default one without a file), with what they override, and gives back
/// the text to print.
///
/// # Errors
/// A scenario that cannot be read or makes no sense, and a broken invariant.
pub fn run_cli(args: &SimArgs) -> Result<String, SimError> {
    let mut scenario = match &args.scenario {
        Some(path) => Scenario::load(path)?,
        None => Scenario::default(),
    };
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    scenario.workload.requests = args.requests.unwrap_or(scenario.workload.requests);
    scenario.workload.rate = args.rate.unwrap_or(scenario.workload.rate);
    scenario.cluster.workers = args.workers.unwrap_or(scenario.cluster.workers);
    let report = run(&scenario)?;
    Ok(if args.json { report.to_json()? } else { report.to_table() })
}
