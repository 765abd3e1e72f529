//! `POST /v1/chat/completions`: the request.

use axum::http::HeaderMap;
use config::GatewayConfig;
use engine::text::ChatEnd;

use super::body::{Body, Field, Scalar};
use super::params::{Common, common, finish, flag, int, only};
use super::{Generation, Input, Output};
use crate::gateway::error::ApiError;

/// Validates a chat request.
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
    unsupported(&mut body)?;
    let logprobs = flag(&mut body, "logprobs")?.unwrap_or(false);
    let top = int(
        &mut body,
        "top_logprobs",
        0,
        limits.max_top_logprobs.min(255) as i64,
        "gateway.max-top-logprobs",
    )?;
    if top.is_some() && !logprobs {
        return Err(ApiError::field("top_logprobs", "`top_logprobs` is allowed only with `logprobs: true`"));
    }
    sampling.logprobs = logprobs.then(|| top.unwrap_or(0) as u8);
    let (max_tokens, max_tokens_field) = max_tokens(&mut body)?;
    let end = end(&mut body)?;
    if body.prompt.is_some() {
        return Err(ApiError::field("prompt", "`prompt` is a field of /v1/completions; use `messages` here"));
    }
    let messages =
        body.messages.take().unwrap_or_else(|| Err(ApiError::field("messages", "`messages` is missing")))?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty; give at least one message"));
    }
    finish(body)?;
    Ok(Generation {
        model,
        input: Input::Chat { messages, end },
        sampling,
        max_tokens,
        max_tokens_field,
        stop,
        ignore_end,
        props,
        session,
        output: Output { chat: true, stream, include_usage, n, logprobs, echo: false, stages },
    })
}

/// The newer name wins; a client that sets both has to mean the same.
fn max_tokens(body: &mut Body) -> Result<(Option<u32>, &'static str), ApiError> {
    let mut take = |name| int(body, name, 1, i64::from(u32::MAX), "");
    let (new, old) = (take("max_completion_tokens")?, take("max_tokens")?);
    match (new, old) {
        (Some(a), Some(b)) if a != b => {
            let message = "`max_tokens` and `max_completion_tokens` differ; set one of them";
            Err(ApiError::field("max_tokens", message))
        }
        (Some(n), _) => Ok((Some(n as u32), "max_completion_tokens")),
        (None, old) => Ok((old.map(|n| n as u32), "max_tokens")),
    }
}

/// How the rendered chat ends.
pub(super) fn end(body: &mut Body) -> Result<ChatEnd, ApiError> {
    let generate = flag(body, "add_generation_prompt")?;
    let go_on = flag(body, "continue_final_message")?;
    match (generate, go_on) {
        (Some(true), Some(true)) => {
            let message = "`continue_final_message` and `add_generation_prompt` exclude each other";
            Err(ApiError::field("continue_final_message", message))
        }
        (_, Some(true)) => Ok(ChatEnd::Continue),
        (Some(true), _) | (None, Some(false)) => Ok(ChatEnd::Generate),
        (Some(false), _) => Ok(ChatEnd::Closed),
        (None, None) => Ok(ChatEnd::Auto),
    }
}

/// Refuses what would change the answer and cannot be done; takes what is allowed because it changes nothing.
fn unsupported(body: &mut Body) -> Result<(), ApiError> {
    let empty = |field: &Field| matches!(field, Field::List { count: 0, .. });
    let mut refuse_lists = |name: &str| match body.take(name) {
        None => Ok(()),
        Some(field) if empty(&field) => Ok(()),
        Some(_) => Err(ApiError::unsupported(name, "tools are not supported yet")),
    };
    refuse_lists("tools")?;
    refuse_lists("functions")?;
    for name in ["tool_choice", "function_call"] {
        match body.take(name) {
            None => {}
            Some(Field::Scalar(Scalar::Text(text))) if text == "none" || text == "auto" => {}
            Some(_) => return Err(ApiError::unsupported(name, "tools are not supported yet")),
        }
    }
    // Without tools there is nothing to call at once or one by one.
    flag(body, "parallel_tool_calls")?;
    match body.take("response_format") {
        None => {}
        Some(Field::Object { entries, .. }) if is_text_format(&entries) => {}
        Some(_) => {
            return Err(ApiError::unsupported(
                "response_format",
                "only {\"type\": \"text\"} can be asked for yet",
            ));
        }
    }
    match body.take("modalities") {
        None => {}
        Some(Field::List { items, .. }) if items == [Scalar::Text("text".into())] => {}
        Some(_) => return Err(ApiError::unsupported("modalities", "only [\"text\"] can be asked for")),
    }
    only(body, "reasoning_effort", &["none"], "this server does not steer reasoning")?;
    only(body, "verbosity", &["medium"], "this server does not steer the length of answers")?;
    for name in ["audio", "web_search_options"] {
        if body.take(name).is_some() {
            return Err(ApiError::unsupported(name, "this server answers with text alone"));
        }
    }
    Ok(())
}

fn is_text_format(entries: &[(String, Scalar)]) -> bool {
    matches!(entries, [(key, Scalar::Text(kind))] if key == "type" && kind == "text")
}
