//! Which pages can be found at a pool, told to controllers as a worker tells it: numbered changes, and everything to one that asks.

use cluster::wire::{KV_SNAPSHOT_PAGES, ToController};
use config::ids::{NodeId, WorkerId};
use policies::kv::PageHash;
use policies::kv::events::KvEvent;
use tracing::debug;

use super::PoolState;
use crate::doors::Doors;

/// What controllers were told.
#[derive(Debug)]
pub(super) struct News {
    doors: Doors,
    /// The pool in this life.
    me: WorkerId,
    /// Number of the last message about changes.
    seq: u64,
    /// One has asked.
    told: bool,
}

impl News {
    pub(super) const fn new(doors: Doors, me: WorkerId) -> Self {
        Self { doors, me, seq: 0, told: false }
    }

    /// The pool goes on under another name, of which nobody was told anything.
    pub(super) fn renew(&mut self, me: WorkerId) {
        (self.me, self.seq, self.told) = (me, 0, false);
    }

    fn changed(&mut self, events: Vec<KvEvent>) {
        if !self.told || events.is_empty() {
            return;
        }
        self.seq += 1;
        let (pool, seq) = (self.me.clone(), self.seq);
        self.doors.to_controllers(&ToController::PoolEvents { pool, seq, events });
    }

    fn all(&mut self, controller: &NodeId, pages: &[PageHash]) {
        self.told = true;
        let parts = pages.len().div_ceil(KV_SNAPSHOT_PAGES).max(1) as u32;
        for part in 0..parts {
            let at = part as usize * KV_SNAPSHOT_PAGES;
            let pages = pages[at..pages.len().min(at + KV_SNAPSHOT_PAGES)].to_vec();
            let (pool, seq) = (self.me.clone(), self.seq);
            let message = ToController::PoolSnapshot { pool, seq, part, parts, pages };
            // If it does not arrive, the controller asks again.
            self.doors.to_controller_of(controller, message);
        }
    }
}

impl PoolState {
    /// Tells controllers what has changed.
    pub(super) fn tell_pages(&mut self) {
        let mut events = Vec::new();
        self.store.take_events(&mut events);
        // A page's hash says whose it is.
        self.news.changed(events.into_iter().map(|(_, event)| event).collect());
    }

    /// A controller wants to know all pages, and every change from now on.
    pub(super) fn resync(&mut self, controller: &NodeId) {
        // What everything contains has numbers up to its own.
        self.tell_pages();
        let mut pages = Vec::new();
        for (_, event) in self.store.announce().contents {
            match event {
                KvEvent::Stored { pages: more, .. } => pages.extend(more),
                // Nothing is gone from what is here.
                KvEvent::Removed { .. } | KvEvent::Cleared => {}
            }
        }
        debug!(%controller, pages = pages.len(), "all pages of the pool are told");
        self.news.all(controller, &pages);
    }
}
