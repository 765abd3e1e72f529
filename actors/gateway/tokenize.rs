//! From a request body to prompts of tokens: everything that costs CPU before a session starts.
//!
//! A long body is read and tokenized on a thread of its own, as many at once as there are cores, so that other requests
//! are answered meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use engine::text::{AllowSpecial, ChatError, ChatOptions, TextModel};
use policies::request::Token;

use super::Shared;
use super::error::ApiError;
use super::models::Served;
use super::openai::reply::PromptView;
use super::openai::{Generation, Input, PromptItem};

/// Bytes of a body that are worth a thread: below, the work takes about a millisecond at most.
const OFF_THREAD: usize = 4096;

/// A request whose prompts are tokens and fit the model.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) generation: Generation,
    pub(crate) served: Arc<Served>,
    pub(crate) prompts: Vec<PromptView>,
    /// Tokens that each choice may have, by prompt; cut to the context window.
    pub(crate) budgets: Vec<u32>,
}

/// Runs `work` on `bytes` of input: here when they are few, else on a thread for it.
///
/// # Errors
/// What `work` gives; 500 when it panicked.
pub(crate) async fn off_thread<T, F>(shared: &Shared, bytes: usize, work: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, ApiError> + Send + 'static,
{
    if bytes < OFF_THREAD {
        return work();
    }
    // Closed only when the gateway is dropped.
    let _turn =
        shared.tokenizing.acquire().await.map_err(|_| ApiError::internal("the gateway has stopped"))?;
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::internal("reading the request failed")),
    }
}

/// Tokenizes a request and holds it against the model.
///
/// # Errors
/// 404 or 503 for the model, 400 for what it cannot do.
pub(crate) fn prepare(shared: &Shared, generation: Generation) -> Result<Prepared, ApiError> {
    let served = shared.models.find(&generation.model)?;
    let (text, window) = (&served.text, served.card.max_context);
    if let Some((token, _)) = generation.sampling.logit_bias.iter().find(|(t, _)| *t >= served.card.vocab) {
        let message =
            format!("`logit_bias` names token {token}; the vocabulary has {} tokens", served.card.vocab);
        return Err(ApiError::field("logit_bias", message));
    }
    if let Some(n) = generation.max_tokens
        && n > window
        && !generation.max_tokens_field.is_empty()
    {
        let field = generation.max_tokens_field;
        let message = format!(
            "`{field}` is {n}; this model's context window is {window} tokens, prompt and answer together"
        );
        return Err(ApiError::field(field, message));
    }
    let (param, prompts) = match &generation.input {
        Input::Chat { messages, end } => {
            let options =
                ChatOptions { end: *end, template: None, variables: BTreeMap::new(), now: SystemTime::now() };
            let tokens = text.encode_chat(messages, &options).map_err(|e| chat_error(&e))?;
            ("messages", vec![PromptView { echo: String::new(), tokens: tokens.into() }])
        }
        Input::Prompts(items) => {
            let echo = generation.output.echo;
            let views = items.iter().map(|item| prompt(text, item, echo, served.card.vocab));
            ("prompt", views.collect::<Result<Vec<_>, _>>()?)
        }
    };
    let budgets = prompts
        .iter()
        .map(|p| budget(param, p.tokens.len(), window, generation.max_tokens))
        .collect::<Result<_, _>>()?;
    Ok(Prepared { generation, served, prompts, budgets })
}

/// One prompt of a completion. Text is taken as the client wrote it, control tokens included: it may be a chat that the
/// client has rendered itself.
fn prompt(text: &TextModel, item: &PromptItem, echo: bool, vocab: u32) -> Result<PromptView, ApiError> {
    let tokens = match item {
        PromptItem::Text(prompt) => encode(text, prompt, true)?,
        PromptItem::Tokens(tokens) => {
            check_tokens("prompt", tokens, vocab)?;
            if tokens.is_empty() { encode(text, "", true)? } else { tokens.clone() }
        }
    };
    if tokens.is_empty() {
        let message =
            "a prompt is empty, and this model has no begin token to start from; give at least one token";
        return Err(ApiError::field("prompt", message));
    }
    let echo = match (echo, item) {
        (false, _) => String::new(),
        (true, PromptItem::Text(prompt)) => prompt.clone(),
        (true, PromptItem::Tokens(tokens)) => echo_of(text, tokens),
    };
    Ok(PromptView { echo, tokens: tokens.into() })
}

/// The text of a prompt of tokens. The start of a character at its end is left to the answer, which may bring the rest.
fn echo_of(text: &TextModel, tokens: &[Token]) -> String {
    let mut shown = text.decode(tokens, false);
    if unfinished_bytes(text, tokens) > 0 {
        // All of it is one U+FFFD here.
        shown.pop();
    }
    shown
}

/// Bytes at the end of `tokens` that are the start of a character.
pub(crate) fn unfinished_bytes(text: &TextModel, tokens: &[Token]) -> usize {
    // A character has four bytes at most, and a token one at least, unless it has no text.
    let last = &tokens[tokens.len().saturating_sub(4)..];
    let bytes: Vec<u8> = last.iter().flat_map(|&token| text.token_bytes(token)).copied().collect();
    let tail = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let goes_on = std::str::from_utf8(tail).is_err_and(|e| e.error_len().is_none());
    if goes_on { tail.len() } else { 0 }
}

/// Tokens of a text that a client wrote itself.
pub(crate) fn encode(text: &TextModel, prompt: &str, add_bos: bool) -> Result<Vec<Token>, ApiError> {
    text.encode(prompt, AllowSpecial::Yes, add_bos)
        .map_err(|e| ApiError::field("prompt", format!("the prompt cannot be tokenized: {e}")))
}

/// Refuses tokens that the vocabulary does not have.
pub(crate) fn check_tokens(param: &str, tokens: &[Token], vocab: u32) -> Result<(), ApiError> {
    match tokens.iter().find(|t| **t >= vocab) {
        Some(token) => {
            let message =
                format!("`{param}` has the token {token}; the vocabulary has {vocab} tokens, from 0");
            Err(ApiError::field(param, message))
        }
        None => Ok(()),
    }
}

/// What a chat template refuses is the client's to mend.
pub(crate) fn chat_error(error: &ChatError) -> ApiError {
    ApiError::field("messages", error.to_string())
}

/// Tokens that a choice may have: what was asked, cut to what the window leaves; it then ends with `length`.
fn budget(param: &str, prompt: usize, window: u32, asked: Option<u32>) -> Result<u32, ApiError> {
    let room = u32::try_from(prompt).ok().and_then(|p| window.checked_sub(p)).unwrap_or(0);
    if room == 0 {
        return Err(ApiError::too_long(param, prompt, window));
    }
    Ok(asked.map_or(room, |n| n.min(room)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_fits_the_window() {
        assert_eq!(budget("prompt", 500, 512, Some(100)), Ok(12), "cut at the window");
        assert_eq!(budget("prompt", 500, 512, None), Ok(12));
        assert_eq!(budget("prompt", 10, 512, Some(100)), Ok(100));
        assert_eq!(budget("prompt", 10, 512, Some(0)), Ok(0));
        assert_eq!(budget("prompt", 511, 512, None), Ok(1));
        for prompt in [512, 513, usize::MAX] {
            let error = budget("prompt", prompt, 512, Some(1)).expect_err("no room");
            assert_eq!(error.code, Some("context_length_exceeded"));
            assert!(error.message.contains("512") && error.message.contains(&prompt.to_string()));
        }
    }
}
