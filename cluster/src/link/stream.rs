//! A connection as ractor gets it: two halves that can be cut from outside.
//!
//! Stopping ractor's session leaves the socket open as long as its writer waits for a peer that reads nothing. A cut makes
//! both halves fail at once, whatever the peer does.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use policies::membership::LinkId;
use ractor_cluster::{BoxRead, BoxWrite, ClusterBidiStream};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// Bytes that are read from a link at once: some hundred messages of a busy one.
const READ_BYTES: usize = 64 * 1024;

/// A secured or plain connection.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Io for T {}

/// A connection, before anything was said on it.
pub(crate) enum Stream {
    Plain(TcpStream),
    Secured(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Either kind.
    pub(super) fn boxed(self) -> Box<dyn Io> {
        match self {
            Self::Plain(tcp) => Box::new(tcp),
            Self::Secured(tls) => tls,
        }
    }
}

/// Cuts a connection, and knows how it ended.
#[derive(Debug, Default)]
pub(super) struct Switch(Mutex<SwitchState>);

#[derive(Debug, Default)]
struct SwitchState {
    cut: bool,
    why: Option<String>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Switch {
    /// Makes both halves fail from now on.
    pub(super) fn cut(&self) {
        let wakers = {
            let mut state = self.lock();
            state.cut = true;
            [state.reader.take(), state.writer.take()]
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// How the connection ended, as far as its reader has noticed.
    pub(super) fn why(&self) -> Option<String> {
        self.lock().why.clone()
    }

    fn note(&self, why: impl FnOnce() -> String) {
        self.lock().why.get_or_insert_with(why);
    }

    fn lock(&self) -> MutexGuard<'_, SwitchState> {
        // Nothing panics while it is held, and the state would be whole if something did.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cut_error() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the link was closed by this node")
}

/// What ractor gets: the stream and the number that its events bring back.
pub(super) struct Numbered {
    pub(super) link: LinkId,
    pub(super) stream: Box<dyn Io>,
    pub(super) switch: Arc<Switch>,
}

impl ClusterBidiStream for Numbered {
    fn split(self: Box<Self>) -> (BoxRead, BoxWrite) {
        let (inner, outer) = tokio::io::split(self.stream);
        (
            // ractor reads a frame's length and its body each for itself.
            Box::new(Half {
                inner: BufReader::with_capacity(READ_BYTES, inner),
                switch: self.switch.clone(),
            }),
            Box::new(Half { inner: outer, switch: self.switch }),
        )
    }

    fn peer_label(&self) -> Option<String> {
        Some(label(self.link))
    }
}

/// A link's name in ractor.
fn label(link: LinkId) -> String {
    format!("link-{}", link.0)
}

/// The link that ractor calls by `label`.
pub(super) fn link_of_label(label: &str) -> Option<LinkId> {
    label.strip_prefix("link-")?.parse().ok().map(LinkId)
}

struct Half<T> {
    inner: T,
    switch: Arc<Switch>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Half<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        {
            let mut state = self.switch.lock();
            if state.cut {
                return Poll::Ready(Err(cut_error()));
            }
            state.reader = Some(cx.waker().clone());
        }
        let before = buf.filled().len();
        let done = Pin::new(&mut self.inner).poll_read(cx, buf);
        match &done {
            Poll::Ready(Ok(())) if buf.filled().len() == before && buf.remaining() > 0 => {
                self.switch.note(|| "the other end closed the connection".to_owned());
            }
            Poll::Ready(Err(e)) => self.switch.note(|| format!("the connection broke: {e}")),
            _ => {}
        }
        done
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Half<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(cut) = self.watch_writer(cx) {
            return Poll::Ready(Err(cut));
        }
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(cut) = self.watch_writer(cx) {
            return Poll::Ready(Err(cut));
        }
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(cut) = self.watch_writer(cx) {
            return Poll::Ready(Err(cut));
        }
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<T> Half<T> {
    fn watch_writer(&self, cx: &Context<'_>) -> Option<io::Error> {
        let mut state = self.switch.lock();
        if state.cut {
            return Some(cut_error());
        }
        state.writer = Some(cx.waker().clone());
        None
    }
}
