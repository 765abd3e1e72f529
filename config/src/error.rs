//! What can be wrong with a configuration. Each error prints as one line that names the key, its value, where it came
//! from and what would be right.

use std::fmt;
use std::path::PathBuf;

/// Why no configuration could be made; the process should print it and exit with code 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("config file {} cannot be read: {reason}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the operating system said.
        reason: String,
    },
    /// The file is not TOML, or sets a key twice.
    #[error("{}:{line}:{column}: {reason}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The place, counted from 1.
        line: usize,
        /// The place in the line, in bytes, counted from 1.
        column: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A key that no section has.
    #[error("{source_name}: unknown key `{key}`{}", Hint(nearest.as_deref()))]
    UnknownKey {
        /// The whole key, or the whole name of the variable.
        key: String,
        /// The file, or "environment".
        source_name: String,
        /// The existing key that looks most like it.
        nearest: Option<String>,
    },
    /// A value of a wrong type or form.
    #[error("{source_name}: `{key}` is {actual}, expected {expected}")]
    WrongType {
        /// The whole key.
        key: String,
        /// The file or the variable.
        source_name: String,
        /// What was given.
        actual: String,
        /// What the key takes.
        expected: String,
    },
    /// A well-formed value outside what is allowed.
    #[error("`{key} = {value}`: {reason}")]
    Invalid {
        /// The whole key.
        key: &'static str,
        /// The effective value.
        value: String,
        /// What is allowed.
        reason: String,
    },
}

impl ConfigError {
    /// A value that is not allowed, with the rule it breaks.
    pub(crate) fn invalid(key: &'static str, value: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self::Invalid { key, value: one_line(&value.to_string()), reason: reason.into() }
    }
}

/// Refuses `value` unless `ok`.
pub(crate) fn check(
    ok: bool,
    key: &'static str,
    value: impl fmt::Display,
    reason: &str,
) -> Result<(), ConfigError> {
    if ok { Ok(()) } else { Err(ConfigError::invalid(key, value, reason)) }
}

/// Text with every run of white space (line ends above all) as one space.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

struct Hint<'a>(Option<&'a str>);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |nearest| write!(f, "; did you mean `{nearest}`?"))
    }
}
