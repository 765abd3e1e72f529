//! What controllers are told: which pages can be found here. An announcement of everything begins an epoch; what changes
//! counts from there.

use super::PageKey;
use super::entries::{Entries, Slot};
use crate::kv::Fingerprint;
use crate::kv::events::KvEvent;

/// All contents of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Grows with each announcement in one life of the store. What was told in an older epoch is in the contents.
    pub epoch: u64,
    /// One [`KvEvent::Stored`] for each stretch, no page before the one that it follows.
    pub contents: Vec<(Fingerprint, KvEvent)>,
}

/// Changes that nobody has taken yet, in order.
#[derive(Debug, Default)]
pub(super) struct Teller {
    epoch: u64,
    events: Vec<(Fingerprint, KvEvent)>,
}

impl Teller {
    pub(super) fn announce(&mut self, entries: &Entries) -> Announcement {
        self.epoch += 1;
        self.events.clear();
        let mut contents = Vec::new();
        for (_, root) in entries.iter().filter(|(_, slot)| entries.get(*slot).parent.is_none()) {
            let mut next = vec![root];
            while let Some(slot) = next.pop() {
                add_stored(&mut contents, entries, slot);
                next.extend(entries.children(slot));
            }
        }
        Announcement { epoch: self.epoch, contents }
    }

    pub(super) fn take(&mut self, events: &mut Vec<(Fingerprint, KvEvent)>) {
        events.append(&mut self.events);
    }

    /// A page can be found.
    pub(super) fn stored(&mut self, entries: &Entries, slot: Slot) {
        if self.epoch > 0 {
            add_stored(&mut self.events, entries, slot);
        }
    }

    /// A page cannot be found any more.
    pub(super) fn removed(&mut self, key: &PageKey) {
        if self.epoch == 0 {
            return;
        }
        if let Some((fingerprint, KvEvent::Removed { pages })) = self.events.last_mut()
            && *fingerprint == key.fingerprint
        {
            pages.push(key.hash);
            return;
        }
        self.events.push((key.fingerprint, KvEvent::Removed { pages: vec![key.hash] }));
    }
}

fn add_stored(events: &mut Vec<(Fingerprint, KvEvent)>, entries: &Entries, slot: Slot) {
    let entry = entries.get(slot);
    let key = entry.key;
    let parent = entry.parent.map(|p| entries.get(p).key.hash);
    if let Some((fingerprint, KvEvent::Stored { pages, .. })) = events.last_mut()
        && *fingerprint == key.fingerprint
        && parent.is_some()
        && pages.last().copied() == parent
    {
        pages.push(key.hash);
        return;
    }
    events.push((key.fingerprint, KvEvent::Stored { parent, pages: vec![key.hash], tokens: Vec::new() }));
}
