//! `POST /v1/tokenize` and `/v1/detokenize`, in vLLM's form.

use engine::text::{ChatEnd, ChatMessage};
use policies::request::Token;

use super::body::{Body, Prompt};
use super::params::{finish, flag, text};
use super::{PromptItem, chat, completion};
use crate::gateway::error::ApiError;
use crate::gateway::models::DEFAULT;

/// A text to tokenize.
#[derive(Debug)]
pub(crate) struct Tokenize {
    pub(crate) model: String,
    pub(crate) source: Source,
    /// Give the tokens' texts too.
    pub(crate) strings: bool,
}

/// Where the text comes from.
#[derive(Debug)]
pub(crate) enum Source {
    Prompt { text: String, add_bos: bool },
    Chat { messages: Vec<ChatMessage>, end: ChatEnd },
}

/// Validates a tokenize request.
///
/// # Errors
/// 400 with the first field that is not allowed.
pub(crate) fn tokenize(mut body: Body) -> Result<Tokenize, ApiError> {
    let model = text(&mut body, "model")?.unwrap_or_else(|| DEFAULT.to_owned());
    let strings = flag(&mut body, "return_token_strs")?.unwrap_or(false);
    let add_bos = flag(&mut body, "add_special_tokens")?;
    let source = match (body.messages.take(), body.prompt.take()) {
        (Some(messages), None) => {
            if add_bos == Some(true) {
                let message =
                    "`add_special_tokens` is not for chats: the chat template writes what is needed";
                return Err(ApiError::field("add_special_tokens", message));
            }
            Source::Chat { messages: messages?, end: chat::end(&mut body)? }
        }
        (None, prompt) => match completion::prompts(prompt, 1)?.pop() {
            Some(PromptItem::Text(text)) => Source::Prompt { text, add_bos: add_bos.unwrap_or(true) },
            _ => return Err(ApiError::field("prompt", "`prompt` has to be a string")),
        },
        (Some(_), Some(_)) => {
            return Err(ApiError::field("prompt", "give `prompt` or `messages`, not both"));
        }
    };
    finish(body)?;
    Ok(Tokenize { model, source, strings })
}

/// Validates a detokenize request: the model's name and the tokens.
///
/// # Errors
/// 400 with the first field that is not allowed.
pub(crate) fn detokenize(mut body: Body) -> Result<(String, Vec<Token>), ApiError> {
    let model = text(&mut body, "model")?.unwrap_or_else(|| DEFAULT.to_owned());
    let wrong = || ApiError::field("tokens", "`tokens` has to be a list of token ids");
    let tokens = match body.tokens.take() {
        None => return Err(ApiError::field("tokens", "`tokens` is missing")),
        Some(Prompt::Items { mut items, .. }) => match items.pop() {
            None => Vec::new(),
            Some(PromptItem::Tokens(tokens)) => tokens,
            Some(PromptItem::Text(_)) => return Err(wrong()),
        },
        Some(Prompt::Bad(_)) => return Err(wrong()),
    };
    finish(body)?;
    Ok((model, tokens))
}
