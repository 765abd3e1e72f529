//! A link over a connection, plain or secured.

use std::io::{self, IoSlice};
use std::time::Duration;

use policies::kv::PageLayout;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use super::error::KvError;
use super::frame::{MAX_BODY_BYTES, Prefix};
use super::header::CheckedHeader;
use super::link::{Closer, EndOnDrop, Inbound, KvFuture, KvLink, KvRecv, KvSend, Outbound};
use super::page::PageBuf;
use super::proof::KvPeer;
use super::shape::Settings;
use crate::link::Stream;

mod read;

use read::Reading;

/// Bytes that are hashed before other tasks of the thread get their turn: some 0.3 ms. The messages of a prefill chunk are
/// shorter; handing such a piece to another thread would take longer than what it saves there.
const HASHED_AT_ONCE: usize = 4 * 1024 * 1024;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A link over a connection.
pub struct TcpLink {
    peer: KvPeer,
    settings: Settings,
    reader: Reader,
    writer: Writer,
    closer: Closer,
}

impl TcpLink {
    /// The link over a connection whose ends have proven themselves.
    pub(super) fn over(stream: Stream, peer: KvPeer, settings: Settings) -> Self {
        match stream {
            Stream::Plain(tcp) => {
                let (reader, writer) = TcpStream::into_split(tcp);
                Self::of(Box::new(reader), Box::new(writer), peer, settings)
            }
            Stream::Secured(tls) => {
                let (reader, writer) = tokio::io::split(*tls);
                Self::of(Box::new(reader), Box::new(writer), peer, settings)
            }
        }
    }

    /// The link over what can be read and written.
    pub(super) fn of(reader: Reader, writer: Writer, peer: KvPeer, settings: Settings) -> Self {
        Self { peer, settings, reader, writer, closer: Closer::new() }
    }
}

impl std::fmt::Debug for TcpLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpLink").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl KvLink for TcpLink {
    fn peer(&self) -> &KvPeer {
        &self.peer
    }

    fn closer(&self) -> Closer {
        self.closer.clone()
    }

    fn split(self: Box<Self>) -> (Box<dyn KvSend>, Box<dyn KvRecv>) {
        let Self { settings, reader, writer, closer, .. } = *self;
        (
            Box::new(TcpSend {
                settings: settings.clone(),
                writer,
                halfway: false,
                end: EndOnDrop(closer.clone()),
            }),
            Box::new(TcpRecv { settings, reader, reading: Reading::new(), end: EndOnDrop(closer) }),
        )
    }
}

struct TcpSend {
    settings: Settings,
    writer: Writer,
    /// Part of a message has been written.
    halfway: bool,
    end: EndOnDrop,
}

impl std::fmt::Debug for TcpSend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpSend").field("halfway", &self.halfway).finish_non_exhaustive()
    }
}

impl KvSend for TcpSend {
    fn send(&mut self, message: Outbound) -> KvFuture<'_, ()> {
        Box::pin(async move {
            let closer = self.end.0.clone();
            closer.guard(KvError::is_of_message, self.write(message)).await
        })
    }

    fn closer(&self) -> Closer {
        self.end.0.clone()
    }
}

impl TcpSend {
    async fn write(&mut self, message: Outbound) -> Result<(), KvError> {
        if self.halfway {
            return Err(KvError::Interrupted);
        }
        let (layout, stall) = (self.settings.layout(), self.settings.stall);
        let Outbound { mut header, pages } = message;
        check_bodies(&pages, layout)?;
        header.set_checksums(checksums(&pages).await);
        let header = CheckedHeader::encode(header)?;
        header.check_pages(pages.len(), true, layout)?;
        let prefix = Prefix::encode(header.kind(), header.as_bytes(), pages.len(), layout);

        let mut slices = Vec::with_capacity(2 + pages.len());
        slices.extend([IoSlice::new(&prefix), IoSlice::new(header.as_bytes())]);
        slices.extend(pages.iter().map(|page| IoSlice::new(page)));
        self.halfway = true;
        write_all(&mut self.writer, &mut slices, stall).await?;
        self.halfway = false;
        Ok(())
    }
}

/// What can be said about the pages of a message to send before it is encoded.
pub(super) fn check_bodies(pages: &[PageBuf], layout: Option<&PageLayout>) -> Result<(), KvError> {
    if pages.is_empty() {
        return Ok(());
    }
    let layout = layout.ok_or_else(KvError::unasked)?;
    match pages.iter().find(|page| page.len() != layout.page_bytes()) {
        Some(page) => Err(KvError::Layout {
            field: "page_bytes",
            ours: layout.page_bytes() as u64,
            theirs: page.len() as u64,
        }),
        None => KvError::limit("body", pages.len().saturating_mul(layout.page_bytes()), MAX_BODY_BYTES),
    }
}

async fn checksums(pages: &[PageBuf]) -> Vec<u64> {
    let mut sums = Vec::with_capacity(pages.len());
    let mut hashed = 0;
    for page in pages {
        if hashed >= HASHED_AT_ONCE {
            tokio::task::yield_now().await;
            hashed = 0;
        }
        sums.push(xxh3_64(page));
        hashed += page.len();
    }
    sums
}

/// Writes all of `slices`, however little the connection takes at a time.
async fn write_all(
    writer: &mut Writer,
    mut slices: &mut [IoSlice<'_>],
    stall: Duration,
) -> Result<(), KvError> {
    let stalled = |_| KvError::Stalled { what: "took", after: stall };
    while !slices.is_empty() {
        let written = timeout(stall, writer.write_vectored(slices)).await.map_err(stalled)??;
        if written == 0 {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(timeout(stall, writer.flush()).await.map_err(stalled)??)
}

struct TcpRecv {
    settings: Settings,
    reader: Reader,
    reading: Reading,
    end: EndOnDrop,
}

impl std::fmt::Debug for TcpRecv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpRecv").finish_non_exhaustive()
    }
}

impl KvRecv for TcpRecv {
    fn recv(&mut self) -> KvFuture<'_, Option<Inbound>> {
        Box::pin(async move {
            let Self { settings, reader, reading, end: EndOnDrop(closer) } = self;
            let message = closer.guard(|_| false, reading.next(reader, settings)).await?;
            if message.is_none() {
                closer.close("the other end closed the connection");
            }
            Ok(message)
        })
    }
}
