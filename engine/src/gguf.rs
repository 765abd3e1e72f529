//! GGUF files: a typed, bounds-checked reader over one or several split files, and what a model is ([`ModelSpec`]),
//! read from GGUF metadata or from a Hugging Face `config.json`.
//!
//! Nothing here trusts the file: counts, lengths and offsets are checked against the bytes that exist before anything
//! is allocated, and every error names the file and the key or tensor. Tensor bytes are memory-mapped, never copied.

mod cursor;
mod error;
mod file;
mod hf;
mod metadata;
mod rope;
mod spec;
mod split;
mod tensor;
#[doc(hidden)]
pub mod write;

pub use error::GgufError;
pub use file::GgufFile;
pub use metadata::{Metadata, Value};
pub use rope::{RopeFrequencies, RopeScaling, RopeSpec, RopeStyle};
pub use spec::{Architecture, ModelSpec};
pub use split::{expand_parts, part_names};
pub use tensor::{TensorInfo, TensorType};

#[cfg(test)]
mod tests;
