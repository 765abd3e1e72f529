//! What a disk is told to do, and what it is made of.

use policies::kv::PageHash;
use policies::pool::{DiskError, OpId, PageKey};
use policies::time::Span;

use crate::node::pool::Page;

/// How fast a disk is.
#[derive(Clone, Copy, Debug)]
pub struct DiskSpeed {
    /// Bytes that it reads a second.
    pub read: u64,
    /// Bytes that it writes a second.
    pub write: u64,
    /// What everything takes besides.
    pub latency: Span,
}

#[derive(Debug)]
pub(super) struct File {
    pub(super) parent: Option<PageHash>,
    pub(super) bytes: u64,
    pub(super) used: u64,
    pub(super) page: Page,
}

/// What a disk is to do.
#[derive(Debug)]
pub(in crate::node::pool) enum Order {
    Write { op: OpId, key: PageKey, parent: Option<PageHash>, bytes: u64, page: Page },
    Read { op: OpId, key: PageKey, bytes: u64 },
    Delete { key: PageKey, bytes: u64 },
}

/// What came of it.
#[derive(Debug)]
pub(in crate::node::pool) enum Done {
    Wrote(OpId, Result<(), DiskError>),
    Read(OpId, PageKey, Result<Page, DiskError>),
    Deleted(PageKey, u64, Result<(), DiskError>),
}
