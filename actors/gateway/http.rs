//! The HTTP side: routes, and what holds for every request and answer.

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower_http::catch_panic::CatchPanicLayer;

use super::Shared;
use super::auth;
use super::error::ApiError;

mod body;
pub(crate) mod early;
pub(crate) mod generate;
pub(crate) mod health;
pub(crate) mod listen;
mod migrate;
mod models;
mod text;

/// The client's name of a request, echoed and logged. Inside, requests have ids of our own.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Characters of a client's request id that are kept.
const MAX_REQUEST_ID: usize = 128;

/// Paths that are counted by name; others are counted together, since a label has to have few values.
const PATHS: [&str; 19] = [
    "/v1/sessions",
    "/v1/workers",
    "/v1/policies",
    "/v1/directory",
    "/v1/reload",
    "/v1/requests",
    "/v1/cluster",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/tokenize",
    "/v1/detokenize",
    "/tokenize",
    "/detokenize",
    "/health",
    "/liveness",
    "/readiness",
    "/ready",
    "/metrics",
];

/// Serves until `stopped` says so or its sender is gone; then waits for the answers under way.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener, mut stopped: watch::Receiver<bool>) {
    let listener = listen::Limited::new(listener, &shared.http);
    let app = router(shared).into_make_service_with_connect_info::<early::Talk>();
    let stop = async move {
        // A sender that is gone is a gateway that is gone.
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    if let Err(e) = axum::serve(listener, app).with_graceful_shutdown(stop).await {
        tracing::error!(error = %e, "the HTTP server ended");
    }
}

/// All routes.
fn router(shared: Arc<Shared>) -> Router {
    // Health, figures and what an operator asks need no key.
    let clients = Router::new()
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/tokenize", post(text::tokenize))
        .route("/v1/detokenize", post(text::detokenize))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .method_not_allowed_fallback(no_method)
        .route_layer(from_fn_with_state(Arc::clone(&shared), auth::require));
    clients
        .route("/health", get(health::readiness))
        .route("/readiness", get(health::readiness))
        .route("/ready", get(health::readiness))
        .route("/liveness", get(health::liveness))
        .route("/metrics", get(health::metrics))
        .route("/v1/requests/{id}", get(models::request))
        .route("/v1/sessions/{id}/migrate", post(migrate::migrate))
        .with_state(Arc::clone(&shared))
        .merge(crate::admin::control(shared.control.clone()))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(shared, every_request))
        .layer(from_fn(early::watch))
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::no_route(uri.path())
}

pub(crate) async fn no_method(uri: Uri) -> ApiError {
    ApiError::no_method(uri.path())
}

pub(crate) fn panicked(_panic: Box<dyn Any + Send + 'static>) -> Response {
    // The panic hook has logged what and where.
    ApiError::internal("the server failed on this request").into_response()
}

/// Limits the head, names the request, counts and logs the answer.
async fn every_request(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers(), &shared);
    let asked = request.uri().path();
    let with_name = |known: &str| matches!(known, "/v1/requests" | "/v1/sessions" | "/v1/workers");
    let is = |known: &&&str| **known == asked || (with_name(known) && asked.starts_with(**known));
    let path = PATHS.iter().find(is).copied().unwrap_or("other");
    let limit = shared.http.header_limit.bytes();
    let mut response = if head_bytes(&request) > limit {
        ApiError::head_too_large(limit).into_response()
    } else {
        request.headers_mut().insert(REQUEST_ID, id.clone());
        next.run(request).await
    };
    let status = response.status();
    metrics::counter!(crate::metrics::HTTP_REQUESTS, "path" => path, "status" => status.as_str().to_owned())
        .increment(1);
    let id_text = id.to_str().unwrap_or_default();
    // A probe that learns "not ready" got its answer; a balancer asks every second.
    let probe = matches!(path, "/health" | "/readiness" | "/ready");
    if !probe && (status.is_server_error() || status.as_u16() == 413 || status.as_u16() == 429) {
        tracing::warn!(request_id = id_text, path, status = status.as_u16(), "request refused or failed");
    } else {
        tracing::debug!(request_id = id_text, path, status = status.as_u16(), "request answered");
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The client's id, cut to its limit, or one of ours where it gave none that can be shown.
fn request_id(headers: &HeaderMap, shared: &Shared) -> HeaderValue {
    let given = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok()).map(str::trim);
    let shown = given.filter(|id| !id.is_empty()).map(|id| &id[..id.len().min(MAX_REQUEST_ID)]);
    shown.and_then(|id| HeaderValue::from_str(id).ok()).unwrap_or_else(|| {
        let id = format!("req-{}", shared.ids.next_id());
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("req"))
    })
}

/// Bytes of the request line and the headers, nearly as they came.
fn head_bytes(request: &Request) -> u64 {
    let line =
        request.uri().path_and_query().map_or(0, |p| p.as_str().len()) + request.method().as_str().len() + 12;
    let headers: usize =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    (line + headers) as u64
}

/// Whether the body is declared as JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let declared = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = declared.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}
