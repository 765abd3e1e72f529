//! `[log]`: what goes to standard error, and the log of requests.

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
        Self { level: "info".to_owned(), format: LogFormat::Text, record: None }
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
