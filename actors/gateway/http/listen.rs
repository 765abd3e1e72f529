//! The listener: a bounded number of connections, an end for those whose client has stopped reading or does not ask, and
//! time for those whose client is still sending when the last answer is out.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use config::HttpConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::early::Talk;

/// How long to wait when no connection can be accepted (out of file descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a client may take for the head of a request; most need one packet. Without a limit a few thousand clients that
/// say nothing would take all places for ever.
const HEAD_TIME: Duration = Duration::from_secs(60);

/// How long a client may go on sending after an answer that says that the connection ends. It needs a way there and back,
/// and those that read the answer only when they have sent everything need longer.
const LINGER: Duration = Duration::from_secs(5);

/// Accepts as many connections as the configuration allows; more wait in the operating system's queue.
#[derive(Debug)]
pub(crate) struct Limited {
    listener: TcpListener,
    places: Arc<Semaphore>,
    stall: Duration,
}

impl Limited {
    pub(crate) fn new(listener: TcpListener, http: &HttpConfig) -> Self {
        let places = Arc::new(Semaphore::new(http.max_connections.min(Semaphore::MAX_PERMITS)));
        Self { listener, places, stall: http.request_timeout.get() }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                // Nobody closes the semaphore; should that change, no more connections is what it means.
                return std::future::pending().await;
            };
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    // Tokens are small and should not wait for one another; without it they only come later.
                    let _ = stream.set_nodelay(true);
                    return (Connection::new(stream, self.stall, place), address);
                }
                Err(e) => {
                    tracing::warn!(error = %e, "a connection was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when nothing of what is written gets away for as long as a request may take.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    stall: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    talk: Talk,
    /// When the head that is due began, or something was written last.
    since: Instant,
    silence: Option<Pin<Box<Sleep>>>,
    end: End,
    _place: OwnedSemaphorePermit,
}

/// How far a connection is in ending.
#[derive(Debug)]
enum End {
    Open,
    /// All is said; what still comes is dropped until the client closes its side, or until then.
    Lingering(Pin<Box<Sleep>>),
    Closed,
}

impl Connection {
    fn new(stream: TcpStream, stall: Duration, place: OwnedSemaphorePermit) -> Self {
        let (talk, end) = (Talk::default(), End::Open);
        Self { stream, stall, waiting: None, talk, since: Instant::now(), silence: None, end, _place: place }
    }

    /// To be told of its requests.
    pub(super) fn talk(&self) -> Talk {
        self.talk.clone()
    }

    /// When a client that says nothing is given up: not while it waits for an answer.
    fn due(&self) -> Option<Instant> {
        match (self.talk.asked(), self.talk.answered()) {
            (false, _) => Some(self.since + self.stall.min(HEAD_TIME)),
            // Whatever is still being answered ends within that time as well.
            (true, true) => Some(self.since + self.stall),
            (true, false) => None,
        }
    }

    /// Whether it has said nothing for too long; otherwise the task is woken when it has.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(due) = self.due() else { return false };
        let timer = self.silence.get_or_insert_with(|| Box::pin(sleep_until(due)));
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= due {
                return true;
            }
            timer.as_mut().reset(due);
        }
        if timer.deadline() > due {
            timer.as_mut().reset(due);
            return timer.as_mut().poll(cx).is_ready();
        }
        false
    }

    /// Reads and drops what has come: none once nothing more will come.
    fn drop_incoming(&mut self, cx: &mut Context<'_>) -> Option<usize> {
        let (mut scratch, mut dropped) = ([0; 8192], 0);
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => dropped += buf.filled().len(),
                Poll::Ready(_) => return None,
                Poll::Pending => return Some(dropped),
            }
        }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            (self.waiting, self.since) = (None, Instant::now());
            return written;
        }
        let stall = self.stall;
        let timer = self.waiting.get_or_insert_with(|| Box::pin(sleep(stall)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() {
            return if self.is_silent(cx) {
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            } else {
                Poll::Pending
            };
        }
        if buf.filled().len() > before && self.talk.answered() {
            self.talk.begin();
            self.since = Instant::now();
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if matches!(this.end, End::Open) {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            // A head that is too long is refused before it is a request: then something has come, and nobody said so.
            this.end = match this.drop_incoming(cx) {
                Some(dropped) if dropped > 0 || this.talk.unread() => End::Lingering(Box::pin(sleep(LINGER))),
                _ => End::Closed,
            };
        }
        if matches!(this.end, End::Lingering(_)) && this.drop_incoming(cx).is_none() {
            this.end = End::Closed;
        }
        if let End::Lingering(until) = &mut this.end {
            ready!(until.as_mut().poll(cx));
            this.end = End::Closed;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
