//! Requests that wait for their first admission, in the order that the policy publishes.
//!
//! Each flow has its own queue, ordered by places that are said once. Flows are ordered by the rank of their first
//! request, the flow's base plus that one's place, so that a new base moves one entry however many wait behind it.

use std::collections::{BTreeMap, BTreeSet};

use super::slab::Key;
use crate::order::{Flow, Standing};

/// Where a sequence stands in the queue; it has to be named to take it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) flow: Flow,
    pub(super) entry: Entry,
}

/// Order within a flow: place, arrival, choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    place: i64,
    arrival: u64,
    choice: u32,
}

impl Spot {
    pub(super) const fn new(standing: &Standing, arrival: u64, choice: u32) -> Self {
        Self { flow: standing.flow, entry: Entry { place: standing.place, arrival, choice } }
    }
}

#[derive(Debug, Default)]
struct FlowQueue {
    base: i64,
    waiting: BTreeMap<Entry, Key>,
}

impl FlowQueue {
    /// The rank of an entry; ties go by arrival, whatever the flow.
    const fn rank(&self, entry: Entry) -> Entry {
        Entry { place: self.base.saturating_add(entry.place), ..entry }
    }

    fn head(&self) -> Option<Entry> {
        self.waiting.first_key_value().map(|(entry, _)| self.rank(*entry))
    }
}

#[derive(Debug, Default)]
pub(super) struct Fresh {
    flows: BTreeMap<Flow, FlowQueue>,
    /// The first of each flow that has any, by rank.
    heads: BTreeSet<(Entry, Flow)>,
    len: usize,
}

impl Fresh {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, spot: Spot, key: Key) {
        self.change(spot.flow, |flow| flow.waiting.insert(spot.entry, key));
        self.len += 1;
    }

    pub(super) fn remove(&mut self, spot: Spot) {
        let removed = self.change(spot.flow, |flow| flow.waiting.remove(&spot.entry));
        self.len -= usize::from(removed.is_some());
        self.tidy(spot.flow);
    }

    /// Whose turn it is.
    pub(super) fn first(&self) -> Option<Key> {
        let (_, flow) = self.heads.first()?;
        self.flows.get(flow)?.waiting.values().next().copied()
    }

    /// A flow's base from now on.
    pub(super) fn set_base(&mut self, flow: Flow, base: i64) {
        self.change(flow, |flow| flow.base = base);
        self.tidy(flow);
    }

    /// All, in the order in which it would be their turn.
    pub(super) fn in_order(&self) -> impl Iterator<Item = Key> {
        let ranked = |flow: &FlowQueue| -> Vec<(Entry, Key)> {
            flow.waiting.iter().map(|(entry, key)| (flow.rank(*entry), *key)).collect()
        };
        let mut all: Vec<(Entry, Key)> = self.flows.values().flat_map(ranked).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, key)| key)
    }

    /// The first `count`, in the order in which it would be their turn.
    pub(super) fn first_few(&self, count: usize) -> Vec<Key> {
        // No one is among the first `count` whose flow's first is not, or who is further behind in its own flow.
        let flows = self.heads.iter().take(count).filter_map(|(_, flow)| self.flows.get(flow));
        let ranked = |flow: &FlowQueue| -> Vec<(Entry, Key)> {
            flow.waiting.iter().take(count).map(|(entry, key)| (flow.rank(*entry), *key)).collect()
        };
        let mut few: Vec<(Entry, Key)> = flows.flat_map(ranked).collect();
        few.sort_unstable();
        few.into_iter().take(count).map(|(_, key)| key).collect()
    }

    /// Changes a flow and keeps its head up to date.
    fn change<T>(&mut self, of: Flow, change: impl FnOnce(&mut FlowQueue) -> T) -> T {
        let flow = self.flows.entry(of).or_default();
        let before = flow.head();
        let result = change(flow);
        let after = flow.head();
        if before != after {
            if let Some(head) = before {
                self.heads.remove(&(head, of));
            }
            if let Some(head) = after {
                self.heads.insert((head, of));
            }
        }
        result
    }

    /// A flow that says nothing is not kept.
    fn tidy(&mut self, of: Flow) {
        if self.flows.get(&of).is_some_and(|flow| flow.base == 0 && flow.waiting.is_empty()) {
            self.flows.remove(&of);
        }
    }

    /// Whether heads and lengths are what the queues say.
    pub(super) fn is_consistent(&self) -> bool {
        let heads: BTreeSet<(Entry, Flow)> =
            self.flows.iter().filter_map(|(of, flow)| Some((flow.head()?, *of))).collect();
        let len: usize = self.flows.values().map(|flow| flow.waiting.len()).sum();
        heads == self.heads && len == self.len
    }
}
