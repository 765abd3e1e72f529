//! What the ends of transfers have to do with: the worker that they are of, and the way to the other end.

use config::ids::WorkerId;
use policies::batch::Batch;
use policies::cost::fake::FakePages;
use policies::kv::handoff::TransferKey;
use policies::time::Time;

use super::Id;
use crate::event::{Event, KvMail, KvMessage, Outbox};
use crate::node::worker::fetches::Fetches;
use crate::node::worker::offloads::Offloads;

/// What a transfer's end works with.
#[derive(Debug)]
pub(in crate::node::worker) struct Side<'a> {
    pub(in crate::node::worker) now: Time,
    pub(in crate::node::worker) me: &'a WorkerId,
    pub(in crate::node::worker) core: &'a mut Batch,
    pub(in crate::node::worker) pages: &'a mut FakePages,
    pub(in crate::node::worker) offloads: &'a mut Offloads,
    pub(in crate::node::worker) fetches: &'a mut Fetches,
    pub(in crate::node::worker) out: &'a mut Outbox,
}

impl Side<'_> {
    /// Sends a message without pages to the other end of a transfer.
    pub(in crate::node::worker) fn send(
        &mut self,
        to: &WorkerId,
        id: Id,
        key: TransferKey,
        message: KvMessage,
    ) {
        let mail = KvMail { id, key, from: self.me.clone(), at: self.now, message };
        self.out.send(Event::mail(to.clone(), mail));
    }

    /// Sends one with pages of `bytes` bytes.
    pub(in crate::node::worker) fn send_pages(
        &mut self,
        to: &WorkerId,
        id: Id,
        key: TransferKey,
        bytes: u64,
        message: KvMessage,
    ) {
        let mail = KvMail { id, key, from: self.me.clone(), at: self.now, message };
        self.out.bulk(to, bytes, Event::mail(to.clone(), mail));
    }

    /// Has the end be called at `due`, unless it is called earlier anyway.
    pub(in crate::node::worker) fn wake(&mut self, timer: &mut Option<Time>, due: Option<Time>, id: Id) {
        if let Some(due) = due
            && timer.is_none_or(|at| due < at)
        {
            *timer = Some(due);
            self.out.after(due.since(self.now), Event::KvTimer(self.me.clone(), id.0, id.1));
        }
    }
}
