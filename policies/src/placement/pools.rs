//! The pools of the cluster: which there are, and what each holds.
//!
//! What pools tell goes into a directory of their own, by the rules of that of workers: a node may be both, and its pool keeps
//! what its worker has dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::WorkerId;

use super::{Placement, PoolInfo, TIDY_PARTS};
use crate::kv::PageHash;
use crate::kv::directory::{Directory, Feed};
use crate::kv::events::KvEvent;
use crate::policy::PoolRow;
use crate::time::{Span, Time};

/// The pools by name.
#[derive(Debug, Default)]
pub(super) struct Pools {
    infos: BTreeMap<WorkerId, Arc<PoolInfo>>,
    /// Until when each has to do with giving what workers were sent to it for, those that have.
    busy: BTreeMap<WorkerId, Time>,
    directory: Directory,
}

impl Placement {
    /// A pool is there, or says again what it is. A higher incarnation of a node takes the place of a lower one; a lower one
    /// than known is a message from the past and changes nothing.
    pub fn pool_joined(&mut self, info: PoolInfo) {
        let known = |id: &&WorkerId| id.node == info.id.node && **id != info.id;
        let lives: Vec<WorkerId> = self.pools.infos.keys().filter(known).cloned().collect();
        if lives.iter().any(|id| id.incarnation > info.id.incarnation) {
            return;
        }
        for former in lives {
            self.pool_left(&former);
        }
        if self.config.directory && self.pools.directory.join(&info.id) {
            self.policies.resync_pool(info.id.clone());
        }
        self.pools.infos.insert(info.id.clone(), Arc::new(info));
    }

    /// This life of a pool is over. What was to be fetched from it is computed by whoever asks in vain.
    pub fn pool_left(&mut self, pool: &WorkerId) {
        self.pools.infos.remove(pool);
        self.pools.busy.remove(pool);
        self.pools.directory.remove(pool);
    }

    /// Message `seq` of what a pool tells about its pages. A gap asks for a snapshot by
    /// [`PolicyWork::ResyncPool`](super::PolicyWork::ResyncPool).
    pub fn pool_events(&mut self, pool: &WorkerId, seq: u64, events: &[KvEvent]) -> Feed {
        let feed = self.pools.directory.events(pool, seq, events);
        self.pool_fed(pool, feed)
    }

    /// A part of a snapshot of a pool's pages, as [`Directory::snapshot`] takes it.
    pub fn pool_snapshot(
        &mut self,
        pool: &WorkerId,
        seq: u64,
        part: u32,
        parts: u32,
        pages: &[PageHash],
    ) -> Feed {
        let feed = self.pools.directory.snapshot(pool, seq, part, parts, pages);
        self.pool_fed(pool, feed)
    }

    /// Who holds which pages, of pools. Empty without [`PlacementConfig::directory`](super::PlacementConfig::directory).
    #[must_use]
    pub const fn pool_directory(&self) -> &Directory {
        &self.pools.directory
    }

    /// Whether a pool is known, in this very life.
    #[must_use]
    pub fn knows_pool(&self, pool: &WorkerId) -> bool {
        self.pools.infos.contains_key(pool)
    }

    /// Time until a pool has given what workers were sent to it for.
    ///
    /// It is counted here, since what a pool tells of itself comes when they have all been sent there: those that come
    /// together would otherwise all take it for idle.
    pub(super) fn pool_wait(&self, now: Time, pool: &WorkerId) -> Span {
        self.pools.busy.get(pool).map_or(Span::ZERO, |until| until.since(now))
    }

    /// A worker is sent to a pool, which has to do with that for so long.
    pub(super) fn sent_to_pool(&mut self, now: Time, pool: &WorkerId, occupies: Span) {
        if self.knows_pool(pool) {
            let until = self.pools.busy.entry(pool.clone()).or_insert(now);
            *until = (*until).max(now) + occupies;
        }
    }

    /// What policies are shown of pools, about a prompt with these pages.
    pub(super) fn pool_rows(&self, now: Time, pages: &[PageHash]) -> Arc<[PoolRow]> {
        if self.pools.infos.is_empty() {
            return Arc::default();
        }
        let names: Vec<WorkerId> = self.pools.infos.keys().cloned().collect();
        let mut hits = Vec::new();
        self.pools.directory.hits(pages, &names, &mut hits);
        let row = |(info, hit_pages): (&Arc<PoolInfo>, u32)| {
            let wait = self.pool_wait(now, &info.id);
            PoolRow { info: Arc::clone(info), hit_pages, wait }
        };
        self.pools.infos.values().zip(hits).map(row).collect()
    }

    /// As for workers.
    pub(super) fn keep_pools(&mut self) {
        self.pools.directory.tidy(TIDY_PARTS);
        for pool in self.pools.directory.overdue() {
            self.policies.resync_pool(pool);
        }
    }

    fn pool_fed(&mut self, pool: &WorkerId, feed: Feed) -> Feed {
        if matches!(feed, Feed::Gap { .. }) {
            self.policies.resync_pool(pool.clone());
        }
        feed
    }
}
