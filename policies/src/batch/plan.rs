//! The next step: every decode, then the prefills under way, then new ones, within the token budget.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::seq::Seq;
use super::slab::Key;
use super::{Batch, Flight, FlightSlice};
use crate::kv::PageHash;
use crate::request::RequestSpec;
use crate::step::{Draw, History, PageCopy, PromptTargets, Slice, StepPlan};
use crate::time::Time;

/// A slice with room for more tokens is not kept: most need room for one.
const SPARE_TOKENS: usize = 64;

/// Memory of plans that have been run.
#[derive(Debug, Default)]
pub(super) struct Spare {
    slices: Vec<Slice>,
    /// Empty.
    plan: Vec<Slice>,
}

/// A step as it is put together.
pub(super) struct Draft {
    pub(super) plan: StepPlan,
    flight: Vec<FlightSlice>,
    /// Tokens that may be added.
    pub(super) budget: u32,
    /// The full pages that running prefills compute next, by number and hash.
    pub(super) under_way: BTreeSet<(u32, PageHash)>,
}

impl Batch {
    /// The next step, or none when nothing can run or one is in flight. Never an empty step.
    pub fn plan(&mut self, now: Time) -> Option<StepPlan> {
        if self.flight.is_some() {
            return None;
        }
        self.clock = self.clock.max(now);
        self.expire(now);
        self.release_expired(now);
        self.wake();
        self.make_way();
        let step = self.steps + 1;
        let mut draft = Draft {
            plan: StepPlan { step, slices: std::mem::take(&mut self.spare.plan), ..StepPlan::default() },
            flight: Vec::with_capacity(self.running.len() + 1),
            budget: self.config.max_batch_tokens,
            under_way: BTreeSet::new(),
        };
        self.plan_decodes(&mut draft);
        if !draft.plan.slices.is_empty() {
            draft.budget = draft.budget.min(self.config.max_mixed_tokens);
        }
        self.plan_prefills(&mut draft);
        self.admit(now, &mut draft);
        if draft.plan.slices.is_empty() {
            self.spare.plan = draft.plan.slices;
            return None;
        }
        self.steps = step;
        self.flight = Some(Flight { step, slices: draft.flight });
        Some(draft.plan)
    }

    /// Takes back a plan that has been run, for its memory: the next one is put together in it. Nobody has to.
    pub fn reuse(&mut self, plan: StepPlan) {
        let StepPlan { mut slices, .. } = plan;
        let few = (self.config.max_running as usize).saturating_sub(self.spare.slices.len());
        let short = slices.drain(..).filter(|slice| slice.tokens.capacity() <= SPARE_TOKENS);
        self.spare.slices.extend(short.take(few));
        self.spare.plan = slices;
    }

    /// One token for each decoding sequence. Where pages run out, paused ones give way, then those that were admitted
    /// last, so that what is planned already never does.
    fn plan_decodes(&mut self, draft: &mut Draft) {
        let mut at = 0;
        while let Some(&key) = self.running.get(at) {
            if self.seqs[key].prefilling {
                at += 1;
                continue;
            }
            if self.make_writable(key, draft) {
                self.add_slice(key, 1, draft);
                at += 1;
            }
        }
    }

    /// Gives a decoding sequence a page of its own for its next token: the one that it has where nobody shares it, else a
    /// new one, with a copy of what it shares. False where the sequence itself had to give way.
    fn make_writable(&mut self, key: Key, draft: &mut Draft) -> bool {
        let at = (self.seqs[key].computed / self.config.page_tokens) as usize;
        loop {
            let shared = self.seqs[key].pages.get(at).copied();
            if shared.is_some_and(|page| self.table.holders(page) == 1) {
                return true;
            }
            if let Some(page) = self.table.take() {
                let pages = &mut self.seqs[key].pages;
                match shared {
                    Some(from) => {
                        pages[at] = page;
                        draft.plan.copies.push(PageCopy { from, to: page });
                        self.table.release(from);
                    }
                    None => pages.push(page),
                }
                return true;
            }
            if self.evict_paused() || self.call_back(None) {
                continue;
            }
            let Some(&youngest) = self.running.last() else { return false };
            self.preempt(youngest);
            if youngest == key {
                return false;
            }
        }
    }

    fn plan_prefills(&mut self, draft: &mut Draft) {
        for at in 0..self.running.len() {
            let key = self.running[at];
            if self.seqs[key].prefilling {
                self.add_prefill(key, draft);
            }
        }
    }

    /// The next chunk of a prefill, as far as the budget goes.
    pub(super) fn add_prefill(&mut self, key: Key, draft: &mut Draft) {
        let seq = &self.seqs[key];
        let page = seq.computed / self.config.page_tokens;
        if (page + 1) * self.config.page_tokens <= seq.len()
            && let Some(hash) = seq.hash(page as usize)
        {
            draft.under_way.insert((page, hash));
        }
        let tokens = seq.remaining().min(draft.budget).min(Self::chunk_of(&self.requests[seq.request]));
        if tokens > 0 {
            self.add_slice(key, tokens, draft);
        }
    }

    fn add_slice(&mut self, key: Key, tokens: u32, draft: &mut Draft) {
        let spare = self.spare.slices.pop();
        let seq = &self.seqs[key];
        let request = &self.requests[seq.request];
        let choice =
            if seq.joint { request.joint_choices().next().unwrap_or(seq.choice) } else { seq.choice };
        let (start, end) = (seq.computed, seq.computed + tokens);
        let last = end == seq.len();
        let seq_key = request.seq_key(choice);
        let mut slice = spare.unwrap_or_else(|| Slice {
            seq: seq_key,
            tokens: Vec::new(),
            start,
            block_table: Vec::new(),
            draws: Vec::new(),
            prompt_logprobs: None,
        });
        (slice.seq, slice.start) = (seq_key, start);
        slice.tokens.clear();
        seq.append_tokens(start, end, &mut slice.tokens);
        slice.block_table.clear();
        slice.block_table.extend_from_slice(&seq.pages);
        slice.draws.clear();
        match (last, seq.joint) {
            (false, _) => {}
            // No token is asked for: the prompt is only scored.
            (true, true) if seq.len() >= seq.limit => {}
            (true, true) => {
                slice.draws.extend(request.joint_choices().map(|c| draw(seq, c, &request.spec)));
            }
            (true, false) => slice.draws.push(draw(seq, seq.choice, &request.spec)),
        }
        let scored = seq.joint && request.spec.prompt_logprobs;
        slice.prompt_logprobs =
            if scored { targets(seq, start, end, request.reported, &request.spec) } else { None };
        draft.plan.slices.push(slice);
        let prefill = seq.prefilling;
        draft.flight.push(FlightSlice { seq: key, key: seq_key, tokens, prefill, last });
        draft.budget = draft.budget.saturating_sub(tokens);
    }
}

fn draw(seq: &Seq, choice: u32, spec: &RequestSpec) -> Draw {
    let history = spec
        .sampling
        .needs_history()
        .then(|| History { prompt: Arc::clone(&seq.prompt), output: seq.output.clone() });
    Draw { choice, sampling: Arc::clone(&spec.sampling), position: seq.len(), history }
}

/// What to report for rows `start..end` of the prompt; none where all of it was reported before a preemption.
fn targets(seq: &Seq, start: u32, end: u32, reported: u32, spec: &RequestSpec) -> Option<PromptTargets> {
    let until = (end + 1).min(seq.prompt.len() as u32);
    let wanted = until > start + 1 && until > reported + 1;
    wanted.then(|| PromptTargets {
        targets: seq.prompt[start as usize + 1..until as usize].to_vec(),
        top: spec.sampling.logprobs.unwrap_or(0),
    })
}
