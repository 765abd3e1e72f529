//! `POST /v1/workers/{name}/role`: any node passes it on to the worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use cluster::wire::ToWorker;
use config::WorkerRole;
use config::ids::NodeId;
use policies::placement::SwitchCause;
use serde_json::{Value, json};

use super::Control;
use crate::doors::WorkerMsg;
use crate::gateway::error::{ApiError, plain};
use crate::gateway::http::is_json;
use crate::membership::WorkerRow;

/// Bytes that a body may have; it needs about twenty.
pub(super) const BODY_LIMIT: usize = 1024;
/// How long a worker may take to say that it has understood. It does so between two messages.
const ACCEPTED: Duration = Duration::from_secs(5);
/// How often its last word is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Answers 202 with what the worker is and is about to be, as soon as it says so itself. A role that it has already, or is
/// about to have, changes nothing; the present one calls a change back.
pub(super) async fn set(
    State(control): State<Arc<Control>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    if !is_json(&headers) {
        return Err(ApiError::media_type());
    }
    let body = body.map_err(|_| ApiError::invalid("the body is too large, or broke off"))?;
    let role = wanted(&body)?;
    let row = worker(&control, &name)?;
    if row.draining {
        let message = format!("{} is shutting down, and keeps its role", row.id);
        return Err(ApiError { status: StatusCode::CONFLICT, ..ApiError::not_here("draining", message) });
    }
    if row.kv.is_none() {
        let message = format!(
            "{} exchanges no KV pages with other workers (a node alone, or engine.kind = mistralrs), and can be \
             unified only",
            row.id
        );
        return Err(ApiError::field("role", message));
    }
    let message = ToWorker::SetRole { role, cause: SwitchCause::Admin };
    if control.board.view().node == name {
        control.doors.to_own_workers(|| WorkerMsg::Wire(message.clone()));
    } else if !control.doors.to_peer(&NodeId::from(name.as_str()), &message) {
        return Err(ApiError::unavailable("unreachable", format!("there is no link to {}", plain(&name))));
    }
    let end = Instant::now() + ACCEPTED;
    loop {
        let row = worker(&control, &name)?;
        if has(&row, role) {
            let body = json!({"id": row.id, "role": row.role, "switching_to": row.switching_to});
            return Ok((StatusCode::ACCEPTED, Json(body)).into_response());
        }
        if Instant::now() > end {
            let message =
                format!("{} has not said within {ACCEPTED:?} that it accepts; its log says why", row.id);
            return Err(ApiError::unavailable("not_accepted", message));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether it is, or is about to be, of this role.
fn has(row: &WorkerRow, role: WorkerRole) -> bool {
    row.switching_to.as_deref().unwrap_or(&row.role) == role.as_str()
}

/// `{"role": "prefill"}`.
fn wanted(body: &[u8]) -> Result<WorkerRole, ApiError> {
    let hint = "use {\"role\": \"unified\"}, \"prefill\" or \"decode\"";
    let not_that = || ApiError::invalid(format!("the body is not what is needed: {hint}"));
    let body: Value = serde_json::from_slice(body).map_err(|_| not_that())?;
    let fields = body.as_object().ok_or_else(not_that)?;
    if let Some(unknown) = fields.keys().find(|key| *key != "role") {
        return Err(ApiError::field(
            plain(unknown),
            format!("`{}` is not known here; {hint}", plain(unknown)),
        ));
    }
    let role = fields.get("role").ok_or_else(not_that)?;
    let known = WorkerRole::ALL.into_iter().find(|known| role == known.as_str());
    known.ok_or_else(|| {
        let shown = role.as_str().map_or_else(|| "that".to_owned(), |text| format!("`{}`", plain(text)));
        ApiError::field("role", format!("{shown} is no role of a worker; {hint}"))
    })
}

/// The worker of the node `name`.
///
/// # Errors
/// 404 where there is none, 503 while it cannot serve.
fn worker(control: &Control, name: &str) -> Result<WorkerRow, ApiError> {
    let view = control.board.view();
    let node = view.nodes.iter().find(|node| node.name == name);
    let is_worker = |roles: &str| roles == "all" || roles.split(',').any(|role| role == "worker");
    match node {
        Some(node) if node.state != "left" && is_worker(&node.roles) => {
            node.worker.clone().ok_or_else(|| {
                ApiError::unavailable(
                    "not_ready",
                    format!("the worker of {name} is not ready; try again later"),
                )
            })
        }
        _ => {
            let message = format!("no node `{}` has a worker; /v1/workers lists those that do", plain(name));
            Err(ApiError::not_here("worker_not_found", message))
        }
    }
}
