//! A model's descriptor: what a gateway needs to speak to a model without its file (tokenizer, chat template, limits), as
//! bytes that travel in parts and are named by their hash.

use std::sync::Arc;

use engine::ModelCard;
use engine::text::TextDescriptor;
use policies::kv::Fingerprint;
use serde::{Deserialize, Serialize};

/// Bytes of one part: far below the 16 MiB that ractor_cluster takes in a frame, so that a vocabulary of any size
/// passes, and other messages pass between two parts.
const PART: usize = 1 << 20;

/// The form that travels. JSON: it is sent once a model and gateway, most of it is the tokenizer's JSON anyway, and a
/// newer node may add a field.
#[derive(Serialize, Deserialize)]
struct Form {
    name: String,
    description: String,
    text: TextDescriptor,
    fingerprint: [u8; 32],
    max_context: u32,
    vocab: u32,
    page_tokens: u32,
}

/// A descriptor's name and bytes.
#[derive(Clone, Debug)]
pub struct Described {
    /// BLAKE3 hash of the bytes.
    pub hash: [u8; 32],
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// A descriptor that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// The bytes are not those that were asked for.
    #[error("the descriptor's bytes have another hash than the one announced")]
    Hash,
    /// The bytes are no descriptor of this version.
    #[error("the descriptor is not readable: {0}")]
    Form(#[from] serde_json::Error),
}

/// The descriptor of `card`.
///
/// # Errors
/// Never for a card that an engine has made.
pub fn describe(card: &ModelCard) -> Result<Described, CardError> {
    let bytes: Arc<[u8]> = serde_json::to_vec(&Form {
        name: card.name.clone(),
        description: card.description.clone(),
        text: card.text.as_ref().clone(),
        fingerprint: card.fingerprint.0,
        max_context: card.max_context,
        vocab: card.vocab,
        page_tokens: card.page_tokens,
    })?
    .into();
    Ok(Described { hash: hash(&bytes), bytes })
}

/// The card that `bytes` describe, which have to be the ones named `expected`.
///
/// # Errors
/// Other bytes, or no descriptor.
pub fn read(expected: &[u8; 32], bytes: &[u8]) -> Result<ModelCard, CardError> {
    if hash(bytes) != *expected {
        return Err(CardError::Hash);
    }
    let form: Form = serde_json::from_slice(bytes)?;
    Ok(ModelCard {
        name: form.name,
        description: form.description,
        text: Arc::new(form.text),
        fingerprint: Fingerprint(form.fingerprint),
        max_context: form.max_context,
        vocab: form.vocab,
        page_tokens: form.page_tokens,
    })
}

/// The parts that `bytes` travel in; at least one.
pub fn parts(bytes: &[u8]) -> impl ExactSizeIterator<Item = &[u8]> {
    bytes.chunks(PART)
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}
