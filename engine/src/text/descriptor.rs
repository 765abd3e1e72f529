//! Plain data from which text handling is rebuilt anywhere.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::TextError;
use crate::gguf::GgufFile;

const NO_TEMPLATE: &str =
    "the model has no chat template: chat is refused, completions work; `model.chat-template` sets one";

/// A named chat template, as Hugging Face keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedTemplate {
    /// `default`, `tool_use`, …
    pub name: String,
    /// Jinja source.
    pub source: String,
}

/// All that text handling needs of a model. Serializable; a few MB, most of it the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextDescriptor {
    /// The tokenizer in the format of `tokenizer.json`.
    pub tokenizer_json: String,
    /// Chat templates; empty when the model has none.
    pub templates: Vec<NamedTemplate>,
    /// Begin-of-sequence token.
    pub bos: Option<u32>,
    /// End-of-sequence token, the one templates call `eos_token`.
    pub eos: Option<u32>,
    /// Every token that ends a generation (eos, end of turn, the list of `generation_config.json`), ascending.
    pub end_ids: Vec<u32>,
    /// Prompts start with `bos`.
    pub add_bos: bool,
    /// Control tokens, ascending: never made from user text, not shown in output.
    pub special_ids: Vec<u32>,
    /// Token ids run from 0 to this, exclusive.
    pub vocab_size: usize,
    /// Things the operator should know, logged at start.
    pub warnings: Vec<String>,
}

impl TextDescriptor {
    /// From the metadata of a GGUF file alone.
    ///
    /// # Errors
    /// A tokenizer that is absent, incomplete or of an unknown kind, by file and key.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, TextError> {
        super::from_gguf::descriptor(file.metadata())
    }

    /// From a Hugging Face directory: `tokenizer.json`, and where present `tokenizer_config.json`,
    /// `generation_config.json`, `config.json` and `chat_template.jinja`.
    ///
    /// # Errors
    /// A tokenizer that is absent or damaged.
    pub fn from_hf_dir(dir: &Path) -> Result<Self, TextError> {
        super::from_hf::descriptor(dir)
    }

    /// Uses `source` as the chat template in place of the model's own: the configuration's override.
    #[must_use]
    pub fn with_chat_template(mut self, source: &str) -> Self {
        self.templates = vec![NamedTemplate { name: "default".to_owned(), source: source.to_owned() }];
        self.warnings.retain(|warning| warning != NO_TEMPLATE);
        self
    }

    /// Adds the warnings that hold for any source.
    pub(super) fn checked(mut self) -> Self {
        if self.end_ids.is_empty() {
            self.warnings.push(
                "the model names no end token (eos or end of turn), so every generation runs to its max_tokens".to_owned(),
            );
        }
        if self.templates.is_empty() {
            self.warnings.push(NO_TEMPLATE.to_owned());
        }
        self
    }
}
