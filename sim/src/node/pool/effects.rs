//! Carries out what the store wants, until it wants nothing more.

use policies::invariant::Broken;
use policies::pool::{PageKey, PoolEffect, PutEnd};
use policies::time::Time;

use super::disk::{Done, Order};
use super::{Page, Pool};
use crate::event::Outbox;

impl Pool {
    pub(super) fn disk_did(&mut self, now: Time, done: Done) {
        let mut fx = Vec::new();
        match done {
            Done::Wrote(op, result) => self.store.wrote(now, op, result, &mut fx),
            Done::Read(op, key, result) => {
                let result = result.map(|page| self.read = Some((key, page)));
                self.store.read(now, op, result, &mut fx);
            }
            Done::Deleted(key, bytes, result) => self.store.deleted(now, key, bytes, result, &mut fx),
        }
        self.work.extend(fx);
    }

    pub(super) fn carry_out(&mut self, now: Time, out: &mut Outbox) -> Result<(), Broken> {
        while let Some(effect) = self.work.pop_front() {
            self.effect(now, effect, out)?;
        }
        self.read = None;
        Ok(())
    }

    fn effect(&mut self, now: Time, effect: PoolEffect, out: &mut Outbox) -> Result<(), Broken> {
        match effect {
            PoolEffect::Store { put, index, key } => {
                let take = self.puts.get(&put).copied();
                let came = take.and_then(|id| self.takes.get_mut(&id)).and_then(|end| end.came(index));
                let (Some(id), Some(page)) = (take, came) else { return Err(lacks(&key)) };
                self.ram.insert(key, page);
                self.at_take(now, id, out, |end, side| end.stored(index, side))?;
            }
            PoolEffect::Discard { put, index } => {
                if let Some(end) = self.puts.get(&put).and_then(|id| self.takes.get_mut(id)) {
                    end.came(index);
                }
            }
            PoolEffect::EndPut { put, pages, why } => {
                *self.tally.puts.entry(name(why)).or_default() += 1;
                if let Some(id) = self.puts.remove(&put) {
                    self.at_take(now, id, out, |end, side| end.put_ended(pages, side))?;
                }
            }
            PoolEffect::DropRam { key } => _ = self.ram.remove(&key),
            PoolEffect::WriteDisk { op, key, parent, bytes } => {
                let page = self.ram.get(&key).cloned().ok_or_else(|| lacks(&key))?;
                self.disk.order(Order::Write { op, key, parent, bytes, page });
            }
            PoolEffect::ReadDisk { op, key, bytes } => self.disk.order(Order::Read { op, key, bytes }),
            PoolEffect::DeleteDisk { key, bytes } => self.disk.order(Order::Delete { key, bytes }),
            PoolEffect::Keep { key } => {
                let page = self.content(&key).ok_or_else(|| lacks(&key))?;
                self.ram.insert(key, page);
            }
            PoolEffect::Give { reader, index, key } => {
                let page = self.content(&key).ok_or_else(|| lacks(&key))?;
                if let Some(id) = self.readers.get(&reader).copied() {
                    self.at_give(now, id, out, |end, side| end.given(index, &page, side))?;
                }
            }
            PoolEffect::CutRead { reader, pages } => {
                if let Some(id) = self.readers.get(&reader).copied() {
                    self.at_give(now, id, out, |end, side| end.cut(pages, side))?;
                }
            }
            PoolEffect::EndRead { reader } => {
                if let Some(id) = self.readers.remove(&reader) {
                    self.at_give(now, id, out, |end, side| end.cut(0, side))?;
                }
            }
            // Counted by the store.
            PoolEffect::Report { .. } => {}
        }
        Ok(())
    }

    fn content(&self, key: &PageKey) -> Option<Page> {
        let read = self.read.as_ref().filter(|(read, _)| read == key).map(|(_, page)| page);
        self.ram.get(key).or(read).cloned()
    }
}

fn lacks(key: &PageKey) -> Broken {
    Broken { name: "sim_pool_has_what_it_stores", detail: format!("{key:?} has no content") }
}

const fn name(why: PutEnd) -> &'static str {
    match why {
        PutEnd::Complete => "complete",
        PutEnd::Aborted => "aborted",
        PutEnd::OwnerLost => "owner_lost",
        PutEnd::Idle => "idle",
        PutEnd::NoRoom => "no_room",
        PutEnd::OutOfOrder => "out_of_order",
        PutEnd::ParentLost => "parent_lost",
    }
}
