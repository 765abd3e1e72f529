//! `[log]`: what goes to standard error, and the logs of requests and of steps.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::optional;

/// What is logged and in which form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogConfig {
    /// A level, or a filter a target: `info`, `warn,actors=debug`. Default `info`.
    pub level: String,
    /// `text` (default) or `json`.
    pub format: LogFormat,
    /// A file that a gateway adds a line to for each request that ends: when it came, its lengths, which pages it shares
    /// with others, no text; `actor-node sim` replays it. Default `none`.
    #[serde(with = "optional::none")]
    pub record: Option<PathBuf>,
    /// A file that a worker adds a line to for some of the steps of its engine, ten a second at most: what was in it and how
    /// long it took. With it `actor-node sim` knows how fast the machine was when (`cost.speed`). Default `none`.
    #[serde(with = "optional::none")]
    pub record_steps: Option<PathBuf>,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Text, record: None, record_steps: None }
    }
}

impl LogConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check(
            !self.level.trim().is_empty(),
            "log.level",
            format!("{:?}", self.level),
            "use off, error, warn, info, debug or trace, or a filter such as `warn,actors=debug`",
        )
    }
}
