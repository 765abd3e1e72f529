//! Models from the Hugging Face hub.

use std::collections::BTreeSet;
use std::path::Path;

use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Repo, RepoType};

use super::progress::HubProgress;
use super::{ModelSource, StoreError};
use crate::gguf::part_names;

/// How often a broken transfer is taken up again.
const RETRIES: usize = 3;

/// Files of a safetensors repository that are not weights; only the first must exist.
const SIDE_FILES: [&str; 5] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
];
const INDEX: &str = "model.safetensors.index.json";

/// Fetches into `target` and gives back the file names, the model's first file first. Half-done transfers stay in
/// `work`, where the next try takes them up.
pub(super) fn fetch(
    source: &ModelSource,
    endpoint: Option<&str>,
    repo: &str,
    file: Option<&str>,
    revision: Option<&str>,
    work: &Path,
    target: &Path,
) -> Result<Vec<String>, StoreError> {
    let hub = Hub::open(source, endpoint, repo, revision, work, target)?;
    match file {
        Some(file) => part_names(file)
            .into_iter()
            .map(|name| {
                let local = name.rsplit('/').next().unwrap_or(&name).to_owned();
                hub.get(&name, &target.join(&local))?;
                Ok(local)
            })
            .collect(),
        None => hub.directory(target),
    }
}

struct Hub<'a> {
    source: &'a ModelSource,
    repo: ApiRepo,
    /// Names of all files, when they had to be listed.
    files: BTreeSet<String>,
}

impl<'a> Hub<'a> {
    fn open(
        source: &'a ModelSource,
        endpoint: Option<&str>,
        repo: &str,
        revision: Option<&str>,
        work: &Path,
        target: &Path,
    ) -> Result<Self, StoreError> {
        let failed = |what: String| StoreError::Hub { model: source.to_string(), what };
        // The hub's own variables (endpoint, token) hold here as for its other clients.
        let mut builder = ApiBuilder::from_env();
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint.to_owned());
        }
        let api = builder
            .with_cache_dir(work.join("hub"))
            .with_progress(false)
            .with_retries(RETRIES)
            .build()
            .map_err(|error| failed(format!("the hub's client cannot be set up: {error}")))?;
        let named =
            |revision: &str| Repo::with_revision(repo.to_owned(), RepoType::Model, revision.to_owned());
        let info = api
            .repo(named(revision.unwrap_or("main")))
            .info()
            .map_err(|error| failed(format!("the repository cannot be listed: {error}")))?;
        // All files from one commit, even if the branch moves on meanwhile or between two tries.
        let record = work.join("commit");
        if std::fs::read_to_string(&record).is_ok_and(|commit| commit != info.sha) {
            std::fs::remove_dir_all(target)
                .and_then(|()| std::fs::create_dir_all(target))
                .map_err(StoreError::io(source, target))?;
        }
        std::fs::write(&record, &info.sha).map_err(StoreError::io(source, &record))?;
        Ok(Self {
            source,
            repo: api.repo(named(&info.sha)),
            files: info.siblings.into_iter().map(|file| file.rfilename).collect(),
        })
    }

    fn failed(&self, what: String) -> StoreError {
        StoreError::Hub { model: self.source.to_string(), what }
    }

    fn get(&self, name: &str, target: &Path) -> Result<(), StoreError> {
        // A file that an interrupted fetch finished is kept.
        if target.exists() {
            return Ok(());
        }
        if !self.files.contains(name) {
            let models: Vec<_> = self.files.iter().filter(|name| name.ends_with(".gguf")).take(20).collect();
            return Err(
                self.failed(format!("the repository has no file `{name}`; its GGUF files are {models:?}"))
            );
        }
        tracing::info!(file = name, "fetching from the hub");
        let link = self
            .repo
            .download_with_progress(name, HubProgress::new())
            .map_err(|error| self.failed(format!("`{name}` cannot be fetched: {error}")))?;
        let blob = link.canonicalize().map_err(StoreError::io(self.source, &link))?;
        std::fs::rename(&blob, target).map_err(StoreError::io(self.source, target))
    }

    fn directory(&self, target: &Path) -> Result<Vec<String>, StoreError> {
        let mut names = Vec::new();
        for name in SIDE_FILES {
            if name == SIDE_FILES[0] || self.files.contains(name) {
                self.get(name, &target.join(name))?;
                names.push(name.to_owned());
            }
        }
        let weights = if self.files.contains(INDEX) {
            let path = target.join(INDEX);
            self.get(INDEX, &path)?;
            names.push(INDEX.to_owned());
            self.weights_of_index(&path)?
        } else {
            // Some repositories hold the same weights again in their maker's own layout.
            let own = |name: &&String| {
                name.ends_with(".safetensors") && !name.contains('/') && !name.starts_with("consolidated")
            };
            self.files.iter().filter(own).cloned().collect()
        };
        if weights.is_empty() {
            return Err(self.failed("the repository has no safetensors; name a GGUF file in it".to_owned()));
        }
        for name in weights {
            self.get(&name, &target.join(&name))?;
            names.push(name);
        }
        Ok(names)
    }

    fn weights_of_index(&self, path: &Path) -> Result<BTreeSet<String>, StoreError> {
        let text = std::fs::read_to_string(path).map_err(StoreError::io(self.source, path))?;
        let json: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| self.failed(format!("`{INDEX}` is not JSON: {error}")))?;
        let map = json["weight_map"]
            .as_object()
            .ok_or_else(|| self.failed(format!("`{INDEX}` has no weight_map")))?;
        map.values()
            .map(|name| match name.as_str() {
                Some(name) if !name.contains(['/', '\\']) && !name.starts_with('.') => Ok(name.to_owned()),
                _ => Err(self.failed(format!("`{INDEX}` names the file {name}"))),
            })
            .collect()
    }
}
