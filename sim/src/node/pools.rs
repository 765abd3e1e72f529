//! All pools of a cluster.

use config::ids::{NodeId, WorkerId};
use policies::time::Time;

use super::pool::{Disk, Pool, PoolArgs, PoolTally};
use crate::network::{POOL, index_of};
use crate::watch::Checks;

/// Pools by their numbers, one life of each at most, and their disks.
#[derive(Debug)]
pub struct Pools {
    places: Vec<Place>,
    checks: Checks,
}

#[derive(Debug)]
struct Place {
    /// What it is started with, but for its name.
    args: PoolArgs,
    lives: u64,
    pool: Option<Pool>,
    /// While it does not live.
    disk: Option<Disk>,
    /// What former lives of it did.
    tally: PoolTally,
}

impl Pools {
    /// None lives yet.
    #[must_use]
    pub fn new(args: Vec<PoolArgs>, checks: Checks) -> Self {
        let place = |args: PoolArgs| {
            let disk = Some(Disk::new(args.speed));
            Place { args, lives: 0, pool: None, disk, tally: PoolTally::default() }
        };
        Self { places: args.into_iter().map(place).collect(), checks }
    }

    /// A pool starts; false where it lives.
    pub fn start(&mut self, now: Time, index: u32) -> bool {
        let Some(place) = self.places.get_mut(index as usize) else { return false };
        let Some(disk) = place.disk.take() else { return false };
        place.lives += 1;
        let mut args = place.args.clone();
        args.info.id = pool_name(index, place.lives);
        args.info.address = args.info.id.to_string();
        place.pool = Some(Pool::start(now, args, disk).checked(self.checks));
        true
    }

    /// A pool dies; what is on its disk stays.
    pub fn stop(&mut self, index: u32) {
        let Some(place) = self.places.get_mut(index as usize) else { return };
        if let Some(pool) = place.pool.take() {
            let (tally, disk) = pool.end();
            place.tally.merge(&tally);
            place.disk = Some(disk);
        }
    }

    /// A pool that was cut off from everybody takes another name.
    pub fn renew(&mut self, index: u32) {
        if let Some(place) = self.places.get_mut(index as usize)
            && let Some(pool) = &mut place.pool
        {
            place.lives += 1;
            pool.renew(pool_name(index, place.lives));
        }
    }

    /// A fault that has a disk full begins, or is over.
    pub fn fill(&mut self, index: u32, begins: bool) {
        let Some(place) = self.places.get_mut(index as usize) else { return };
        if let Some(disk) = place.pool.as_mut().map(Pool::disk).or(place.disk.as_mut()) {
            disk.fill(begins);
        }
    }

    /// The pool of this number, if it lives.
    #[must_use]
    pub fn at(&self, index: u32) -> Option<&Pool> {
        self.places.get(index as usize)?.pool.as_ref()
    }

    /// As [`Pools::at`].
    pub fn at_mut(&mut self, index: u32) -> Option<&mut Pool> {
        self.places.get_mut(index as usize)?.pool.as_mut()
    }

    /// The pool that has, or had, this name, if that process lives.
    pub fn process(&mut self, id: &WorkerId) -> Option<&mut Pool> {
        self.at_mut(index_of(id)).filter(|pool| pool.is(id))
    }

    /// What each did in all its lives, with the one that lives at the end, where one does.
    pub fn each(&self) -> impl Iterator<Item = (NodeId, PoolTally, Option<&Pool>)> {
        (0..).zip(&self.places).map(|(index, place)| {
            let mut tally = place.tally.clone();
            if let Some(pool) = &place.pool {
                tally.merge(&pool.tally());
            }
            (pool_name(index, 0).node, tally, place.pool.as_ref())
        })
    }
}

/// A life of a pool.
pub(crate) fn pool_name(index: u32, life: u64) -> WorkerId {
    WorkerId::new(format!("{POOL}{index:05}").into(), life)
}
