//! Text in and out of a model: tokenizer, chat template, incremental detokenizer and stop strings.
//!
//! Everything is built from a [`TextDescriptor`], plain data that a worker reads from the model files and that a
//! gateway without them receives, so that both render and tokenize alike.

mod bytes;
mod chat;
mod descriptor;
mod detokenize;
mod error;
mod from_gguf;
mod from_hf;
mod model;
mod pre;
mod segment;
mod stop;
mod time;

pub use chat::{ChatEnd, ChatMessage, ChatOptions, ChatTemplate, Content, ContentPart};
pub use descriptor::{NamedTemplate, TextDescriptor};
pub use detokenize::Detokenizer;
pub use error::{ChatError, TextError};
pub use model::{AllowSpecial, TextModel};
pub use stop::{StopMatch, StopMatcher, StopSet};

#[cfg(test)]
mod tests;
