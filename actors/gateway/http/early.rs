//! Answers that are given before the request's body has been read: refused keys, types, sizes, too many at once.
//!
//! The next request would come behind what is left of the body. A little of it is read and dropped, and the connection
//! goes on. Where more is left the answer says `connection: close`, and the connection goes on reading for a moment after
//! its last byte (RFC 9112, section 9.6): a socket that is closed with unread data is reset, and a client that is still
//! sending would lose the answer.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody as _};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::http::HeaderValue;
use axum::http::header::{CONNECTION, EXPECT};
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::IncomingStream;
use futures_util::{Stream, StreamExt};

use super::listen::Limited;

/// Bytes of a body that are read for the sake of the connection: a prompt of usual length.
const DRAIN_BYTES: usize = 256 * 1024;
/// How long they are waited for; the answer waits as well.
const DRAIN_TIME: Duration = Duration::from_millis(250);

/// A connection's sign that its client may still be sending when the last answer is out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unread(Arc<AtomicBool>);

impl Unread {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Connected<IncomingStream<'_, Limited>> for Unread {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> Self {
        stream.io().unread()
    }
}

/// The outermost layer: looks what became of the request's body.
pub(crate) async fn watch(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let unread = request.extensions().get::<ConnectInfo<Unread>>().map(|info| info.0.clone());
    // Such a client sends nothing before it is told to, which reading would do.
    let waits = request.headers().contains_key(EXPECT);
    let (head, body) = request.into_parts();
    let left = Left::default();
    let body = Body::from_stream(Lent { body: Some(body.into_data_stream()), left: Arc::clone(&left) });
    let mut response = next.run(Request::from_parts(head, body)).await;
    let rest = left.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(rest) = rest
        && (waits || !drained(rest).await)
    {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        if let Some(unread) = unread {
            unread.0.store(true, Ordering::Relaxed);
        }
    }
    response
}

/// Whether the end of the body comes soon.
async fn drained(mut rest: BodyDataStream) -> bool {
    let all = async {
        let mut bytes = 0;
        while bytes <= DRAIN_BYTES {
            match rest.next().await {
                Some(Ok(chunk)) => bytes += chunk.len(),
                Some(Err(_)) => return false,
                None => return true,
            }
        }
        false
    };
    tokio::time::timeout(DRAIN_TIME, all).await.unwrap_or(false)
}

type Left = Arc<Mutex<Option<BodyDataStream>>>;

/// A body that comes back when whoever has it is done with it before its end.
struct Lent {
    body: Option<BodyDataStream>,
    left: Left,
}

impl Stream for Lent {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let next = Pin::new(body).poll_next(cx);
        if matches!(next, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        next
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = self.body.take();
    }
}
