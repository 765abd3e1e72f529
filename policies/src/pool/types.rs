//! What a pool is asked, told and limited by.

use crate::kv::{Fingerprint, PageHash};
use crate::time::Span;

/// What names a page across models and tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey {
    /// Whose pages these are: model, layout, tenant.
    pub fingerprint: Fingerprint,
    /// The page among them.
    pub hash: PageHash,
}

/// A writer's stretch of pages, one life of the store; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PutId(pub u64);

/// A reader's run of pages, one life of the store; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderId(pub u64);

/// A write or a read of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// How much a pool keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Bytes of pages in RAM, those that wait for room left out.
    pub ram: u64,
    /// Bytes of pages that may wait for room in RAM until older ones are on disk. One page may exceed it.
    pub incoming: u64,
    /// A writer or reader that does nothing for so long, while nothing is done for it, is given up.
    pub lease: Span,
    /// The disk, where there is one.
    pub disk: Option<DiskLimits>,
}

/// How much is kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskLimits {
    /// Bytes of files, those being written included.
    pub capacity: u64,
    /// Bytes that a file has beside its page.
    pub overhead: u64,
    /// Bytes that are being written at a time. One page may exceed it.
    pub write_window: u64,
    /// Bytes in RAM beyond which pages are written to disk, before there is need to drop them. 0: each page at once.
    pub write_above: u64,
    /// Uses of a page, its first included, that make it worth writing; at least 1.
    pub min_uses: u32,
    /// Nothing is written for so long after the disk was full twice in a row, or failed.
    pub back_off: Span,
}

/// Pages that a writer wants to put, in prompt order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Whose pages these are.
    pub fingerprint: Fingerprint,
    /// The page before the first one; none where that starts a prompt.
    pub parent: Option<PageHash>,
    /// The pages, each following the one before it.
    pub pages: Vec<PageHash>,
    /// Bytes of each.
    pub page_bytes: u64,
}

/// A put that may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Its name from now on.
    pub put: PutId,
    /// Index of the first page of the run that is wanted; those before are here.
    pub first: usize,
}

/// Why a put is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutRefusal {
    /// Nothing is missing.
    #[error("all of these pages are here")]
    Known,
    /// Another writer has begun with the first page that is missing.
    #[error("another writer is storing these pages")]
    UnderWay,
    /// It could never be kept.
    #[error("{bytes} bytes exceed the {limit} bytes that this pool keeps")]
    TooLarge {
        /// Bytes of the page, or of the run.
        bytes: u64,
        /// What is kept in RAM, or in all.
        limit: u64,
    },
    /// The page that the first one follows is not here (any more).
    #[error("the page before the first one is not here")]
    NoParent,
    /// A page of this name is here and follows another page.
    #[error("a page of this name is here and follows another page")]
    Mismatch,
    /// A page has to have a content.
    #[error("a page of no bytes cannot be stored")]
    NoBytes,
    /// The pool is being stopped.
    #[error("this pool is being stopped")]
    Closing,
}

/// How a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PutEnd {
    /// All that came is kept.
    Complete,
    /// Its writer gave it up.
    Aborted,
    /// Its writer's node is gone.
    OwnerLost,
    /// Its writer did nothing for too long.
    Idle,
    /// RAM is full of what cannot leave.
    NoRoom,
    /// A page came out of its turn, or has another length or name than it should.
    OutOfOrder,
    /// The page before the next one was lost.
    ParentLost,
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Pages from the first one on that are here, each after the other.
    pub pages: usize,
    /// Who reads those from the wanted one on; none where there is none of them.
    pub reader: Option<ReaderId>,
}

/// What went wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskError {
    /// The disk is full.
    NoSpace,
    /// It is not there, or damaged and therefore deleted.
    Missing,
    /// This process may not touch it.
    Permission,
    /// Anything else.
    Other,
}

/// What the disk was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskJob {
    /// Write a page.
    Write,
    /// Read a page.
    Read,
    /// Delete a page.
    Delete,
}

/// A page that was on disk when the pool started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub key: PageKey,
    /// The page before it.
    pub parent: Option<PageHash>,
    /// Bytes of its content.
    pub bytes: u64,
    /// When it was used or written last, in any unit that grows.
    pub used: u64,
}

/// What the driver has to do, in the order given. Writes and deletes of the disk are carried out, and writes reported, in that
/// order too; reads may overtake them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolEffect {
    /// Keep the page that came in RAM; the writer may send another one for it.
    Store {
        /// Whose.
        put: PutId,
        /// Its index in the run.
        index: usize,
        /// Its name.
        key: PageKey,
    },
    /// Drop the page that came: nobody needs it.
    Discard {
        /// Whose.
        put: PutId,
        /// Its index in the run.
        index: usize,
    },
    /// The put is over; drop what came for it and was not stored.
    EndPut {
        /// Which.
        put: PutId,
        /// Pages of its run, from the first, that were here when it ended.
        pages: usize,
        /// How.
        why: PutEnd,
    },
    /// Drop the page from RAM.
    DropRam {
        /// Its name.
        key: PageKey,
    },
    /// Write the page, which is in RAM, to disk. Report with [`super::Store::wrote`].
    WriteDisk {
        /// Named in the report.
        op: OpId,
        /// Its name.
        key: PageKey,
        /// The page before it.
        parent: Option<PageHash>,
        /// Bytes of its content.
        bytes: u64,
    },
    /// Read the page from disk. Report with [`super::Store::read`], the content at hand: it may have to be kept, and given.
    ReadDisk {
        /// Named in the report.
        op: OpId,
        /// Its name.
        key: PageKey,
        /// Bytes of its content.
        bytes: u64,
    },
    /// Delete the page's file. Report with [`super::Store::deleted`].
    DeleteDisk {
        /// Its name.
        key: PageKey,
        /// Bytes of its content.
        bytes: u64,
    },
    /// Keep what was just read in RAM.
    Keep {
        /// Its name.
        key: PageKey,
    },
    /// Give the page to a reader: from RAM, or what was just read. In order of index.
    Give {
        /// To whom.
        reader: ReaderId,
        /// Its index in the run that was looked up.
        index: usize,
        /// Its name.
        key: PageKey,
    },
    /// A page of the reader's run was lost: the run has only so many pages now.
    CutRead {
        /// Whose.
        reader: ReaderId,
        /// Pages from the first of the run.
        pages: usize,
    },
    /// The reader was given up: it did nothing for too long, or its node is gone. It gets nothing more.
    EndRead {
        /// Which.
        reader: ReaderId,
    },
    /// Tell whoever runs this pool. Once a kind, until writes succeed again.
    Report {
        /// What failed.
        job: DiskJob,
        /// How.
        error: DiskError,
    },
}

/// Figures of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Pages held.
    pub pages: u64,
    /// Their bytes; on disk those of whole files, and of those being written.
    pub bytes: u64,
    /// Bytes that it may hold.
    pub capacity: u64,
}

/// Figures of a pool. Counters count from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages that can be found.
    pub pages: u64,
    /// RAM.
    pub ram: TierStats,
    /// Disk; all zero where there is none.
    pub disk: TierStats,
    /// Bytes of files that could not be deleted, in the way of others.
    pub stuck_bytes: u64,
    /// Bytes that came and wait for room.
    pub waiting_bytes: u64,
    /// Bytes being written to disk.
    pub writing_bytes: u64,
    /// Puts under way.
    pub puts: u64,
    /// Readers.
    pub readers: u64,
    /// Nothing is written to disk at present: it was full, or failed.
    pub paused: bool,
    /// Counters.
    pub counts: Counts,
}

/// What a pool has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages that readers asked for.
    pub looked_up: u64,
    /// Of those, found.
    pub found: u64,
    /// Pages given from RAM.
    pub given_ram: u64,
    /// Pages given that were read from disk.
    pub given_disk: u64,
    /// Pages stored.
    pub stored: u64,
    /// Pages written to disk.
    pub written: u64,
    /// Copies dropped from RAM for want of room.
    pub evicted_ram: u64,
    /// Files deleted for want of room.
    pub evicted_disk: u64,
    /// Pages dropped altogether for want of room.
    pub dropped: u64,
    /// Pages that are gone because a file was, or could not be read.
    pub lost: u64,
    /// Writes that failed because the disk was full.
    pub no_space: u64,
    /// Files that this process may not touch.
    pub permission: u64,
    /// Files that were gone, or damaged.
    pub missing: u64,
    /// Other failures of the disk.
    pub other: u64,
    /// Times that writing was given up for a while.
    pub pauses: u64,
    /// Reports and requests that were about nothing (any more).
    pub ignored: u64,
}
