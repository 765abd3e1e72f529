//! What can go wrong with a simulation.

use std::path::PathBuf;

use policies::invariant::Broken;
use policies::time::{Span, Time};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A scenario or trace file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The scenario is not one.
    #[error("the scenario {origin} is malformed: {source}")]
    Parse {
        /// The file, or what else the text came from.
        origin: String,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value makes no sense.
    #[error("`{key}` is {value}: {reason}")]
    Invalid {
        /// The key's whole name.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would do.
        reason: String,
    },
    /// A core contradicted itself: a bug of ours. The scenario's seed reproduces it.
    #[error("invariant {name} is broken after {at} with seed {seed}: {detail}")]
    Broken {
        /// The invariant.
        name: &'static str,
        /// What was seen.
        detail: String,
        /// Virtual time since the start.
        at: Span,
        /// The scenario's seed.
        seed: u64,
    },
    /// A line of a trace that makes no sense.
    #[error("{}, line {line}: {reason}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: u64,
        /// Why, and what would do.
        reason: String,
    },
    /// A trace file cannot be read.
    #[error("workload.trace (--trace): cannot read {}: {source}; paths count from the working directory", path.display())]
    ReadTrace {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What nodes wrote of their steps makes no sense.
    #[error("cost.speed (--speed): {}{}: {reason}", path.display(), numbered(*line))]
    Steps {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1; 0: the file as a whole.
        line: u64,
        /// Why, and what would do.
        reason: String,
    },
    /// A file with steps cannot be read.
    #[error("cost.speed (--speed): cannot read {}: {source}; paths count from the working directory", path.display())]
    ReadSteps {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A scenario file with a value that makes no sense.
    #[error("the scenario {origin}: {source}")]
    InFile {
        /// The file.
        origin: String,
        /// What is wrong.
        source: Box<SimError>,
    },
    /// A trace without requests.
    #[error(
        "workload.trace: {} has no request: give it a line of JSON for each, or the header TIMESTAMP, ContextTokens, \
         GeneratedTokens with a line for each under it",
        path.display()
    )]
    EmptyTrace {
        /// The file.
        path: PathBuf,
    },
    /// The policies, or the configuration file that they come from, are not what a node takes.
    #[error("{0}")]
    Config(Box<config::ConfigError>),
    /// A configuration cannot be written down again.
    #[error("cannot take over a node's configuration: {0}")]
    Write(Box<toml::ser::Error>),
    /// An arm is not a change of its scenario.
    #[error("the scenario {origin} is malformed: {}: {reason}", named(arm))]
    Arm {
        /// The file.
        origin: String,
        /// The arm's name, or its number.
        arm: String,
        /// What is wrong.
        reason: String,
    },
    /// One of several arms cannot be run.
    #[error("{}: {source}", named(arm))]
    InArm {
        /// The arm.
        arm: String,
        /// Why.
        source: Box<SimError>,
    },
    /// The page cannot be written.
    #[error("cannot write the page {}: {source}", path.display())]
    Page {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The page cannot be made.
    #[error("cannot make the page: {0}")]
    Chart(String),
    /// One seed of many broke something.
    #[error("after {held} seeds that hold: {source}\nrepeat it with: {command}")]
    Seed {
        /// Seeds before it that hold.
        held: u64,
        /// The command that repeats the run.
        command: String,
        /// What is wrong.
        source: Box<SimError>,
    },
    /// The report cannot be written as JSON.
    #[error("cannot write the report: {0}")]
    Json(#[from] serde_json::Error),
}

impl SimError {
    pub(crate) fn broken(broken: Broken, at: Time, seed: u64) -> Self {
        Self::Broken { name: broken.name, detail: broken.detail, at: at.since(Time::ZERO), seed }
    }
}

fn numbered(line: u64) -> String {
    if line == 0 { String::new() } else { format!(", line {line}") }
}

/// An arm without a name has a number.
fn named(arm: &str) -> String {
    if arm.starts_with("arm ") { arm.to_owned() } else { format!("arm `{arm}`") }
}
