//! What the scheduler keeps of a request and of each sequence that it computes for it.

use std::sync::Arc;

use super::block_table::BlockTable;
use super::fresh::Spot;
use super::slab::Key;
use super::transfer::Transfer;
use super::{PageHasher, Rank, Usage};
use crate::kv::{Fingerprint, PageHash};
use crate::order::Standing;
use crate::request::{Finish, RequestSpec, Token};
use crate::step::SeqKey;
use crate::time::Time;

/// A request from its submission until all of its choices have ended.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Request {
    // What each token needs comes first.
    /// How many tokens each choice may have, by what its gateway has granted.
    pub(super) allowed: Vec<u32>,
    /// Most tokens of a sequence, prompt included.
    pub(super) limit: u32,
    /// Prompt tokens found in the cache at first admission; none before it.
    pub(super) cached: Option<u32>,
    /// Its prompt is computed for, or by, another worker.
    pub(super) transfer: Transfer,
    pub(super) usage: Usage,
    pub(super) spec: RequestSpec,
    pub(super) choices: Vec<Choice>,
    /// The sequence that computes the prompt for all choices that are [`Choice::Joint`].
    pub(super) joint: Option<Key>,
    /// Choices that have not ended.
    pub(super) live: u32,
    /// Prompt log-probabilities are reported for the positions `1..=reported`.
    pub(super) reported: u32,
    /// Counts requests in order of arrival.
    pub(super) number: u64,
    /// When it came.
    pub(super) since: Time,
    /// What the policy published about it.
    pub(super) standing: Standing,
    /// Of its tenant's pages.
    pub(super) fingerprint: Fingerprint,
    /// Prompt tokens that were found or computed so far, at most; what is lost to a preemption and computed again does
    /// not count again.
    pub(super) reached: u32,
    /// Another worker was asked for its prompt while it waited.
    pub(super) offloaded: bool,
}

/// Where a choice stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Its prompt is computed together with that of the other joint choices.
    Joint,
    /// It has a sequence of its own.
    Own(Key),
    /// No more tokens.
    Ended,
}

impl Request {
    pub(super) fn seq_key(&self, choice: u32) -> SeqKey {
        SeqKey { request: self.spec.id, attempt: self.spec.attempt, choice }
    }

    /// Choices whose prompt is computed jointly, in order.
    pub(super) fn joint_choices(&self) -> impl Iterator<Item = u32> {
        self.choices.iter().zip(0..).filter(|(c, _)| **c == Choice::Joint).map(|(_, i)| i)
    }

    /// All sequences of the request.
    pub(super) fn seqs(&self) -> Vec<Key> {
        let own = self.choices.iter().filter_map(|c| match c {
            Choice::Own(key) => Some(*key),
            Choice::Joint | Choice::Ended => None,
        });
        self.joint.into_iter().chain(own).collect()
    }

    /// Whether `choice`, which has `output` tokens, may produce another.
    pub(super) fn has_credit(&self, choice: u32, output: usize) -> bool {
        self.allowed.get(choice as usize).is_some_and(|a| output < *a as usize)
    }

    /// Whether a choice ends with `token` as the last of `len` tokens, prompt included.
    pub(super) fn finish(&self, token: Token, len: u32) -> Option<Finish> {
        if !self.spec.ignore_end && self.spec.end_tokens.contains(&token) {
            return Some(Finish::EndToken);
        }
        (len >= self.limit).then_some(Finish::Length)
    }
}

/// Which list a sequence is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Waits for its first admission.
    Fresh,
    /// Has run and waits to run again.
    Resuming,
    /// Is computed.
    Running,
    /// Has used its credit, and keeps its pages as long as nobody else needs them.
    Paused,
    /// Has used its credit, and has no pages.
    Stalled,
    /// Has no pages until there is word of another worker.
    Expected,
    /// Has pages whose content comes from another worker.
    Receiving,
    /// Is kept, with its pages, for another worker.
    Held,
}

/// Tokens that are computed one after another: one choice, or the common prompt of several.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Seq {
    // What each token needs comes first.
    pub(super) request: Key,
    pub(super) choice: u32,
    /// Computes the prompt for all joint choices of the request.
    pub(super) joint: bool,
    /// Computes tokens that were there at its admission; otherwise the one that it drew last.
    pub(super) prefilling: bool,
    pub(super) place: Place,
    /// The table counts what it wants, too ([`super::Batch::tell_wanted`]).
    pub(super) told: bool,
    /// Tokens whose keys and values are in the pages.
    pub(super) computed: u32,
    /// Most tokens, prompt included.
    pub(super) limit: u32,
    pub(super) output: Vec<Token>,
    pub(super) prompt: Arc<[Token]>,
    /// Pages in order; empty while it waits to run and while it is stalled.
    pub(super) pages: BlockTable,
    /// Arrival while fresh or stalled, else seniority: the order of admissions, not counting those after a preemption.
    pub(super) order: u64,
    /// The request's arrival.
    pub(super) arrival: u64,
    /// Its place among the fresh ones, while it is one.
    pub(super) spot: Spot,
    /// Its level in the order of the list that it is in; of no meaning while it is fresh.
    pub(super) tier: u64,
    pub(super) prompt_hashes: Arc<[PageHash]>,
    /// Hashes of the full pages after those of the prompt, as far as they were needed.
    pub(super) output_hashes: Vec<PageHash>,
    /// What it is counted with in [`super::Batch::waiting_work`] while it waits.
    pub(super) waiting_work: u64,
    /// Leading pages that it is counted to want while it waits.
    pub(super) wanted: u32,
    pub(super) preemptions: u32,
}

impl Seq {
    /// Tokens, prompt and output.
    pub(super) fn len(&self) -> u32 {
        (self.prompt.len() + self.output.len()) as u32
    }

    /// Tokens without keys and values.
    pub(super) fn remaining(&self) -> u32 {
        self.len() - self.computed
    }

    /// Whether it waits and the table does not know what it wants.
    pub(super) fn is_untold(&self) -> bool {
        matches!(self.place, Place::Fresh | Place::Resuming) && !self.told
    }

    /// Its key in the ordered lists.
    pub(super) const fn rank(&self) -> Rank {
        (self.tier, self.order, self.choice)
    }

    /// The tokens at `start..end`.
    pub(super) fn tokens(&self, start: u32, end: u32) -> Vec<Token> {
        let mut tokens = Vec::new();
        self.append_tokens(start, end, &mut tokens);
        tokens
    }

    /// Adds the tokens at `start..end`.
    pub(super) fn append_tokens(&self, start: u32, end: u32, to: &mut Vec<Token>) {
        let (start, end, prompt) = (start as usize, end as usize, self.prompt.len());
        // A decode, mostly.
        if let Some(at) = start.checked_sub(prompt)
            && end == start + 1
        {
            return to.push(self.output[at]);
        }
        to.reserve_exact(end - start);
        to.extend_from_slice(&self.prompt[start.min(prompt)..end.min(prompt)]);
        to.extend_from_slice(&self.output[start.max(prompt) - prompt..end.max(prompt) - prompt]);
    }

    /// The hash of page `i`, where it is known.
    pub(super) fn hash(&self, i: usize) -> Option<PageHash> {
        match i.checked_sub(self.prompt_hashes.len()) {
            None => self.prompt_hashes.get(i).copied(),
            Some(i) => self.output_hashes.get(i).copied(),
        }
    }

    /// Hashes of the pages that it could start with, as far as they are known: never the last token's.
    pub(super) fn known_pages(&self, page_tokens: u32) -> u32 {
        let known = (self.prompt_hashes.len() + self.output_hashes.len()) as u32;
        known.min(self.len().saturating_sub(1) / page_tokens)
    }

    /// Computes the hashes of the first `pages` pages, all of which are full.
    pub(super) fn ensure_hashes(
        &mut self,
        pages: usize,
        page_tokens: u32,
        key: &Fingerprint,
        hasher: PageHasher,
    ) {
        for i in self.prompt_hashes.len() + self.output_hashes.len()..pages {
            let parent = i.checked_sub(1).and_then(|i| self.hash(i));
            let start = i as u32 * page_tokens;
            let hash = hasher(key, parent, &self.tokens(start, start + page_tokens));
            self.output_hashes.push(hash);
        }
    }
}
