//! The models that this gateway can ask for, and the text handling of each.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use engine::ModelCard;
use engine::text::{TextError, TextModel};

use super::error::ApiError;

/// The name that stands for whichever model is served.
pub(crate) const DEFAULT: &str = "default";

/// A model with its text handling.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) card: Arc<ModelCard>,
    pub(crate) text: Arc<TextModel>,
}

/// The directory, written by the door and read by the HTTP handlers.
#[derive(Debug, Default)]
pub(crate) struct Models {
    known: RwLock<BTreeMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    /// A worker is ready for it.
    ready: bool,
    card: Arc<ModelCard>,
    /// None while the tokenizer is being built.
    served: Option<Arc<Served>>,
}

impl Models {
    /// A worker serves the model. Gives back whether its text handling has to be built ([`Models::build`]).
    pub(crate) fn ready(&self, card: &Arc<ModelCard>) -> bool {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        match known.get_mut(&card.name) {
            Some(entry)
                if Arc::ptr_eq(&entry.card.text, &card.text)
                    || entry.card.fingerprint == card.fingerprint =>
            {
                entry.ready = true;
                false
            }
            _ => {
                let entry = Entry { ready: true, card: Arc::clone(card), served: None };
                known.insert(card.name.clone(), entry);
                true
            }
        }
    }

    /// Builds the text handling of a model that is ready; takes up to seconds, so not on an async thread. Until then
    /// the model counts as not ready.
    ///
    /// # Errors
    /// When the descriptor is not usable; the model then stays unusable.
    pub(crate) fn build(&self, card: &Arc<ModelCard>) -> Result<(), TextError> {
        let text = TextModel::from_descriptor(card.text.as_ref().clone())?;
        let served = Arc::new(Served { card: Arc::clone(card), text: Arc::new(text) });
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Another card of the name may have come meanwhile; its own build then follows.
        if let Some(entry) = known.get_mut(&card.name)
            && Arc::ptr_eq(&entry.card, card)
        {
            entry.served = Some(served);
        }
        Ok(())
    }

    /// The models that a worker is ready for.
    pub(crate) fn ready_names(&self) -> Vec<String> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter(|(_, entry)| entry.ready).map(|(name, _)| name.clone()).collect()
    }

    /// No worker serves the model any more. It stays known: asking for it is answered 503 rather than 404.
    pub(crate) fn gone(&self, name: &str) {
        if let Some(entry) = self.known.write().unwrap_or_else(PoisonError::into_inner).get_mut(name) {
            entry.ready = false;
        }
    }

    /// The models that can be asked for, by name.
    pub(crate) fn usable(&self) -> Vec<Arc<Served>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().filter(|e| e.ready).filter_map(|e| e.served.clone()).collect()
    }

    /// The model of that name, or the first one for `default`.
    ///
    /// # Errors
    /// 404 for a name never seen, 503 for a model without a ready worker. While no model has ever been ready, every
    /// name is answered 503: it cannot be known yet which names are wrong.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Served>, ApiError> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let usable = |entry: &Entry| entry.ready.then(|| entry.served.clone()).flatten();
        if let Some(entry) = known.get(name) {
            let message = format!("no worker is ready for the model `{name}`");
            return usable(entry).ok_or_else(|| ApiError::unavailable("model_not_ready", message));
        }
        if let (DEFAULT, Some(served)) = (name, known.values().find_map(usable)) {
            return Ok(served);
        }
        if name == DEFAULT || known.values().all(|e| e.served.is_none()) {
            return Err(ApiError::unavailable("model_not_ready", "no model is ready yet"));
        }
        Err(ApiError::unknown_model(name))
    }
}
