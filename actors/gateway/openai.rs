//! OpenAI's API as data: request bodies in, validated requests out; response objects.
//!
//! Parsing never fails on a field: [`body`] keeps what was there, bounded, and validation then says which field is wrong
//! and what is allowed. A field that is neither supported nor known to change nothing is refused by name.
//!
//! Where OpenAI's documents leave a choice or we differ:
//! - `model` is required; `default` stands for whichever model is served, and the answer has the real name.
//! - `max_tokens` over the context window is refused; prompt and `max_tokens` over it together are cut to it, and the
//!   answer ends with `length`. A chat without a limit may fill the window, a completion gets
//!   `gateway.default-max-tokens`.
//! - `max_tokens: 0` in a completion answers with an empty text (the prompt with `echo`) and `length`. The worker draws
//!   one token all the same, which is neither shown nor counted.
//! - `text_offset` counts characters of the returned text from its start, the echoed prompt included.
//! - With several prompts, prompt `i` draws with `seed + i`, and its choices are numbered from `i * n`.
//! - Beyond OpenAI: `top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `add_generation_prompt`,
//!   `continue_final_message`, `priority` and `props` (also as headers `x-prop-NAME`).

pub(crate) mod body;
pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod messages;
pub(crate) mod params;
pub(crate) mod reply;
pub(crate) mod text;

use config::ids::SessionId;
use engine::text::{ChatEnd, ChatMessage};
use policies::request::{Props, Sampling, Token};

/// A validated request, as far as that is possible without the model.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) model: String,
    pub(crate) input: Input,
    pub(crate) sampling: Sampling,
    /// Where the client set one; tokens a choice.
    pub(crate) max_tokens: Option<u32>,
    /// The name of the field that set it, for messages.
    pub(crate) max_tokens_field: &'static str,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_end: bool,
    pub(crate) props: Props,
    /// The conversation, as the client names it.
    pub(crate) session: Option<SessionId>,
    pub(crate) output: Output,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// `/v1/chat/completions`.
    Chat { messages: Vec<ChatMessage>, end: ChatEnd },
    /// `/v1/completions`.
    Prompts(Vec<PromptItem>),
}

/// One prompt of a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PromptItem {
    Text(String),
    Tokens(Vec<Token>),
}

/// How the answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) chat: bool,
    pub(crate) stream: bool,
    /// A last chunk with the totals.
    pub(crate) include_usage: bool,
    /// Choices a prompt.
    pub(crate) n: u32,
    /// Show log-probabilities.
    pub(crate) logprobs: bool,
    /// Show the prompt before the answer.
    pub(crate) echo: bool,
    /// Show why it went where it went.
    pub(crate) stages: bool,
}
