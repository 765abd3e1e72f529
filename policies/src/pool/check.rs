//! What holds in a store after every event.

use std::collections::BTreeMap;

use super::entries::Slot;
use super::leases::Lease;
use super::{Store, TierStats};
use crate::ensure_invariant;
use crate::invariant::Broken;

impl Store {
    /// The first broken invariant. O(pages); see [`Store::check_bounds`] for a process that serves.
    ///
    /// # Errors
    /// A tier holds more than it may, or other bytes than its pages have; a page is in no tier, or without the one that it
    /// follows; a pinned page is gone; something that may leave is not known to; a page is pending for nobody.
    pub fn check(&self) -> Result<(), Broken> {
        self.check_bounds()?;
        self.check_family()?;
        self.check_users()?;
        self.check_disk_work()
    }

    /// The first broken invariant of those that cost nothing to check.
    ///
    /// # Errors
    /// A tier holds, or more waits for room, than may.
    pub fn check_bounds(&self) -> Result<(), Broken> {
        let (ram, disk) = (self.entries.ram().bytes, self.entries.disk().bytes);
        ensure_invariant!(
            ram <= self.limits.ram,
            "pool_ram_bound",
            "{ram} of {} bytes in RAM",
            self.limits.ram
        );
        let capacity = self.limits.disk.map_or(0, |d| d.capacity);
        ensure_invariant!(disk <= capacity, "pool_disk_bound", "{disk} of {capacity} bytes on disk");
        ensure_invariant!(
            self.waiting_bytes <= self.limits.incoming,
            "pool_waiting_bound",
            "{} of {} bytes wait for room",
            self.waiting_bytes,
            self.limits.incoming
        );
        Ok(())
    }

    fn check_family(&self) -> Result<(), Broken> {
        let (mut ram, mut disk) = (TierStats::default(), TierStats::default());
        let mut followers: BTreeMap<Slot, [u32; 3]> = BTreeMap::new();
        for (key, slot) in self.entries.iter() {
            let entry = self.entries.get(slot);
            ensure_invariant!(
                entry.key == *key && (entry.ram || entry.disk),
                "pool_page_is_somewhere",
                "{key:?} is in no tier"
            );
            let tiers = [
                (entry.ram, &mut ram, entry.bytes),
                (entry.on_disk(), &mut disk, self.entries.file(entry.bytes)),
            ];
            for (held, tier, bytes) in tiers {
                tier.pages += u64::from(held);
                tier.bytes += if held { bytes } else { 0 };
            }
            let Some(parent) = entry.parent else { continue };
            let before = self.entries.peek(parent);
            ensure_invariant!(
                before.is_some_and(|p| p.key.fingerprint == key.fingerprint),
                "pool_is_closed",
                "{key:?} is here without the page before it"
            );
            ensure_invariant!(
                !entry.disk || before.is_some_and(|p| p.disk),
                "pool_disk_is_closed",
                "{key:?} is on disk without the page before it"
            );
            let counts = followers.entry(parent).or_default();
            let is = [true, entry.ram, entry.on_disk()];
            counts.iter_mut().zip(is).for_each(|(count, is)| *count += u32::from(is));
        }
        ensure_invariant!(
            (ram, disk) == (self.entries.ram(), self.entries.disk()),
            "pool_bytes_accounted",
            "{ram:?} and {disk:?} held, {:?} and {:?} accounted",
            self.entries.ram(),
            self.entries.disk()
        );
        let mut sizes = [0; 3];
        for (key, slot) in self.entries.iter() {
            let entry = self.entries.get(slot);
            let counted = [entry.children, entry.children_ram, entry.children_disk];
            let are = followers.get(&slot).copied().unwrap_or_default();
            ensure_invariant!(
                counted == are && self.entries.children(slot).count() == are[0] as usize,
                "pool_followers_counted",
                "{key:?} has followers {are:?}, counted {counted:?}"
            );
            ensure_invariant!(self.entries.is_ranked(slot), "pool_sets_agree", "{key:?}: {entry:?}");
            sizes.iter_mut().zip(entry.stands()).for_each(|(size, in_it)| *size += usize::from(in_it));
        }
        ensure_invariant!(
            sizes == self.entries.set_sizes(),
            "pool_sets_agree",
            "{sizes:?} pages may leave, {:?} are known to",
            self.entries.set_sizes()
        );
        Ok(())
    }

    fn check_users(&self) -> Result<(), Broken> {
        let (mut pins, mut holds): (BTreeMap<Slot, u32>, BTreeMap<Slot, u32>) = Default::default();
        for (id, reader) in &self.readers {
            for (at, slot) in reader.pages.iter().enumerate() {
                let before = at.checked_sub(1).map(|before| reader.pages[before]);
                ensure_invariant!(
                    self.entries.peek(*slot).is_some_and(|e| e.parent == before),
                    "pool_pinned_is_here",
                    "page {at} of {id:?} is gone"
                );
                *pins.entry(*slot).or_default() += 1;
            }
            ensure_invariant!(self.leases.has(Lease::Read(*id)), "pool_lease", "{id:?} has no lease");
        }
        let mut waiting = 0;
        for (id, put) in &self.puts {
            ensure_invariant!(self.leases.has(Lease::Put(*id)), "pool_lease", "{id:?} has no lease");
            waiting += (put.arrived - put.stored) as u64 * put.run.page_bytes;
            if let Some(parent) = put.parent {
                ensure_invariant!(
                    self.entries.peek(parent).is_some(),
                    "pool_held_is_here",
                    "the page that the next one of {id:?} follows is gone"
                );
                *holds.entry(parent).or_default() += 1;
            }
        }
        ensure_invariant!(
            waiting == self.waiting_bytes && self.leases.len() == self.puts.len() + self.readers.len(),
            "pool_waiting_accounted",
            "{waiting} bytes wait, {} accounted",
            self.waiting_bytes
        );
        for (_, slot) in self.entries.iter() {
            let entry = self.entries.get(slot);
            let used = [&pins, &holds].map(|users| users.get(&slot).copied().unwrap_or(0));
            ensure_invariant!(
                used == [entry.pins, entry.holds],
                "pool_users_counted",
                "{:?} has {used:?} readers and puts, {} and {} counted",
                entry.key,
                entry.pins,
                entry.holds
            );
        }
        for (key, put) in &self.pending {
            ensure_invariant!(
                self.puts.contains_key(put) && self.entries.find(key).is_none(),
                "pool_pending_has_owner",
                "{key:?} is pending for {put:?}"
            );
        }
        Ok(())
    }

    fn check_disk_work(&self) -> Result<(), Broken> {
        let (mut writing, mut reading) = (0, 0);
        for (_, slot) in self.entries.iter() {
            let entry = self.entries.get(slot);
            writing += usize::from(entry.writing.is_some());
            reading += usize::from(entry.reading.is_some());
        }
        let written = self.writes.slots().all(|(op, slot)| {
            self.entries.peek(slot).is_some_and(|e| e.writing == Some(op) && e.ram && !e.disk)
        });
        let read = self
            .reads
            .iter()
            .all(|(op, read)| self.entries.peek(read.slot).is_some_and(|e| e.reading == Some(*op) && e.disk));
        ensure_invariant!(
            written && read && writing == self.writes.in_flight() && reading == self.reads.len(),
            "pool_disk_work",
            "{writing} pages are written and {reading} read, by {} and {} orders",
            self.writes.in_flight(),
            self.reads.len()
        );
        let stuck: u64 = self.stuck.values().sum();
        ensure_invariant!(
            stuck == self.stuck_bytes,
            "pool_stuck_accounted",
            "{stuck} bytes of files are in the way, {} accounted",
            self.stuck_bytes
        );
        Ok(())
    }
}
