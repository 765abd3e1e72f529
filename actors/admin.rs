//! What a node shows of itself over HTTP: health, figures, the cluster, its policies. A node without clients serves this
//! alone; a gateway serves [`control`] beside its API.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use config::HttpConfig;
use policies::kv::directory::HolderView;
use ractor::RpcReplyPort;
use ractor::rpc::CallResult;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::error;

use crate::doors::{ControllerMsg, Doors};
use crate::gateway::error::{ApiError, plain};
use crate::gateway::http::listen::Limited;
use crate::gateway::http::{self, early, health};
use crate::gateway::{RenderMetrics, Trouble};
use crate::membership::Board;
use crate::reload::Reloader;

mod role;

/// Longest wait for the controller of this node.
const ANSWER: Duration = Duration::from_secs(2);

/// What the routes of every node need.
#[derive(Clone, Debug)]
pub struct Control {
    /// The node's doors.
    pub doors: Doors,
    /// The view of the cluster.
    pub board: Board,
    /// Reloads the configuration; none where there is nothing to reload from (a gateway in a test).
    pub reloader: Option<Arc<Reloader>>,
}

/// What a node without clients serves.
#[derive(Clone)]
pub struct Admin {
    /// The routes of every node.
    pub control: Control,
    /// `[http]`.
    pub http: HttpConfig,
    /// For `/metrics`.
    pub metrics: RenderMetrics,
    /// For `/readiness` and `/health`.
    pub trouble: Trouble,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("control", &self.control).finish_non_exhaustive()
    }
}

/// `/v1/cluster`, `/v1/workers` and `/v1/workers/{name}/role`, `/v1/policies`, `/v1/directory` and `/v1/reload`.
pub fn control(control: Control) -> Router {
    Router::new()
        .route("/v1/cluster", get(cluster))
        .route("/v1/workers", get(workers))
        .route("/v1/workers/{name}/role", post(role::set).layer(DefaultBodyLimit::max(role::BODY_LIMIT)))
        .route("/v1/policies", get(policies))
        .route("/v1/directory", get(directory))
        .route("/v1/reload", post(reload))
        .with_state(Arc::new(control))
}

/// Serves until `stopped` says so or its sender is gone.
pub async fn serve(admin: Admin, listener: TcpListener, mut stopped: watch::Receiver<bool>) {
    let (shown, limits) = (control(admin.control.clone()), admin.http.clone());
    let app = Router::new()
        .route("/health", get(readiness))
        .route("/readiness", get(readiness))
        .route("/ready", get(readiness))
        .route("/liveness", get(health::liveness))
        .route("/metrics", get(figures))
        .with_state(Arc::new(admin))
        .merge(shown)
        .fallback(no_route)
        .method_not_allowed_fallback(http::no_method)
        .layer(CatchPanicLayer::custom(http::panicked))
        .layer(from_fn(early::watch))
        .into_make_service_with_connect_info::<early::Talk>();
    let stop = async move {
        // A sender that is gone is a node that is gone.
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    if let Err(e) = axum::serve(Limited::new(listener, &limits), app).with_graceful_shutdown(stop).await {
        error!(error = %e, "the HTTP server ended");
    }
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
    health::figures(&admin.metrics)
}

async fn cluster(State(control): State<Arc<Control>>) -> Response {
    Json(control.board.view().as_ref().clone()).into_response()
}

/// The workers as this node's controller (or its stand-in) places by.
async fn workers(State(control): State<Arc<Control>>) -> Result<Response, ApiError> {
    let rows = ask(&control, ControllerMsg::Observe).await?;
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "id": row.info.id.to_string(),
                "models": row.info.models.iter().map(|m| m.as_str()).collect::<Vec<_>>(),
                "max_context": row.info.max_context,
                "max_requests": row.info.max_requests,
                "draining": row.draining,
                "role": row.info.role,
                "switching_to": row.info.switching_to,
                "switchable": row.info.switchable,
                "booked": row.booked,
                "booked_tokens": row.booked_tokens,
                "foreign": row.foreign,
                "placed": row.placed,
                "running": row.load.running,
                "waiting": row.load.waiting,
                "paused": row.load.paused,
                "queued_prefill_tokens": row.load.queued_prefill_tokens,
                "kv_pages_used": row.load.pages_used,
                "kv_pages_total": row.load.pages_total,
            })
        })
        .collect();
    Ok(Json(json!({"object": "list", "data": rows})).into_response())
}

/// The policies of this node's controller; a stand-in asks none.
async fn policies(State(control): State<Arc<Control>>) -> Result<Response, ApiError> {
    let views = ask(&control, ControllerMsg::ObservePolicies).await?;
    let rows: Vec<Value> = views
        .iter()
        .map(|view| {
            json!({
                "name": view.config.name.as_str(),
                "mode": view.config.mode.as_str(),
                "weight": view.config.weight,
                "asked": view.asked,
                "late": view.late,
                "failed": view.failed,
            })
        })
        .collect();
    let leader = control.board.view().leader.clone();
    Ok(Json(json!({"object": "list", "data": rows, "leader": leader})).into_response())
}

/// The directory of prefixes of this node's controller.
async fn directory(State(control): State<Arc<Control>>) -> Result<Response, ApiError> {
    let view = ask(&control, ControllerMsg::ObserveDirectory).await?;
    let rows = |views: &[HolderView]| -> Vec<Value> {
        let row = |row: &HolderView| json!({"id": row.worker.to_string(), "pages": row.pages, "seq": row.seq, "current": row.current});
        views.iter().map(row).collect()
    };
    let (workers, pools) = (rows(&view.workers), rows(&view.pools));
    let all = json!({"pages": view.pages, "bytes": view.bytes, "workers": workers, "pools": pools});
    Ok(Json(all).into_response())
}

async fn reload(State(control): State<Arc<Control>>) -> Result<Response, ApiError> {
    let nothing = || ApiError::not_here("no_configuration", "this node has no configuration to reload");
    let reloader = control.reloader.as_ref().ok_or_else(nothing)?;
    let report = reloader.reload("POST /v1/reload").await;
    let status = if report.reloaded { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    Ok((status, Json(report)).into_response())
}

/// Asks this node's controller.
///
/// # Errors
/// 404 where it has none, 503 where it does not answer.
async fn ask<T: Send + 'static>(
    control: &Control,
    question: impl FnOnce(RpcReplyPort<T>) -> ControllerMsg,
) -> Result<T, ApiError> {
    let controller = control.doors.controller().ok_or_else(|| no_controller(control))?;
    match controller.call(question, Some(ANSWER)).await {
        Ok(CallResult::Success(answer)) => Ok(answer),
        _ => Err(ApiError::unavailable("controller_busy", "this node's controller did not answer in time")),
    }
}

fn no_controller(control: &Control) -> ApiError {
    let view = control.board.view();
    let leader = view.nodes.iter().find(|node| Some(&node.name) == view.leader.as_ref());
    let hint = leader.and_then(|node| node.http.as_ref()).map_or_else(
        || "ask a node with the role controller".to_owned(),
        |http| format!("ask the one that leads, at http://{http}"),
    );
    ApiError::not_here("no_controller", format!("this node has no controller; {hint}"))
}

async fn no_route(request: Request) -> ApiError {
    let path = plain(request.uri().path());
    let message = format!("`{path}` is not served here: this node has no gateway; ask one that has");
    ApiError::not_here("no_gateway", message)
}
