//! What the disk reports, and what it held when the pool started.

use std::collections::BTreeMap;

use super::entries::Slot;
use super::evict::{Cost, Room};
use super::{DiskError, DiskJob, Found, OpId, PageKey, PoolEffect, Store};
use crate::kv::{Fingerprint, PageHash};
use crate::time::Time;

impl Store {
    /// A write is done, or failed.
    pub fn wrote(&mut self, now: Time, op: OpId, result: Result<(), DiskError>, fx: &mut Vec<PoolEffect>) {
        let Some(write) = self.writes.ended(op) else {
            // Its page is gone, and the order to delete the file stands behind the write.
            self.counts.ignored += 1;
            return;
        };
        let slot = write.slot;
        let entry = self.entries.get(slot);
        let (key, bytes, parent) = (entry.key, entry.bytes, entry.parent);
        match result {
            Ok(()) => {
                self.writes.strikes = 0;
                self.counts.written += 1;
                self.unstick(&key);
                let closed = parent.is_none_or(|p| self.entries.get(p).disk);
                if !closed {
                    // The page before it could not be written.
                    fx.push(PoolEffect::DeleteDisk { key, bytes });
                }
                self.entries.edit(slot, |e| (e.writing, e.disk) = (None, closed));
                self.took(now);
                // That it is full is no news while it is.
                let full = self.seems_full();
                self.reported
                    .retain(|(job, error)| *job != DiskJob::Write || (full && *error == DiskError::NoSpace));
            }
            Err(error) => {
                self.entries.edit(slot, |e| {
                    e.writing = None;
                    // A page that cannot be written is not tried again until somebody uses it.
                    e.skip = error != DiskError::NoSpace;
                });
                self.clear_queue();
                self.report(DiskJob::Write, error, fx);
                self.write_failed(now, op, bytes, error, fx);
            }
        }
        self.pump(now, fx);
    }

    fn write_failed(&mut self, now: Time, op: OpId, bytes: u64, error: DiskError, fx: &mut Vec<PoolEffect>) {
        let Some(limits) = self.limits.disk else { return };
        let full = error == DiskError::NoSpace;
        let room = if full { self.full(now, bytes, limits.back_off) } else { 0 };
        if full && self.writes.pressed.is_some_and(|pressed| op < pressed) {
            // It was under way when room was made.
            self.free_disk(self.entries.file(bytes), fx);
        } else if self.writes.strikes == 0 {
            self.writes.strikes = 1;
            if full {
                self.free_disk(room, fx);
                self.writes.pressed = Some(OpId(self.next_id));
            }
        } else {
            self.writes.strikes = self.writes.strikes.saturating_add(1);
            self.writes.pause(now + limits.back_off);
            self.counts.pauses += 1;
        }
    }

    /// A read is done, the content at hand and right; or it failed.
    pub fn read(&mut self, now: Time, op: OpId, result: Result<(), DiskError>, fx: &mut Vec<PoolEffect>) {
        let Some(read) = self.reads.remove(&op) else {
            self.counts.ignored += 1;
            return;
        };
        let slot = read.slot;
        self.entries.edit(slot, |e| e.reading = None);
        let (key, bytes, ram) = {
            let entry = self.entries.get(slot);
            (entry.key, entry.bytes, entry.ram)
        };
        match result {
            Ok(()) => {
                if !ram && self.make_room(now, bytes, Cost::Copies, fx) == Room::Made {
                    self.entries.edit(slot, |e| e.ram = true);
                    fx.push(PoolEffect::Keep { key });
                }
                for id in &read.readers {
                    let Some(reader) = self.readers.get_mut(id) else { continue };
                    if reader.given < reader.granted && reader.pages.get(reader.given) == Some(&slot) {
                        fx.push(PoolEffect::Give { reader: *id, index: reader.given, key });
                        reader.given += 1;
                        self.counts.given_disk += 1;
                    }
                }
            }
            Err(error) => {
                self.report(DiskJob::Read, error, fx);
                if error != DiskError::Missing {
                    self.stick(key, bytes);
                }
                self.entries.edit(slot, |e| e.disk = false);
                if !ram {
                    self.counts.lost += 1;
                    self.lose(slot, fx);
                }
                // Behind those that follow it. One that this process may not touch is left alone.
                if error == DiskError::Other || error == DiskError::NoSpace {
                    fx.push(PoolEffect::DeleteDisk { key, bytes });
                }
            }
        }
        for id in read.readers {
            self.serve(id, fx);
        }
        self.pump(now, fx);
    }

    /// A file was deleted, or could not be. One that is not there is deleted.
    pub fn deleted(
        &mut self,
        now: Time,
        key: PageKey,
        bytes: u64,
        result: Result<(), DiskError>,
        fx: &mut Vec<PoolEffect>,
    ) {
        match result {
            Ok(()) | Err(DiskError::Missing) => self.unstick(&key),
            Err(error) => {
                self.report(DiskJob::Delete, error, fx);
                self.stick(key, bytes);
            }
        }
        self.pump(now, fx);
    }

    /// A file is in the way that is no page.
    fn stick(&mut self, key: PageKey, bytes: u64) {
        let file = self.entries.file(bytes);
        self.stuck_bytes += file;
        self.stuck_bytes -= self.stuck.insert(key, file).unwrap_or(0);
    }

    fn unstick(&mut self, key: &PageKey) {
        self.stuck_bytes -= self.stuck.remove(key).unwrap_or(0);
    }

    /// What is on disk, before anything else is done with the store. What cannot be found from the start of a prompt, or
    /// exceeds the capacity, is deleted, least recently used first.
    pub fn restart(&mut self, now: Time, found: Vec<Found>, fx: &mut Vec<PoolEffect>) {
        let mut followers: BTreeMap<(Fingerprint, Option<PageHash>), Vec<Found>> = BTreeMap::new();
        let enabled = self.limits.disk.is_some();
        for page in found {
            followers.entry((page.key.fingerprint, page.parent)).or_default().push(page);
        }
        let roots: Vec<(Fingerprint, Option<PageHash>)> =
            followers.keys().filter(|(_, parent)| parent.is_none()).copied().collect();
        let mut next: Vec<(Option<Slot>, Found)> = Vec::new();
        let mut taken: Vec<(u64, PageKey, Slot)> = Vec::new();
        for root in roots.into_iter().filter(|_| enabled) {
            next.extend(followers.remove(&root).into_iter().flatten().map(|page| (None, page)));
        }
        while let Some((parent, page)) = next.pop() {
            if self.entries.find(&page.key).is_some() {
                continue;
            }
            let slot = self.entries.insert(page.key, parent, page.bytes);
            self.entries.edit(slot, |e| e.disk = true);
            taken.push((page.used, page.key, slot));
            let after = followers.remove(&(page.key.fingerprint, Some(page.key.hash)));
            next.extend(after.into_iter().flatten().map(|page| (Some(slot), page)));
        }
        taken.sort_unstable();
        for (_, _, slot) in taken {
            self.entries.touch(slot, false);
        }
        for page in followers.into_values().flatten() {
            fx.push(PoolEffect::DeleteDisk { key: page.key, bytes: page.bytes });
        }
        let capacity = self.limits.disk.map_or(0, |d| d.capacity);
        self.free_disk(self.entries.disk().bytes.saturating_sub(capacity), fx);
        self.pump(now, fx);
    }
}
