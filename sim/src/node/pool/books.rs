//! What a pool has to show, to whoever looks at it, and what is left when it is gone.

use std::collections::BTreeMap;

use config::ids::WorkerId;
use policies::placement::PoolInfo;
use policies::pool::{Counts, PoolStats, Store};

use super::{Disk, Pool};

/// What a pool did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolTally {
    /// Times that it started.
    pub lives: u32,
    /// What its stores have counted.
    pub counts: Counts,
    /// Prompts that it kept, or some pages of, by how that ended.
    pub puts: BTreeMap<&'static str, u64>,
    /// Prompts that it did not keep, by why.
    pub refused: BTreeMap<String, u64>,
    /// Transfers to it, by how they ended.
    pub takes: BTreeMap<&'static str, u64>,
    /// Transfers from it, by how they ended.
    pub gives: BTreeMap<&'static str, u64>,
    /// Pages that workers have fetched and taken over.
    pub fetched_pages: u64,
}

/// What is still under way at a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shelves {
    /// Transfers.
    pub transfers: usize,
    /// Who puts and who reads pages, as the driver knows it.
    pub users: usize,
    /// The disk has something to do.
    pub disk: bool,
}

impl PoolTally {
    /// Adds another life.
    pub fn merge(&mut self, other: &Self) {
        self.lives += other.lives;
        self.fetched_pages += other.fetched_pages;
        for (all, more) in
            [(&mut self.puts, &other.puts), (&mut self.takes, &other.takes), (&mut self.gives, &other.gives)]
        {
            more.iter().for_each(|(how, count)| *all.entry(how).or_default() += count);
        }
        for (why, count) in &other.refused {
            *self.refused.entry(why.clone()).or_default() += count;
        }
        let (all, more) = (&mut self.counts, &other.counts);
        all.looked_up += more.looked_up;
        all.found += more.found;
        all.given_ram += more.given_ram;
        all.given_disk += more.given_disk;
        all.stored += more.stored;
        all.written += more.written;
        all.evicted_ram += more.evicted_ram;
        all.evicted_disk += more.evicted_disk;
        all.dropped += more.dropped;
        all.lost += more.lost;
        all.no_space += more.no_space;
        all.pauses += more.pauses;
    }
}

impl Pool {
    /// What it offers.
    #[must_use]
    pub const fn info(&self) -> &PoolInfo {
        &self.info
    }

    /// The core, to look at.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Its disk.
    pub const fn disk(&mut self) -> &mut Disk {
        &mut self.disk
    }

    /// Figures of the moment.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.store.stats()
    }

    /// What this life of it did.
    #[must_use]
    pub fn tally(&self) -> PoolTally {
        PoolTally { lives: 1, counts: self.store.stats().counts, ..self.tally.clone() }
    }

    /// What is under way.
    #[must_use]
    pub fn shelves(&self) -> Shelves {
        Shelves {
            transfers: self.takes.len() + self.gives.len(),
            users: self.puts.len() + self.readers.len(),
            disk: !self.disk.is_idle(),
        }
    }

    /// From now on it has another name.
    pub fn renew(&mut self, id: WorkerId) {
        self.info.address = id.to_string();
        self.former.push(std::mem::replace(&mut self.info.id, id));
    }

    /// Whether it has this name, or had it in this life of its process.
    #[must_use]
    pub fn is(&self, id: &WorkerId) -> bool {
        self.info.id == *id || self.former.contains(id)
    }

    /// It is over; what is on its disk stays.
    #[must_use]
    pub fn end(self) -> (PoolTally, Disk) {
        (self.tally(), self.disk.stopped())
    }
}
