//! Cached pages by hash.
//!
//! Open addressing with linear probing and removal without tombstones. An entry is 32 bits of a page's hash, scaled to the
//! number of entries its home, and the page, whose whole hash the table has: a look-up is one read here and one of the
//! page, and a worker's index stays in its cache.

use config::ids::PageId;

use crate::kv::PageHash;

/// No page: the entry is free.
const FREE: u32 = 0;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    tag: u32,
    /// The page's number and one.
    page: u32,
}

/// At most so many pages as it was made for.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// Half of them are free at least.
    entries: Vec<Entry>,
    len: usize,
}

impl Index {
    /// Room for `pages` pages.
    pub(super) fn new(pages: u32) -> Self {
        Self { entries: vec![Entry::default(); pages as usize * 2 + 1], len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The page with a hash; `is` says whether a page has it.
    #[inline]
    pub(super) fn find(&self, hash: &PageHash, is: impl Fn(PageId) -> bool) -> Option<PageId> {
        let tag = tag(hash);
        let mut at = self.home(tag);
        loop {
            let entry = self.entries[at];
            let page = PageId(entry.page.checked_sub(FREE + 1)?);
            if entry.tag == tag && is(page) {
                return Some(page);
            }
            at = self.after(at);
        }
    }

    /// Something of where a search for a hash begins.
    pub(super) fn peek(&self, hash: &PageHash) -> u32 {
        self.entries[self.home(tag(hash))].page
    }

    /// Adds a page whose hash is not there.
    pub(super) fn insert(&mut self, hash: &PageHash, page: PageId) {
        let tag = tag(hash);
        let mut at = self.home(tag);
        while self.entries[at].page != FREE {
            at = self.after(at);
        }
        self.entries[at] = Entry { tag, page: page.0 + 1 };
        self.len += 1;
    }

    /// Removes a page.
    pub(super) fn remove(&mut self, hash: &PageHash, page: PageId) {
        let mut at = self.home(tag(hash));
        while self.entries[at].page != page.0 + 1 {
            if self.entries[at].page == FREE {
                return;
            }
            at = self.after(at);
        }
        self.len -= 1;
        // Entries move back over the free one that they were pushed beyond: a gap would end a search too early.
        let entries = self.entries.len();
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + entries - from };
        let mut gap = at;
        loop {
            at = self.after(at);
            let entry = self.entries[at];
            if entry.page == FREE {
                break;
            }
            if distance(self.home(entry.tag), at) >= distance(gap, at) {
                self.entries[gap] = entry;
                gap = at;
            }
        }
        self.entries[gap] = Entry::default();
    }

    const fn home(&self, tag: u32) -> usize {
        ((tag as u64 * self.entries.len() as u64) >> 32) as usize
    }

    const fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }
}

/// A part of a hash, which is random already.
fn tag(hash: &PageHash) -> u32 {
    hash.0.first_chunk().map_or(0, |first| u32::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rng::Rng;

    /// Against a map, with hashes of which many begin alike.
    #[test]
    fn what_is_put_in_is_found_until_it_is_taken_out() {
        for (seed, spread) in (0..40).zip([3, 40, u64::MAX].into_iter().cycle()) {
            let mut rng = Rng::new(seed);
            let pages = 1 + rng.below(60) as u32;
            let mut index = Index::new(pages);
            let mut hashes: Vec<Option<PageHash>> = vec![None; pages as usize];
            let mut model: BTreeMap<PageHash, PageId> = BTreeMap::new();
            for step in 0..3000_u64 {
                let page = PageId(rng.below(pages.into()) as u32);
                match hashes[page.index()].take() {
                    Some(hash) => {
                        index.remove(&hash, page);
                        model.remove(&hash);
                    }
                    None => {
                        let mut hash = PageHash([0; 16]);
                        hash.0[..8].copy_from_slice(&(rng.below(spread) << 30).to_le_bytes());
                        hash.0[8..].copy_from_slice(&step.to_le_bytes());
                        assert_eq!(index.find(&hash, |p| hashes[p.index()] == Some(hash)), None);
                        index.insert(&hash, page);
                        hashes[page.index()] = Some(hash);
                        model.insert(hash, page);
                    }
                }
                assert_eq!(index.len(), model.len());
                for (hash, page) in &model {
                    let found = index.find(hash, |p| hashes[p.index()] == Some(*hash));
                    assert_eq!(found, Some(*page), "seed {seed}, step {step}");
                }
            }
        }
    }
}
