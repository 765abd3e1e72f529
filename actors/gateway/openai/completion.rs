//! `POST /v1/completions`: the request.

use axum::http::HeaderMap;
use config::GatewayConfig;

use super::body::{Body, Prompt};
use super::params::{Common, common, finish, flag, int};
use super::{Generation, Input, Output, PromptItem};
use crate::gateway::error::ApiError;

/// Validates a completion request.
///
/// # Errors
/// 400 with the first field that is not allowed.
pub(crate) fn validate(
    mut body: Body,
    headers: &HeaderMap,
    limits: &GatewayConfig,
    seed: u64,
) -> Result<Generation, ApiError> {
    let Common { model, mut sampling, stop, n, stream, include_usage, ignore_end, props, session, stages } =
        common(&mut body, headers, limits, seed)?;
    let top =
        int(&mut body, "logprobs", 0, limits.max_top_logprobs.min(255) as i64, "gateway.max-top-logprobs")?;
    sampling.logprobs = top.map(|n| n as u8);
    let echo = flag(&mut body, "echo")?.unwrap_or(false);
    let max_tokens = int(&mut body, "max_tokens", 0, i64::from(u32::MAX), "")?.map(|n| n as u32);
    if let Some(best_of) = int(&mut body, "best_of", 1, limits.max_n as i64, "gateway.max-n")?
        && best_of != i64::from(n)
    {
        return Err(ApiError::unsupported("best_of", "it has to be absent or equal to `n`"));
    }
    if super::params::text(&mut body, "suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix", "text is generated at the end of a prompt only"));
    }
    if body.messages.is_some() {
        return Err(ApiError::field(
            "messages",
            "`messages` is a field of /v1/chat/completions; use `prompt` here",
        ));
    }
    let prompts = prompts(body.prompt.take(), limits.max_prompts)?;
    finish(body)?;
    Ok(Generation {
        model,
        input: Input::Prompts(prompts),
        max_tokens: Some(
            max_tokens.unwrap_or_else(|| u32::try_from(limits.default_max_tokens).unwrap_or(u32::MAX)),
        ),
        // A default is cut to the window, a client's own number is held against it.
        max_tokens_field: if max_tokens.is_some() { "max_tokens" } else { "" },
        output: Output {
            chat: false,
            stream,
            include_usage,
            n,
            logprobs: sampling.logprobs.is_some(),
            echo,
            stages,
        },
        sampling,
        stop,
        ignore_end,
        props,
        session,
    })
}

/// The prompts; an empty list is one prompt without tokens.
pub(super) fn prompts(prompt: Option<Prompt>, max: usize) -> Result<Vec<PromptItem>, ApiError> {
    match prompt {
        None => Err(ApiError::field("prompt", "`prompt` is missing")),
        Some(Prompt::Bad(why)) => Err(ApiError::field("prompt", why)),
        Some(Prompt::Items { count, .. }) if count > max => {
            let message =
                format!("`prompt` has {count} prompts; at most {max} are allowed (gateway.max-prompts)");
            Err(ApiError::field("prompt", message))
        }
        Some(Prompt::Items { items, .. }) if items.is_empty() => Ok(vec![PromptItem::Tokens(Vec::new())]),
        Some(Prompt::Items { items, .. }) => Ok(items),
    }
}
