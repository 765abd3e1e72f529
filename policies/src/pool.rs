//! What a pool of KV pages keeps: which pages are in RAM, which on disk, who writes, who reads, and what leaves first.
//!
//! ```text
//!   writer ── begin, arrived, commit ──▶ ┌──────────────┐ ── Store, Give ─────────▶ driver's RAM
//!   reader ── look_up, grant, release ─▶ │    Store     │ ── WriteDisk, ReadDisk ─▶ driver's disk
//!   disk   ── wrote, read, deleted ────▶ └──────────────┘ ── take_events ─────────▶ controllers
//! ```
//!
//! The driver holds the bytes and carries effects out in the order given; the [`Store`] never sees a byte. A page is named by
//! [`PageKey`], and follows another one or starts a prompt. All pages form a forest that is *closed*: a page is there only
//! while the one before it is, so that what is there can be found from the start of a prompt. From that follow:
//! - An entry exists from when its whole content is there. What a writer has announced is pending, owned by the writer, and
//!   gone with it; what was complete by then stays.
//! - The disk is closed in itself: a page is written after the one before it, and deleted before it. A crash at any moment
//!   leaves files of which every one can be found again.
//! - Each tier drops the least recently used page that has no follower in that tier and that nobody reads. The last copy
//!   goes only where no follower is left at all.
//! - A page that turns out to be gone (its file was deleted, or is damaged) takes those that follow it along, and cuts the
//!   runs of those who read it.
//!
//! RAM is full after a while, and stays so. What is only in RAM is written to disk before it is dropped, oldest first, where
//! the disk takes it: begun when RAM is filled beyond [`DiskLimits::write_above`], with [`DiskLimits::write_window`] bytes
//! under way at a time. A page that comes meanwhile waits; beyond [`PoolLimits::incoming`] bytes that wait, and while the disk
//! takes nothing, old pages are dropped unwritten: a pool loses pages rather than time.
//!
//! A disk that is full is pressure, not a failure: the first time some of its pages are deleted, and when that did not help
//! nothing is written for [`DiskLimits::back_off`]; then one page is tried at a time. What a full disk held is its capacity from
//! then on, so that pages make room for each other before they are written and not by failing; it is tried for more after
//! [`DiskLimits::back_off`] each time. Reads go on all along.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use config::ids::WorkerId;

use crate::kv::events::KvEvent;
use crate::kv::{Fingerprint, PageHash};
use crate::time::{Span, Time};

mod check;
mod entries;
mod evict;
mod leases;
pub mod pace;
mod puts;
mod reads;
mod results;
mod tell;
mod types;
mod writes;

use entries::Entries;
use leases::{Lease, Leases};
use puts::Put;
use reads::{Read, Reader};
use tell::Teller;
use writes::Writes;

pub use tell::Announcement;
pub use types::{
    Begun, Counts, DiskError, DiskJob, DiskLimits, Found, Hit, OpId, PageKey, PoolEffect, PoolLimits,
    PoolStats, PutEnd, PutId, PutRefusal, ReaderId, Run, TierStats,
};

#[cfg(test)]
mod tests;

/// Every decision of a pool. All operations but [`Store::check`], [`Store::announce`], [`Store::restart`] and what a loss
/// takes along are O(log pages) for each page that they are about.
#[derive(Debug)]
pub struct Store {
    limits: PoolLimits,
    entries: Entries,
    puts: BTreeMap<PutId, Put>,
    /// Pages that were announced and are not complete.
    pending: BTreeMap<PageKey, PutId>,
    /// Puts with a page that waits for room, in the order of arrival; one entry a page.
    waiting: VecDeque<PutId>,
    waiting_bytes: u64,
    readers: BTreeMap<ReaderId, Reader>,
    reads: BTreeMap<OpId, Read>,
    writes: Writes,
    /// Files that could not be deleted, with their bytes.
    stuck: BTreeMap<PageKey, u64>,
    stuck_bytes: u64,
    leases: Leases,
    teller: Teller,
    /// Failures that were reported.
    reported: BTreeSet<(DiskJob, DiskError)>,
    closing: bool,
    next_id: u64,
    counts: Counts,
}

impl Store {
    /// An empty store.
    #[must_use]
    pub fn new(limits: PoolLimits) -> Self {
        Self {
            entries: Entries::new(limits.disk),
            limits,
            puts: BTreeMap::new(),
            pending: BTreeMap::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            readers: BTreeMap::new(),
            reads: BTreeMap::new(),
            writes: Writes::default(),
            stuck: BTreeMap::new(),
            stuck_bytes: 0,
            leases: Leases::default(),
            teller: Teller::default(),
            reported: BTreeSet::new(),
            closing: false,
            next_id: 1,
            counts: Counts::default(),
        }
    }

    /// How much it keeps.
    #[must_use]
    pub const fn limits(&self) -> &PoolLimits {
        &self.limits
    }

    /// How many of these pages, from the first, could be read now. Changes nothing.
    #[must_use]
    pub fn holds(&self, fingerprint: &Fingerprint, pages: &[PageHash]) -> usize {
        self.entries.run(fingerprint, pages).count()
    }

    /// A node is gone, or lives another life: what it was writing and reading is given up, in this life of it and in older
    /// ones.
    pub fn owner_lost(&mut self, now: Time, owner: &WorkerId, fx: &mut Vec<PoolEffect>) {
        let theirs = |who: &WorkerId| who.node == owner.node && who.incarnation <= owner.incarnation;
        let puts: Vec<PutId> =
            self.puts.iter().filter(|(_, put)| theirs(&put.owner)).map(|(id, _)| *id).collect();
        let readers: Vec<ReaderId> =
            self.readers.iter().filter(|(_, reader)| theirs(&reader.owner)).map(|(id, _)| *id).collect();
        for put in puts {
            self.end_put(put, PutEnd::OwnerLost, fx);
        }
        for reader in readers {
            self.end_read(reader, fx);
        }
        self.pump(now, fx);
    }

    /// Gives up who did nothing for too long, and tries the disk again where that is due.
    pub fn tick(&mut self, now: Time, fx: &mut Vec<PoolEffect>) {
        while let Some(lease) = self.leases.expired(now) {
            match lease {
                Lease::Put(id) if self.puts.get(&id).is_some_and(Put::waits) => self.renew(now, lease),
                Lease::Put(id) => self.end_put(id, PutEnd::Idle, fx),
                Lease::Read(id) if self.readers.get(&id).is_some_and(Reader::waits) => self.renew(now, lease),
                Lease::Read(id) => self.end_read(id, fx),
            }
        }
        self.pump(now, fx);
    }

    /// When [`Store::tick`] has to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        [self.leases.next(), self.writes.resumes()].into_iter().flatten().min()
    }

    /// The pool is about to stop: nothing new is taken, and what is only in RAM is written as far as the disk takes it.
    /// [`Store::is_flushed`] says when that is done.
    pub fn close(&mut self, now: Time, fx: &mut Vec<PoolEffect>) {
        self.closing = true;
        let puts: Vec<PutId> = self.puts.keys().copied().collect();
        for put in puts {
            self.end_put(put, PutEnd::Aborted, fx);
        }
        self.pump(now, fx);
    }

    /// Nothing is being written, and nothing is left to write.
    #[must_use]
    pub fn is_flushed(&self, now: Time) -> bool {
        let takes = self.limits.disk.is_some() && !self.writes.is_paused(now);
        self.writes.in_flight() == 0 && !(takes && self.entries.has_dirty())
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let disk = self.limits.disk;
        PoolStats {
            pages: self.entries.len() as u64,
            ram: TierStats { capacity: self.limits.ram, ..self.entries.ram() },
            disk: TierStats { capacity: disk.map_or(0, |d| d.capacity), ..self.entries.disk() },
            stuck_bytes: self.stuck_bytes,
            waiting_bytes: self.waiting_bytes,
            writing_bytes: self.writes.bytes(),
            puts: self.puts.len() as u64,
            readers: self.readers.len() as u64,
            paused: self.writes.resumes().is_some(),
            counts: self.counts,
        }
    }

    /// Moves what became findable, and what no longer is, since the last call to the end of `events`, in order. Empty until
    /// [`Store::announce`] was called once.
    pub fn take_events(&mut self, events: &mut Vec<(Fingerprint, KvEvent)>) {
        self.teller.take(events);
    }

    /// All contents for a controller that has joined. What [`Store::take_events`] gives from now on counts from there, and
    /// what it has not given is left out: tell the others first.
    pub fn announce(&mut self) -> Announcement {
        self.teller.announce(&self.entries)
    }

    /// Goes on with what waits: pages for room, room for writes.
    fn pump(&mut self, now: Time, fx: &mut Vec<PoolEffect>) {
        loop {
            let waits = self.place_waiting(now, fx);
            let changed = self.start_writes(now, fx);
            if !waits {
                break;
            }
            if self.writes.in_flight() == 0 && !changed {
                // Nothing comes of waiting.
                self.place_next(now, evict::Cost::Anything, fx);
            } else if !changed {
                break;
            }
        }
    }

    fn renew(&mut self, now: Time, lease: Lease) {
        // At least a nanosecond, so that it is over later than now.
        self.leases.renew(lease, now + self.limits.lease.max(Span(1)));
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn report(&mut self, job: DiskJob, error: DiskError, fx: &mut Vec<PoolEffect>) {
        let count = match error {
            DiskError::NoSpace => &mut self.counts.no_space,
            DiskError::Missing => &mut self.counts.missing,
            DiskError::Permission => &mut self.counts.permission,
            DiskError::Other => &mut self.counts.other,
        };
        *count += 1;
        // A file that is gone is a page that was dropped: nobody has to know.
        let news = !(error == DiskError::Missing && job != DiskJob::Write);
        if news && self.reported.insert((job, error)) {
            fx.push(PoolEffect::Report { job, error });
        }
    }
}
