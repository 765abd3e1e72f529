//! `POST /v1/sessions/{id}/migrate`: moves a request that runs to another worker.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use config::Dur;
use config::ids::{RequestId, WorkerId};
use policies::session::{MigrateError, Migrated};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot;

use super::body;
use crate::gateway::Shared;
use crate::gateway::error::{ApiError, json_response, plain};
use crate::gateway::session::SessionMsg;

/// How long whoever asks waits for the outcome unless he says otherwise.
const WAIT: Dur = Dur::from_secs(10);
/// How long he may wait at most. A migration takes [`policies::session::MIGRATE_WITHIN`] and the time that the target
/// needs to take the request.
const LONGEST_WAIT: Dur = Dur::from_secs(600);

/// The body; none is one without a target.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    /// A worker: its node's name, or with the incarnation (`w2#1234`).
    to: Option<String>,
    /// How long to wait for the outcome (`10s`); 0 answers at once.
    timeout: Option<Dur>,
}

/// Answers when the request runs at the target: 200 with where it was and where it is. 202 where that takes longer than
/// `timeout`: it goes on, and `/v1/requests/{id}` says how it ended. 404 unknown request, 409 not running or moving
/// already, 400 unknown worker, 503 the target could not take it; the message says whether it is where it was.
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
    let wait = ask.timeout.unwrap_or(WAIT);
    if wait > LONGEST_WAIT {
        let message =
            format!("timeout is {wait}, and may be {LONGEST_WAIT} at most; /v1/requests shows the outcome");
        return Err(ApiError::field("timeout", message));
    }
    let target = to.as_ref().map(ToString::to_string);
    let (begun, begins) = oneshot::channel();
    let (done, ends) = oneshot::channel();
    let asked = SessionMsg::Migrate { to, begun: begun.into(), done: done.into() };
    // A session that is gone, or goes before it answers, has ended just now.
    let ended = || refused(&MigrateError::NotRunning);
    session.send_message(asked).map_err(|_| ended())?;
    begins.await.map_err(|_| ended())?.map_err(|e| refused(&e))?;
    match tokio::time::timeout(wait.get(), ends).await {
        Ok(end) => answer(end.map_err(|_| ended())?),
        Err(_) => Ok(json_response(StatusCode::ACCEPTED, &json!({"to": target, "state": "moving"}))),
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
    serde_json::from_slice(&bytes).map_err(|e| {
        let shape = "`{\"to\": \"WORKER\", \"timeout\": \"10s\"}`, either or nothing";
        ApiError::invalid(format!("the body is not {shape}: {e}"))
    })
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
