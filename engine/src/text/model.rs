//! The tokenizer with its byte table, special tokens and chat template.

use super::{ChatError, ChatMessage, ChatOptions, Detokenizer, TextDescriptor, TextError};

/// Whether the strings of control tokens in a text become those tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowSpecial {
    /// `<|im_end|>` in the text is the control token: for text of a template or of a trusted caller.
    Yes,
    /// `<|im_end|>` in the text is eleven ordinary characters: for text of a user.
    No,
}

/// Text handling of one model. Immutable and shared by all streams.
#[derive(Debug)]
pub struct TextModel {}

impl TextModel {
    /// Builds it; the same descriptor gives the same ids and texts in every process.
    pub fn from_descriptor(_descriptor: TextDescriptor) -> Result<Self, TextError> {
        todo!()
    }

    /// Replaces the chat template (configuration's override). A template that does not compile is kept: using it
    /// is an error, and a warning is added.
    pub fn with_chat_template(self, _source: &str) -> Self {
        todo!()
    }

    /// What it was built from.
    pub fn descriptor(&self) -> &TextDescriptor {
        todo!()
    }

    /// Things the operator should know, to be logged once at start.
    pub fn warnings(&self) -> &[String] {
        todo!()
    }

    /// Token ids of a text. With `add_bos`, a model that wants a begin token gets exactly one, whether or not the
    /// text starts with it. May be empty (an empty text and no begin token): callers must refuse that.
    pub fn encode(&self, _text: &str, _special: AllowSpecial, _add_bos: bool) -> Result<Vec<u32>, TextError> {
        todo!()
    }

    /// Renders messages and tokenizes them: control tokens come from the template only, never from the messages.
    pub fn encode_chat(
        &self,
        _messages: &[ChatMessage],
        _options: &ChatOptions,
    ) -> Result<Vec<u32>, ChatError> {
        todo!()
    }

    /// The text that [`encode_chat`](Self::encode_chat) tokenizes.
    pub fn render_chat(
        &self,
        _messages: &[ChatMessage],
        _options: &ChatOptions,
    ) -> Result<String, ChatError> {
        todo!()
    }

    /// Bytes of a token, control tokens included; empty for an id outside the vocabulary.
    pub fn token_bytes(&self, _id: u32) -> &[u8] {
        todo!()
    }

    /// Text of a token sequence from its start; invalid bytes become U+FFFD.
    pub fn decode(&self, _ids: &[u32], _skip_special: bool) -> String {
        todo!()
    }

    /// A detokenizer for what follows `prompt`.
    pub fn detokenizer(self: &std::sync::Arc<Self>, _prompt: &[u32]) -> Detokenizer {
        todo!()
    }

    /// Token ids run from 0 to this, exclusive.
    pub fn vocab_size(&self) -> usize {
        todo!()
    }

    /// Tokens that end a generation, ascending; may be empty.
    pub fn end_ids(&self) -> &[u32] {
        todo!()
    }

    /// Whether a token is a control token.
    pub fn is_special(&self, _id: u32) -> bool {
        todo!()
    }

    /// Whether chat is possible.
    pub fn has_chat_template(&self) -> bool {
        todo!()
    }
}
