//! Prompts that are computed at one worker and generated from at another.
//!
//! The worker that generates takes the request with [`Batch::submit_expected`], or, where it is to have its pages first, with
//! [`Batch::submit_received`]. The request waits for its pages like any
//! other, is set aside when it has them ([`KvWork::Reserved`]), and goes on when their content has come
//! ([`Batch::received`]) or will not come ([`Batch::compute_here`]). The worker that computes takes it with
//! [`Batch::submit_prefill`], tells of each page that is full ([`KvWork::Computed`]) and of the first tokens
//! ([`KvWork::Prefilled`]), and keeps the pages until the request is cancelled.
//!
//! What a third worker holds of such a prompt's start comes from there first ([`super::held`]).
//!
//! A request that has output is handed over in the same way, the output being resumed tokens: so a running one moves.
//!
//! The engine carries out imports, exports and steps in the order in which they are handed to it. So pages may be given
//! up while one of them is still on its way there: whatever is written to them later is written after it.

use config::ids::{Attempt, PageId, RequestId};

use super::complete::DrawnTokens;
use super::held::{Elsewhere, Held};
use super::seq::{Place, Request, Seq};
use super::slab::Key;
use super::{Batch, KvWork, Rank, Refusal, SetAside};
use crate::kv::handoff::LEAST_PAGES;
use crate::order::OrderEvent;
use crate::request::RequestSpec;
use crate::step::Drawn;
use crate::time::Time;

/// What a request has to do with another worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Transfer {
    /// Nothing (any more).
    #[default]
    None,
    /// Its pages' content comes from elsewhere: all of its prompt, which is computed there, or what is held there of its
    /// start.
    Receive(Elsewhere),
    /// Its prompt is computed here for another worker, which has been told of the first `reported` pages, in chunks of at
    /// most `chunk` tokens; `open`: that worker has pages for it; `fetch`: what a third one holds of it.
    Send { reported: u32, chunk: u32, open: bool, fetch: Option<Elsewhere> },
    /// It runs here, and another worker takes it over as attempt `to` ([`Batch::lend`]), which has its first `known`
    /// tokens of output.
    Lend { to: Attempt, known: u32 },
}

impl Transfer {
    /// Content that is to come when the sequence has its pages.
    const fn elsewhere(self) -> Option<Elsewhere> {
        match self {
            Self::Receive(elsewhere) => Some(elsewhere),
            Self::Send { fetch, .. } => fetch,
            Self::None | Self::Lend { .. } => None,
        }
    }

    /// The same when nothing more is to come from elsewhere.
    const fn without_elsewhere(self) -> Self {
        match self {
            Self::Send { reported, chunk, open, .. } => Self::Send { reported, chunk, open, fetch: None },
            Self::Receive(_) => Self::None,
            Self::None | Self::Lend { .. } => self,
        }
    }
}

impl Batch {
    /// Whether a request's prompt may be computed at another worker: it is one sequence, and nothing is asked about the
    /// prompt itself.
    #[must_use]
    pub fn is_transferable(spec: &RequestSpec) -> bool {
        let open = || spec.resumed.iter().filter(|c| !c.ended);
        let resumed = open().any(|c| !c.tokens.is_empty());
        !spec.prompt_logprobs && (!resumed || open().count() == 1)
    }

    /// As [`Batch::submit`], for a request whose prompt another worker computes, or which `ran` there and goes on here. Pages for
    /// what is computed there are taken when that begins; what moves is not to wait for them afterwards.
    ///
    /// # Errors
    /// As [`Batch::submit`].
    pub fn submit_elsewhere(&mut self, now: Time, spec: RequestSpec, ran: bool) -> Result<(), Refusal> {
        if ran {
            // However little it lacks: here that would be computed in the middle of its stream.
            return self.submit_received(now, spec, 1);
        }
        self.submit_expected(now, spec, LEAST_PAGES * self.config.page_tokens)
    }

    /// As [`Batch::submit`], for a request whose prompt another worker computes. Where fewer than `least` of its tokens
    /// are missing when its turn comes, and where it is not [`Batch::is_transferable`], it is computed here.
    ///
    /// # Errors
    /// As [`Batch::submit`].
    pub fn submit_received(&mut self, now: Time, spec: RequestSpec, least: u32) -> Result<(), Refusal> {
        if Self::is_transferable(&spec) {
            return self.accept(now, spec, Transfer::Receive(Elsewhere::all(least.max(1))));
        }
        let id = (spec.id, spec.attempt);
        self.submit(now, spec)?;
        if self.by_id.contains_key(&id) {
            self.kv_work.push(KvWork::NotNeeded { request: id.0, attempt: id.1 });
        }
        Ok(())
    }

    /// As [`Batch::submit`], for a request of which only the prompt and the first tokens are computed here. `open`: the worker
    /// that it is computed for has pages for it; else [`Batch::open`] says when. What another worker holds of its start, as
    /// `held` says, is asked for when it has its pages ([`KvWork::Reserved`]) and not computed.
    ///
    /// # Errors
    /// As [`Batch::submit`]; [`Refusal::Malformed`] where the request is not [`Batch::is_transferable`].
    pub fn submit_prefill(
        &mut self,
        now: Time,
        spec: RequestSpec,
        open: bool,
        held: Held,
    ) -> Result<(), Refusal> {
        if !Self::is_transferable(&spec) {
            return Err(Refusal::Malformed("its prompt cannot be computed for another worker"));
        }
        // What leaves is let go of: a worker that drains gives out what it has of a request under way.
        let under_way = spec.resumed.iter().any(|c| !c.tokens.is_empty());
        let draining = self.draining;
        self.draining &= !under_way;
        let fetch = Elsewhere::held(held);
        let transfer = Transfer::Send { reported: 0, chunk: self.transfer_chunk, open, fetch };
        let taken = self.accept(now, spec, transfer);
        self.draining = draining;
        taken
    }

    /// The content of a request's pages has come, and with it the first token of each choice; `cached` of its prompt's
    /// tokens were not computed anywhere. Without `pages` only tokens have come, which is enough where all choices end
    /// with them. Of a request that another worker was generating for, more than one token may have come, in order
    /// ([`Batch::grow_received`]). False, and nothing has changed, where the request does not wait for this, or needs more
    /// than has come.
    pub fn received(
        &mut self,
        now: Time,
        request: RequestId,
        attempt: Attempt,
        pages: bool,
        cached: u32,
        drawn: &[Drawn],
    ) -> bool {
        let Some((owner, key)) = self.set_aside_as(request, attempt, Place::Receiving) else { return false };
        if !(pages || self.ends_with(owner, key, drawn)) || !self.are_drawn(owner, key, drawn) {
            return false;
        }
        // All but the last are computed too.
        let more = if self.seqs[key].joint { 0 } else { drawn.len() as u32 - 1 };
        let seq = &self.seqs[key];
        if pages && seq.len() + more > (seq.pages.len() as u32 * self.config.page_tokens).min(seq.limit - 1) {
            return false;
        }
        self.clock = self.clock.max(now);
        let before = self.take_back(owner, key);
        let (more, drawn) = drawn.split_at(more as usize);
        if !more.is_empty() && !self.repeat(owner, key, more) {
            return true;
        }
        let len = self.seqs[key].len();
        self.seqs[key].computed = len;
        self.spare_charge(owner, key);
        if self.requests[owner].spec.resumed.iter().all(|c| c.tokens.is_empty()) {
            self.requests[owner].cached = Some(cached);
            self.requests[owner].usage.cached_tokens = cached;
        }
        if pages {
            self.publish_filled(key, len - before);
        }
        let mut forks = Vec::new();
        self.end_computing(key, &mut DrawnTokens::of(drawn), &mut forks);
        for fork in forks {
            self.fork(&fork);
        }
        true
    }

    /// No more content comes: the first `tokens` tokens are there (those that were in the cache in any case), the rest is
    /// computed here, at once, or in its turn where it was to be computed here before ([`Batch::offload`]). Of a request that has no pages yet: it will be computed here. False where neither is the case.
    pub fn compute_here(&mut self, now: Time, request: RequestId, attempt: Attempt, tokens: u32) -> bool {
        if let Some((owner, key)) = self.set_aside_as(request, attempt, Place::Expected)
            && matches!(self.requests[owner].transfer, Transfer::Receive(_))
        {
            self.clock = self.clock.max(now);
            self.requests[owner].transfer = Transfer::None;
            self.queue_expected(key);
            return true;
        }
        let Some((owner, key)) = self.set_aside_as(request, attempt, Place::Receiving) else {
            let waiting = self.by_id.get(&(request, attempt)).and_then(|key| self.requests.get_mut(*key));
            return waiting.is_some_and(|request| {
                let receives = request.transfer.elsewhere().is_some();
                request.transfer = request.transfer.without_elsewhere();
                receives
            });
        };
        self.clock = self.clock.max(now);
        if self.requests[owner].offloaded {
            self.wait_again(owner, key, tokens);
            return true;
        }
        let held = self.requests[owner].transfer.elsewhere().is_some_and(|from| from.tokens < Elsewhere::ALL);
        let before = self.take_back(owner, key);
        let seq = &mut self.seqs[key];
        // The last token is computed in any case: its logits are needed.
        seq.computed = tokens.min(seq.len() - 1).max(before);
        let new = seq.computed - before;
        if held {
            // Nobody has computed them for this request.
            let cached = self.seqs[key].computed.min(self.seqs[key].prompt.len() as u32);
            let request = &mut self.requests[owner];
            request.cached = request.cached.max(Some(cached));
            request.usage.cached_tokens = request.usage.cached_tokens.max(cached);
        }
        self.spare_charge(owner, key);
        self.publish_filled(key, new);
        self.announce(key);
        self.report_full_pages(key);
        true
    }

    /// The content of a request's first `tokens` tokens has come, and that is all that was wanted: the pages that are full
    /// can be found from now on, and the request is gone without another word. False where it does not wait for content.
    pub fn keep_received(&mut self, _now: Time, request: RequestId, attempt: Attempt, tokens: u32) -> bool {
        let Some((owner, key)) = self.set_aside_as(request, attempt, Place::Receiving) else { return false };
        let before = self.take_back(owner, key);
        let seq = &mut self.seqs[key];
        seq.computed = tokens.min(seq.len()).max(before);
        let new = seq.computed - before;
        self.publish_filled(key, new);
        self.remove_request(owner, None);
        true
    }

    /// Whether the request is here and has not ended.
    #[must_use]
    pub fn has(&self, request: RequestId, attempt: Attempt) -> bool {
        self.by_id.contains_key(&(request, attempt))
    }

    /// Moves the news about transfers since the last call to the end of `work`, in order.
    pub fn take_kv_work(&mut self, work: &mut Vec<KvWork>) {
        work.append(&mut self.kv_work);
    }

    /// Prompts that are taken for other workers from now on are computed in chunks of at most this many tokens. Those that
    /// are here keep theirs: what suits a short prompt would make many steps of a long one.
    pub const fn set_transfer_chunk(&mut self, tokens: u32) {
        self.transfer_chunk = if tokens == 0 { u32::MAX } else { tokens };
    }

    /// What waits for content or is kept for others.
    #[must_use]
    pub fn set_aside(&self) -> SetAside {
        let pages = |keys: &std::collections::BTreeMap<Rank, Key>| {
            keys.values().map(|k| self.seqs[*k].pages.len() as u32).sum()
        };
        SetAside {
            expected: self.expected.len() as u32,
            receiving: self.receiving.len() as u32,
            receiving_pages: pages(&self.receiving),
            held: self.held.len() as u32,
            held_pages: pages(&self.held),
        }
    }

    /// The most tokens that one step may compute of a prefill.
    pub(super) const fn chunk_of(request: &Request) -> u32 {
        match request.transfer {
            Transfer::Send { chunk, .. } => chunk,
            Transfer::None | Transfer::Receive(_) | Transfer::Lend { .. } => u32::MAX,
        }
    }

    /// Of `missing` tokens of a sequence that is to start, those that the first step computes at most; none where another
    /// worker does.
    pub(super) fn work_here(&self, seq: &Seq, missing: u32) -> u32 {
        let request = &self.requests[seq.request];
        match request.transfer.elsewhere() {
            Some(elsewhere) if elsewhere.coming(seq.len(), seq.len() - missing) > 0 => 0,
            _ => missing.min(Self::chunk_of(request)),
        }
    }

    /// Of a waiting sequence, of which the first `cached` tokens are here, those that are computed or held elsewhere.
    pub(super) fn coming(&self, key: Key, cached: u32) -> u32 {
        let seq = &self.seqs[key];
        let elsewhere = self.requests[seq.request].transfer.elsewhere();
        elsewhere.map_or(0, |elsewhere| elsewhere.coming(seq.len(), cached))
    }

    /// A sequence has its pages: says whether it waits for their content now.
    pub(super) fn waits_for_content(&mut self, key: Key) -> bool {
        let seq = &self.seqs[key];
        let request = &mut self.requests[seq.request];
        let (id, attempt) = (request.spec.id, request.spec.attempt);
        let Some(elsewhere) = request.transfer.elsewhere() else { return false };
        if elsewhere.coming(seq.len(), seq.computed) == 0 {
            // One that is computed here for another worker stays so.
            if matches!(request.transfer, Transfer::Receive(_)) {
                self.kv_work.push(KvWork::NotNeeded { request: id, attempt });
            }
            request.transfer = request.transfer.without_elsewhere();
            return false;
        }
        let (pages, cached, tokens) = (seq.pages.to_vec(), seq.computed, seq.len().min(elsewhere.tokens));
        self.kv_work.push(KvWork::Reserved { request: id, attempt, pages, cached, tokens });
        let rank = seq.rank();
        self.seqs[key].place = Place::Receiving;
        self.receiving.insert(rank, key);
        true
    }

    /// Takes over tokens that another worker has drawn and computed. False where the request has ended with one.
    fn repeat(&mut self, owner: Key, key: Key, drawn: &[Drawn]) -> bool {
        let choice = self.seqs[key].choice;
        for token in drawn {
            let index = self.seqs[key].output.len() as u32;
            let allowed = &mut self.requests[owner].allowed[choice as usize];
            // Its gateway granted them there.
            *allowed = (*allowed).max(index + 2);
            if self.deliver(owner, choice, index, token).is_some() {
                self.end_choice(owner, choice);
                return false;
            }
            self.seqs[key].output.push(token.token);
        }
        true
    }

    /// More content comes than pages were reserved for: gives the request `count` more, if there are so many and it may
    /// have them.
    pub fn grow_received(&mut self, request: RequestId, attempt: Attempt, count: u32) -> Option<Vec<PageId>> {
        let (_, key) = self.set_aside_as(request, attempt, Place::Receiving)?;
        let seq = &self.seqs[key];
        let most = seq.limit.div_ceil(self.config.page_tokens);
        if seq.pages.len() as u32 + count > most || self.table.available() < count {
            return None;
        }
        let pages: Option<Vec<PageId>> = (0..count).map(|_| self.table.take()).collect();
        let pages = pages?;
        self.seqs[key].pages.extend_from_slice(&pages);
        Some(pages)
    }

    /// Tells of pages that have become full, where the sequence is computed for another worker.
    pub(super) fn report_full_pages(&mut self, key: Key) {
        let seq = &self.seqs[key];
        let request = &mut self.requests[seq.request];
        let Transfer::Send { reported, .. } = &mut request.transfer else { return };
        let full = seq.computed / self.config.page_tokens;
        if full > *reported {
            let first = std::mem::replace(reported, full);
            self.kv_work.push(KvWork::Computed {
                request: request.spec.id,
                attempt: request.spec.attempt,
                first,
                pages: seq.pages[first as usize..full as usize].to_vec(),
            });
        }
    }

    /// A sequence has lost its pages: what was told of them no longer holds.
    pub(super) fn recall_pages(&mut self, owner: Key) {
        if self.recall_lent(owner) {
            return;
        }
        let request = &mut self.requests[owner];
        let Transfer::Send { reported, .. } = &mut request.transfer else { return };
        if std::mem::take(reported) > 0 {
            let (request, attempt) = (request.spec.id, request.spec.attempt);
            self.kv_work.push(KvWork::Computed { request, attempt, first: 0, pages: Vec::new() });
        }
    }

    /// A prompt that was computed for another worker is whole: keeps its pages for that one.
    pub(super) fn end_prefill(&mut self, key: Key, drawn: &mut DrawnTokens<'_>) {
        let owner = self.seqs[key].request;
        let request = &self.requests[owner];
        let choices: Vec<u32> = if self.seqs[key].joint {
            request.joint_choices().collect()
        } else {
            vec![self.seqs[key].choice]
        };
        let mut tokens = Vec::with_capacity(choices.len());
        for choice in choices {
            let Some(token) = drawn.next(self.requests[owner].seq_key(choice)) else {
                return self.fail_request(owner, super::complete::missing(choice));
            };
            tokens.push(token.clone());
        }
        self.totals.drawn_tokens += tokens.len() as u64;
        let ends = self.ends_with(owner, key, &tokens);
        self.running.retain(|k| *k != key);
        let seq = &mut self.seqs[key];
        seq.place = Place::Held;
        let (rank, computed) = (seq.rank(), seq.computed);
        let full = (computed / self.config.page_tokens) as usize;
        let tail = (computed % self.config.page_tokens > 0).then(|| seq.pages.get(full).copied()).flatten();
        self.held.insert(rank, key);
        let request = &self.requests[owner];
        self.kv_work.push(KvWork::Prefilled {
            request: request.spec.id,
            attempt: request.spec.attempt,
            computed,
            cached: request.cached.unwrap_or(0),
            tail,
            drawn: tokens,
            ends,
        });
        self.watch_deadline(owner);
    }

    /// A request is gone: whoever moves its pages hears of it.
    pub(super) fn drop_transfer(&mut self, request: &Request, reason: Option<&str>) {
        if request.transfer != Transfer::None {
            let (id, mut attempt) = (request.spec.id, request.spec.attempt);
            if let Transfer::Lend { to, .. } = request.transfer {
                self.lent.remove(&(id, to));
                attempt = to;
            }
            let reason = reason.map(str::to_owned);
            self.kv_work.push(KvWork::Dropped { request: id, attempt, reason });
        }
    }

    /// The request and its sequence, where it is set aside like this.
    pub(super) fn set_aside_as(
        &self,
        request: RequestId,
        attempt: Attempt,
        place: Place,
    ) -> Option<(Key, Key)> {
        let owner = *self.by_id.get(&(request, attempt))?;
        let key = *self.requests[owner].seqs().first()?;
        (self.seqs[key].place == place).then_some((owner, key))
    }

    /// Prompt tokens have come with their content: nobody is charged for them here, now or after a preemption.
    pub(super) fn spare_charge(&mut self, owner: Key, key: Key) {
        let seq = &self.seqs[key];
        let come = seq.computed.min(seq.prompt.len() as u32);
        let request = &mut self.requests[owner];
        let from = request.reached.max(request.cached.unwrap_or(0));
        request.reached = from.max(come);
        let (key, tokens) = (request.key(), request.reached - from);
        self.order.tell(|| OrderEvent::Received { key, tokens });
    }

    /// Puts a sequence that waited for content among the running ones; gives the tokens that it had from the cache.
    fn take_back(&mut self, owner: Key, key: Key) -> u32 {
        let transfer = &mut self.requests[owner].transfer;
        *transfer = transfer.without_elsewhere();
        self.receiving.remove(&self.seqs[key].rank());
        self.run(key);
        self.seqs[key].computed
    }

    /// Whether each open choice of the sequence has its token.
    fn are_drawn(&self, owner: Key, key: Key, drawn: &[Drawn]) -> bool {
        self.open_choices(owner, key).all(|choice| {
            let seq = self.requests[owner].seq_key(choice);
            drawn.iter().any(|d| d.seq == seq)
        })
    }

    /// Whether each open choice ends with its token.
    fn ends_with(&self, owner: Key, key: Key, drawn: &[Drawn]) -> bool {
        let (request, len) = (&self.requests[owner], self.seqs[key].len());
        self.open_choices(owner, key).all(|choice| {
            let seq = request.seq_key(choice);
            drawn.iter().any(|d| d.seq == seq && request.finish(d.token, len + 1).is_some())
        })
    }

    fn open_choices(&self, owner: Key, key: Key) -> impl Iterator<Item = u32> {
        let seq = &self.seqs[key];
        let own = (!seq.joint).then_some(seq.choice);
        let joint = seq.joint.then(|| self.requests[owner].joint_choices());
        own.into_iter().chain(joint.into_iter().flatten())
    }
}
