//! Reading a request body ourselves, so that every refusal has OpenAI's shape.

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use futures_util::StreamExt;

use super::is_json;
use crate::gateway::Shared;
use crate::gateway::error::ApiError;
use crate::gateway::openai::body::Keep;

/// Entries of an object or list that are kept where no limit of the configuration asks for more.
const MIN_ENTRIES: usize = 64;

/// Reads the whole body.
///
/// # Errors
/// 415 for another type than JSON, 413 beyond the limit, 408 when it takes too long, 400 when it breaks off.
pub(super) async fn read(shared: &Shared, headers: &HeaderMap, body: Body) -> Result<Vec<u8>, ApiError> {
    if !is_json(headers) {
        return Err(ApiError::media_type());
    }
    let limit = shared.http.body_limit.bytes();
    let declared =
        headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if declared.is_some_and(|n| n > limit) {
        return Err(ApiError::body_too_large(limit));
    }
    let all = collect(body, limit);
    tokio::time::timeout(shared.http.request_timeout.get(), all).await.map_err(|_| ApiError::slow_body())?
}

async fn collect(body: Body, limit: u64) -> Result<Vec<u8>, ApiError> {
    let mut stream = body.into_data_stream();
    let mut out = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| ApiError::invalid("the request body broke off"))?;
        if out.len() as u64 + chunk.len() as u64 > limit {
            return Err(ApiError::body_too_large(limit));
        }
        out.extend_from_slice(&chunk);
    }
    Ok(out)
}

/// How much of a body is kept: as much as the configuration allows, and one entry to see that there were more.
pub(super) fn keep(shared: &Shared) -> Keep {
    let limits = shared.limits();
    Keep { entries: limits.max_stop.max(limits.max_logit_bias).max(MIN_ENTRIES), prompts: limits.max_prompts }
}
