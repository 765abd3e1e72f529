//! Text in and out of a model: tokenizer, chat template, incremental detokenizer and stop strings.
//!
//! Everything is built from a [`TextDescriptor`], plain data that a worker reads from the model files and that a
//! gateway without them receives, so that both render and tokenize alike.
//!
//! **Control tokens come from templates only.** A tokenizer that turns the eleven characters `<|im_end|>` into the
//! control token lets a user end turns and open others. So the tokenizer proper never makes control tokens here. Where
//! they are wanted, [`segment`] cuts the text at their strings and only the text between goes through the tokenizer.
//! In a rendered chat the strings that came with a message must not be cut at: before rendering, a marker character
//! that occurs nowhere in the chat is put inside them, and it is removed again after cutting.

mod bpe;
mod bytes;
mod chat;
mod chat_input;
mod clock;
mod descriptor;
mod detokenize;
mod error;
mod from_gguf;
mod from_hf;
mod model;
mod pre;
mod segment;
mod stop;
mod template;
mod trie;

pub(crate) use bytes::byte_char;
pub use chat_input::{ChatEnd, ChatMessage, ChatOptions, Content, ContentPart};
pub use descriptor::{NamedTemplate, TextDescriptor};
pub use detokenize::Detokenizer;
pub use error::{ChatError, TextError};
pub use model::{AllowSpecial, TextModel};
pub use stop::{StopMatch, StopMatcher, StopSet};

#[cfg(test)]
mod tests;
