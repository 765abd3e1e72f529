//! One scenario under many seeds, to find the one that breaks something.

use std::path::Path;

use crate::{Report, Scenario, SimError, run};

/// A seed under which a scenario does not hold.
#[derive(Debug, thiserror::Error)]
#[error("seed {seed} fails after {held} that hold: {source}")]
pub struct FailedSeed {
    /// The seed.
    pub seed: u64,
    /// Seeds before it that hold.
    pub held: u64,
    /// What is wrong.
    pub source: SimError,
}

impl FailedSeed {
    /// The command that repeats the run, with the file that the scenario is in, if it is in one.
    #[must_use]
    pub fn command(&self, file: Option<&Path>) -> String {
        let file = file.map(|file| format!(" {}", file.display())).unwrap_or_default();
        format!("actor-node sim{file} --seed {}", self.seed)
    }
}

/// Runs a scenario under its seed and the `n` - 1 after it, up to the first that fails.
///
/// # Errors
/// The first seed that fails.
pub fn seeds(scenario: &Scenario, n: u64) -> Result<Vec<Report>, FailedSeed> {
    let mut reports = Vec::new();
    seeds_each(scenario, n, |scenario| {
        reports.push(run(scenario)?);
        Ok(())
    })?;
    Ok(reports)
}

/// As [`seeds`]; `one` runs the scenario with one of the seeds.
///
/// # Errors
/// As [`seeds`].
pub fn seeds_each(
    scenario: &Scenario,
    n: u64,
    mut one: impl FnMut(&Scenario) -> Result<(), SimError>,
) -> Result<(), FailedSeed> {
    for held in 0..n {
        let seed = scenario.seed.wrapping_add(held);
        one(&Scenario { seed, ..scenario.clone() }).map_err(|source| FailedSeed { seed, held, source })?;
    }
    Ok(())
}
