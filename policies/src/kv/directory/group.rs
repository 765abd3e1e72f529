//! Sixty-four sets of pages that share one map: a set is a bit in the holders of a page.

use super::part::{ENTRY_BYTES, Part, halves};
use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::kv::PageHash;

/// Sets of a group.
pub(super) const SLOTS: u32 = u64::BITS;

/// A group's map is cut into parts, so that none of them takes long to grow or to be swept.
const PARTS: usize = 256;

/// Look-ups that do not wait for each other: the memory that they read comes meanwhile.
const AHEAD: usize = 16;

/// The sets.
#[derive(Clone, Debug)]
pub(super) struct Group {
    parts: Vec<Part>,
    /// Pages of each set.
    counts: [u64; SLOTS as usize],
    /// Sets that can be taken; nothing of them is left in the map.
    free: u64,
    /// Sets that were dropped and are still in the map; the sweep under way takes no notice of them.
    dropped: u64,
    /// Sets that are swept out of the map.
    sweeping: u64,
    /// The part that is swept next.
    next: usize,
}

impl Group {
    pub(super) fn new() -> Self {
        Self {
            parts: vec![Part::default(); PARTS],
            counts: [0; SLOTS as usize],
            free: u64::MAX,
            dropped: 0,
            sweeping: 0,
            next: 0,
        }
    }

    /// Takes an empty set, if there is one.
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let slot = self.free.trailing_zeros();
        self.free &= !bit(slot);
        Some(slot)
    }

    /// Gives a set back. Its pages are swept out of the map later, a part at a time; with the last set all go at once.
    pub(super) fn give_back(&mut self, slot: u32) {
        if self.counts[slot as usize] == 0 {
            self.free |= bit(slot);
        } else {
            self.dropped |= bit(slot);
        }
        self.counts[slot as usize] = 0;
        if self.free | self.dropped | self.sweeping == u64::MAX {
            *self = Self::new();
        }
    }

    /// No set is taken.
    pub(super) const fn is_unused(&self) -> bool {
        self.free == u64::MAX
    }

    /// Sets that were given back are still in the map.
    pub(super) const fn is_untidy(&self) -> bool {
        self.dropped | self.sweeping != 0
    }

    /// Sweeps sets that were given back out of at most `parts` parts of the map.
    pub(super) fn tidy(&mut self, parts: usize) {
        for _ in 0..parts {
            if self.sweeping == 0 {
                (self.sweeping, self.dropped, self.next) = (self.dropped, 0, 0);
            }
            if self.sweeping == 0 {
                return;
            }
            self.parts[self.next].sweep(self.sweeping);
            self.next += 1;
            if self.next == PARTS {
                self.free |= self.sweeping;
                self.sweeping = 0;
            }
        }
    }

    /// Sweeps all of them out now.
    pub(super) fn tidy_all(&mut self) {
        while self.is_untidy() {
            self.tidy(PARTS);
        }
    }

    pub(super) fn add(&mut self, page: &PageHash, slot: u32) {
        let hash = halves(page);
        let new = self.parts[part(hash)].add(hash, bit(slot));
        self.counts[slot as usize] += u64::from(new);
    }

    pub(super) fn remove(&mut self, page: &PageHash, slot: u32) {
        let hash = halves(page);
        let there = self.parts[part(hash)].remove(hash, bit(slot));
        self.counts[slot as usize] -= u64::from(there);
    }

    /// A bit for each set that has the page; sets that were given back may be among them.
    pub(super) fn get(&self, page: &PageHash) -> u64 {
        let hash = halves(page);
        self.parts[part(hash)].get(hash)
    }

    /// For each of the `asked` sets, how many of the first `pages` it has without a gap.
    pub(super) fn runs(&self, pages: &[PageHash], asked: u64) -> [u32; SLOTS as usize] {
        let mut runs = [0; SLOTS as usize];
        let (mut alive, mut length) = (asked, 0);
        for chunk in pages.chunks(AHEAD) {
            let mut holders = [0; AHEAD];
            for (holders, page) in holders.iter_mut().zip(chunk) {
                *holders = self.get(page);
            }
            for holders in &holders[..chunk.len()] {
                end(&mut runs, alive & !holders, length);
                alive &= holders;
                length += 1;
            }
            if alive == 0 {
                return runs;
            }
        }
        end(&mut runs, alive, length);
        runs
    }

    /// Pages of a set.
    pub(super) const fn count(&self, slot: u32) -> u64 {
        self.counts[slot as usize]
    }

    /// Pages in the map, those of sets that were given back included.
    pub(super) fn pages(&self) -> usize {
        self.parts.iter().map(Part::len).sum()
    }

    /// Memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let entries: usize = self.parts.iter().map(Part::capacity).sum();
        size_of::<Self>() + PARTS * size_of::<Part>() + entries * ENTRY_BYTES
    }

    /// Checks the map against itself and the `taken` sets.
    pub(super) fn check(&self, taken: u64) -> Result<(), Broken> {
        let states = [taken, self.free, self.dropped, self.sweeping];
        ensure_invariant!(
            states.iter().map(|s| s.count_ones()).sum::<u32>() == SLOTS
                && states.iter().fold(0, |all, s| all | s) == u64::MAX,
            "directory_sets",
            "taken, free, dropped and swept sets are {states:x?}"
        );
        let mut counts = [0_u64; SLOTS as usize];
        for (i, map) in self.parts.iter().enumerate() {
            let mut pages = 0;
            for (hash, holders) in map.iter() {
                pages += 1;
                ensure_invariant!(
                    holders & self.free == 0 && map.get(hash) == holders && part(hash) == i,
                    "directory_map",
                    "page {hash:x?} of part {i} is held by {holders:x} and found with {:x}; free are {:x}",
                    map.get(hash),
                    self.free
                );
                for slot in bits(holders & taken) {
                    counts[slot as usize] += 1;
                }
            }
            ensure_invariant!(
                pages == map.len(),
                "directory_map",
                "part {i} has {pages} pages, counts {}",
                map.len()
            );
        }
        ensure_invariant!(
            counts == self.counts,
            "directory_count",
            "sets have {counts:?} pages, count {:?}",
            self.counts
        );
        Ok(())
    }
}

/// The runs of these sets are over.
fn end(runs: &mut [u32; SLOTS as usize], sets: u64, length: u32) {
    for slot in bits(sets) {
        runs[slot as usize] = length;
    }
}

/// The bit of a set.
pub(super) const fn bit(slot: u32) -> u64 {
    1 << slot
}

/// The sets of a mask, in order.
pub(super) fn bits(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let slot = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (slot < SLOTS).then_some(slot)
    })
}

const fn part(hash: [u64; 2]) -> usize {
    (hash[1] % PARTS as u64) as usize
}
