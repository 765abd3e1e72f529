//! The start of a prompt that another worker holds, and gives away without computing anything.
//!
//! Whoever computes a prompt is told what another worker holds of it ([`Batch::submit_held`], [`Batch::submit_prefill`]).
//! When the prompt has its pages that much is asked for ([`super::KvWork::Reserved`]), and what comes, which may be less, is
//! taken as if it had been found here ([`Batch::compute_here`]). The other worker keeps what it still has of it
//! ([`Batch::hold_cached`]) until the asking one has got it; it computes nothing, and its queue is not looked at.
//!
//! Neither waits for anything but the link between them, so that no prompt stands in another's way: what is held is in use
//! or could be found anyway, and goes when the transfer ends, however that does.

use super::seq::Place;
use super::slab::Key;
use super::transfer::Transfer;
use super::{Batch, KvWork, Refusal};
use crate::kv::handoff::LEAST_PAGES;
use crate::request::RequestSpec;
use crate::time::Time;

/// Content of a sequence's pages that another worker gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elsewhere {
    /// It is that of the sequence's first tokens, so many of them; [`Elsewhere::ALL`]: all, and the tokens drawn after
    /// them.
    pub(super) tokens: u32,
    /// It is not asked for where fewer of those are missing.
    pub(super) least: u32,
}

impl Elsewhere {
    /// Whatever the sequence's length.
    pub(super) const ALL: u32 = u32::MAX;

    pub(super) const fn all(least: u32) -> Self {
        Self { tokens: Self::ALL, least }
    }

    /// What another worker holds of a prompt, where that is anything.
    pub(super) fn held(held: Held) -> Option<Self> {
        (held.tokens > 0).then(|| Self { tokens: held.tokens, least: held.least.max(1) })
    }

    /// Of a sequence of `len` tokens, of which the first `cached` are here, the tokens that would come; none where that is
    /// not worth asking.
    pub(super) fn coming(self, len: u32, cached: u32) -> u32 {
        let missing = len.min(self.tokens).saturating_sub(cached);
        if missing < self.least { 0 } else { missing }
    }
}

/// What another worker holds of a prompt's start, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Tokens of it; 0: none.
    pub tokens: u32,
    /// It is not asked for where fewer of them are missing.
    pub least: u32,
}

impl Held {
    /// What to ask a holder of the first `tokens` tokens of a request's prompt for, and what that is to the batch; nothing where
    /// the request is not [`Batch::is_transferable`].
    #[must_use]
    pub fn of(spec: &RequestSpec, tokens: u32, page_tokens: u32) -> Option<(Box<RequestSpec>, Self)> {
        let asked = Batch::is_transferable(spec).then(|| Box::new(spec.held_prefix(tokens, page_tokens)))?;
        let tokens = u32::try_from(asked.prompt.len()).unwrap_or(u32::MAX);
        Some((asked, Self { tokens, least: LEAST_PAGES * page_tokens }))
    }
}

impl Batch {
    /// As [`Batch::submit`], for a request of whose prompt another worker holds the start, as `held` says: that is asked for
    /// when it has its pages ([`KvWork::Reserved`]), and the rest is computed here ([`Batch::compute_here`]).
    ///
    /// # Errors
    /// As [`Batch::submit`].
    pub fn submit_held(&mut self, now: Time, spec: RequestSpec, held: Held) -> Result<(), Refusal> {
        let fetch = Elsewhere::held(held).filter(|_| Self::is_transferable(&spec));
        self.accept(now, spec, fetch.map_or(Transfer::None, Transfer::Receive))
    }

    /// Keeps what is here of a prompt's start for another worker, until the request is cancelled: full pages, from the first
    /// one on. [`KvWork::Computed`] and [`KvWork::Prefilled`] say which, as of a prompt that was computed; no token is
    /// drawn. Gives the tokens that it keeps.
    ///
    /// # Errors
    /// As [`Batch::submit`]; [`Refusal::Malformed`] where nothing of the prompt is here.
    pub fn hold_cached(&mut self, now: Time, spec: RequestSpec) -> Result<u32, Refusal> {
        let (request, attempt) = (spec.id, spec.attempt);
        let transfer = Transfer::Send { reported: 0, chunk: u32::MAX, open: true, fetch: None };
        self.accept(now, spec, transfer)?;
        let nothing = Err(Refusal::Malformed("nothing of its prompt is here"));
        // One that has nothing to generate is over.
        let Some(&owner) = self.by_id.get(&(request, attempt)) else { return nothing };
        let first = self.requests[owner].seqs().first().copied();
        let held = first.and_then(|key| self.hold(key));
        let Some(pages) = held else {
            self.requests[owner].transfer = Transfer::None;
            self.remove_request(owner, None);
            return nothing;
        };
        let computed = pages.len() as u32 * self.config.page_tokens;
        self.requests[owner].cached = Some(computed);
        self.kv_work.push(KvWork::Computed { request, attempt, first: 0, pages });
        let (tail, drawn) = (None, Vec::new());
        let prefilled =
            KvWork::Prefilled { request, attempt, computed, cached: computed, tail, drawn, ends: false };
        self.kv_work.push(prefilled);
        Ok(computed)
    }

    /// Keeps a waiting sequence with the pages that are here of it; none, and nothing has changed, where none is.
    fn hold(&mut self, key: Key) -> Option<Vec<config::ids::PageId>> {
        if self.seqs[key].place != Place::Fresh || !self.config.prefix_cache {
            return None;
        }
        let full = self.seqs[key].len() / self.config.page_tokens;
        let hits = self.cached_run(key, full);
        if hits.is_empty() {
            return None;
        }
        let pages = self.table.claim(&hits, 0)?;
        self.fresh.remove(self.seqs[key].spot);
        self.uncount_waiting(key);
        let order = self.admissions;
        self.admissions += 1;
        let page_tokens = self.config.page_tokens;
        let seq = &mut self.seqs[key];
        seq.computed = pages.len() as u32 * page_tokens;
        seq.pages.set(pages.clone());
        (seq.place, seq.order) = (Place::Held, order);
        let rank = seq.rank();
        self.held.insert(rank, key);
        Some(pages)
    }
}
