//! Writers: from the first page announced to the last one stored.

use config::ids::WorkerId;

use super::entries::Slot;
use super::evict::{Cost, Room};
use super::leases::Lease;
use super::{Begun, PageKey, PoolEffect, PutEnd, PutId, PutRefusal, Run, Store};
use crate::time::Time;

/// A put under way.
#[derive(Debug)]
pub(super) struct Put {
    pub(super) owner: WorkerId,
    pub(super) run: Run,
    /// The page that the next one to be stored follows; held.
    pub(super) parent: Option<Slot>,
    /// Pages of the run that are here.
    pub(super) stored: usize,
    /// Pages of the run that are here, or have come and wait for room.
    pub(super) arrived: usize,
    /// Nothing more comes.
    closed: bool,
}

impl Put {
    /// It waits for us.
    pub(super) fn waits(&self) -> bool {
        self.arrived > self.stored
    }

    fn key(&self, index: usize) -> PageKey {
        PageKey { fingerprint: self.run.fingerprint, hash: self.run.pages[index] }
    }
}

impl Store {
    /// A writer wants to store pages.
    ///
    /// # Errors
    /// It should not send any; see [`PutRefusal`].
    pub fn begin(&mut self, now: Time, owner: &WorkerId, run: Run) -> Result<Begun, PutRefusal> {
        if self.closing {
            return Err(PutRefusal::Closing);
        }
        if run.page_bytes == 0 {
            return Err(PutRefusal::NoBytes);
        }
        let all = self.limits.ram.saturating_add(self.limits.disk.map_or(0, |d| d.capacity));
        let whole = run.page_bytes.saturating_mul(run.pages.len() as u64);
        for (bytes, limit) in [(run.page_bytes, self.limits.ram), (whole, all)] {
            if bytes > limit {
                return Err(PutRefusal::TooLarge { bytes, limit });
            }
        }
        let key = |hash| PageKey { fingerprint: run.fingerprint, hash };
        let mut parent = match run.parent {
            None => None,
            Some(hash) => Some(self.entries.find(&key(hash)).ok_or(PutRefusal::NoParent)?),
        };
        let mut known = Vec::new();
        for hash in &run.pages {
            let Some(slot) = self.entries.find(&key(*hash)) else { break };
            if self.entries.get(slot).parent != parent {
                return Err(PutRefusal::Mismatch);
            }
            parent = Some(slot);
            known.push(slot);
        }
        // Whoever writes what follows them uses them.
        for slot in known.iter().rev() {
            self.entries.touch(*slot, false);
        }
        let first = known.len();
        let Some(missing) = run.pages.get(first) else { return Err(PutRefusal::Known) };
        if self.pending.contains_key(&key(*missing)) {
            return Err(PutRefusal::UnderWay);
        }
        let put = PutId(self.new_id());
        for hash in &run.pages[first..] {
            self.pending.insert(key(*hash), put);
        }
        if let Some(parent) = parent {
            self.entries.edit(parent, |e| e.holds += 1);
        }
        let owner = owner.clone();
        self.puts.insert(put, Put { owner, run, parent, stored: first, arrived: first, closed: false });
        self.renew(now, Lease::Put(put));
        Ok(Begun { put, first })
    }

    /// The whole content of page `index` of the run has come, `bytes` of it, and is what its name says. Pages come in order.
    pub fn arrived(&mut self, now: Time, put: PutId, index: usize, bytes: u64, fx: &mut Vec<PoolEffect>) {
        let Some(entry) = self.puts.get_mut(&put).filter(|p| !p.closed) else {
            self.counts.ignored += 1;
            fx.push(PoolEffect::Discard { put, index });
            return;
        };
        let next = index == entry.arrived && index < entry.run.pages.len();
        if !next || bytes != entry.run.page_bytes {
            fx.push(PoolEffect::Discard { put, index });
            self.end_put(put, PutEnd::OutOfOrder, fx);
        } else {
            entry.arrived += 1;
            self.waiting_bytes += entry.run.page_bytes;
            self.waiting.push_back(put);
            self.renew(now, Lease::Put(put));
        }
        self.pump(now, fx);
    }

    /// The writer has sent all that it will.
    pub fn commit(&mut self, now: Time, put: PutId, fx: &mut Vec<PoolEffect>) {
        let Some(entry) = self.puts.get_mut(&put) else {
            self.counts.ignored += 1;
            return;
        };
        entry.closed = true;
        if !entry.waits() {
            self.end_put(put, PutEnd::Complete, fx);
        }
        self.pump(now, fx);
    }

    /// The writer gives up. What is complete stays.
    pub fn abort(&mut self, now: Time, put: PutId, fx: &mut Vec<PoolEffect>) {
        if !self.puts.contains_key(&put) {
            self.counts.ignored += 1;
            return;
        }
        self.end_put(put, PutEnd::Aborted, fx);
        self.pump(now, fx);
    }

    /// Stores pages that have come, as far as there is room; true where one waits until there is.
    pub(super) fn place_waiting(&mut self, now: Time, fx: &mut Vec<PoolEffect>) -> bool {
        while !self.waiting.is_empty() {
            let patient = self.waiting_bytes <= self.limits.incoming;
            let cost = if patient { Cost::Written } else { Cost::Anything };
            if !self.place_next(now, cost, fx) {
                return true;
            }
        }
        false
    }

    /// Stores the page that has waited longest, or ends its put; false where it has to wait.
    pub(super) fn place_next(&mut self, now: Time, cost: Cost, fx: &mut Vec<PoolEffect>) -> bool {
        let Some(&id) = self.waiting.front() else { return true };
        let Some(put) = self.puts.get(&id) else {
            self.waiting.pop_front();
            return true;
        };
        let (index, bytes, parent) = (put.stored, put.run.page_bytes, put.parent);
        let key = put.key(index);
        if self.entries.find(&key).is_some() {
            // Only a writer whose names are wrong names a page twice.
            self.end_put(id, PutEnd::OutOfOrder, fx);
            return true;
        }
        match self.make_room(now, bytes, cost, fx) {
            Room::Made => {}
            Room::Later => return false,
            Room::No => {
                self.end_put(id, PutEnd::NoRoom, fx);
                return true;
            }
        }
        // What made room may have ended this put.
        let Some(put) = self.puts.get_mut(&id) else { return true };
        self.waiting.pop_front();
        self.waiting_bytes -= bytes;
        let slot = self.entries.insert(key, parent, bytes);
        self.entries.edit(slot, |e| {
            e.ram = true;
            e.holds = 1;
        });
        if let Some(parent) = parent {
            self.entries.edit(parent, |e| e.holds -= 1);
        }
        put.parent = Some(slot);
        put.stored += 1;
        let done = put.stored == put.run.pages.len() || (put.closed && !put.waits());
        self.forget_pending(key, id);
        self.teller.stored(&self.entries, slot);
        self.counts.stored += 1;
        fx.push(PoolEffect::Store { put: id, index, key });
        if done {
            self.end_put(id, PutEnd::Complete, fx);
        }
        true
    }

    /// A put is over. The caller pumps.
    pub(super) fn end_put(&mut self, id: PutId, why: PutEnd, fx: &mut Vec<PoolEffect>) {
        let Some(put) = self.puts.remove(&id) else { return };
        self.leases.end(Lease::Put(id));
        if let Some(parent) = put.parent {
            self.entries.edit(parent, |e| e.holds -= 1);
        }
        for index in put.stored..put.run.pages.len() {
            self.forget_pending(put.key(index), id);
        }
        self.waiting_bytes -= (put.arrived - put.stored) as u64 * put.run.page_bytes;
        self.waiting.retain(|waiting| *waiting != id);
        fx.push(PoolEffect::EndPut { put: id, pages: put.stored, why });
    }

    fn forget_pending(&mut self, key: PageKey, put: PutId) {
        if self.pending.get(&key) == Some(&put) {
            self.pending.remove(&key);
        }
    }
}
