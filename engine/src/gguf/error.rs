//! What can be wrong with a model file or its configuration.

use std::path::PathBuf;

/// A model file, or the description of a model, that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be opened or mapped.
    #[error("cannot read `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is not GGUF, is cut short or is damaged.
    #[error("`{}` is not a usable GGUF file: {what}; fetch it again or check its SHA-256", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found, and where.
        what: String,
    },
    /// A tensor is stored in a type the engine cannot read.
    #[error(
        "`{}`: tensor `{tensor}` is stored as {name} (code {code}), which is not supported; use a file with {}",
        path.display(),
        super::TensorType::supported()
    )]
    TensorType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type's code in the file.
        code: u32,
        /// The name the format gives to that code.
        name: &'static str,
    },
    /// A tensor that the architecture needs is absent.
    #[error("`{}`: tensor `{tensor}` is missing", path.display())]
    MissingTensor {
        /// The (first) file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A metadata key that is needed is absent.
    #[error("`{}`: key `{key}` is missing; convert the model again with a current converter", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A key has a value of the wrong type or out of range.
    #[error("`{}`: key `{key}` is {found}, expected {expected}", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is there.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The file asks for something the engine does not implement.
    #[error("`{}`: key `{key}` asks for {found}, which is not supported; supported: {supported}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What it asks for.
        found: String,
        /// What is supported in its place.
        supported: String,
    },
    /// A part of a split model is absent.
    #[error("part {part} of {of} missing: `{}`; put it beside the other parts", path.display())]
    MissingPart {
        /// The part's number, from 1.
        part: usize,
        /// How many there are.
        of: usize,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Files given as parts of one model belong to different models.
    #[error("`{}` and `{}` are parts of different models: {what}", first.display(), other.display())]
    MixedParts {
        /// The first part.
        first: PathBuf,
        /// The file that does not fit.
        other: PathBuf,
        /// The difference.
        what: String,
    },
}
