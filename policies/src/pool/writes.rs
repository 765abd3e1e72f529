//! What goes to disk, and when: the oldest first, each after the page that it follows.

use std::collections::{BTreeMap, VecDeque};

use super::entries::Slot;
use super::{OpId, PageKey, PoolEffect, Store};
use crate::time::{Span, Time};

/// A part of the disk that is deleted when it turns out to be full, as a divisor.
const PRESSURE: u64 = 32;

/// What a disk is taken to hold that turned out to be full, until it is tried for more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceiling {
    bytes: u64,
    until: Time,
}

/// The queue for the disk.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// Pages to be written next, each behind the page that it follows. Those that were dropped meanwhile are passed over.
    queue: VecDeque<(Slot, PageKey)>,
    in_flight: BTreeMap<OpId, Write>,
    bytes: u64,
    /// Failures since the last success.
    pub(super) strikes: u32,
    /// Writes before this one were begun before room was made for them.
    pub(super) pressed: Option<OpId>,
    paused: Option<Time>,
    ceiling: Option<Ceiling>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) slot: Slot,
    bytes: u64,
}

impl Writes {
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_paused(&self, now: Time) -> bool {
        self.paused.is_some_and(|until| now < until)
    }

    /// When the disk is to be tried again.
    pub(super) fn resumes(&self) -> Option<Time> {
        self.paused
    }

    pub(super) fn pause(&mut self, until: Time) {
        self.paused = Some(until);
    }

    pub(super) fn ended(&mut self, op: OpId) -> Option<Write> {
        let write = self.in_flight.remove(&op)?;
        self.bytes -= write.bytes;
        Some(write)
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = (OpId, Slot)> + '_ {
        self.in_flight.iter().map(|(op, write)| (*op, write.slot))
    }
}

impl Store {
    /// Begins writes as far as they may be under way; true where a page turned out not to be for the disk.
    pub(super) fn start_writes(&mut self, now: Time, fx: &mut Vec<PoolEffect>) -> bool {
        let Some(limits) = self.limits.disk else { return false };
        let capacity = self.disk_capacity(now, limits.capacity);
        if self.writes.is_paused(now) {
            return false;
        }
        self.writes.paused = None;
        let mut skipped = false;
        loop {
            // A disk that has failed is tried with one page.
            let window = if self.writes.strikes > 0 { 1 } else { limits.write_window.max(1) };
            if self.writes.bytes >= window {
                break;
            }
            if let Some(slot) = self.next_queued() {
                skipped |= !self.start_write(slot, capacity, fx);
                continue;
            }
            let wanted =
                self.closing || !self.waiting.is_empty() || self.entries.ram().bytes > limits.write_above;
            match self.entries.oldest_dirty().filter(|_| wanted) {
                Some(slot) => skipped |= !self.queue_up(slot),
                None => break,
            }
        }
        skipped
    }

    /// Empties the queue: what is in it is queued up anew, in an order that is right by then.
    pub(super) fn clear_queue(&mut self) {
        while let Some(slot) = self.next_queued() {
            self.entries.edit(slot, |e| e.planned = false);
        }
    }

    /// Deletes files until so many bytes are free that were not.
    pub(super) fn free_disk(&mut self, bytes: u64, fx: &mut Vec<PoolEffect>) {
        let goal = self.entries.disk().bytes.saturating_sub(bytes);
        while self.entries.disk().bytes > goal
            && let Some(oldest) = self.entries.oldest_disk()
        {
            self.drop_file(oldest, fx);
        }
    }

    /// A page of `bytes` found the disk full: what it holds is what there is room for, for a while. Gives what to free.
    pub(super) fn full(&mut self, now: Time, bytes: u64, back_off: Span) -> u64 {
        let (file, on_disk) = (self.entries.file(bytes), self.on_disk());
        let former = self.writes.ceiling;
        // It was known to be full, and tried for more.
        let tried = former.is_some_and(|c| now >= c.until && on_disk.saturating_add(file) > c.bytes);
        // A disk that holds nothing of ours takes nothing, or has to be tried.
        let ceiling = Ceiling { bytes: on_disk, until: now + back_off };
        self.writes.ceiling = (on_disk >= file).then_some(ceiling);
        if tried { file } else { file.max(self.entries.disk().bytes / PRESSURE) }
    }

    /// A page was written: where the disk holds more than it seemed to, it is full no more.
    pub(super) fn took(&mut self, now: Time) {
        let on_disk = self.on_disk();
        self.writes.ceiling = self.writes.ceiling.filter(|c| now < c.until || on_disk <= c.bytes);
    }

    /// The disk was full, and has not taken more since.
    pub(super) const fn seems_full(&self) -> bool {
        self.writes.ceiling.is_some()
    }

    /// Bytes of files there may be: what is configured, or less on a disk that is full.
    fn disk_capacity(&self, now: Time, configured: u64) -> u64 {
        // While it is not known whether it takes anything, nothing more is deleted for that.
        let full = self.writes.ceiling.filter(|c| now < c.until && self.writes.strikes == 0);
        full.map_or(configured, |c| c.bytes.min(configured))
    }

    /// Bytes of files that are there.
    fn on_disk(&self) -> u64 {
        let coming: u64 = self.writes.in_flight.values().map(|write| self.entries.file(write.bytes)).sum();
        self.entries.disk().bytes.saturating_add(self.stuck_bytes).saturating_sub(coming)
    }

    fn next_queued(&mut self) -> Option<Slot> {
        while let Some((slot, key)) = self.writes.queue.pop_front() {
            if self.entries.peek(slot).is_some_and(|e| e.key == key && e.planned) {
                return Some(slot);
            }
        }
        None
    }

    /// Queues a page up behind those before it that are not on disk. False where one of them is not for the disk, and so
    /// none of them is.
    fn queue_up(&mut self, slot: Slot) -> bool {
        let mut path = vec![slot];
        let mut at = self.entries.get(slot).parent;
        let mut ok = true;
        while let Some(parent) = at {
            let entry = self.entries.get(parent);
            if entry.on_disk() || entry.planned {
                break;
            }
            if entry.skip || entry.uses < self.entries.min_uses {
                ok = false;
                break;
            }
            path.push(parent);
            at = entry.parent;
        }
        for slot in path.into_iter().rev() {
            self.entries.edit(slot, |e| (e.planned, e.skip) = (ok, !ok));
            if ok {
                let key = self.entries.get(slot).key;
                self.writes.queue.push_back((slot, key));
            }
        }
        ok
    }

    /// Makes room for a page among older ones on disk, and has it written; false where that cannot be.
    fn start_write(&mut self, slot: Slot, capacity: u64, fx: &mut Vec<PoolEffect>) -> bool {
        let entry = self.entries.get(slot);
        let (key, bytes, used_at) = (entry.key, entry.bytes, entry.used_at);
        let parent = entry.parent.map(|p| self.entries.get(p));
        let follows = parent.is_none_or(super::entries::Entry::on_disk);
        let hash = parent.map(|p| p.key.hash);
        let op = OpId(self.new_id());
        // From here on it takes room, and keeps the page that it follows on disk.
        self.entries.edit(slot, |e| {
            e.planned = false;
            e.writing = Some(op);
        });
        let mut fits = follows && self.entries.file(bytes) <= capacity;
        while fits && self.entries.disk().bytes.saturating_add(self.stuck_bytes) > capacity {
            // What was used later is worth more.
            match self.entries.oldest_disk().filter(|oldest| self.entries.get(*oldest).used_at < used_at) {
                Some(oldest) => self.drop_file(oldest, fx),
                None => fits = false,
            }
        }
        if !fits {
            self.entries.edit(slot, |e| (e.writing, e.skip) = (None, true));
            return false;
        }
        self.writes.in_flight.insert(op, Write { slot, bytes });
        self.writes.bytes += bytes;
        fx.push(PoolEffect::WriteDisk { op, key, parent: hash, bytes });
        true
    }
}
