//! The disk of a pool, which outlives it: one thing at a time, each with its latency and by what the disk moves a second.
//!
//! As live, reads come before writes and deletions, which somebody waits for seldom; but a few of them only, where there are
//! always more.

use std::collections::{BTreeMap, VecDeque};

use config::ids::WorkerId;
use policies::pool::{DiskError, Found, PageKey};
use policies::time::Span;

use super::Page;
use crate::event::{Event, Outbox, PoolEvent};

mod orders;

pub use orders::DiskSpeed;
pub(super) use orders::{Done, Order};

use orders::File;

/// As the live pool's: reads between two other things where there are always more.
const READS: u32 = 4;

/// What is on the disk, and what waits for it.
#[derive(Debug)]
pub struct Disk {
    speed: DiskSpeed,
    files: BTreeMap<PageKey, File>,
    /// Counts uses of files.
    clock: u64,
    /// Faults that have it full.
    full: u32,
    reads: VecDeque<Order>,
    /// Writes and deletions.
    changes: VecDeque<Order>,
    /// Reads since the last of the others.
    reads_on_end: u32,
    at: Option<Order>,
}

impl Disk {
    /// An empty disk.
    #[must_use]
    pub fn new(speed: DiskSpeed) -> Self {
        let (files, reads, changes) = Default::default();
        Self { speed, files, clock: 0, full: 0, reads, changes, reads_on_end: 0, at: None }
    }

    /// A fault that has it full begins, or is over.
    pub fn fill(&mut self, begins: bool) {
        self.full = if begins { self.full + 1 } else { self.full.saturating_sub(1) };
    }

    /// The machine is dead, or the process: what was not done is not done.
    #[must_use]
    pub fn stopped(self) -> Self {
        Self { reads: VecDeque::new(), changes: VecDeque::new(), reads_on_end: 0, at: None, ..self }
    }

    /// What is on it.
    pub(super) fn found(&self) -> Vec<Found> {
        let found = |(key, file): (&PageKey, &File)| {
            let File { parent, bytes, used, .. } = *file;
            Found { key: *key, parent, bytes, used }
        };
        self.files.iter().map(found).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.at.is_none() && self.reads.is_empty() && self.changes.is_empty()
    }

    pub(super) fn order(&mut self, order: Order) {
        match order {
            Order::Read { .. } => self.reads.push_back(order),
            Order::Write { .. } | Order::Delete { .. } => self.changes.push_back(order),
        }
    }

    /// Begins the next thing where nothing is being done.
    pub(super) fn go_on(&mut self, pool: &WorkerId, out: &mut Outbox) {
        if self.at.is_some() {
            return;
        }
        let read = self.changes.is_empty() || self.reads_on_end < READS;
        let next = if read { self.reads.pop_front() } else { None };
        self.reads_on_end = if next.is_some() { self.reads_on_end + 1 } else { 0 };
        self.at = next.or_else(|| self.changes.pop_front());
        let (bytes, speed) = match &self.at {
            None => return,
            Some(Order::Write { bytes, .. }) => (*bytes, self.speed.write),
            Some(Order::Read { bytes, .. }) => (*bytes, self.speed.read),
            Some(Order::Delete { .. }) => (0, 1),
        };
        let moves = u128::from(bytes) * 1_000_000_000 / u128::from(speed.max(1));
        let moves = Span(u64::try_from(moves).unwrap_or(u64::MAX));
        out.after(self.speed.latency + moves, Event::pool(PoolEvent::DiskDone(pool.clone())));
    }

    /// What was being done is.
    pub(super) fn done(&mut self) -> Option<Done> {
        self.clock += 1;
        Some(match self.at.take()? {
            Order::Write { op, .. } if self.full > 0 => Done::Wrote(op, Err(DiskError::NoSpace)),
            Order::Write { op, key, parent, bytes, page } => {
                self.files.insert(key, File { parent, bytes, used: self.clock, page });
                Done::Wrote(op, Ok(()))
            }
            Order::Read { op, key, .. } => {
                let file = self.files.get_mut(&key).ok_or(DiskError::Missing);
                let read = file.map(|file| {
                    file.used = self.clock;
                    Page::clone(&file.page)
                });
                Done::Read(op, key, read)
            }
            Order::Delete { key, bytes } => {
                let deleted = self.files.remove(&key).map(drop).ok_or(DiskError::Missing);
                Done::Deleted(key, bytes, deleted)
            }
        })
    }
}
