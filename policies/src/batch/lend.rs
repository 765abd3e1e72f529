//! Requests that another worker takes over while they run.
//!
//! The other worker has the full pages already and a place for the request. It asks for the rest under an attempt of its
//! own ([`Batch::lend`]), and is told of the rest as of a prompt that was computed for it
//! ([`KvWork::Prefilled`]): when the step that the sequence is in has ended, the sequence is kept as it is, with the page
//! that is not full and the tokens that were drawn since the other one was told of the request. When those pages are taken
//! over the request is gone from here ([`BatchEffect::TakenOver`]); if they are not, for whatever reason, it goes on
//! ([`Batch::end_lending`]). So it is never at neither end.

use config::ids::{Attempt, RequestId};

use super::seq::Place;
use super::slab::Key;
use super::transfer::Transfer;
use super::{Batch, BatchEffect, KvWork};
use crate::request::RequestSpec;
use crate::step::{Drawn, SeqKey};
use crate::time::Time;

impl Batch {
    /// Another worker takes over what runs here as attempt `from`; `spec` is the request as that one has it. False, and
    /// nothing has changed, where it does not run, is more than one sequence, is not what the other one has, or has
    /// produced no token since and cannot now.
    pub fn lend(&mut self, now: Time, spec: &RequestSpec, from: Attempt) -> bool {
        let id = (spec.id, spec.attempt);
        let Some(&owner) = self.by_id.get(&(spec.id, from)) else { return false };
        let request = &self.requests[owner];
        let known_here = self.by_id.contains_key(&id) || self.lent.contains_key(&id);
        if known_here || request.transfer != Transfer::None || request.live != 1 || request.joint.is_some() {
            return false;
        }
        let Some(&key) = request.seqs().first() else { return false };
        let seq = &self.seqs[key];
        let output = spec.resumed.get(seq.choice as usize).map_or(&[][..], |choice| &choice.tokens);
        let runs = matches!(seq.place, Place::Running | Place::Paused) && !seq.prefilling;
        let same = request.spec.tenant == spec.tenant
            && seq.prompt == spec.prompt
            && !output.is_empty()
            && seq.output.starts_with(output);
        let known = output.len() as u32;
        let ahead = seq.output.len() as u32 > known;
        if !runs || !same || (seq.place == Place::Paused && !ahead) {
            return false;
        }
        self.clock = self.clock.max(now);
        self.requests[owner].transfer = Transfer::Lend { to: spec.attempt, known };
        self.lent.insert(id, owner);
        let in_flight = self.flight.as_ref().is_some_and(|f| f.slices.iter().any(|s| s.seq == key));
        if !in_flight {
            self.keep_lent(key);
        }
        true
    }

    /// The other worker has taken over what was lent to it as this attempt, or does not want it any more. False where
    /// nothing is lent to it.
    pub fn end_lending(&mut self, now: Time, request: RequestId, attempt: Attempt, taken: bool) -> bool {
        let Some(owner) = self.lent.remove(&(request, attempt)) else { return false };
        self.clock = self.clock.max(now);
        self.requests[owner].transfer = Transfer::None;
        let Some(&key) = self.requests[owner].seqs().first() else { return true };
        if taken {
            let attempt = self.requests[owner].spec.attempt;
            self.remove_request(owner, None);
            self.effects.push(BatchEffect::TakenOver { request, attempt });
        } else if self.seqs[key].place == Place::Held {
            self.held.remove(&self.seqs[key].rank());
            if self.has_credit(key) && self.has_slot() {
                self.run(key);
            } else {
                self.woken |= self.has_credit(key);
                self.pause(key);
            }
        }
        true
    }

    /// Keeps a sequence for the worker that takes it over, if there is one and it lacks a token that was drawn here.
    pub(super) fn keep_lent(&mut self, key: Key) {
        let Some(seq) = self.seqs.get_mut(key) else { return };
        let owner = seq.request;
        let Transfer::Lend { to, known } = self.requests[owner].transfer else { return };
        if seq.output.len() as u32 <= known || !matches!(seq.place, Place::Running | Place::Paused) {
            return;
        }
        let (place, rank) = (seq.place, seq.rank());
        seq.place = Place::Held;
        self.held.insert(rank, key);
        if place == Place::Running {
            self.running.retain(|k| *k != key);
        } else {
            self.paused.remove(&rank);
        }
        let (seq, request) = (&self.seqs[key], &self.requests[owner]);
        let (id, choice) = (request.spec.id, seq.choice);
        let full = (seq.computed / self.config.page_tokens) as usize;
        let tail =
            (seq.computed % self.config.page_tokens > 0).then(|| seq.pages.get(full).copied()).flatten();
        let drawn = seq.output[known as usize..].iter().map(|&token| Drawn {
            seq: SeqKey { request: id, attempt: to, choice },
            token,
            logprobs: None,
        });
        let pages = seq.pages[..full].to_vec();
        self.kv_work.push(KvWork::Computed { request: id, attempt: to, first: 0, pages });
        self.kv_work.push(KvWork::Prefilled {
            request: id,
            attempt: to,
            computed: seq.computed,
            cached: request.cached.unwrap_or(0),
            tail,
            drawn: drawn.collect(),
            ends: false,
        });
        self.watch_deadline(owner);
    }

    /// A sequence has lost its pages: nothing of it can be taken over. Says whether that was to be.
    pub(super) fn recall_lent(&mut self, owner: Key) -> bool {
        let request = &mut self.requests[owner];
        let Transfer::Lend { to, .. } = request.transfer else { return false };
        request.transfer = Transfer::None;
        self.lent.remove(&(request.spec.id, to));
        let reason = Some("its pages were needed".to_owned());
        self.kv_work.push(KvWork::Dropped { request: request.spec.id, attempt: to, reason });
        true
    }
}
