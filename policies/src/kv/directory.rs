//! Which worker holds which pages, as far as the workers have told.
//!
//! Each worker numbers what it tells. A number that is missing is a *gap*: what is known of that worker goes on counting,
//! nothing more is taken from it, and a snapshot of all its pages sets it right. Everything is known of one life of a
//! worker; what an older life told, or tells late, is nothing to a new one.
//!
//! A worker's pages are a set, and up to 64 sets share one map from a page's hash to the sets that have it. A snapshot,
//! like a removal, gives the old set back and starts with an empty one: the old pages cannot be seen from that moment,
//! and are swept out of the map by and by. More than 64 workers have several maps. A page costs 32 to 48 bytes while a
//! map grows, however many workers of that map hold it.

use std::collections::BTreeMap;

use config::ids::{NodeId, WorkerId};

use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::kv::PageHash;
use crate::kv::events::KvEvent;

use group::{Group, bit};

mod group;
mod part;

/// Parts of a map that are swept with each message from a worker.
const TIDY_PARTS: usize = 1;

/// Page hash to workers. A worker is heard once it has [joined](Directory::join).
#[derive(Clone, Debug, Default)]
pub struct Directory {
    lives: BTreeMap<NodeId, Life>,
    groups: Vec<Group>,
}

/// What is known of one life of a worker.
#[derive(Clone, Debug)]
struct Life {
    incarnation: u64,
    held: Slot,
    /// Number of the last message that counts.
    last: u64,
    news: News,
    filling: Option<Filling>,
}

/// Whether a worker's messages are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// Nothing is missing.
    Current,
    /// Something is, and a snapshot is awaited.
    Awaited,
    /// It was already when [`Directory::overdue`] was called last.
    Overdue,
}

/// A snapshot of which not all parts are here.
#[derive(Clone, Copy, Debug)]
struct Filling {
    into: Slot,
    seq: u64,
    next: u32,
    parts: u32,
}

/// A set of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    group: u32,
    slot: u32,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// It counts.
    Applied,
    /// It does not count: something before it is missing. Ask the worker for a snapshot.
    Gap {
        /// The number that the next message should have had.
        expected: u64,
    },
    /// It does not count: a snapshot has been asked for and is not here, or not all of it is.
    Waiting,
    /// It does not count: it is known already, or its sender is an older life, removed, or not a member.
    Stale,
}

/// What is known of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// The worker.
    pub worker: WorkerId,
    /// Pages that it holds.
    pub pages: u64,
    /// Number of its last message that counts.
    pub seq: u64,
    /// Nothing is missing.
    pub current: bool,
}

impl Directory {
    /// A directory of no workers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A worker is a member from now on; it holds nothing, and an older life of it is gone. True where that is news: then
    /// ask it for a snapshot, which its events are counted from. It may hold pages that it told others about before.
    pub fn join(&mut self, worker: &WorkerId) -> bool {
        match self.lives.get(&worker.node) {
            Some(life) if life.incarnation >= worker.incarnation => return false,
            Some(_) => self.forget(&worker.node),
            None => {}
        }
        let life = Life {
            incarnation: worker.incarnation,
            held: self.take_slot(),
            last: 0,
            news: News::Awaited,
            filling: None,
        };
        self.lives.insert(worker.node.clone(), life);
        true
    }

    /// The worker is gone and so is, at once, what it held. Of another life than the one that is a member: nothing.
    pub fn remove(&mut self, worker: &WorkerId) {
        if self.lives.get(&worker.node).is_some_and(|l| l.incarnation == worker.incarnation) {
            self.forget(&worker.node);
        }
    }

    /// Message `seq` of a worker, one more than that of the message before.
    pub fn events(&mut self, worker: &WorkerId, seq: u64, events: &[KvEvent]) -> Feed {
        self.tidy(TIDY_PARTS);
        let Some(life) = self.life(worker) else { return Feed::Stale };
        if seq <= life.last {
            return Feed::Stale;
        }
        let expected = life.last + 1;
        if life.news != News::Current {
            return Feed::Waiting;
        }
        if seq != expected {
            life.news = News::Awaited;
            return Feed::Gap { expected };
        }
        life.last = seq;
        let mut held = life.held;
        for event in events {
            held = self.apply(worker, held, event);
        }
        Feed::Applied
    }

    /// Part `part` of `parts` of a snapshot of all pages of a worker, in which its messages up to `seq` are contained.
    /// Parts come in order; with the last one the snapshot takes the place of all that was known.
    pub fn snapshot(
        &mut self,
        worker: &WorkerId,
        seq: u64,
        part: u32,
        parts: u32,
        pages: &[PageHash],
    ) -> Feed {
        self.tidy(TIDY_PARTS);
        let Some(life) = self.life(worker) else { return Feed::Stale };
        let (last, under_way) = (life.last, life.filling.take());
        let follows = match under_way {
            Some(f) if part > 0 => (f.seq, f.next, f.parts) == (seq, part, parts),
            Some(_) | None => part == 0,
        };
        if seq < last || !follows || part >= parts {
            self.give_back(under_way.map(|f| f.into));
            return if seq < last { Feed::Stale } else { Feed::Gap { expected: last + 1 } };
        }
        let into = match under_way {
            Some(f) if part > 0 => f.into,
            Some(_) | None => {
                self.give_back(under_way.map(|f| f.into));
                self.take_slot()
            }
        };
        self.add(into, pages);
        let Some(life) = self.life(worker) else { return Feed::Stale };
        if part + 1 < parts {
            life.filling = Some(Filling { into, seq, next: part + 1, parts });
            return Feed::Waiting;
        }
        let old = std::mem::replace(&mut life.held, into);
        (life.last, life.news) = (seq, News::Current);
        self.give_back(Some(old));
        Feed::Applied
    }

    /// The workers whose snapshot is awaited since before the last call, in order: the request or the answer is lost, and
    /// they are to be asked again. To be called as often as an answer may take.
    pub fn overdue(&mut self) -> Vec<WorkerId> {
        let mut overdue = Vec::new();
        for (node, life) in &mut self.lives {
            match life.news {
                News::Current => {}
                News::Awaited => life.news = News::Overdue,
                News::Overdue => overdue.push(WorkerId::new(node.clone(), life.incarnation)),
            }
        }
        overdue
    }

    /// For each of `workers`, how many of the first pages of a prompt it holds without a gap; `out` gets one number a
    /// worker, 0 for one that is not a member.
    pub fn hits(&self, pages: &[PageHash], workers: &[WorkerId], out: &mut Vec<u32>) {
        out.clear();
        out.resize(workers.len(), 0);
        let slots: Vec<Option<Slot>> = workers
            .iter()
            .map(|w| self.lives.get(&w.node).filter(|l| l.incarnation == w.incarnation).map(|l| l.held))
            .collect();
        for (group, i) in self.groups.iter().zip(0..) {
            let here = |s: &Slot| s.group == i;
            let asked = slots.iter().flatten().filter(|s| here(s)).fold(0, |all, s| all | bit(s.slot));
            if asked == 0 {
                continue;
            }
            let runs = group.runs(pages, asked);
            for (out, slot) in out.iter_mut().zip(&slots) {
                if let Some(slot) = slot.filter(here) {
                    *out = runs[slot.slot as usize];
                }
            }
        }
    }

    /// The workers that hold a page, in order.
    #[must_use]
    pub fn holders(&self, page: &PageHash) -> Vec<WorkerId> {
        let masks: Vec<u64> = self.groups.iter().map(|g| g.get(page)).collect();
        let holds = |life: &Life| masks[life.held.group as usize] & bit(life.held.slot) != 0;
        let holders = self.lives.iter().filter(|(_, life)| holds(life));
        holders.map(|(node, life)| WorkerId::new(node.clone(), life.incarnation)).collect()
    }

    /// Pages that a worker holds; none where it is not a member.
    #[must_use]
    pub fn pages_of(&self, worker: &WorkerId) -> usize {
        let life = self.lives.get(&worker.node).filter(|l| l.incarnation == worker.incarnation);
        life.map_or(0, |l| self.groups[l.held.group as usize].count(l.held.slot) as usize)
    }

    /// What is known of each worker, in order.
    #[must_use]
    pub fn workers(&self) -> Vec<HolderView> {
        let view = |(node, life): (&NodeId, &Life)| HolderView {
            worker: WorkerId::new(node.clone(), life.incarnation),
            pages: self.groups[life.held.group as usize].count(life.held.slot),
            seq: life.last,
            current: life.news == News::Current,
        };
        self.lives.iter().map(view).collect()
    }

    /// Different pages that are kept; of more than 64 workers, each 64 count their own. Pages that nobody holds any more
    /// count until they are swept out.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.groups.iter().map(Group::pages).sum()
    }

    /// Memory of the maps in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.groups.iter().map(Group::bytes).sum()
    }

    /// Sweeps pages that nobody holds any more out of up to `parts` parts of each map (of 256). Each message does a
    /// little of it; a driver calls it now and then, for when there are no messages. True while there is more to do.
    pub fn tidy(&mut self, parts: usize) -> bool {
        for group in &mut self.groups {
            group.tidy(parts);
        }
        self.groups.iter().any(Group::is_untidy)
    }

    /// Checks the directory against itself; O(pages).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), Broken> {
        let mut taken = vec![0_u64; self.groups.len()];
        let slots = self.lives.values().flat_map(|l| [Some(l.held), l.filling.map(|f| f.into)]);
        for Slot { group, slot } in slots.flatten() {
            let all = taken.get_mut(group as usize);
            ensure_invariant!(
                all.is_some_and(|all| {
                    let before = *all;
                    *all |= bit(slot);
                    before != *all
                }),
                "directory_owner",
                "set {slot} of map {group} has two owners or does not exist"
            );
        }
        self.groups.iter().zip(taken).try_for_each(|(group, taken)| group.check(taken))
    }

    fn life(&mut self, worker: &WorkerId) -> Option<&mut Life> {
        self.lives.get_mut(&worker.node).filter(|l| l.incarnation == worker.incarnation)
    }

    fn forget(&mut self, node: &NodeId) {
        if let Some(life) = self.lives.remove(node) {
            self.give_back(Some(life.held));
            self.give_back(life.filling.map(|f| f.into));
        }
    }

    /// A worker with the set `held` tells this; the set that it has from then on.
    fn apply(&mut self, worker: &WorkerId, held: Slot, event: &KvEvent) -> Slot {
        match event {
            KvEvent::Stored { pages, .. } => self.add(held, pages),
            KvEvent::Removed { pages } => {
                let group = &mut self.groups[held.group as usize];
                pages.iter().for_each(|page| group.remove(page, held.slot));
            }
            KvEvent::Cleared => {
                let empty = self.take_slot();
                if let Some(life) = self.life(worker) {
                    life.held = empty;
                }
                self.give_back(Some(held));
                return empty;
            }
        }
        held
    }

    fn add(&mut self, to: Slot, pages: &[PageHash]) {
        let group = &mut self.groups[to.group as usize];
        pages.iter().for_each(|page| group.add(page, to.slot));
    }

    /// An empty set: of a map that has one, or of one that has after a sweep, or of a new map.
    fn take_slot(&mut self) -> Slot {
        for wait in [false, true] {
            for (group, i) in self.groups.iter_mut().zip(0..) {
                if wait {
                    group.tidy_all();
                }
                if let Some(slot) = group.take() {
                    return Slot { group: i, slot };
                }
            }
        }
        self.groups.push(Group::new());
        self.take_slot()
    }

    fn give_back(&mut self, slot: Option<Slot>) {
        let Some(Slot { group, slot }) = slot else { return };
        self.groups[group as usize].give_back(slot);
        while self.groups.last().is_some_and(Group::is_unused) {
            self.groups.pop();
        }
    }
}

#[cfg(test)]
mod tests;
