//! Readers: a run of pages is found and pinned in one go, given page by page in order, and let go.

use config::ids::WorkerId;

use super::entries::Slot;
use super::leases::Lease;
use super::{Hit, OpId, PageKey, PoolEffect, ReaderId, Store};
use crate::kv::{Fingerprint, PageHash};
use crate::time::Time;

/// Who reads a run.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) owner: WorkerId,
    /// The run from the start of the prompt; pinned.
    pub(super) pages: Vec<Slot>,
    /// Pages before this one are not given (any more).
    pub(super) given: usize,
    /// Pages before this one may be given.
    pub(super) granted: usize,
    /// Pages before this one were asked from disk where they were not in RAM.
    asked: usize,
}

/// A read of the disk under way.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) slot: Slot,
    pub(super) readers: Vec<ReaderId>,
}

impl Reader {
    /// It waits for us.
    pub(super) fn waits(&self) -> bool {
        self.given < self.granted.min(self.pages.len())
    }
}

impl Store {
    /// Finds the longest run of these pages, from the first, and pins it until [`Store::release`]. `pages` begins with the
    /// prompt's first page; the reader has those before `from`, and gets the others.
    pub fn look_up(
        &mut self,
        now: Time,
        owner: &WorkerId,
        fingerprint: &Fingerprint,
        pages: &[PageHash],
        from: usize,
    ) -> Hit {
        let run: Vec<Slot> = self.entries.run(fingerprint, pages).collect();
        let found = run.len();
        self.counts.looked_up += pages.len().saturating_sub(from) as u64;
        self.counts.found += found.saturating_sub(from) as u64;
        if found <= from {
            return Hit { pages: found, reader: None };
        }
        for slot in run.iter().rev() {
            self.entries.touch(*slot, true);
            self.entries.edit(*slot, |e| e.pins += 1);
        }
        let reader = ReaderId(self.new_id());
        let owner = owner.clone();
        self.readers.insert(reader, Reader { owner, pages: run, given: from, granted: from, asked: from });
        self.renew(now, Lease::Read(reader));
        Hit { pages: found, reader: Some(reader) }
    }

    /// The reader takes so many pages more; each is given as soon as it is its turn and it is at hand.
    pub fn grant(&mut self, now: Time, id: ReaderId, pages: usize, fx: &mut Vec<PoolEffect>) {
        let Some(reader) = self.readers.get_mut(&id) else {
            self.counts.ignored += 1;
            return;
        };
        reader.granted = reader.granted.saturating_add(pages);
        self.renew(now, Lease::Read(id));
        self.serve(id, fx);
    }

    /// The reader needs nothing more, whatever it got.
    pub fn release(&mut self, now: Time, id: ReaderId, fx: &mut Vec<PoolEffect>) {
        match self.readers.remove(&id) {
            Some(reader) => self.let_go(id, &reader),
            None => self.counts.ignored += 1,
        }
        self.pump(now, fx);
    }

    /// Gives up on a reader. The caller pumps.
    pub(super) fn end_read(&mut self, id: ReaderId, fx: &mut Vec<PoolEffect>) {
        if let Some(reader) = self.readers.remove(&id) {
            self.let_go(id, &reader);
            fx.push(PoolEffect::EndRead { reader: id });
        }
    }

    fn let_go(&mut self, id: ReaderId, reader: &Reader) {
        self.leases.end(Lease::Read(id));
        for slot in &reader.pages {
            self.entries.edit(*slot, |e| e.pins -= 1);
        }
    }

    /// Gives what is in RAM, and has the disk read what is not.
    pub(super) fn serve(&mut self, id: ReaderId, fx: &mut Vec<PoolEffect>) {
        let Some(reader) = self.readers.get_mut(&id) else { return };
        let until = reader.granted.min(reader.pages.len());
        while reader.given < until {
            let entry = self.entries.get(reader.pages[reader.given]);
            if !entry.ram {
                break;
            }
            fx.push(PoolEffect::Give { reader: id, index: reader.given, key: entry.key });
            self.counts.given_ram += 1;
            reader.given += 1;
        }
        // The next one is asked for again where it was read for somebody else before its turn, and not kept.
        let next = reader.given..until.min(reader.given + 1);
        let ahead = reader.asked.max(next.end)..until.max(next.end);
        reader.asked = reader.asked.max(until);
        let wanted: Vec<Slot> = next.chain(ahead).filter_map(|at| reader.pages.get(at).copied()).collect();
        for slot in wanted {
            if !self.entries.get(slot).ram {
                self.read_page(slot, id, fx);
            }
        }
    }

    fn read_page(&mut self, slot: Slot, id: ReaderId, fx: &mut Vec<PoolEffect>) {
        let entry = self.entries.get(slot);
        if let Some(read) = entry.reading.and_then(|op| self.reads.get_mut(&op)) {
            if !read.readers.contains(&id) {
                read.readers.push(id);
            }
            return;
        }
        let (key, bytes): (PageKey, u64) = (entry.key, entry.bytes);
        let op = OpId(self.new_id());
        self.entries.edit(slot, |e| e.reading = Some(op));
        self.reads.insert(op, Read { slot, readers: vec![id] });
        fx.push(PoolEffect::ReadDisk { op, key, bytes });
    }
}
