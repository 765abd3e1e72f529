//! Who starts to run: look-up of what the cache has, room for the rest, and room to grow.

use config::ids::PageId;

use super::Batch;
use super::plan::Draft;
use super::seq::{Place, Seq};
use super::slab::Key;
use super::transfer::Transfer;
use crate::order::OrderEvent;
use crate::time::Time;

/// New requests that are looked at beyond ones that wait for a page that is being computed.
const LOOK_PAST: usize = 64;

impl Batch {
    /// Admits waiting sequences, in order, as long as the step has tokens left and they fit.
    pub(super) fn admit(&mut self, now: Time, draft: &mut Draft) {
        let mut passed: Vec<Key> = Vec::new();
        while draft.budget > 0 && self.has_slot() && passed.len() < LOOK_PAST {
            let Some(key) = self.next_waiting() else { break };
            if self.is_to_be_open(key) {
                continue;
            }
            let held = self.is_held(key, draft);
            if held && self.seqs[key].place == Place::Fresh {
                self.fresh.remove(self.seqs[key].spot);
                passed.push(key);
            } else if held || (!self.give_up_late(now, key) && !self.try_admit(key, draft)) {
                break;
            }
        }
        // One that was given up took the request's other choices with it.
        for key in passed {
            if let Some(seq) = self.seqs.get(key) {
                self.fresh.insert(seq.spot, key);
            }
        }
    }

    /// Whose turn it is: nothing but what has a higher level overtakes a sequence that has run before.
    pub(super) fn next_waiting(&self) -> Option<Key> {
        let ran = self.resuming.first_key_value().map(|(_, key)| *key);
        let fresh = self.fresh.first();
        let (Some(resuming), Some(key)) = (ran, fresh) else { return ran.or(fresh) };
        let overtakes = self.level(&self.seqs[key]) > self.level(&self.seqs[resuming]);
        Some(if overtakes { key } else { resuming })
    }

    pub(super) fn has_slot(&self) -> bool {
        ((self.running.len() + self.receiving.len()) as u32) < self.config.max_running
    }

    /// Whether a running prefill computes a page next that this sequence needs too: then it waits for that page instead
    /// of computing it again. The prefill's earlier pages are there already.
    fn is_held(&mut self, key: Key, draft: &Draft) -> bool {
        if draft.under_way.is_empty() || !self.config.prefix_cache {
            return false;
        }
        let pages = self.reusable(key);
        let seq = &self.seqs[key];
        draft.under_way.iter().any(|(page, hash)| *page < pages && seq.hash(*page as usize) == Some(*hash))
    }

    /// How many of its pages a sequence may take from the cache: never the last token's, whose logits are needed, and
    /// none whose prompt log-probabilities are still to be reported. Their hashes are known afterwards.
    fn reusable(&mut self, key: Key) -> u32 {
        if !self.config.prefix_cache {
            return 0;
        }
        let page_tokens = self.config.page_tokens;
        let seq = &mut self.seqs[key];
        let request = &self.requests[seq.request];
        seq.ensure_hashes((seq.len() / page_tokens) as usize, page_tokens, &request.fingerprint, self.hasher);
        let usable = seq.len() - 1;
        let scored = seq.joint && request.spec.prompt_logprobs;
        (if scored { usable.min(request.reported) } else { usable }) / page_tokens
    }

    /// The cached pages that a sequence starts with, longest run from the first page.
    pub(super) fn look_up(&mut self, key: Key) -> Vec<PageId> {
        let pages = self.reusable(key);
        self.cached_run(key, pages)
    }

    /// Of a sequence's first `pages` pages, whose hashes are known, those that are here, from the first one on.
    pub(super) fn cached_run(&mut self, key: Key, pages: u32) -> Vec<PageId> {
        let page_tokens = self.config.page_tokens;
        let seq = &self.seqs[key];
        let mut hits: Vec<PageId> = Vec::new();
        for i in 0..pages {
            let (start, end) = (i * page_tokens, (i + 1) * page_tokens);
            let Some(hash) = seq.hash(i as usize) else { break };
            let found = match seq.prompt.get(start as usize..end as usize) {
                Some(tokens) => self.table.find(&hash, hits.last().copied(), tokens),
                None => self.table.find(&hash, hits.last().copied(), &seq.tokens(start, end)),
            };
            let Some(page) = found else { break };
            hits.push(page);
        }
        hits
    }

    fn try_admit(&mut self, key: Key, draft: &mut Draft) -> bool {
        if self.admit_one(key, draft) {
            return true;
        }
        let pages = self.seqs[key].len().div_ceil(self.config.page_tokens);
        let needed = pages.saturating_add(self.reserve(&self.seqs[key]));
        self.hand_back_for(key, needed) && self.admit_one(key, draft)
    }

    fn admit_one(&mut self, key: Key, draft: &mut Draft) -> bool {
        let reserve = self.reserve(&self.seqs[key]);
        let callable = self.callable(key);
        if self.spare() + callable == 0 && self.table.available() <= reserve {
            return false;
        }
        let hits = self.look_up(key);
        let total = self.seqs[key].len().div_ceil(self.config.page_tokens);
        let missing = total - hits.len() as u32;
        if self.most_room(&hits) + callable < missing {
            return false;
        }
        // A sequence that cannot go on anyway keeps nobody out. Nothing is taken meanwhile, so the hits stay.
        loop {
            let (room, needed) =
                (self.table.room_beside(&hits), missing.saturating_add(self.reserve(&self.seqs[key])));
            if room >= needed {
                break;
            }
            // A prompt that is away is called back for nothing less than what is needed.
            let enough = room.saturating_add(self.callable(key)) >= needed;
            let gained = self.evict_paused() || (enough && self.call_back(Some(key)));
            if !gained {
                return false;
            }
        }
        let Some(pages) = self.table.claim(&hits, missing) else { return false };
        if self.start(key, pages, hits.len() as u32 * self.config.page_tokens) {
            self.add_prefill(key, draft);
        }
        true
    }

    /// Pages that could be taken beside `hits` if all paused sequences and conversations gave up theirs, or more: they may
    /// share some.
    fn most_room(&self, hits: &[PageId]) -> u32 {
        let alone = self.running.is_empty() && self.receiving.is_empty();
        let reserve = if alone { 0 } else { self.config.watermark_pages() };
        (self.table.room_beside(hits) + self.spare()).saturating_sub(reserve)
    }

    /// Pages of those that cannot go on, and those that are kept for conversations; shared ones count as often.
    pub(super) fn spare(&self) -> u32 {
        let paused: u32 = self.paused.values().map(|k| self.seqs[*k].pages.len() as u32).sum();
        paused + self.kept().0
    }

    /// Pages to leave free beside those that a sequence needs now.
    pub(super) fn reserve(&self, seq: &Seq) -> u32 {
        if self.running.is_empty() && self.paused.is_empty() && self.receiving.is_empty() {
            return 0;
        }
        let horizon = match seq.preemptions {
            0 => 0,
            1 => 2,
            2 => 8,
            _ => u32::MAX,
        };
        let watermark = self.config.watermark_pages();
        if horizon == 0 {
            return watermark;
        }
        // Paused ones keep their place, so that they may grow too, as those do that wait for the content of their pages.
        let placed = self.running.iter().chain(self.paused.values()).chain(self.receiving.values());
        let running: u32 = placed.map(|k| self.growth(&self.seqs[*k]).min(horizon)).sum();
        let own = self.pages_at_limit(seq) * self.width(seq) - seq.len().div_ceil(self.config.page_tokens);
        watermark + running + own.min(horizon)
    }

    /// Pages that a running or paused sequence takes at most until it ends.
    fn growth(&self, seq: &Seq) -> u32 {
        let shared = seq.pages.last().is_some_and(|p| self.table.holders(*p) > 1);
        let held = seq.pages.len() as u32 - u32::from(shared);
        (self.pages_at_limit(seq) * self.width(seq)).saturating_sub(held)
    }

    fn pages_at_limit(&self, seq: &Seq) -> u32 {
        seq.limit.max(seq.len()).div_ceil(self.config.page_tokens)
    }

    /// How many choices come out of the sequence.
    pub(super) fn width(&self, seq: &Seq) -> u32 {
        if seq.joint { self.requests[seq.request].joint_choices().count() as u32 } else { 1 }
    }

    /// Gives a waiting sequence its pages, of which the first `cached` tokens are computed, and moves it to the running
    /// ones; or, where another worker computes it, to those that wait for their content. Says whether it runs.
    pub(super) fn start(&mut self, key: Key, pages: Vec<PageId>, cached: u32) -> bool {
        let first = self.seqs[key].place == Place::Fresh;
        let (place, rank) = (self.seqs[key].place, self.seqs[key].rank());
        match place {
            Place::Fresh => self.fresh.remove(self.seqs[key].spot),
            Place::Resuming
            | Place::Running
            | Place::Paused
            | Place::Stalled
            | Place::Expected
            | Place::Receiving
            | Place::Held => {
                self.resuming.remove(&rank);
            }
        }
        self.uncount_waiting(key);
        let seq = &mut self.seqs[key];
        seq.pages.set(pages);
        seq.computed = cached;
        if first {
            seq.order = self.admissions;
            self.admissions += 1;
            let request = &mut self.requests[seq.request];
            let prompt = seq.prompt.len() as u32;
            let hit = cached.min(prompt);
            if request.cached.is_none() {
                request.cached = Some(hit);
                request.usage.cached_tokens = hit;
                let key = request.key();
                self.order.tell(|| OrderEvent::Admitted { key, cached: hit });
            }
            // One that is back from another worker was counted before it left.
            let counted = request.offloaded && request.transfer == Transfer::None;
            if self.config.prefix_cache && !counted && !(seq.joint && request.spec.prompt_logprobs) {
                self.totals.prefix_queries += u64::from(prompt);
                self.totals.prefix_hits += u64::from(hit);
            }
        }
        if self.waits_for_content(key) {
            return false;
        }
        self.run(key);
        self.announce(key);
        self.report_full_pages(key);
        true
    }
}
