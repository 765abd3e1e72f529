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
use axum::http::header::{CONNECTION, EXPECT};
use axum::http::{HeaderValue, Version};
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::IncomingStream;
use futures_util::{Stream, StreamExt};

use super::listen::Limited;

/// Bytes of a body that are read for the sake of the connection: a prompt of usual length.
const DRAIN_BYTES: usize = 256 * 1024;
/// How long they are waited for; the answer waits as well.
const DRAIN_TIME: Duration = Duration::from_millis(250);

/// What a connection knows of its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Talk(Arc<Signs>);

#[derive(Debug, Default)]
struct Signs {
    /// The head of a request is there.
    asked: AtomicBool,
    /// Its answer has begun.
    answered: AtomicBool,
    /// The client may still be sending when the last answer is out.
    unread: AtomicBool,
}

impl Talk {
    pub(super) fn asked(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    pub(super) fn answered(&self) -> bool {
        self.0.answered.load(Ordering::Relaxed)
    }

    pub(super) fn unread(&self) -> bool {
        self.0.unread.load(Ordering::Relaxed)
    }

    /// The next request begins.
    pub(super) fn begin(&self) {
        self.set(false, false);
    }

    fn set(&self, asked: bool, answered: bool) {
        self.0.asked.store(asked, Ordering::Relaxed);
        self.0.answered.store(answered, Ordering::Relaxed);
    }
}

impl Connected<IncomingStream<'_, Limited>> for Talk {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> Self {
        stream.io().talk()
    }
}

/// The outermost layer: tells the connection of the request, and looks what became of its body.
pub(crate) async fn watch(request: Request, next: Next) -> Response {
    let talk = request.extensions().get::<ConnectInfo<Talk>>().map(|info| info.0.clone()).unwrap_or_default();
    talk.set(true, false);
    let response = answer(request, next, &talk).await;
    talk.set(true, true);
    response
}

async fn answer(request: Request, next: Next, talk: &Talk) -> Response {
    if request.body().is_end_stream() || request.version() > Version::HTTP_11 {
        return next.run(request).await;
    }
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
        talk.0.unread.store(true, Ordering::Relaxed);
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
