//! What others see of the scheduler.

use super::seq::Seq;
use super::{Batch, BatchLoad};
use crate::placement::GENERATION_ESTIMATE;
use crate::step::SeqKey;

/// A sequence as the admin interface shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqView {
    /// The sequence; where a prompt is computed for several choices, with the first of them.
    pub seq: SeqKey,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the output so far.
    pub output: u32,
    /// Tokens whose keys and values are in pages.
    pub computed: u32,
    /// Pages held, shared ones included.
    pub pages: u32,
    /// Times that it was preempted.
    pub preemptions: u32,
}

impl BatchLoad {
    /// Pages that hold nothing: neither for a sequence nor for whoever asks for the same again.
    #[must_use]
    pub const fn pages_free(&self) -> u32 {
        self.pages_total.saturating_sub(self.pages_used.saturating_add(self.pages_cached))
    }
}

impl Batch {
    /// Figures for placement and metrics.
    #[must_use]
    pub fn load(&self) -> BatchLoad {
        let (mut prefill, mut work) = (0, 0);
        for seq in self.running.iter().map(|k| &self.seqs[*k]) {
            prefill += if seq.prefilling { u64::from(seq.remaining()) } else { 0 };
            work += self.work(seq);
        }
        let others = self.paused.values().chain(self.stalled.values());
        work += others.map(|k| self.work(&self.seqs[*k])).sum::<u64>();
        // Those that wait look for their pages when their turn comes: what is in the cache is no work, and what several want
        // is computed once.
        let missing = (self.table.missing() + self.missing_untold()) * u64::from(self.config.page_tokens);
        let waiting = self.waiting_tokens - self.wanted_tokens + missing;
        BatchLoad {
            queued_prefill_tokens: waiting + prefill,
            outstanding_tokens: self.waiting_work - self.waiting_tokens + waiting + work,
            ..self.levels()
        }
    }

    /// As [`Batch::load`] without the work that is left, for which each sequence has to be looked at: its two figures are
    /// 0. O(1).
    #[must_use]
    pub fn levels(&self) -> BatchLoad {
        BatchLoad {
            requests: self.requests(),
            running: self.running.len() as u32,
            waiting: (self.resuming.len() + self.fresh.len() + self.expected.len()) as u32,
            paused: (self.paused.len() + self.stalled.len()) as u32,
            queued_prefill_tokens: 0,
            outstanding_tokens: 0,
            pages_used: self.pages_used(),
            pages_cached: self.table.idle(),
            pages_total: self.table.total(),
            prefix_queries: self.totals.prefix_queries,
            prefix_hits: self.totals.prefix_hits,
            prefilled_tokens: self.totals.prefilled_tokens,
            drawn_tokens: self.totals.drawn_tokens,
            preemptions: self.totals.preemptions,
        }
    }

    /// Requests that have not ended, as in [`Batch::load`] but at once.
    #[must_use]
    pub const fn requests(&self) -> u32 {
        self.requests.len() as u32
    }

    /// Pages that a sequence holds, as in [`Batch::load`] but at once.
    #[must_use]
    pub const fn pages_used(&self) -> u32 {
        self.table.held()
    }

    /// Tokens that a sequence still has to compute, and that it may be expected to draw.
    pub(super) fn work(&self, seq: &Seq) -> u64 {
        let prefill = if seq.prefilling { seq.remaining() } else { 0 };
        let output = seq.limit.saturating_sub(seq.len()).min(GENERATION_ESTIMATE);
        u64::from(prefill) + u64::from(output) * u64::from(self.width(seq))
    }

    /// The sequences that are being computed, in order of seniority.
    pub fn running(&self) -> impl Iterator<Item = SeqView> {
        self.running.iter().map(|k| self.view(&self.seqs[*k]))
    }

    /// The sequences that wait, in the order in which they are looked at.
    pub fn waiting(&self) -> impl Iterator<Item = SeqView> {
        self.resuming.values().copied().chain(self.fresh.in_order()).map(|k| self.view(&self.seqs[k]))
    }

    /// The sequences that have used their credit: by seniority those with pages, then the others in order of arrival.
    pub fn paused(&self) -> impl Iterator<Item = SeqView> {
        self.paused.values().chain(self.stalled.values()).map(|k| self.view(&self.seqs[*k]))
    }

    fn view(&self, seq: &Seq) -> SeqView {
        let request = &self.requests[seq.request];
        let choice =
            if seq.joint { request.joint_choices().next().unwrap_or(seq.choice) } else { seq.choice };
        SeqView {
            seq: request.seq_key(choice),
            prompt: seq.prompt.len() as u32,
            output: seq.output.len() as u32,
            computed: seq.computed,
            pages: seq.pages.len() as u32,
            preemptions: seq.preemptions,
        }
    }
}
