//! `POST /v1/tokenize` and `/v1/detokenize`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use engine::text::ChatOptions;
use serde_json::{Value, json};

use super::body;
use crate::gateway::Shared;
use crate::gateway::error::{ApiError, json_response};
use crate::gateway::openai::body::Body;
use crate::gateway::openai::text::{self as request, Source};
use crate::gateway::tokenize::{chat_error, check_tokens, encode, off_thread};

/// Text or a chat to tokens.
pub(super) async fn tokenize(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(shared, request, |shared, parsed| {
        let asked = request::tokenize(parsed)?;
        let served = shared.models.find(&asked.model)?;
        let tokens = match asked.source {
            Source::Prompt { text, add_bos } => encode(&served.text, &text, add_bos)?,
            Source::Chat { messages, end } => {
                let options =
                    ChatOptions { end, template: None, variables: BTreeMap::new(), now: SystemTime::now() };
                served.text.encode_chat(&messages, &options).map_err(|e| chat_error(&e))?
            }
        };
        let strings = asked.strings.then(|| {
            tokens
                .iter()
                .map(|&t| String::from_utf8_lossy(served.text.token_bytes(t)).into_owned())
                .collect::<Vec<_>>()
        });
        Ok(json!({
            "count": tokens.len(),
            "max_model_len": served.card.max_context,
            "tokens": tokens,
            "token_strs": strings,
        }))
    })
    .await
}

/// Tokens to text, control tokens included.
pub(super) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(shared, request, |shared, parsed| {
        let (model, tokens) = request::detokenize(parsed)?;
        let served = shared.models.find(&model)?;
        check_tokens("tokens", &tokens, served.card.vocab)?;
        Ok(json!({"prompt": served.text.decode(&tokens, false)}))
    })
    .await
}

async fn answer(
    shared: Arc<Shared>,
    request: Request,
    work: fn(&Shared, Body) -> Result<Value, ApiError>,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let bytes = body::read(&shared, &head.headers, body).await?;
    let (shared_too, size) = (Arc::clone(&shared), bytes.len());
    let value =
        off_thread(&shared, size, move || work(&shared_too, Body::parse(&bytes, body::keep(&shared_too))?))
            .await?;
    Ok(json_response(StatusCode::OK, &value))
}
