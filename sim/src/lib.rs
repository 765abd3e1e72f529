//! Simulation of a cluster in virtual time.
//!
//! A heap of events drives the same cores that serve: [`policies::session`] at the gateway, [`policies::placement`] at
//! the controller, [`policies::batch`] at each worker and [`policies::pool`] at each pool, over the pages and the pace of the
//! fake engine ([`policies::cost`]). The drivers in [`node`] do what the live actors do: an event comes, one core is called, its
//! effects become messages that arrive later. After every event the core that was called is checked against itself, and
//! at the end nothing may be left anywhere. The same scenario gives the same run, to the last event.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod arms;
pub mod scenario;
pub mod workload;

pub mod event;
pub mod network;
pub mod queue;

pub mod node;
pub mod pages;
pub mod world;

pub mod checks;
pub mod report;
pub mod seeds;
mod speed;
pub mod trace;
pub mod watch;

pub mod cli;
pub mod error;
mod progress;

pub use cli::run_cli;
pub use error::SimError;
pub use report::Report;
pub use scenario::Scenario;
pub use seeds::{FailedSeed, seeds, seeds_each};
pub use world::Run;

/// Runs a scenario and reports on it.
///
/// # Errors
/// A scenario that makes no sense, a broken invariant, or something left behind at the end.
pub fn run(scenario: &Scenario) -> Result<Report, SimError> {
    scenario.validate()?;
    Ok(world::World::new(scenario)?.run()?.report)
}

/// As [`run`], with every answer and placement.
///
/// # Errors
/// As [`run`].
pub fn simulate(scenario: &Scenario) -> Result<Run, SimError> {
    scenario.validate()?;
    world::World::new(scenario)?.with_history().run()
}

/// As [`run`], with what else is known at the end besides answers and placements, and calls `watch` now and then as the run goes on.
///
/// # Errors
/// As [`run`].
pub fn simulate_watched(scenario: &Scenario, watch: Box<dyn FnMut(report::Glance)>) -> Result<Run, SimError> {
    scenario.validate()?;
    world::World::new(scenario)?.watched_by(watch).run()
}
