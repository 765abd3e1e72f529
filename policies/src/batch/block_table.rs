//! The pages of a sequence, in order.

use std::ops::Deref;

use config::ids::PageId;

/// A block table that tells whether it has changed other than at its end, so that a copy of it only needs what was added.
#[derive(Debug, Default)]
pub(super) struct BlockTable {
    pages: Vec<PageId>,
    /// Changes that were not additions.
    changes: u32,
}

impl BlockTable {
    pub(super) const fn of(pages: Vec<PageId>) -> Self {
        Self { pages, changes: 0 }
    }

    /// A copy that was made at the same count is the beginning of what is here now.
    pub(super) const fn changes(&self) -> u32 {
        self.changes
    }

    pub(super) fn push(&mut self, page: PageId) {
        self.pages.push(page);
    }

    pub(super) fn extend_from_slice(&mut self, pages: &[PageId]) {
        self.pages.extend_from_slice(pages);
    }

    pub(super) fn replace(&mut self, at: usize, page: PageId) {
        self.changes += 1;
        self.pages[at] = page;
    }

    /// Other pages from now on.
    pub(super) fn set(&mut self, pages: Vec<PageId>) {
        self.changes += 1;
        self.pages = pages;
    }

    /// None from now on.
    pub(super) fn take(&mut self) -> Vec<PageId> {
        self.changes += 1;
        std::mem::take(&mut self.pages)
    }
}

impl Deref for BlockTable {
    type Target = [PageId];

    fn deref(&self) -> &[PageId] {
        &self.pages
    }
}
