//! The HTTP side of a node without clients: health, figures and the view of the cluster. A gateway serves the same
//! beside its API.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::error;

use crate::gateway::{RenderMetrics, Trouble};
use crate::membership::Board;

/// What the routes show.
#[derive(Clone)]
pub struct Admin {
    /// For `/v1/cluster`.
    pub board: Board,
    /// For `/metrics`.
    pub metrics: RenderMetrics,
    /// For `/readiness` and `/health`.
    pub trouble: Trouble,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("board", &self.board).finish_non_exhaustive()
    }
}

/// Serves until `stopped` says so or its sender is gone.
pub async fn serve(admin: Admin, listener: TcpListener, mut stopped: watch::Receiver<bool>) {
    let app = Router::new()
        .route("/health", get(readiness))
        .route("/readiness", get(readiness))
        .route("/ready", get(readiness))
        .route("/liveness", get(liveness))
        .route("/metrics", get(figures))
        .route("/v1/cluster", get(cluster))
        .fallback(no_route)
        .with_state(Arc::new(admin));
    let stop = async move {
        // A sender that is gone is a node that is gone.
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    if let Err(e) = axum::serve(listener, app).with_graceful_shutdown(stop).await {
        error!(error = %e, "the HTTP server ended");
    }
}

async fn liveness() -> Response {
    Json(json!({"status": "alive"})).into_response()
}

async fn readiness(State(admin): State<Arc<Admin>>) -> Response {
    let Some(reason) = (admin.trouble)() else {
        return Json(json!({"status": "ok", "reason": null})).into_response();
    };
    let body = Json(json!({"status": "not-ready", "reason": reason}));
    let mut response = (StatusCode::SERVICE_UNAVAILABLE, body).into_response();
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

async fn figures(State(admin): State<Arc<Admin>>) -> Response {
    let mut response = (admin.metrics)().into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

async fn cluster(State(admin): State<Arc<Admin>>) -> Response {
    Json(admin.board.view().as_ref().clone()).into_response()
}

async fn no_route(request: Request) -> Response {
    let message =
        format!("`{}` is not served here: this node has no gateway; ask one that has", request.uri().path());
    let error = json!({"message": message, "type": "invalid_request_error", "param": null, "code": "no_gateway"});
    (StatusCode::NOT_FOUND, Json(json!({"error": error}))).into_response()
}
