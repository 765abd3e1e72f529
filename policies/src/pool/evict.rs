//! What leaves: for want of room, and because it is gone.

use std::collections::BTreeSet;

use super::entries::{Entry, Slot};
use super::{PoolEffect, PutEnd, PutId, ReaderId, Store};
use crate::time::Time;

/// What a page in RAM is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// Copies of what is on disk.
    Copies,
    /// Copies; what is only in RAM once it is written, unless the disk does not take it.
    Written,
    /// Whatever is oldest.
    Anything,
}

/// Whether there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Made,
    /// Something has to be written first.
    Later,
    /// Nothing (more) may leave.
    No,
}

impl Store {
    /// Drops pages from RAM until `bytes` more fit.
    pub(super) fn make_room(&mut self, now: Time, bytes: u64, cost: Cost, fx: &mut Vec<PoolEffect>) -> Room {
        if bytes > self.limits.ram {
            return Room::No;
        }
        while self.entries.ram().bytes.saturating_add(bytes) > self.limits.ram {
            let Some(slot) = self.entries.oldest_ram() else {
                // What is written may leave when that is done.
                let takes = self.limits.disk.is_some() && !self.writes.is_paused(now);
                let coming = self.writes.in_flight() > 0 || (takes && self.entries.has_dirty());
                return if cost == Cost::Written && coming { Room::Later } else { Room::No };
            };
            let entry = self.entries.get(slot);
            if entry.disk {
                self.counts.evicted_ram += 1;
                fx.push(PoolEffect::DropRam { key: entry.key });
                self.entries.edit(slot, |e| e.ram = false);
                continue;
            }
            match cost {
                Cost::Copies => return Room::No,
                Cost::Written if self.is_for_disk(now, entry) => return Room::Later,
                Cost::Written | Cost::Anything => {}
            }
            self.counts.evicted_ram += 1;
            self.counts.dropped += 1;
            self.lose(slot, fx);
        }
        Room::Made
    }

    /// It will be written, or tried to be.
    fn is_for_disk(&self, now: Time, entry: &Entry) -> bool {
        self.limits.disk.is_some()
            && !self.writes.is_paused(now)
            && !entry.skip
            && entry.uses >= self.entries.min_uses
    }

    /// Deletes a page's file, for want of room; the page may stay in RAM.
    pub(super) fn drop_file(&mut self, slot: Slot, fx: &mut Vec<PoolEffect>) {
        self.counts.evicted_disk += 1;
        let entry = self.entries.get(slot);
        if entry.ram {
            fx.push(PoolEffect::DeleteDisk { key: entry.key, bytes: entry.bytes });
            // It would be written, and deleted for its age, for ever.
            self.entries.edit(slot, |e| (e.disk, e.skip) = (false, true));
        } else {
            self.counts.dropped += 1;
            self.forget(slot, fx);
        }
    }

    /// A page is not here any more, and so are those that follow it. The caller pumps.
    pub(super) fn lose(&mut self, slot: Slot, fx: &mut Vec<PoolEffect>) {
        let mut gone = vec![slot];
        let mut at = 0;
        while let Some(next) = gone.get(at) {
            let children: Vec<Slot> = self.entries.children(*next).collect();
            gone.extend(children);
            at += 1;
        }
        self.cut_readers(slot, fx);
        if gone.iter().any(|slot| self.entries.get(*slot).holds > 0) {
            let set: BTreeSet<Slot> = gone.iter().copied().collect();
            let ends = |put: &super::Put| put.parent.is_some_and(|parent| set.contains(&parent));
            let ended: Vec<PutId> =
                self.puts.iter().filter(|(_, put)| ends(put)).map(|(id, _)| *id).collect();
            for put in ended {
                self.end_put(put, PutEnd::ParentLost, fx);
            }
        }
        for slot in gone.into_iter().rev() {
            self.forget(slot, fx);
        }
    }

    /// Whoever reads this page reads those that follow it in his run: a run is pinned as a whole.
    fn cut_readers(&mut self, slot: Slot, fx: &mut Vec<PoolEffect>) {
        if self.entries.get(slot).pins == 0 {
            return;
        }
        let place = |pages: &[Slot]| pages.iter().position(|page| *page == slot);
        let cut: Vec<(ReaderId, usize)> =
            self.readers.iter().filter_map(|(id, reader)| Some((*id, place(&reader.pages)?))).collect();
        for (id, pages) in cut {
            let Some(reader) = self.readers.get_mut(&id) else { continue };
            for slot in reader.pages.drain(pages..) {
                self.entries.edit(slot, |e| e.pins -= 1);
            }
            fx.push(PoolEffect::CutRead { reader: id, pages });
        }
    }

    /// Removes a page that no page follows, from wherever it is. What the disk is doing with it comes to nothing.
    fn forget(&mut self, slot: Slot, fx: &mut Vec<PoolEffect>) {
        let entry = self.entries.get(slot);
        let key = entry.key;
        if entry.ram {
            fx.push(PoolEffect::DropRam { key });
        }
        if entry.on_disk() {
            // Behind the write, where there is one.
            fx.push(PoolEffect::DeleteDisk { key, bytes: entry.bytes });
        }
        if let Some(op) = entry.writing {
            self.writes.ended(op);
        }
        if let Some(op) = entry.reading {
            self.reads.remove(&op);
        }
        self.teller.removed(&key);
        self.entries.remove(slot);
    }
}
