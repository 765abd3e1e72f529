//! `POST /v1/sessions/{id}/migrate`: moves a request that runs to another worker.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use config::ids::{RequestId, WorkerId};
use policies::session::{MIGRATE_WITHIN, MigrateError, Migrated};
use ractor::rpc::CallResult;
use serde::Deserialize;
use serde_json::json;

use super::body;
use crate::gateway::Shared;
use crate::gateway::error::{ApiError, json_response, plain};
use crate::gateway::session::SessionMsg;

/// After the pages are there the target has this long to answer before whoever asked is told to look for himself.
const SWITCH_WITHIN: Duration = Duration::from_secs(10);

/// The body; none is one without a target.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    /// A worker: its node's name, or with the incarnation (`w2#1234`).
    to: Option<String>,
}

/// Answers when the request runs at the target: 200 with where it was and where it is. 202 where the target has all pages
/// but has not taken the request yet. 404 unknown request, 409 not running or moving already, 400 unknown worker, 503 the
/// target could not take it; the message says whether it is where it was.
pub(super) async fn migrate(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let ask = asked(&shared, &head.headers, body).await?;
    let number: Option<RequestId> = id.rsplit('-').next().and_then(|number| number.parse().ok());
    let number = number.ok_or_else(|| ApiError::unknown_request(&id))?;
    let Some(session) = shared.sessions.find(number) else {
        let known = shared.recent.find(&id).is_some();
        return Err(if known { refused(&MigrateError::NotRunning) } else { ApiError::unknown_request(&id) });
    };
    let to = ask.to.map(|name| worker(&shared, &name)).transpose()?;
    let limit = MIGRATE_WITHIN.to_duration() + SWITCH_WITHIN;
    let target = to.as_ref().map(ToString::to_string);
    match session.call(|reply| SessionMsg::Migrate { to, reply }, Some(limit)).await {
        Ok(CallResult::Success(Ok(end))) => answer(end),
        Ok(CallResult::Success(Err(e))) => Err(refused(&e)),
        Ok(CallResult::Timeout) => {
            Ok(json_response(StatusCode::ACCEPTED, &json!({"to": target, "state": "moving"})))
        }
        // It ended just now.
        Ok(CallResult::SenderError) | Err(_) => Err(refused(&MigrateError::NotRunning)),
    }
}

async fn asked(shared: &Shared, headers: &axum::http::HeaderMap, body: Body) -> Result<Ask, ApiError> {
    use axum::body::HttpBody as _;
    if body.is_end_stream() {
        return Ok(Ask::default());
    }
    let bytes = body::read(shared, headers, body).await?;
    if bytes.is_empty() {
        return Ok(Ask::default());
    }
    serde_json::from_slice(&bytes)
        .map_err(|e| ApiError::invalid(format!("the body is not `{{\"to\": \"WORKER\"}}` or nothing: {e}")))
}

/// The worker of that name that this node knows.
fn worker(shared: &Shared, name: &str) -> Result<WorkerId, ApiError> {
    let view = shared.control.board.view();
    let serving = view.nodes.iter().filter(|node| node.worker.is_some() && node.state != "left");
    let named = |id: &&str| *id == name || id.rsplit_once('#').is_some_and(|(node, _)| node == name);
    let mut ids = serving.filter_map(|node| node.worker.as_ref()).map(|worker| worker.id.as_str());
    let found = ids.find(named).and_then(|id| {
        let (node, incarnation) = id.rsplit_once('#')?;
        Some(WorkerId::new(node.into(), u64::from_str_radix(incarnation, 16).ok()?))
    });
    found.ok_or_else(|| {
        let message = format!("there is no worker `{}`; /v1/cluster lists those that serve", plain(name));
        ApiError { code: Some("unknown_worker"), ..ApiError::field("to", message) }
    })
}

fn answer(end: Migrated) -> Result<Response, ApiError> {
    match end {
        Migrated::Moved { from, to } => {
            let moved = json!({"from": from.to_string(), "to": to.to_string()});
            Ok(json_response(StatusCode::OK, &moved))
        }
        Migrated::Stayed(why) => {
            let message = format!("the request goes on where it was: {why}");
            Err(ApiError::unavailable("migration_failed", message))
        }
        Migrated::Elsewhere(why) => {
            let message = format!("the request goes on at another worker; /v1/requests says where: {why}");
            Err(ApiError::unavailable("migration_failed", message))
        }
        Migrated::Ended => Err(refused(&MigrateError::NotRunning)),
    }
}

fn refused(error: &MigrateError) -> ApiError {
    let code = match error {
        MigrateError::NotRunning => "not_running",
        MigrateError::AlreadyThere(_) => "already_there",
        MigrateError::AlreadyMoving => "already_moving",
        MigrateError::TooOften => "moved_too_often",
    };
    ApiError::conflict(code, error.to_string())
}
