//! The next step: every decode, then the prefills under way, then new ones, within the token budget.

use std::collections::BTreeSet;
use std::sync::Arc;

use config::ids::PageId;

use super::block_table::BlockTable;
use super::seq::Seq;
use super::slab::Key;
use super::{Batch, Flight, FlightSlice};
use crate::kv::PageHash;
use crate::request::{RequestSpec, Token};
use crate::step::{Draw, History, PageCopy, PromptTargets, Slice, StepPlan};
use crate::time::Time;

/// A slice with room for more tokens is not kept: most need room for one.
const SPARE_TOKENS: usize = 64;

/// Memory of plans that have been run.
#[derive(Debug, Default)]
pub(super) struct Spare {
    slices: Vec<Slice>,
    /// The slices of the last plan, to be written over: mostly the next one has the same sequences in the same order.
    plan: Vec<Slice>,
    /// Room for the tokens of a prompt, which most slices do not need.
    tokens: Vec<Token>,
    /// What the block table of each of them is a copy of: whose, and after how many changes of it.
    copies: Vec<(Key, u32)>,
    /// Empty.
    flight: Vec<FlightSlice>,
}

impl Spare {
    /// Takes back what a step that has come back had in flight.
    pub(super) fn landed(&mut self, mut flight: Vec<FlightSlice>) {
        flight.clear();
        self.flight = flight;
    }
}

/// A step as it is put together.
pub(super) struct Draft {
    pub(super) plan: StepPlan,
    /// Of the plan's slices so many are of this step; those behind them are of an earlier one.
    used: usize,
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
        self.spare.copies.truncate(self.spare.plan.len());
        let mut draft = Draft {
            plan: StepPlan { step, slices: std::mem::take(&mut self.spare.plan), ..StepPlan::default() },
            used: 0,
            flight: std::mem::take(&mut self.spare.flight),
            budget: self.config.max_batch_tokens,
            under_way: BTreeSet::new(),
        };
        self.plan_decodes(&mut draft);
        if draft.used > 0 {
            draft.budget = draft.budget.min(self.config.max_mixed_tokens);
        }
        self.plan_prefills(&mut draft);
        self.admit(now, &mut draft);
        self.tell_wanted();
        self.spare.copies.truncate(draft.used);
        let left = draft.plan.slices.drain(draft.used..);
        let few = (self.config.max_running as usize).saturating_sub(self.spare.slices.len());
        self.spare.slices.extend(left.take(few));
        if draft.plan.slices.is_empty() {
            (self.spare.plan, self.spare.flight) = (draft.plan.slices, draft.flight);
            return None;
        }
        self.steps = step;
        self.flight = Some(Flight { step, slices: draft.flight });
        Some(draft.plan)
    }

    /// Takes back the last plan, as it was given, once it has been run: the next one is put together in its memory, and goes
    /// on from its block tables. Nobody has to.
    pub fn reuse(&mut self, plan: StepPlan) {
        let StepPlan { step, mut slices, .. } = plan;
        if step != self.steps || slices.len() != self.spare.copies.len() {
            self.spare.copies.clear();
        }
        for slice in slices.iter_mut().filter(|slice| slice.tokens.capacity() > SPARE_TOKENS) {
            let tokens = std::mem::take(&mut slice.tokens);
            if tokens.capacity() > self.spare.tokens.capacity() {
                self.spare.tokens = tokens;
            }
        }
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
                        pages.replace(at, page);
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

    /// A decode of a sequence that was decoded at this place of the last plan too, which is how nearly all tokens come: the
    /// slice stays as it is but for where it is. Says whether it is one.
    fn decode_again(&mut self, key: Key, tokens: u32, draft: &mut Draft) -> bool {
        let seq = &self.seqs[key];
        let Some(slice) = draft.plan.slices.get_mut(draft.used) else { return false };
        let known = self.spare.copies.get(draft.used) == Some(&(key, seq.pages.changes()));
        if !known || tokens != 1 || seq.joint || seq.prefilling || seq.len() != seq.computed + 1 {
            return false;
        }
        let ([token], Some(last)) = (&mut slice.tokens[..], seq.output.last()) else { return false };
        let [Draw { choice, position, history: None, .. }] = &mut slice.draws[..] else { return false };
        if *choice != seq.choice || slice.prompt_logprobs.is_some() {
            return false;
        }
        (*token, *position, slice.start) = (*last, seq.len(), seq.computed);
        slice.block_table.extend_from_slice(&seq.pages[slice.block_table.len()..]);
        let flight = FlightSlice { seq: key, key: slice.seq, tokens, prefill: false, last: true };
        draft.flight.push(flight);
        draft.used += 1;
        draft.budget = draft.budget.saturating_sub(1);
        true
    }

    fn add_slice(&mut self, key: Key, tokens: u32, draft: &mut Draft) {
        if self.decode_again(key, tokens, draft) {
            return;
        }
        let seq = &self.seqs[key];
        let request = &self.requests[seq.request];
        let choice =
            if seq.joint { request.joint_choices().next().unwrap_or(seq.choice) } else { seq.choice };
        let (start, end) = (seq.computed, seq.computed + tokens);
        let last = end == seq.len();
        let seq_key = request.seq_key(choice);
        if draft.used == draft.plan.slices.len() {
            let spare = self.spare.slices.pop();
            draft.plan.slices.push(spare.unwrap_or_else(|| Slice {
                seq: seq_key,
                tokens: Vec::new(),
                start,
                block_table: Vec::new(),
                draws: Vec::new(),
                prompt_logprobs: None,
            }));
        }
        let slice = &mut draft.plan.slices[draft.used];
        copy_table(&mut slice.block_table, draft.used, (key, &seq.pages), &mut self.spare.copies);
        draft.used += 1;
        (slice.seq, slice.start) = (seq_key, start);
        if slice.tokens.capacity() < tokens as usize && tokens as usize > SPARE_TOKENS {
            slice.tokens = std::mem::take(&mut self.spare.tokens);
        }
        slice.tokens.clear();
        seq.append_tokens(start, end, &mut slice.tokens);
        match (last, seq.joint) {
            // A decode after a decode, mostly of the same sequence.
            (true, false) => draw_one(&mut slice.draws, seq, &request.spec),
            // No token is asked for: inside of a prompt, or where it is only scored.
            (false, _) => slice.draws.clear(),
            (true, true) if seq.len() >= seq.limit => slice.draws.clear(),
            (true, true) => {
                slice.draws.clear();
                slice.draws.extend(request.joint_choices().map(|c| draw(seq, c, &request.spec)));
            }
        }
        let scored = seq.joint && request.spec.prompt_logprobs;
        slice.prompt_logprobs =
            if scored { targets(seq, start, end, request.reported, &request.spec) } else { None };
        let prefill = seq.prefilling;
        draft.flight.push(FlightSlice { seq: key, key: seq_key, tokens, prefill, last });
        draft.budget = draft.budget.saturating_sub(tokens);
    }
}

/// Has a slice's block table, number `at` of a plan, be that of a sequence. Mostly it is already, but for the last page.
fn copy_table(
    to: &mut Vec<PageId>,
    at: usize,
    (key, pages): (Key, &BlockTable),
    copies: &mut Vec<(Key, u32)>,
) {
    let copy = (key, pages.changes());
    if copies.get(at) != Some(&copy) {
        to.clear();
    }
    match copies.get_mut(at) {
        Some(known) => *known = copy,
        None => copies.push(copy),
    }
    to.extend_from_slice(&pages[to.len()..]);
}

/// Has a slice draw the next token of a choice's own sequence, as [`draw`] says.
fn draw_one(draws: &mut Vec<Draw>, seq: &Seq, spec: &RequestSpec) {
    if let [known] = &mut draws[..]
        && Arc::ptr_eq(&known.sampling, &spec.sampling)
        && !spec.sampling.needs_history()
    {
        (known.choice, known.position) = (seq.choice, seq.len());
        return;
    }
    draws.clear();
    draws.push(draw(seq, seq.choice, spec));
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
