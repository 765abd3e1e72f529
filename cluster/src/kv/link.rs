//! What carries KV messages: two halves, so that one task can send while another receives.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use super::error::KvError;
use super::header::{ArchivedKvHeader, CheckedHeader, KvHeader};
use super::page::PageBuf;
use super::proof::KvPeer;

/// What the halves of a link return.
pub type KvFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, KvError>> + Send + 'a>>;

/// A link to another worker.
pub trait KvLink: fmt::Debug + Send {
    /// Who is at the other end.
    fn peer(&self) -> &KvPeer;

    /// Ends the link from anywhere.
    fn closer(&self) -> Closer;

    /// The two halves. The link ends when either is dropped.
    fn split(self: Box<Self>) -> (Box<dyn KvSend>, Box<dyn KvRecv>);
}

/// The sending half of a link.
pub trait KvSend: fmt::Debug + Send {
    /// Sends `message`, in order after those before. Done when the carrier has all of it; until then nothing else is sent,
    /// so that a receiver which does not read holds the sender back.
    ///
    /// Dropped before it is done, it may have written half a message: then the link is closed.
    ///
    /// # Errors
    /// The message is over a limit, of another layout or malformed, and the link goes on ([`KvError::is_of_message`]); or
    /// the link has ended.
    fn send(&mut self, message: Outbound) -> KvFuture<'_, ()>;

    /// Ends the link from anywhere.
    fn closer(&self) -> Closer;
}

/// The receiving half of a link.
pub trait KvRecv: fmt::Debug + Send {
    /// The next message; none once the other end has closed the link and everything before was received. May be dropped
    /// before it is done and called again: nothing is lost.
    ///
    /// # Errors
    /// The link has ended, or ends because of what came: see [`KvError`].
    fn recv(&mut self) -> KvFuture<'_, Option<Inbound>>;
}

/// A message to send.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// What it says; the carrier sets the checksums of pages.
    pub header: KvHeader,
    /// The pages that go with [`KvHeader::Pages`] and [`KvHeader::Last`].
    pub pages: Vec<PageBuf>,
}

impl Outbound {
    /// Bytes of the pages.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.pages.iter().map(|page| page.len()).sum()
    }
}

impl From<KvHeader> for Outbound {
    fn from(header: KvHeader) -> Self {
        Self { header, pages: Vec::new() }
    }
}

/// A message that was received and checked: its limits, its layout and, where it was copied, every checksum.
#[derive(Clone, Debug)]
pub struct Inbound {
    header: CheckedHeader,
    pages: Vec<PageBuf>,
}

impl Inbound {
    pub(super) fn new(header: CheckedHeader, pages: Vec<PageBuf>) -> Self {
        Self { header, pages }
    }

    /// What it says, read where it lies. Checks the bytes once more ([`CheckedHeader::read`]): call it once.
    #[must_use]
    pub fn header(&self) -> &ArchivedKvHeader {
        self.header.read()
    }

    /// The pages that came with it.
    #[must_use]
    pub fn pages(&self) -> &[PageBuf] {
        &self.pages
    }

    /// Header and pages each for themselves.
    #[must_use]
    pub fn into_parts(self) -> (CheckedHeader, Vec<PageBuf>) {
        (self.header, self.pages)
    }

    /// Bytes of the pages.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.pages.iter().map(|page| page.len()).sum()
    }
}

/// Ends a link, and knows why it ended. Clones are of the same link.
#[derive(Clone, Debug)]
pub struct Closer(Arc<watch::Sender<Option<KvError>>>);

impl Closer {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    /// Makes both halves fail from now on, also one that waits for a peer. The first reason counts.
    pub fn close(&self, why: impl Into<String>) {
        self.end(KvError::Closed(why.into()));
    }

    /// Why the link ended; none while it goes on.
    #[must_use]
    pub fn ended(&self) -> Option<KvError> {
        self.0.borrow().clone()
    }

    /// Waits for the link's end.
    pub async fn wait(&self) -> KvError {
        let mut ended = self.0.subscribe();
        // The sender is in `self`, so that it cannot be gone.
        match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(KvError::Interrupted),
            Err(_) => KvError::Interrupted,
        }
    }

    pub(super) fn end(&self, why: KvError) {
        self.0.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(why);
            }
            first
        });
    }

    /// Does `work` unless the link has ended or ends meanwhile. An error of the work ends the link, unless it is `minor`.
    pub(super) async fn guard<T>(
        &self,
        minor: impl Fn(&KvError) -> bool,
        work: impl Future<Output = Result<T, KvError>>,
    ) -> Result<T, KvError> {
        let done = tokio::select! {
            biased;
            why = self.wait() => Err(why),
            done = work => done,
        };
        if let Err(why) = &done
            && !minor(why)
        {
            self.end(why.clone());
        }
        done
    }
}

/// Ends the link when one of its halves is dropped.
#[derive(Debug)]
pub(super) struct EndOnDrop(pub(super) Closer);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.close("one of its halves was dropped");
    }
}
