//! Everything that a client can be told went wrong: one table from cause to status, type and code, in OpenAI's shape.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use policies::session::Failure;
use serde_json::{Value, json};

/// Seconds that a client is asked to wait before it tries again.
const RETRY_SECONDS: u32 = 1;

/// An answer that is not the one asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} {kind}: {message}")]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// OpenAI's `type`.
    pub(crate) kind: &'static str,
    /// OpenAI's `code`.
    pub(crate) code: Option<&'static str>,
    /// The field at fault.
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    /// Seconds, as the header of that name.
    pub(crate) retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: Option<&'static str>, message: String) -> Self {
        Self { status, kind, code, param: None, message, retry_after: None }
    }

    /// The request has to be changed.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", None, message.into())
    }

    /// A field of the request has to be changed.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("invalid_value"), ..Self::invalid(message) }
    }

    /// A field that would change the result and that is not supported.
    pub(crate) fn unsupported(param: &str, hint: &str) -> Self {
        let message = format!("`{param}` is not supported: {hint}");
        Self { param: Some(param.to_owned()), code: Some("unsupported_parameter"), ..Self::invalid(message) }
    }

    /// The prompt leaves no room for an answer.
    pub(crate) fn too_long(param: &str, prompt: usize, window: u32) -> Self {
        let message = format!(
            "the prompt has {prompt} tokens and this model's context window is {window} tokens; at least one is needed \
             for the answer"
        );
        let error = Self::invalid(message);
        Self { param: Some(param.to_owned()), code: Some("context_length_exceeded"), ..error }
    }

    pub(crate) fn unknown_model(name: &str) -> Self {
        let message = format!("the model `{}` does not exist; /v1/models lists those that do", plain(name));
        let status = StatusCode::NOT_FOUND;
        let error = Self::new(status, "invalid_request_error", Some("model_not_found"), message);
        Self { param: Some("model".into()), ..error }
    }

    /// Another node has it.
    pub(crate) fn not_here(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", Some(code), message.into())
    }

    pub(crate) fn unknown_request(id: &str) -> Self {
        let message = format!("the request `{}` is not among the last ones of this gateway", plain(id));
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", Some("request_not_found"), message)
    }

    /// It is not in a state in which this can be done.
    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", Some(code), message.into())
    }

    /// Not now; later it may work.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", Some(code), message.into());
        Self { retry_after: Some(RETRY_SECONDS), ..error }
    }

    /// Too much at once.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let error = Self::new(status, "rate_limit_error", Some("overloaded"), message.into());
        Self { retry_after: Some(RETRY_SECONDS), ..error }
    }

    pub(crate) fn body_too_large(limit: u64) -> Self {
        let message = format!("the request body is larger than http.body-limit, {limit} bytes");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new(status, "invalid_request_error", Some("request_too_large"), message)
    }

    pub(crate) fn head_too_large(limit: u64) -> Self {
        let message = format!("the request's headers are larger than http.header-limit, {limit} bytes");
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        Self::new(status, "invalid_request_error", Some("request_too_large"), message)
    }

    pub(crate) fn media_type() -> Self {
        let message = "the request needs the header `content-type: application/json`".to_owned();
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, "invalid_request_error", Some("unsupported_media_type"), message)
    }

    pub(crate) fn no_route(path: &str) -> Self {
        let message = format!("there is nothing at `{}`", plain(path));
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", Some("unknown_url"), message)
    }

    pub(crate) fn no_method(path: &str) -> Self {
        let message = format!("`{}` does not take this method", plain(path));
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(status, "invalid_request_error", Some("method_not_allowed"), message)
    }

    pub(crate) fn slow_body() -> Self {
        let message = "the request body did not arrive in time".to_owned();
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", Some("request_timeout"), message)
    }

    /// Our fault.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "server_error", Some("internal_error"), message.into())
    }

    /// The object of the response body, and of a late error in a stream.
    pub(crate) fn to_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl From<&Failure> for ApiError {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::UnknownModel(name) => Self::unknown_model(name),
            Failure::Overloaded(why) => Self::overloaded(why.clone()),
            Failure::Unavailable(why) => Self::unavailable("unavailable", why.clone()),
            Failure::Invalid(why) => {
                Self { code: Some("context_length_exceeded"), ..Self::invalid(why.clone()) }
            }
            Failure::WorkerLost(why) => Self::unavailable("worker_lost", why.clone()),
            Failure::Engine(why) => Self {
                code: Some("engine_error"),
                ..Self::internal(format!("the engine failed on this request: {why}"))
            },
            Failure::Hopeless(why) => {
                let status = StatusCode::GATEWAY_TIMEOUT;
                Self::new(status, "server_error", Some("deadline_exceeded"), why.clone())
            }
            Failure::Deadline => {
                let message = "the request took longer than http.request-timeout".to_owned();
                Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", Some("timeout"), message)
            }
            // Nobody reads it: the client is gone.
            Failure::Cancelled => Self::internal("the request was cancelled"),
        }
    }
}

/// The `outcome` label of a failed request.
pub(crate) const fn outcome(failure: &Failure) -> &'static str {
    match failure {
        Failure::UnknownModel(_) => "unknown_model",
        Failure::Overloaded(_) => "overloaded",
        Failure::Unavailable(_) => "unavailable",
        Failure::Invalid(_) => "invalid",
        Failure::WorkerLost(_) => "worker_lost",
        Failure::Engine(_) => "engine_error",
        Failure::Hopeless(_) => "deadline_exceeded",
        Failure::Deadline => "timeout",
        Failure::Cancelled => "cancelled",
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.to_json());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A JSON body with its type.
pub(crate) fn json_response(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A name that a client made up, fit to be shown back: at most 64 letters, digits and `-_./:@`.
pub(crate) fn plain(name: &str) -> String {
    let shown = |c: char| if c.is_ascii_alphanumeric() || "-_./:@".contains(c) { c } else { '?' };
    name.chars().take(64).map(shown).collect()
}

/// Seconds since 1970, for `created`.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_status_and_openai_fields() {
        let text = || "why".to_owned();
        for (failure, status, code) in [
            (Failure::UnknownModel("m".into()), 404, "model_not_found"),
            (Failure::Overloaded(text()), 429, "overloaded"),
            (Failure::Unavailable(text()), 503, "unavailable"),
            (Failure::Invalid(text()), 400, "context_length_exceeded"),
            (Failure::WorkerLost(text()), 503, "worker_lost"),
            (Failure::Engine(text()), 500, "engine_error"),
            (Failure::Hopeless(text()), 504, "deadline_exceeded"),
            (Failure::Deadline, 504, "timeout"),
        ] {
            let error = ApiError::from(&failure);
            assert_eq!(error.status.as_u16(), status, "{failure:?}");
            let body = error.to_json();
            assert_eq!(body["error"]["code"], code, "{failure:?}");
            assert!(body["error"]["message"].as_str().is_some_and(|m| !m.is_empty()));
            assert!(body["error"]["type"].is_string() && body["error"].get("param").is_some());
            let retry = error.into_response().headers().contains_key(RETRY_AFTER);
            assert_eq!(retry, matches!(status, 429 | 503), "{failure:?}");
        }
    }

    #[test]
    fn what_a_client_made_up_is_shown_back_only_when_plain() {
        assert_eq!(plain("org/model-1.5_q4:x@y"), "org/model-1.5_q4:x@y");
        assert_eq!(plain("<script>\n\u{1b}"), "?script???");
        assert_eq!(plain(&"a".repeat(1000)).len(), 64);
    }
}
