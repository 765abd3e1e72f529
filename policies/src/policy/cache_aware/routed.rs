//! The index `routed`: which pages each worker should hold, by what was sent there.
//!
//! It is the approximate index of routers that hear nothing of what workers cache (SGLang's tree a worker, the
//! approximate prefix plugin of the Kubernetes inference gateway, Dynamo without KV events): a prompt that was sent to a
//! worker is taken to be there until as much was sent after it as the worker can hold, or for `index-ttl`. What workers
//! evict for other reasons, and what answers take of their memory, it cannot know.
//!
//! Pages are named by chained hashes, so that a page is known with all pages before it. That holds here too: a prompt is
//! noted from its last page to its first, so that of two pages the earlier one is always the more recently used.

use std::collections::BTreeMap;

use config::ids::{Attempt, RequestId, WorkerId};

use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::kv::PageHash;
use crate::kv::by_page::PageMap;
use crate::policy::PlacedAt;
use crate::time::{Span, Time};

/// What was sent where.
#[derive(Clone, Debug, Default)]
pub(super) struct Routed {
    trees: BTreeMap<WorkerId, Tree>,
    /// Attempts that were placed and that their worker has not taken yet.
    sent: BTreeMap<(RequestId, Attempt), WorkerId>,
}

/// What one worker should hold.
#[derive(Clone, Debug)]
struct Tree {
    pages: PageMap<Known>,
    by_use: BTreeMap<u64, PageHash>,
    uses: u64,
    /// Pages at most.
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Key in the order of use.
    used: u64,
    at: Time,
    /// A worker has taken a request with it; before that it may be refused, and then nothing of it is there.
    taken: bool,
}

impl Routed {
    /// How many pages a worker can hold: no more than that are remembered of it.
    pub(super) fn set_most(&mut self, worker: &WorkerId, most: usize) {
        match self.trees.get_mut(worker) {
            Some(tree) if tree.most != most => {
                tree.most = most;
                tree.trim();
            }
            Some(_) => {}
            None => _ = self.trees.insert(worker.clone(), Tree::new(most)),
        }
    }

    /// A request was sent to a worker. Of one whose size is not known yet nothing is noted.
    pub(super) fn placed(&mut self, now: Time, at: &PlacedAt) {
        let Some(tree) = self.trees.get_mut(&at.worker) else { return };
        if self.sent.insert((at.request, at.attempt), at.worker.clone()).is_none() {
            tree.note(now, &at.pages, false);
        }
    }

    /// Its worker took it.
    pub(super) fn taken(&mut self, now: Time, at: &PlacedAt) {
        self.sent.remove(&(at.request, at.attempt));
        if let Some(tree) = self.trees.get_mut(&at.worker) {
            tree.note(now, &at.pages, true);
        }
    }

    /// It is over. Where the worker never took it, it took nothing of it into its cache.
    pub(super) fn over(&mut self, now: Time, at: &PlacedAt) {
        let refused = self.sent.remove(&(at.request, at.attempt)).is_some();
        let Some(tree) = self.trees.get_mut(&at.worker) else { return };
        match refused {
            true => tree.take_back(&at.pages),
            false => tree.note(now, &at.pages, true),
        }
    }

    /// A worker is gone, and with it all that it held.
    pub(super) fn forget(&mut self, worker: &WorkerId) {
        self.trees.remove(worker);
        self.sent.retain(|_, at| at != worker);
    }

    /// Forgets what was not used for `ttl`.
    pub(super) fn expire(&mut self, now: Time, ttl: Span) {
        self.trees.values_mut().for_each(|tree| tree.expire(now, ttl));
    }

    /// How many of the first pages of a prompt a worker should hold.
    pub(super) fn hits(&self, now: Time, ttl: Span, worker: &WorkerId, pages: &[PageHash]) -> u32 {
        let Some(tree) = self.trees.get(worker) else { return 0 };
        // No page is known without those before it.
        let known = |page: &PageHash| tree.pages.get(page).is_some_and(|known| now.since(known.at) < ttl);
        pages.partition_point(known) as u32
    }

    /// Pages that are remembered of a worker.
    #[cfg(test)]
    pub(super) fn pages_of(&self, worker: &WorkerId) -> usize {
        self.trees.get(worker).map_or(0, |tree| tree.pages.len())
    }

    /// # Errors
    /// When more is remembered of a worker than it can hold, or the order of use is not that of the pages.
    pub(super) fn check(&self) -> Result<(), Broken> {
        for (worker, tree) in &self.trees {
            let (pages, listed) = (tree.pages.len(), tree.by_use.len());
            ensure_invariant!(
                pages == listed && pages <= tree.most,
                "cache_aware_routed_bounded",
                "{pages} pages of {worker}, {listed} in order of use, {} at most",
                tree.most
            );
        }
        Ok(())
    }
}

impl Tree {
    fn new(most: usize) -> Self {
        Self { pages: PageMap::default(), by_use: BTreeMap::new(), uses: 0, most }
    }

    /// The pages of a prompt are used now.
    fn note(&mut self, now: Time, pages: &[PageHash], taken: bool) {
        // More than fits would only push out its own beginning.
        for page in pages[..pages.len().min(self.most)].iter().rev() {
            self.uses += 1;
            let known = Known { used: self.uses, at: now, taken };
            if let Some(before) = self.pages.insert(*page, known) {
                self.by_use.remove(&before.used);
                if before.taken
                    && let Some(known) = self.pages.get_mut(page)
                {
                    known.taken = true;
                }
            }
            self.by_use.insert(self.uses, *page);
        }
        self.trim();
    }

    /// A prompt that was noted is not there after all. What a worker has taken by another request stays.
    fn take_back(&mut self, pages: &[PageHash]) {
        for page in pages {
            if self.pages.get(page).is_some_and(|known| !known.taken)
                && let Some(known) = self.pages.remove(page)
            {
                self.by_use.remove(&known.used);
            }
        }
    }

    fn trim(&mut self) {
        while self.pages.len() > self.most {
            let Some((_, page)) = self.by_use.pop_first() else { return };
            self.pages.remove(&page);
        }
    }

    fn expire(&mut self, now: Time, ttl: Span) {
        while let Some((_, page)) = self.by_use.first_key_value()
            && self.pages.get(page).is_none_or(|known| now.since(known.at) >= ttl)
        {
            let Some((_, page)) = self.by_use.pop_first() else { return };
            self.pages.remove(&page);
        }
    }
}
