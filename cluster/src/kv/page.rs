//! Buffers of pages.
//!
//! A buffer is taken from a pool, filled by one owner ([`PageFill`]), and from then on only read, by as many as hold a
//! [`PageBuf`]. When the last one lets go it returns to its pool. Pools bound how many are out, so that no peer can make a
//! node hold more than that, and how many they keep.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rkyv::util::AlignedVec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::frame::MAX_PAGES;

/// Bytes that a page's first byte is aligned to: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

type Bytes = AlignedVec<ALIGNMENT>;

/// Buffers of one size. Clones are the same pool.
#[derive(Clone)]
pub struct PagePool(Arc<Shared>);

struct Shared {
    page_bytes: usize,
    limit: usize,
    keep: usize,
    room: Arc<Semaphore>,
    idle: Mutex<Vec<Bytes>>,
}

impl Shared {
    fn idle(&self) -> MutexGuard<'_, Vec<Bytes>> {
        // Nothing panics while it is held, and a list of buffers is whole if something did.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PagePool {
    /// A pool of buffers of `page_bytes` bytes. At most `limit` are out at a time (no fewer than [`MAX_PAGES`], which is
    /// what one message may need), and at most `keep` are kept for the next.
    #[must_use]
    pub fn new(page_bytes: usize, limit: usize, keep: usize) -> Self {
        let limit = limit.clamp(MAX_PAGES, Semaphore::MAX_PERMITS);
        Self(Arc::new(Shared {
            page_bytes,
            limit,
            keep,
            room: Arc::new(Semaphore::new(limit)),
            idle: Mutex::default(),
        }))
    }

    /// Bytes of each buffer.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.0.page_bytes
    }

    /// Buffers that are out, or promised to a message that is being read.
    #[must_use]
    pub fn out(&self) -> usize {
        self.0.limit - self.0.room.available_permits()
    }

    /// Whether another has this pool, or a buffer of it.
    pub(super) fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Buffers that are kept for the next.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.0.idle().len()
    }

    /// A buffer to fill, unless as many are out as may be.
    #[must_use]
    pub fn try_take(&self) -> Option<PageFill> {
        let permit = self.0.room.clone().try_acquire_owned().ok()?;
        Some(self.fill(permit))
    }

    /// Room for `pages` buffers (at most [`MAX_PAGES`]), all at once: whoever has some of those that a message needs never
    /// waits for the rest, so that no two messages wait for each other.
    pub(super) async fn reserve(&self, pages: usize) -> Reservation {
        let pages = u32::try_from(pages.min(MAX_PAGES)).unwrap_or(u32::MAX);
        let permits = self.0.room.clone().acquire_many_owned(pages).await;
        Reservation { pool: self.clone(), permits: permits.expect("the semaphore is never closed") }
    }

    fn fill(&self, permit: OwnedSemaphorePermit) -> PageFill {
        let kept = self.0.idle().pop();
        let bytes = kept.unwrap_or_else(|| {
            let mut bytes = Bytes::with_capacity(self.0.page_bytes);
            bytes.resize(self.0.page_bytes, 0);
            bytes
        });
        PageFill(Slot { bytes, home: self.0.clone(), _permit: permit })
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagePool")
            .field("page_bytes", &self.0.page_bytes)
            .field("limit", &self.0.limit)
            .field("out", &self.out())
            .field("idle", &self.idle())
            .finish()
    }
}

/// Room for the pages of one message.
#[derive(Debug)]
pub(super) struct Reservation {
    pool: PagePool,
    permits: OwnedSemaphorePermit,
}

impl Reservation {
    /// One of the buffers; none once all are taken.
    pub(super) fn take(&mut self) -> Option<PageFill> {
        let permit = self.permits.split(1)?;
        Some(self.pool.fill(permit))
    }
}

struct Slot {
    bytes: Bytes,
    home: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let bytes = mem::take(&mut self.bytes);
        let mut idle = self.home.idle();
        if idle.len() < self.home.keep {
            idle.push(bytes);
        }
    }
}

/// A buffer that is being filled. It holds what its last user left there until it is: freeze it only when every byte has
/// been written.
pub struct PageFill(Slot);

impl PageFill {
    /// The page: from now on it can only be read.
    #[must_use]
    pub fn freeze(self) -> PageBuf {
        PageBuf(Arc::new(self.0))
    }
}

impl Deref for PageFill {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl DerefMut for PageFill {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0.bytes
    }
}

impl fmt::Debug for PageFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageFill({} bytes)", self.len())
    }
}

/// The bytes of one page. Clones are the same bytes.
#[derive(Clone)]
pub struct PageBuf(Arc<Slot>);

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageBuf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests;
