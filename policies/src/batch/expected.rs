//! Prompts that another worker computes, before there are pages for them; at both ends.
//!
//! The worker that generates takes such a request with [`Batch::submit_expected`]. It is *expected* then: in no queue, and
//! without pages, until its prompt is begun elsewhere ([`Batch::begun`]); then it waits for pages like any other. The worker
//! that computes says so when it begins ([`KvWork::Begun`]), and hears when there are pages ([`Batch::open`]).
//!
//! What is not open yet holds half of the pages at most: a prompt beyond that is announced, and set aside until it is
//! open, while those behind it go on. Where an open one does not fit beside those that are not, they are handed back,
//! the last first, for the workers that wait for them to compute. That nobody waits in a circle is argued in
//! [`crate::kv::handoff`].

use config::ids::{Attempt, RequestId};

use super::seq::Place;
use super::slab::Key;
use super::transfer::Transfer;
use super::{Batch, KvWork, Refusal};
use crate::request::RequestSpec;
use crate::time::Time;

/// Of this many parts of the pages one is for prompts that are computed for workers without room for them.
const UNOPENED_PART: u32 = 2;

impl Batch {
    /// As [`Batch::submit_received`], for a request that gets its pages when its prompt is begun. Where little of it is
    /// missing now, it is computed here.
    ///
    /// # Errors
    /// As [`Batch::submit`].
    pub fn submit_expected(&mut self, now: Time, spec: RequestSpec, least: u32) -> Result<(), Refusal> {
        let (id, transferable) = ((spec.id, spec.attempt), Self::is_transferable(&spec));
        self.submit_received(now, spec, least)?;
        let owner = self.by_id.get(&id).copied().filter(|_| transferable);
        let Some((owner, key)) = owner.and_then(|o| Some((o, *self.requests[o].seqs().first()?))) else {
            return Ok(());
        };
        if self.seqs[key].place != Place::Fresh {
            return Ok(());
        }
        let tokens = self.seqs[key].len();
        let missing = tokens - self.look_up(key).len() as u32 * self.config.page_tokens;
        let (request, attempt) = id;
        if missing < least.max(1) {
            self.requests[owner].transfer = Transfer::None;
            self.kv_work.push(KvWork::NotNeeded { request, attempt });
        } else {
            self.set_aside_unqueued(key);
            self.kv_work.push(KvWork::Expected { request, attempt, tokens });
        }
        Ok(())
    }

    /// An expected prompt is begun: it waits for its pages now, and has them at once where there is room and nobody before
    /// it ([`KvWork::Reserved`] says so). False where the request is not expected.
    pub fn begun(&mut self, now: Time, request: RequestId, attempt: Attempt) -> bool {
        let Some((_, key)) = self.set_aside_as(request, attempt, Place::Expected) else { return false };
        self.clock = self.clock.max(now);
        self.queue_expected(key);
        self.reserve_early();
        true
    }

    /// The worker that waits for a prompt which is computed here has pages for it. False where no such prompt is here.
    pub fn open(&mut self, request: RequestId, attempt: Attempt) -> bool {
        let Some(owner) = self.by_id.get(&(request, attempt)).copied() else { return false };
        let Transfer::Send { open, .. } = &mut self.requests[owner].transfer else { return false };
        *open = true;
        if let Some((_, key)) = self.set_aside_as(request, attempt, Place::Expected) {
            self.queue_expected(key);
        }
        true
    }

    /// An expected sequence waits like any other.
    pub(super) fn queue_expected(&mut self, key: Key) {
        self.expected.remove(&self.seqs[key].rank());
        self.queue_as_fresh(key);
    }

    /// Announces a prompt for another worker that has no room for it, and sets it aside, where those that are here already
    /// in this way hold what they may; says whether it did.
    pub(super) fn is_to_be_open(&mut self, key: Key) -> bool {
        let seq = &self.seqs[key];
        let Transfer::Send { open: false, .. } = self.requests[seq.request].transfer else { return false };
        let own = seq.len().div_ceil(self.config.page_tokens);
        if self.unopened_pages() + own <= self.config.pages / UNOPENED_PART {
            return false;
        }
        self.set_aside_unqueued(key);
        self.announce(key);
        true
    }

    /// Tells the worker that waits for a prompt that it is the prompt's turn, where that one does not have its pages.
    pub(super) fn announce(&mut self, key: Key) {
        let request = &self.requests[self.seqs[key].request];
        if matches!(request.transfer, Transfer::Send { open: false, .. }) {
            let (request, attempt) = (request.spec.id, request.spec.attempt);
            self.kv_work.push(KvWork::Begun { request, attempt });
        }
    }

    /// Hands back what stands in the way of an open prompt that needs `pages` pages, and is not open itself; says whether there
    /// was anything.
    pub(super) fn hand_back_for(&mut self, key: Key, pages: u32) -> bool {
        let owner = self.seqs[key].request;
        let mut any = false;
        if !matches!(self.requests[owner].transfer, Transfer::Send { open: true, .. }) {
            return any;
        }
        while self.table.total() < self.unopened_pages().saturating_add(pages) {
            let unopened = self.held.values().rev().map(|key| self.seqs[*key].request);
            let mut unopened = unopened.filter(|owner| self.is_unopened(*owner));
            let Some(last) = unopened.next() else { break };
            self.remove_request(last, Some("its pages were needed for one that its worker has room for"));
            any = true;
        }
        any
    }

    /// Gives pages to sequences that wait for them alone, as long as it is their turn and there are enough. Takes none from
    /// others, which is for [`Batch::plan`].
    fn reserve_early(&mut self) {
        while self.has_slot()
            && let Some(key) = self.next_waiting()
            && matches!(self.requests[self.seqs[key].request].transfer, Transfer::Receive(_))
        {
            let hits = self.look_up(key);
            let missing = self.seqs[key].len().div_ceil(self.config.page_tokens) - hits.len() as u32;
            if self.table.room_beside(&hits) < missing.saturating_add(self.reserve(&self.seqs[key])) {
                return;
            }
            let Some(pages) = self.table.claim(&hits, missing) else { return };
            self.start(key, pages, hits.len() as u32 * self.config.page_tokens);
        }
    }

    /// Pages of prompts that are computed for workers without room for them; shared ones count as often.
    fn unopened_pages(&self) -> u32 {
        let with_pages = self.held.values().chain(&self.running).chain(self.receiving.values());
        let with_pages = with_pages.map(|key| &self.seqs[*key]);
        with_pages.filter(|seq| self.is_unopened(seq.request)).map(|seq| seq.pages.len() as u32).sum()
    }

    fn is_unopened(&self, owner: Key) -> bool {
        matches!(self.requests[owner].transfer, Transfer::Send { open: false, .. })
    }

    /// Takes a waiting sequence out of its queue, to be expected.
    fn set_aside_unqueued(&mut self, key: Key) {
        let seq = &self.seqs[key];
        let (place, spot, rank) = (seq.place, seq.spot, seq.rank());
        if place == Place::Fresh {
            self.fresh.remove(spot);
        } else {
            self.resuming.remove(&rank);
        }
        self.uncount_waiting(key);
        let seq = &mut self.seqs[key];
        (seq.place, seq.order) = (Place::Expected, seq.arrival);
        self.expected.insert(self.seqs[key].rank(), key);
    }
}
