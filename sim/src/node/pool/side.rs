//! What the ends of transfers have to do with: the pool that they are of, and the way to the other end.

use std::collections::{BTreeMap, VecDeque};

use config::ids::WorkerId;
use policies::invariant::Broken;
use policies::kv::PageLayout;
use policies::kv::handoff::TransferKey;
use policies::pool::pace::Pace;
use policies::pool::{PoolEffect, ReaderId, Store};
use policies::time::Time;

use super::{Giving, Id, Pool, PoolTally, Taking};
use crate::event::{Event, KvMail, KvMessage, Outbox};

/// What a transfer's end works with.
#[derive(Debug)]
pub(super) struct Side<'a> {
    pub(super) now: Time,
    pub(super) me: &'a WorkerId,
    pub(super) layout: PageLayout,
    pub(super) readers: &'a mut BTreeMap<ReaderId, Id>,
    pub(super) tally: &'a mut PoolTally,
    pub(super) pace: &'a mut Pace,
    store: &'a mut Store,
    work: &'a mut VecDeque<PoolEffect>,
    out: &'a mut Outbox,
}

impl Side<'_> {
    /// Calls the store; what it wants comes after what it wanted before.
    pub(super) fn store<T>(&mut self, call: impl FnOnce(&mut Store, Time, &mut Vec<PoolEffect>) -> T) -> T {
        let mut fx = Vec::new();
        let result = call(self.store, self.now, &mut fx);
        self.work.extend(fx);
        result
    }

    /// Sends a message without pages to the other end of a transfer.
    pub(super) fn send(&mut self, to: &WorkerId, id: Id, key: TransferKey, message: KvMessage) {
        let mail = KvMail { id, key, from: self.me.clone(), at: self.now, message };
        self.out.send(Event::mail(to.clone(), mail));
    }

    /// Sends one with so many pages.
    pub(super) fn send_pages(
        &mut self,
        to: &WorkerId,
        id: Id,
        key: TransferKey,
        pages: u32,
        message: KvMessage,
    ) {
        let (bytes, now) = (self.bytes(pages), self.now);
        self.pace.sends(now, bytes);
        let mail = KvMail { id, key, from: self.me.clone(), at: now, message };
        self.out.bulk(to, bytes, Event::mail(to.clone(), mail));
    }

    pub(super) fn bytes(&self, pages: u32) -> u64 {
        u64::from(pages) * self.layout.page_bytes() as u64
    }
}

impl Pool {
    pub(super) fn sides<'a>(
        &'a mut self,
        now: Time,
        out: &'a mut Outbox,
    ) -> (&'a mut BTreeMap<Id, Taking>, &'a mut BTreeMap<Id, Giving>, Side<'a>) {
        let Self { readers, tally, store, work, pace, .. } = self;
        let pace = &mut pace.0;
        let side =
            Side { now, me: &self.info.id, layout: self.layout, readers, tally, pace, store, work, out };
        (&mut self.takes, &mut self.gives, side)
    }

    /// Calls an end that takes pages in, which says whether it is over; then it is forgotten.
    pub(super) fn at_take(
        &mut self,
        now: Time,
        id: Id,
        out: &mut Outbox,
        call: impl FnOnce(&mut Taking, &mut Side<'_>) -> Result<bool, Broken>,
    ) -> Result<(), Broken> {
        let (takes, _, mut side) = self.sides(now, out);
        let Some(end) = takes.get_mut(&id) else { return Ok(()) };
        if call(end, &mut side)? {
            takes.remove(&id);
        }
        Ok(())
    }

    /// The same of one that gives pages out.
    pub(super) fn at_give(
        &mut self,
        now: Time,
        id: Id,
        out: &mut Outbox,
        call: impl FnOnce(&mut Giving, &mut Side<'_>) -> Result<bool, Broken>,
    ) -> Result<(), Broken> {
        let (_, gives, mut side) = self.sides(now, out);
        let Some(end) = gives.get_mut(&id) else { return Ok(()) };
        if call(end, &mut side)? {
            side.pace.ends(now);
            gives.remove(&id);
        }
        Ok(())
    }
}
