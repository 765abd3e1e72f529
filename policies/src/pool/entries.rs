//! The pages, their family and their tiers. Everything that may leave a tier is in an ordered set; [`Entries::edit`] is the
//! one place where an entry changes, and keeps counts and sets true.

use std::collections::{BTreeMap, BTreeSet};

use super::{DiskLimits, OpId, PageKey, TierStats};
use crate::kv::{Fingerprint, PageHash};

/// Index of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(u32);

/// A complete page.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: PageKey,
    pub(super) parent: Option<Slot>,
    /// Followers, a list through their neighbours.
    first_child: Option<Slot>,
    next: Option<Slot>,
    previous: Option<Slot>,
    pub(super) bytes: u64,
    /// Position in the order of use; no two entries have the same.
    pub(super) used_at: u64,
    pub(super) uses: u32,
    /// Readers of it: it stays where it is.
    pub(super) pins: u32,
    /// Puts whose next page follows it: it stays somewhere.
    pub(super) holds: u32,
    /// Followers in all, in RAM, and on disk or on their way there.
    pub(super) children: u32,
    pub(super) children_ram: u32,
    pub(super) children_disk: u32,
    pub(super) ram: bool,
    pub(super) disk: bool,
    /// Stands in the queue for the disk.
    pub(super) planned: bool,
    /// Not for the disk until it is used again.
    pub(super) skip: bool,
    pub(super) writing: Option<OpId>,
    pub(super) reading: Option<OpId>,
    ranks: Ranks,
}

/// Under which number an entry stands in each set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranks {
    ram: Option<u64>,
    disk: Option<u64>,
    dirty: Option<u64>,
}

impl Entry {
    /// It takes room on disk.
    pub(super) fn on_disk(&self) -> bool {
        self.disk || self.writing.is_some()
    }

    /// Where it should stand; see the fields of [`Entries`].
    pub(super) fn ranks(&self, min_uses: u32) -> Ranks {
        let at = |in_it: bool| in_it.then_some(self.used_at);
        let free = self.pins == 0;
        let last = |others: bool| others || self.holds == 0;
        Ranks {
            ram: at(self.ram && free && self.writing.is_none() && self.children_ram == 0 && last(self.disk)),
            disk: at(self.disk
                && free
                && self.reading.is_none()
                && self.children_disk == 0
                && (self.ram || (self.children == 0 && self.holds == 0))),
            dirty: at(self.ram && !self.on_disk() && !self.planned && !self.skip && self.uses >= min_uses),
        }
    }

    /// Whether it stands in each set.
    pub(super) fn stands(&self) -> [bool; 3] {
        [self.ranks.ram, self.ranks.disk, self.ranks.dirty].map(|rank| rank.is_some())
    }
}

/// All entries.
#[derive(Debug)]
pub(super) struct Entries {
    slab: Vec<Option<Entry>>,
    free: Vec<Slot>,
    index: BTreeMap<PageKey, Slot>,
    /// What may leave RAM, least recently used first.
    ram_out: BTreeSet<(u64, Slot)>,
    /// What may leave the disk.
    disk_out: BTreeSet<(u64, Slot)>,
    /// What is worth writing to disk, is not there, and does not stand in the queue.
    dirty: BTreeSet<(u64, Slot)>,
    ram: TierStats,
    disk: TierStats,
    clock: u64,
    /// Bytes that a file has beside its page.
    overhead: u64,
    pub(super) min_uses: u32,
}

impl Entries {
    pub(super) fn new(disk: Option<DiskLimits>) -> Self {
        Self {
            slab: Vec::new(),
            free: Vec::new(),
            index: BTreeMap::new(),
            ram_out: BTreeSet::new(),
            disk_out: BTreeSet::new(),
            dirty: BTreeSet::new(),
            ram: TierStats::default(),
            disk: TierStats::default(),
            clock: 0,
            overhead: disk.map_or(0, |d| d.overhead),
            min_uses: disk.map_or(u32::MAX, |d| d.min_uses),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) const fn ram(&self) -> TierStats {
        self.ram
    }

    pub(super) const fn disk(&self) -> TierStats {
        self.disk
    }

    /// Bytes of the file of a page of `bytes`.
    pub(super) fn file(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.overhead)
    }

    pub(super) fn find(&self, key: &PageKey) -> Option<Slot> {
        self.index.get(key).copied()
    }

    /// An entry that somebody has the slot of; those who have it let go of it before it is removed.
    pub(super) fn get(&self, slot: Slot) -> &Entry {
        self.peek(slot).expect("slots of removed entries are not kept")
    }

    pub(super) fn peek(&self, slot: Slot) -> Option<&Entry> {
        self.slab.get(slot.0 as usize)?.as_ref()
    }

    /// The longest run of these pages, from the first, in which each follows the one before it.
    pub(super) fn run<'a>(
        &'a self,
        fingerprint: &'a Fingerprint,
        pages: &'a [PageHash],
    ) -> impl Iterator<Item = Slot> + 'a {
        let mut parent = None;
        pages.iter().map_while(move |hash| {
            let slot = self.find(&PageKey { fingerprint: *fingerprint, hash: *hash })?;
            let follows = self.get(slot).parent == parent;
            parent = Some(slot);
            follows.then_some(slot)
        })
    }

    /// Those that follow a page.
    pub(super) fn children(&self, slot: Slot) -> impl Iterator<Item = Slot> + '_ {
        std::iter::successors(self.get(slot).first_child, |child| self.get(*child).next)
    }

    /// Names and slots, in order of name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&PageKey, Slot)> {
        self.index.iter().map(|(key, slot)| (key, *slot))
    }

    pub(super) fn oldest_ram(&self) -> Option<Slot> {
        self.ram_out.first().map(|(_, slot)| *slot)
    }

    pub(super) fn oldest_disk(&self) -> Option<Slot> {
        self.disk_out.first().map(|(_, slot)| *slot)
    }

    pub(super) fn oldest_dirty(&self) -> Option<Slot> {
        self.dirty.first().map(|(_, slot)| *slot)
    }

    pub(super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub(super) fn set_sizes(&self) -> [usize; 3] {
        [self.ram_out.len(), self.disk_out.len(), self.dirty.len()]
    }

    /// Whether an entry stands where it should.
    pub(super) fn is_ranked(&self, slot: Slot) -> bool {
        let entry = self.get(slot);
        let sets = [
            (entry.ranks.ram, &self.ram_out),
            (entry.ranks.disk, &self.disk_out),
            (entry.ranks.dirty, &self.dirty),
        ];
        entry.ranks == entry.ranks(self.min_uses)
            && sets.iter().all(|(rank, set)| rank.is_none_or(|at| set.contains(&(at, slot))))
    }

    /// Adds a page that is not there, in no tier yet, as the one used last.
    pub(super) fn insert(&mut self, key: PageKey, parent: Option<Slot>, bytes: u64) -> Slot {
        self.clock += 1;
        let next = parent.and_then(|p| self.get(p).first_child);
        let entry = Entry {
            key,
            parent,
            first_child: None,
            next,
            previous: None,
            bytes,
            used_at: self.clock,
            uses: 1,
            pins: 0,
            holds: 0,
            children: 0,
            children_ram: 0,
            children_disk: 0,
            ram: false,
            disk: false,
            planned: false,
            skip: false,
            writing: None,
            reading: None,
            ranks: Ranks::default(),
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            Slot(self.slab.len() as u32 - 1)
        });
        self.slab[slot.0 as usize] = Some(entry);
        self.index.insert(key, slot);
        if let Some(next) = next {
            self.at(next).previous = Some(slot);
        }
        if let Some(parent) = parent {
            self.edit(parent, |p| {
                p.first_child = Some(slot);
                p.children += 1;
            });
        }
        slot
    }

    /// Removes a page that no page follows.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.edit(slot, |e| {
            (e.ram, e.disk, e.planned) = (false, false, false);
            (e.writing, e.reading) = (None, None);
        });
        let Some(entry) = self.slab[slot.0 as usize].take() else { return };
        self.free.push(slot);
        self.index.remove(&entry.key);
        if let Some(next) = entry.next {
            self.at(next).previous = entry.previous;
        }
        if let Some(previous) = entry.previous {
            self.at(previous).next = entry.next;
        }
        if let Some(parent) = entry.parent {
            self.edit(parent, |p| {
                p.children -= 1;
                if entry.previous.is_none() {
                    p.first_child = entry.next;
                }
            });
        }
    }

    /// It is used now; so that a page is never older than its followers, those of a run are touched last to first.
    pub(super) fn touch(&mut self, slot: Slot, use_it: bool) {
        self.clock += 1;
        let clock = self.clock;
        self.edit(slot, |e| {
            e.used_at = clock;
            e.skip = false;
            e.uses = e.uses.saturating_add(u32::from(use_it));
        });
    }

    /// Changes an entry.
    pub(super) fn edit(&mut self, slot: Slot, change: impl FnOnce(&mut Entry)) {
        let entry = self.at(slot);
        let before = (entry.ram, entry.on_disk());
        change(entry);
        let after = (entry.ram, entry.on_disk());
        let (parent, bytes) = (entry.parent, entry.bytes);
        let file = self.file(bytes);
        let in_ram = i32::from(after.0) - i32::from(before.0);
        let on_disk = i32::from(after.1) - i32::from(before.1);
        self.ram.change(in_ram, bytes);
        self.disk.change(on_disk, file);
        if let (Some(parent), true) = (parent, before != after) {
            let entry = self.at(parent);
            entry.children_ram = entry.children_ram.saturating_add_signed(in_ram);
            entry.children_disk = entry.children_disk.saturating_add_signed(on_disk);
            self.rank(parent);
        }
        self.rank(slot);
    }

    fn at(&mut self, slot: Slot) -> &mut Entry {
        self.slab[slot.0 as usize].as_mut().expect("slots of removed entries are not kept")
    }

    /// Puts an entry into the sets where it belongs, and out of the others.
    fn rank(&mut self, slot: Slot) {
        let min_uses = self.min_uses;
        let entry = self.at(slot);
        let (old, new) = (entry.ranks, entry.ranks(min_uses));
        if old == new {
            return;
        }
        entry.ranks = new;
        let sets = [
            (&mut self.ram_out, old.ram, new.ram),
            (&mut self.disk_out, old.disk, new.disk),
            (&mut self.dirty, old.dirty, new.dirty),
        ];
        for (set, old, new) in sets {
            if old == new {
                continue;
            }
            if let Some(at) = old {
                set.remove(&(at, slot));
            }
            if let Some(at) = new {
                set.insert((at, slot));
            }
        }
    }
}

impl TierStats {
    fn change(&mut self, pages: i32, bytes: u64) {
        self.pages = self.pages.saturating_add_signed(pages.into());
        match pages {
            1 => self.bytes += bytes,
            -1 => self.bytes -= bytes,
            _ => {}
        }
    }
}
