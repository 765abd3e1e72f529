//! `GET /v1/models`: the models that can be asked for now.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::gateway::Shared;
use crate::gateway::error::{ApiError, json_response};
use crate::gateway::models::Served;

/// All of them.
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let data: Vec<Value> = shared.models.usable().iter().map(|m| object(&shared, m)).collect();
    json_response(StatusCode::OK, &json!({"object": "list", "data": data}))
}

/// One, by its id.
pub(super) async fn one(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let served = shared.models.find(&id)?;
    Ok(json_response(StatusCode::OK, &object(&shared, &served)))
}

/// A recent request: where it was placed, and why.
pub(super) async fn request(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let found = shared.recent.find(&id).ok_or_else(|| ApiError::unknown_request(&id))?;
    Ok(json_response(StatusCode::OK, &found))
}

fn object(shared: &Shared, served: &Served) -> Value {
    json!({
        "id": served.card.name,
        "object": "model",
        "created": shared.started,
        "owned_by": "actor-node",
        "description": served.card.description,
        "max_model_len": served.card.max_context,
    })
}
