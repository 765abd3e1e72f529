//! A map from page to holders: open addressing with linear probing, removal without tombstones.
//!
//! A page's hash is random already, so that 64 bits of it, scaled to the number of entries, are its home. Growing and
//! shrinking keep between a quarter and three quarters of the entries in use.

use crate::kv::PageHash;

/// Entries that a map with any page has at least.
const FEWEST: usize = 8;

/// A page and a bit for each holder; no holders: the entry is free.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    hash: [u64; 2],
    holders: u64,
}

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>();

/// The map. All operations but [`Part::sweep`] take constant time, amortised.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    entries: Vec<Entry>,
    len: usize,
}

/// The two halves of a hash: the first says where in a part a page is, the second in which part.
pub(super) const fn halves(page: &PageHash) -> [u64; 2] {
    let both = u128::from_le_bytes(page.0);
    [both as u64, (both >> 64) as u64]
}

/// Where among `entries` the search for a hash starts.
const fn home(hash: [u64; 2], entries: usize) -> usize {
    ((hash[0] as u128 * entries as u128) >> 64) as usize
}

impl Part {
    /// Pages with a holder.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Entries, free ones included.
    pub(super) const fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// The holders of a page.
    #[inline]
    pub(super) fn get(&self, hash: [u64; 2]) -> u64 {
        if self.entries.is_empty() {
            return 0;
        }
        self.entries[self.seek(hash)].holders
    }

    /// The entry of `hash`, or the free one where it belongs. There have to be entries; at least one is free.
    #[inline]
    fn seek(&self, hash: [u64; 2]) -> usize {
        let mut at = home(hash, self.entries.len());
        loop {
            let entry = &self.entries[at];
            if entry.holders == 0 || entry.hash == hash {
                return at;
            }
            at = self.after(at);
        }
    }

    const fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    /// Adds a holder; false where it was one.
    pub(super) fn add(&mut self, hash: [u64; 2], holder: u64) -> bool {
        if (self.len + 1) * 4 > self.entries.len() * 3 {
            self.resize(self.len + 1);
        }
        let at = self.seek(hash);
        let entry = &mut self.entries[at];
        let new = entry.holders & holder == 0;
        self.len += usize::from(entry.holders == 0);
        *entry = Entry { hash, holders: entry.holders | holder };
        new
    }

    /// Removes a holder; false where it was none.
    pub(super) fn remove(&mut self, hash: [u64; 2], holder: u64) -> bool {
        if self.get(hash) & holder == 0 {
            return false;
        }
        let at = self.seek(hash);
        self.entries[at].holders &= !holder;
        if self.entries[at].holders == 0 {
            self.len -= 1;
            self.close(at);
            self.shrink();
        }
        true
    }

    /// Removes these holders from all pages. Takes time in proportion to the entries.
    pub(super) fn sweep(&mut self, holders: u64) {
        let mut left = 0;
        for entry in &mut self.entries {
            entry.holders &= !holders;
            left += usize::from(entry.holders != 0);
        }
        if left != self.len {
            self.len = left;
            // Gaps would end a search too early: what is left is put in again.
            self.resize(left);
        }
    }

    /// Pages and their holders, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = ([u64; 2], u64)> + '_ {
        self.entries.iter().filter(|e| e.holders != 0).map(|e| (e.hash, e.holders))
    }

    /// Moves entries back over a free one that they were pushed beyond.
    fn close(&mut self, mut gap: usize) {
        let entries = self.entries.len();
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + entries - from };
        let mut at = gap;
        loop {
            at = self.after(at);
            let entry = self.entries[at];
            if entry.holders == 0 {
                break;
            }
            if distance(home(entry.hash, entries), at) >= distance(gap, at) {
                self.entries[gap] = entry;
                gap = at;
            }
        }
        self.entries[gap] = Entry::default();
    }

    fn shrink(&mut self) {
        if self.len * 4 < self.entries.len() && self.entries.len() > FEWEST {
            self.resize(self.len);
        }
    }

    /// Puts all pages into as many entries as suit `len` of them: half are free.
    fn resize(&mut self, len: usize) {
        let entries = if len == 0 { 0 } else { (len * 2).max(FEWEST) };
        let old = std::mem::replace(&mut self.entries, vec![Entry::default(); entries]);
        for entry in old.into_iter().filter(|e| e.holders != 0) {
            let at = self.seek(entry.hash);
            self.entries[at] = entry;
        }
    }
}
