//! `actor-node model pull|list|remove`, and the way from the configuration to a source and a store.

use anyhow::{Context, Result, bail};
use config::{Config, ModelCommand};
use engine::store::{Location, ModelSource, ModelStore, Sha256};

/// The store of the configured cache directory.
pub fn store(config: &Config) -> Result<ModelStore> {
    let dir = config.model.cache_dir.as_ref().context("model.cache-dir is not set")?;
    Ok(ModelStore::new(dir))
}

/// The configured model, or the default one.
pub fn source(config: &Config) -> Result<ModelSource> {
    let mut source = match &config.model.source {
        None => ModelSource::default(),
        Some(text) => parse(text)?,
    };
    if let Some(wanted) = &config.model.revision {
        match &mut source.location {
            Location::Hf { revision: revision @ None, .. } => *revision = Some(wanted.clone()),
            Location::Hf { revision: Some(given), .. } if given == wanted => {}
            Location::Hf { revision: Some(given), .. } => {
                bail!("model.revision = \"{wanted}\" and model.source names {given}; set one of them")
            }
            Location::File(_) | Location::Pip { .. } => {
                bail!("model.revision = \"{wanted}\" needs an hf: source, and model.source is {source}")
            }
        }
    }
    if let Some(wanted) = &config.model.sha256 {
        let wanted = Sha256::from_hex(wanted)
            .with_context(|| format!("model.sha256 = \"{wanted}\" is not 64 hexadecimal digits"))?;
        match source.sha256 {
            Some(given) if given != wanted => {
                bail!("model.sha256 = \"{wanted}\" and the source asks for {given}; set one of them")
            }
            _ => source.sha256 = Some(wanted),
        }
    }
    Ok(source)
}

fn parse(text: &str) -> Result<ModelSource> {
    text.parse::<ModelSource>().with_context(|| format!("model source {text:?}"))
}

/// Runs a `model` command; gives back what to print.
pub fn run(command: &ModelCommand, config: &Config) -> Result<String> {
    let store = store(config)?;
    match command {
        ModelCommand::Pull { source: given } => {
            let source = given.as_deref().map_or_else(|| source(config), parse)?;
            let model = store.pull(&source)?;
            Ok(format!("{} is at {}", model.source, model.files.path().display()))
        }
        ModelCommand::List => {
            let mut text = String::new();
            for entry in store.list()? {
                text.push_str(&format!("{entry}\n"));
            }
            if text.is_empty() {
                text = format!("no models in {}", store.dir().display());
            }
            Ok(text)
        }
        ModelCommand::Remove { source } => {
            let source = parse(source)?;
            if !store.remove(&source)? {
                bail!("{source} is not in {}; `actor-node model list` shows what is", store.dir().display());
            }
            Ok(format!("removed {source}"))
        }
    }
}
