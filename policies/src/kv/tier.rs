//! Which pages a bounded tier (RAM, disk) keeps: least recently used first out, by bytes.

use std::collections::BTreeMap;

use crate::kv::{Fingerprint, PageHash};

/// What names a page across models.
pub type TierKey = (Fingerprint, PageHash);

/// The index of a tier; the driver holds the bytes.
#[derive(Debug)]
pub struct Tier {
    capacity: u64,
    used: u64,
    clock: u64,
    entries: BTreeMap<TierKey, Entry>,
    by_use: BTreeMap<u64, TierKey>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used_at: u64,
}

/// Figures of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Pages held.
    pub pages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that it may hold.
    pub capacity: u64,
}

/// What became of a page that was put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is kept; these were dropped for it, oldest use first.
    Kept(Vec<TierKey>),
    /// It was there already; the content is the same by its hash.
    Known,
    /// It is larger than the whole tier.
    TooLarge,
}

impl Tier {
    /// An empty tier for `capacity` bytes.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, clock: 0, entries: BTreeMap::new(), by_use: BTreeMap::new() }
    }

    /// Makes room for a page of `bytes` and enters it. The caller holds the complete page: an entry is never visible
    /// before its content.
    pub fn put(&mut self, key: TierKey, bytes: u64) -> Put {
        if self.touch(&key) {
            return Put::Known;
        }
        if bytes > self.capacity {
            return Put::TooLarge;
        }
        let mut dropped = Vec::new();
        while self.used + bytes > self.capacity {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.used -= entry.bytes;
            }
            dropped.push(oldest);
        }
        self.clock += 1;
        self.entries.insert(key, Entry { bytes, used_at: self.clock });
        self.by_use.insert(self.clock, key);
        self.used += bytes;
        Put::Kept(dropped)
    }

    /// Marks a page as used now; false when it is not here.
    pub fn touch(&mut self, key: &TierKey) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        self.clock += 1;
        self.by_use.remove(&entry.used_at);
        entry.used_at = self.clock;
        self.by_use.insert(self.clock, *key);
        true
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        TierStats { pages: self.entries.len() as u64, bytes: self.used, capacity: self.capacity }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> TierKey {
        (Fingerprint([0; 32]), PageHash([n; 16]))
    }

    #[test]
    fn the_least_recently_used_page_leaves_first_and_the_cap_holds() {
        let mut tier = Tier::new(30);
        assert_eq!(tier.put(key(1), 10), Put::Kept(vec![]));
        assert_eq!(tier.put(key(2), 10), Put::Kept(vec![]));
        assert_eq!(tier.put(key(3), 10), Put::Kept(vec![]));
        assert!(tier.touch(&key(1)));
        assert_eq!(tier.put(key(4), 15), Put::Kept(vec![key(2), key(3)]));
        assert_eq!(tier.stats(), TierStats { pages: 2, bytes: 25, capacity: 30 });
        assert!(!tier.touch(&key(2)));
    }

    #[test]
    fn a_known_page_is_kept_once_and_one_larger_than_the_tier_is_not_taken() {
        let mut tier = Tier::new(30);
        assert_eq!(tier.put(key(1), 10), Put::Kept(vec![]));
        assert_eq!(tier.put(key(1), 10), Put::Known);
        assert_eq!(tier.put(key(2), 31), Put::TooLarge);
        assert_eq!(tier.stats().pages, 1);
    }
}
