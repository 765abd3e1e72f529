//! Prompts that wait here and that another worker could compute meanwhile ([`crate::order::offload`] says which).
//!
//! A prompt that leaves gets its pages before its turn ([`Batch::offload`]), as far as all that is before it could have
//! pages and slots too: it takes nothing from anybody. From then on it is a request whose content comes from elsewhere,
//! as after [`Batch::submit_received`]. Where the content does not come, it goes back to its place in the queue and finds
//! what has come in the cache. It goes back too, and nothing is waited for any more, where running sequences or ones that
//! come before it need its pages: whoever it has overtaken loses nothing by that.

use config::ids::{Attempt, RequestId};

use super::held::Elsewhere;
use super::order::tier;
use super::seq::{Place, Seq};
use super::slab::Key;
use super::transfer::Transfer;
use super::{Batch, KvWork};
use crate::order::{OrderEvent, RequestKey};
use crate::request::{RequestSpec, ResumedChoice};
use crate::time::Time;

/// Waiting requests that are looked at.
const LOOK_AT: usize = 64;
/// Of those, the ones whose pages are looked for in the cache, which is what costs time.
const LOOK_UP: usize = 8;

/// A prompt that another worker could compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingPrompt {
    /// Whose.
    pub key: RequestKey,
    /// Its tokens.
    pub tokens: u32,
    /// Those that the cache does not have.
    pub missing: u32,
    /// Prompt tokens that are computed here before it.
    pub ahead: u64,
}

impl Batch {
    /// Waiting prompts that another worker could compute, in the order in which it would be their turn: those of which at
    /// least `least` tokens are missing and before which more than `over` tokens are computed. Each of them fits beside
    /// all that is before it. Prompts that share a page with one that is computed or on its way are not among them, and
    /// none that has been away before. Called between two steps' plans; looks at a bounded number of requests.
    pub fn waiting_prompts(&mut self, least: u32, over: u64) -> Vec<WaitingPrompt> {
        let mut found = Vec::new();
        let taken = (self.running.len() + self.receiving.len() + self.resuming.len()) as u32;
        let mut slots = self.config.max_running.saturating_sub(taken);
        let page_tokens = self.config.page_tokens;
        let running = self.running.iter().map(|key| &self.seqs[*key]).filter(|seq| seq.prefilling);
        let mut ahead: u64 = running.map(|seq| u64::from(seq.remaining())).sum();
        let mut pages: u32 = 0;
        for seq in self.resuming.values().map(|key| &self.seqs[*key]) {
            ahead += u64::from(seq.len());
            pages += seq.len().div_ceil(page_tokens);
        }
        let mut looked = 0;
        for key in self.fresh.first_few(LOOK_AT) {
            if slots == 0 || looked == LOOK_UP {
                break;
            }
            let len = self.seqs[key].len();
            let mut missing = len;
            if ahead > over && len >= least && self.may_leave(key) {
                looked += 1;
                let hits = self.look_up(key);
                missing = len - hits.len() as u32 * page_tokens;
                let needed = missing.div_ceil(page_tokens) + pages + self.reserve(&self.seqs[key]);
                let fits = self.table.room_beside(&hits) >= needed;
                if missing >= least && fits && !self.is_on_its_way(key, hits.len()) {
                    let key = self.requests[self.seqs[key].request].key();
                    found.push(WaitingPrompt { key, tokens: len, missing, ahead });
                }
            }
            ahead += u64::from(missing - self.coming(key, len - missing));
            pages += len.div_ceil(page_tokens);
            slots -= 1;
        }
        found
    }

    /// Another worker computes a prompt that waits: gives it its pages ([`super::KvWork::Reserved`] says so) and tells what to
    /// ask for. None, and nothing has changed, where it does not wait, may not leave or does not fit.
    pub fn offload(&mut self, now: Time, request: RequestId, attempt: Attempt) -> Option<RequestSpec> {
        let owner = *self.by_id.get(&(request, attempt))?;
        let key = *self.requests[owner].seqs().first()?;
        if !self.may_leave(key) || !self.has_slot() {
            return None;
        }
        let hits = self.look_up(key);
        let missing = self.seqs[key].len().div_ceil(self.config.page_tokens) - hits.len() as u32;
        if self.table.room_beside(&hits) < missing.saturating_add(self.reserve(&self.seqs[key])) {
            return None;
        }
        let pages = self.table.claim(&hits, missing)?;
        self.clock = self.clock.max(now);
        let spec = self.asked_of_another(key);
        let request = &mut self.requests[owner];
        request.transfer = Transfer::Receive(Elsewhere::all(1));
        request.offloaded = true;
        self.start(key, pages, hits.len() as u32 * self.config.page_tokens);
        Some(spec)
    }

    /// Whether a sequence waits for its first admission, and is all that its request has to compute.
    fn may_leave(&self, key: Key) -> bool {
        let seq = &self.seqs[key];
        let request = &self.requests[seq.request];
        seq.place == Place::Fresh
            && request.transfer == Transfer::None
            && !request.offloaded
            && request.cached.is_none()
            && !request.spec.prompt_logprobs
            && (seq.joint || request.live == 1)
    }

    /// Whether the first page that a sequence misses is one that a prefill under way computes, or that comes from elsewhere.
    fn is_on_its_way(&self, key: Key, page: usize) -> bool {
        let Some(hash) = self.seqs[key].hash(page).filter(|_| self.config.prefix_cache) else { return false };
        let computes = |seq: &Seq| seq.prefilling && seq.hash(page) == Some(hash);
        self.running.iter().chain(self.receiving.values()).any(|other| computes(&self.seqs[*other]))
    }

    /// A request as it came, its sequence's output included. What its client has not read does not matter to whoever
    /// computes no more than its first tokens.
    fn asked_of_another(&self, key: Key) -> RequestSpec {
        let seq = &self.seqs[key];
        let mut spec = self.requests[seq.request].spec.clone();
        if !seq.joint
            && let Some(choice) = spec.resumed.get_mut(seq.choice as usize)
        {
            *choice = ResumedChoice { tokens: seq.output.clone(), ended: false, unread: 0 };
        }
        spec
    }

    /// Pages of prompts that are away and would have come after this sequence; shared ones count as often.
    pub(super) fn callable(&self, before: Key) -> u32 {
        self.away_after(Some(before)).map(|key| self.seqs[key].pages.len() as u32).sum()
    }

    /// Others need pages: the last prompt that is away waits here again. False where there is none, or none that would come
    /// after `before`, where that is who needs them; a running sequence goes before all.
    pub(super) fn call_back(&mut self, before: Option<Key>) -> bool {
        let Some(key) = self.away_after(before).next() else { return false };
        let owner = self.seqs[key].request;
        let RequestKey { request, attempt } = self.requests[owner].key();
        self.kv_work.push(KvWork::Dropped { request, attempt, reason: None });
        self.wait_again(owner, key, 0);
        true
    }

    /// Prompts that are away, the last one first.
    fn away_after(&self, before: Option<Key>) -> impl Iterator<Item = Key> {
        let place = |seq: &Seq| (tier(self.level(seq)), seq.arrival);
        let bound = before.map(|key| place(&self.seqs[key]));
        let away = self.receiving.values().rev().copied();
        away.filter(move |key| {
            let seq = &self.seqs[*key];
            self.requests[seq.request].offloaded && bound.is_none_or(|bound| bound < place(seq))
        })
    }

    /// Nothing more comes of a prompt that had left: what has come of it can be found, and it waits where it did.
    pub(super) fn wait_again(&mut self, owner: Key, key: Key, tokens: u32) {
        self.requests[owner].transfer = Transfer::None;
        self.receiving.remove(&self.seqs[key].rank());
        if self.config.prefix_cache {
            let seq = &mut self.seqs[key];
            let before = seq.computed;
            seq.computed = tokens.min(seq.len() - 1).max(before);
            let new = seq.computed - before;
            self.spare_charge(owner, key);
            self.publish_filled(key, new);
        }
        let seq = &mut self.seqs[key];
        let pages = seq.pages.take();
        (seq.computed, seq.prefilling) = (0, true);
        let request = self.requests[owner].key();
        self.order.tell(|| OrderEvent::Preempted { key: request });
        self.queue_as_fresh(key);
        self.give_up(pages);
    }
}
