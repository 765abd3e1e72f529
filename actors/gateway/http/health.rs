//! `/liveness`, `/readiness` and `/metrics`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use ractor::rpc::CallResult;
use serde_json::{Value, json};

use crate::doors::ControllerMsg;
use crate::gateway::error::json_response;
use crate::gateway::{RenderMetrics, Shared};

/// How long the controller may take to count its workers before the check goes on without.
const COUNT_TIMEOUT: Duration = Duration::from_millis(500);

/// The process runs: 200 from the start, whatever else is the matter.
pub(crate) async fn liveness() -> Response {
    json_response(StatusCode::OK, &json!({"status": "alive"}))
}

/// Whether a request would be served now: 200, or 503 with the reason.
pub(super) async fn readiness(State(shared): State<Arc<Shared>>) -> Response {
    let (ready, total) = workers(&shared).await;
    let models: Vec<Value> = shared.models.usable().iter().map(|m| m.card.name.as_str().into()).collect();
    let (status, reason) = if shared.draining.load(Ordering::Relaxed) {
        ("draining", Some("the node takes no new requests".to_owned()))
    } else {
        match (shared.trouble)() {
            Some(why) => ("not-ready", Some(why)),
            None if models.is_empty() => ("loading", Some("no model is ready".to_owned())),
            None => ("ok", None),
        }
    };
    let body = json!({
        "status": status,
        "reason": reason,
        "ready_workers": ready,
        "total_workers": total,
        "models": models,
    });
    let code = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = json_response(code, &body);
    if reason.is_some() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Workers that take requests, and all; as the controller knows them, or this node where there is no controller.
async fn workers(shared: &Shared) -> (usize, usize) {
    if let Some(controller) = shared.doors.controller()
        && let Ok(CallResult::Success(rows)) =
            controller.call(ControllerMsg::Observe, Some(COUNT_TIMEOUT)).await
    {
        return (rows.iter().filter(|row| !row.draining).count(), rows.len());
    }
    let count = shared.doors.workers().len();
    (count, count)
}

/// `/metrics` of a gateway.
pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    figures(&shared.metrics)
}

/// The figures, in Prometheus' text format.
pub(crate) fn figures(render: &RenderMetrics) -> Response {
    let mut response = Response::new(Body::from(render()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
