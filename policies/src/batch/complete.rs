//! A step came back.

use config::ids::PageId;

use super::block_table::BlockTable;
use super::seq::{Choice, Place, Seq};
use super::slab::Key;
use super::transfer::Transfer;
use super::{Batch, BatchEffect, Flight, FlightSlice, TokenEvent};
use crate::kv::table::Published;
use crate::order::OrderEvent;
use crate::request::Finish;
use crate::step::{Drawn, PromptLogprobs, SeqKey, StepOutcome};
use crate::time::Time;

/// A choice whose prompt was computed jointly and that has drawn its first token.
pub(super) struct Fork {
    parent: Key,
    choice: u32,
    token: u32,
}

/// The drawn tokens of an outcome, which come in the plan's order with gaps where slices failed.
pub(super) struct DrawnTokens<'a> {
    all: &'a [Drawn],
    at: usize,
}

impl<'a> DrawnTokens<'a> {
    pub(super) const fn of(all: &'a [Drawn]) -> Self {
        Self { all, at: 0 }
    }

    pub(super) fn next(&mut self, key: SeqKey) -> Option<&'a Drawn> {
        let ahead = self.all[self.at..].iter().position(|d| d.seq == key).map(|i| i + self.at);
        let found = ahead.or_else(|| self.all[..self.at].iter().position(|d| d.seq == key))?;
        self.at = found + 1;
        self.all.get(found)
    }
}

impl Batch {
    /// Takes the outcome of the step in flight; an outcome of another step is ignored. Entries of sequences that are
    /// gone are ignored; a sequence whose slice failed, or whose token is missing, fails alone with its request.
    pub fn complete(&mut self, now: Time, outcome: &StepOutcome, effects: &mut Vec<BatchEffect>) {
        self.clock = self.clock.max(now);
        if let Some(flight) = self.land(outcome.step) {
            self.order.tell(|| {
                let prefill = flight.slices.iter().filter(|s| s.prefill).map(|s| s.tokens).sum();
                OrderEvent::Stepped { took: outcome.took, prefill }
            });
            for (key, reason) in &outcome.failed {
                if let Some(request) = self.by_id.get(&(key.request, key.attempt)).copied()
                    && flight.slices.iter().any(|s| s.key == *key && self.seqs.get(s.seq).is_some())
                {
                    self.fail_request(request, reason.clone());
                }
            }
            for scored in &outcome.prompt_logprobs {
                self.report_prompt(scored);
            }
            let mut drawn = DrawnTokens::of(&outcome.drawn);
            let mut forks = Vec::new();
            for slice in &flight.slices {
                self.complete_slice(slice, &mut drawn, &mut forks);
            }
            for fork in forks {
                self.fork(&fork);
            }
            self.spare.landed(flight.slices);
        }
        self.take_effects(effects);
    }

    /// The whole step in flight failed: the requests that had slices in it fail, all others go on.
    pub fn step_failed(&mut self, _now: Time, step: u64, reason: &str, effects: &mut Vec<BatchEffect>) {
        if let Some(flight) = self.land(step) {
            for slice in flight.slices {
                if let Some(request) = self.seqs.get(slice.seq).map(|s| s.request) {
                    self.fail_request(request, reason.to_owned());
                }
            }
        }
        self.take_effects(effects);
    }

    /// Nothing is in flight any more; pages that waited for that are released.
    fn land(&mut self, step: u64) -> Option<Flight> {
        let flight = self.flight.take_if(|f| f.step == step)?;
        self.lift_fence();
        Some(flight)
    }

    fn report_prompt(&mut self, scored: &PromptLogprobs) {
        let id = (scored.seq.request, scored.seq.attempt);
        let Some(request) = self.by_id.get(&id).and_then(|k| self.requests.get_mut(*k)) else { return };
        // A preempted prompt is computed again; what was reported before is not repeated.
        let known = (request.reported + 1).saturating_sub(scored.first) as usize;
        let Some(tokens) = scored.tokens.get(known..).filter(|t| !t.is_empty()) else { return };
        let first = scored.first + known as u32;
        request.reported = first + tokens.len() as u32 - 1;
        let tokens = tokens.to_vec();
        self.effects.push(BatchEffect::PromptLogprobs { request: id.0, attempt: id.1, first, tokens });
    }

    fn complete_slice(&mut self, slice: &FlightSlice, drawn: &mut DrawnTokens<'_>, forks: &mut Vec<Fork>) {
        let Some(seq) = self.seqs.get_mut(slice.seq) else { return };
        seq.computed += slice.tokens;
        if slice.prefill {
            let request = &mut self.requests[seq.request];
            request.usage.prefilled_tokens += slice.tokens;
            self.totals.prefilled_tokens += u64::from(slice.tokens);
            let from = request.reached.max(request.cached.unwrap_or(0));
            request.reached = from.max(seq.computed.min(seq.prompt.len() as u32));
            let (key, prefill) = (request.key(), request.reached - from);
            self.order.tell(|| OrderEvent::Computed { key, prefill, drawn: 0 });
        }
        let (owner, page) = (seq.request, self.config.page_tokens);
        if seq.computed % page < slice.tokens {
            self.publish_filled(slice.seq, slice.tokens);
            self.report_full_pages(slice.seq);
        }
        if !slice.last {
            return;
        }
        match self.requests[owner].transfer {
            Transfer::Send { .. } => self.end_prefill(slice.seq, drawn),
            Transfer::Lend { .. } => {
                self.end_computing(slice.seq, drawn, forks);
                self.keep_lent(slice.seq);
            }
            Transfer::None | Transfer::Receive { .. } => self.end_computing(slice.seq, drawn, forks),
        }
    }

    /// All tokens of a sequence are computed, and the next one is drawn.
    pub(super) fn end_computing(&mut self, key: Key, drawn: &mut DrawnTokens<'_>, forks: &mut Vec<Fork>) {
        if self.seqs[key].joint {
            self.end_prompt(key, drawn, forks);
            return;
        }
        let (request, choice) = (self.seqs[key].request, self.seqs[key].choice);
        let Some(token) = drawn.next(self.requests[request].seq_key(choice)) else {
            return self.fail_request(request, missing(choice));
        };
        let index = self.seqs[key].output.len() as u32;
        if self.deliver(request, choice, index, token).is_some() {
            self.end_choice(request, choice);
        } else {
            let seq = &mut self.seqs[key];
            seq.output.push(token.token);
            seq.prefilling = false;
            self.pause_if_spent(key);
        }
    }

    /// Sends a token; says whether the choice ends with it.
    pub(super) fn deliver(&mut self, request: Key, choice: u32, index: u32, drawn: &Drawn) -> Option<Finish> {
        let request = &mut self.requests[request];
        let len = request.spec.prompt.len() as u32 + index + 1;
        let finish = request.finish(drawn.token, len);
        request.usage.drawn_tokens += 1;
        self.totals.drawn_tokens += 1;
        let key = request.key();
        self.order.tell(|| OrderEvent::Computed { key, prefill: 0, drawn: 1 });
        let (seq, token) = (request.seq_key(choice), drawn.token);
        let cached_tokens = request.cached.unwrap_or(0);
        let event = |logprobs| TokenEvent { seq, index, token, logprobs, finish, cached_tokens };
        // Most have none, and are then written to where they stay and not copied there.
        self.effects.push(match &drawn.logprobs {
            None => BatchEffect::Token(event(None)),
            some => BatchEffect::Token(event(some.clone())),
        });
        finish
    }

    /// The joint prompt is computed: each choice has its first token, and those that go on part ways.
    fn end_prompt(&mut self, key: Key, drawn: &mut DrawnTokens<'_>, forks: &mut Vec<Fork>) {
        let request = self.seqs[key].request;
        let choices: Vec<u32> = self.requests[request].joint_choices().collect();
        let scored_only = self.seqs[key].len() >= self.seqs[key].limit;
        let mut first = true;
        for choice in choices {
            if scored_only {
                self.end_choice(request, choice);
                continue;
            }
            let Some(token) = drawn.next(self.requests[request].seq_key(choice)) else {
                return self.fail_request(request, missing(choice));
            };
            if self.deliver(request, choice, 0, token).is_some() {
                self.end_choice(request, choice);
                continue;
            }
            if !first {
                forks.push(Fork { parent: key, choice, token: token.token });
                continue;
            }
            // The first one that goes on takes the sequence over; a choice that ends later in this loop must not end
            // the sequence with it.
            first = false;
            let seq = &mut self.seqs[key];
            (seq.choice, seq.joint, seq.prefilling) = (choice, false, false);
            seq.output.push(token.token);
            let request = &mut self.requests[request];
            request.choices[choice as usize] = Choice::Own(key);
            request.joint = None;
        }
        if !first {
            self.pause_if_spent(key);
        }
    }

    /// Gives a choice a sequence of its own that shares all pages of its prompt. Where no slot is left it waits, and
    /// finds what is cached of the prompt when its turn comes. One without credit needs no slot.
    pub(super) fn fork(&mut self, fork: &Fork) {
        let Some(parent) = self.seqs.get(fork.parent) else { return };
        let spent = !self.requests[parent.request].has_credit(fork.choice, 1);
        let pages: Vec<PageId> = if spent || self.has_slot() { parent.pages.to_vec() } else { Vec::new() };
        let seq = Seq {
            request: parent.request,
            choice: fork.choice,
            joint: false,
            place: Place::Running,
            order: parent.order,
            arrival: parent.arrival,
            spot: parent.spot,
            tier: parent.tier,
            prompt: parent.prompt.clone(),
            prompt_hashes: parent.prompt_hashes.clone(),
            output: vec![fork.token],
            output_hashes: Vec::new(),
            computed: parent.computed,
            prefilling: false,
            preemptions: 0,
            limit: parent.limit,
            pages: BlockTable::of(pages),
            waiting_work: 0,
            wanted: 0,
            told: false,
        };
        for &page in seq.pages.iter() {
            self.table.hold(page);
        }
        let (request, waits) = (seq.request, seq.pages.is_empty());
        let key = self.seqs.insert(seq);
        self.requests[request].choices[fork.choice as usize] = Choice::Own(key);
        if spent {
            self.pause(key);
        } else if waits {
            self.queue_again(key);
        } else {
            self.run(key);
        }
    }

    /// Makes the pages findable that the last `tokens` computed tokens filled.
    pub(super) fn publish_filled(&mut self, key: Key, tokens: u32) {
        if !self.config.prefix_cache {
            return;
        }
        let page_tokens = self.config.page_tokens;
        let seq = &mut self.seqs[key];
        let (first, filled) = ((seq.computed - tokens) / page_tokens, seq.computed / page_tokens);
        let fingerprint = &self.requests[seq.request].fingerprint;
        seq.ensure_hashes(filled as usize, page_tokens, fingerprint, self.hasher);
        if filled > first + 1 {
            self.table.fetch((first as usize..filled as usize).filter_map(|i| seq.hash(i)));
        }
        for i in first as usize..filled as usize {
            let Some(hash) = seq.hash(i) else { return };
            let parent = i.checked_sub(1).map(|i| seq.pages[i]);
            let (start, end) = (i as u32 * page_tokens, (i as u32 + 1) * page_tokens);
            let published = match seq.prompt.get(start as usize..end as usize) {
                Some(content) => self.table.publish(seq.pages[i], hash, parent, content),
                None => self.table.publish(seq.pages[i], hash, parent, &seq.tokens(start, end)),
            };
            if let Published::Duplicate(same) = published {
                self.table.hold(same);
                self.table.release(seq.pages[i]);
                seq.pages.replace(i, same);
            }
        }
    }
}

#[cold]
#[inline(never)]
pub(super) fn missing(choice: u32) -> String {
    format!("the engine drew no token for choice {choice}")
}
