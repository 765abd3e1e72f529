//! What always holds between two calls.

use super::seq::{Choice, Place, Request, Seq};
use super::slab::Key;
use super::transfer::Transfer;
use super::{Batch, Flight, FlightSlice};
use crate::ensure_invariant;
use crate::invariant::Broken;

impl Batch {
    /// Checks the scheduler against itself; O(sequences and pages).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), Broken> {
        let mut holders = vec![0_u32; self.table.total() as usize];
        for page in self.fenced.iter().chain(self.seqs.iter().flat_map(|(_, s)| s.pages.iter())) {
            holders[page.index()] += 1;
        }
        if let Some(kept) = &self.kept {
            kept.check()?;
            kept.all().for_each(|page| holders[page.index()] += 1);
        }
        self.table.check(&holders)?;
        ensure_invariant!(
            self.flight.is_some() || self.fenced.is_empty(),
            "page_fence",
            "{} pages are fenced and no step is in flight",
            self.fenced.len()
        );
        self.check_queues()?;
        self.check_requests()?;
        self.check_lent()?;
        for (key, seq) in self.seqs.iter() {
            self.check_seq(key, seq)?;
        }
        let Some(flight) = &self.flight else { return Ok(()) };
        for slice in &flight.slices {
            let seq = self.seqs.get(slice.seq);
            seq.map_or(Ok(()), |seq| self.check_slice(flight.step, slice, seq))?;
        }
        self.check_budget(flight)
    }

    /// What can be seen of [`Batch::check`] without a look at everything: counts that have to agree. O(1).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_counts(&self) -> Result<(), Broken> {
        ensure_invariant!(
            self.flight.is_some() || self.fenced.is_empty(),
            "page_fence",
            "{} pages are fenced and no step is in flight",
            self.fenced.len()
        );
        let maps = [&self.resuming, &self.paused, &self.stalled, &self.expected, &self.receiving, &self.held];
        let listed = self.running.len() + self.fresh.len() + maps.iter().map(|m| m.len()).sum::<usize>();
        ensure_invariant!(
            listed == self.seqs.len(),
            "queue_once",
            "{listed} listed of {} sequences",
            self.seqs.len()
        );
        ensure_invariant!(
            self.by_id.len() == self.requests.len() && self.seqs.len() >= self.requests.len(),
            "request_seq",
            "{} requests, {} found by id, {} sequences",
            self.requests.len(),
            self.by_id.len(),
            self.seqs.len()
        );
        self.check_slots()
    }

    /// As [`Batch::check_counts`], and the step in flight with the sequences in it. O(slices and their pages written).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_step(&self) -> Result<(), Broken> {
        self.check_counts()?;
        let Some(flight) = &self.flight else { return Ok(()) };
        for slice in &flight.slices {
            if let Some(seq) = self.seqs.get(slice.seq) {
                self.check_seq(slice.seq, seq)?;
                self.check_slice(flight.step, slice, seq)?;
            }
        }
        self.check_budget(flight)
    }

    fn check_slots(&self) -> Result<(), Broken> {
        ensure_invariant!(
            (self.running.len() + self.receiving.len()) as u32 <= self.config.max_running,
            "max_running",
            "{} run and {} wait for content",
            self.running.len(),
            self.receiving.len()
        );
        Ok(())
    }

    /// Each sequence is in exactly the list that it says, and lists are in order.
    fn check_queues(&self) -> Result<(), Broken> {
        let lists = [
            (Place::Running, self.running.clone()),
            (Place::Resuming, self.resuming.values().copied().collect()),
            (Place::Fresh, self.fresh.in_order().collect()),
            (Place::Paused, self.paused.values().copied().collect()),
            (Place::Stalled, self.stalled.values().copied().collect()),
            (Place::Expected, self.expected.values().copied().collect()),
            (Place::Receiving, self.receiving.values().copied().collect()),
            (Place::Held, self.held.values().copied().collect()),
        ];
        let mut listed = 0;
        for (place, keys) in lists {
            listed += keys.len();
            let mut last = None;
            for key in keys {
                let Some(seq) = self.seqs.get(key) else {
                    return Err(Broken {
                        name: "queue_stale",
                        detail: format!("{place:?} names a removed sequence"),
                    });
                };
                ensure_invariant!(
                    seq.place == place,
                    "queue_place",
                    "a sequence in {place:?} says {:?}",
                    seq.place
                );
                ensure_invariant!(
                    place == Place::Fresh || last < Some(seq.rank()),
                    "queue_order",
                    "{place:?}: {:?} after {last:?}",
                    seq.rank()
                );
                last = Some(seq.rank());
            }
        }
        ensure_invariant!(
            listed == self.seqs.len(),
            "queue_once",
            "{listed} listed of {} sequences",
            self.seqs.len()
        );
        self.check_slots()?;
        ensure_invariant!(
            self.fresh.is_consistent(),
            "queue_heads",
            "the first ones of the flows are not those that are looked at"
        );
        let waiting = self.resuming.values().copied().chain(self.fresh.in_order());
        let page = u64::from(self.config.page_tokens);
        let counted = waiting.map(|k| &self.seqs[k]).fold((0, 0, 0), |(tokens, wanted, work), seq| {
            (tokens + u64::from(seq.len()), wanted + u64::from(seq.wanted) * page, work + self.work(seq))
        });
        let untold = self.resuming.values().copied().chain(self.fresh.in_order());
        let unknown = untold.filter(|k| self.seqs[*k].is_untold() && !self.untold.contains(k)).count();
        ensure_invariant!(unknown == 0, "waiting_told", "the table does not hear of what {unknown} want");
        ensure_invariant!(
            counted == (self.waiting_tokens, self.wanted_tokens, self.waiting_work),
            "waiting_tokens",
            "{counted:?} tokens, wanted ones and work of those that wait, counted {:?}",
            (self.waiting_tokens, self.wanted_tokens, self.waiting_work)
        );
        Ok(())
    }

    /// Requests and sequences name each other.
    fn check_requests(&self) -> Result<(), Broken> {
        let mut owned = 0;
        for (key, request) in self.requests.iter() {
            let id = (request.spec.id, request.spec.attempt);
            ensure_invariant!(
                self.by_id.get(&id) == Some(&key),
                "request_index",
                "{} is not found by id",
                id.0
            );
            let open = request.choices.iter().filter(|c| **c != Choice::Ended).count() as u32;
            ensure_invariant!(
                open == request.live && open > 0,
                "request_live",
                "{} has {open} open choices, counts {}",
                id.0,
                request.live
            );
            let joint = request.joint_choices().count() > 0;
            ensure_invariant!(
                joint == request.joint.is_some(),
                "request_joint",
                "{} has joint choices: {joint}",
                id.0
            );
            for seq in request.seqs() {
                owned += 1;
                ensure_invariant!(
                    self.seqs.get(seq).is_some_and(|s| s.request == key),
                    "request_seq",
                    "{} names a sequence that is not its own",
                    id.0
                );
            }
        }
        ensure_invariant!(
            owned == self.seqs.len() && self.by_id.len() == self.requests.len(),
            "request_seq",
            "{} sequences, {owned} owned",
            self.seqs.len()
        );
        Ok(())
    }

    /// What is lent is here, and nothing else says that it is lent.
    fn check_lent(&self) -> Result<(), Broken> {
        let lent = |request: &Request| matches!(request.transfer, Transfer::Lend { .. });
        let says = self.requests.iter().filter(|(_, request)| lent(request)).count();
        let known = self.lent.values().filter(|key| self.requests.get(**key).is_some_and(lent)).count();
        ensure_invariant!(
            says == self.lent.len() && known == says,
            "lent_once",
            "{says} requests are lent, {known} of {} are known",
            self.lent.len()
        );
        Ok(())
    }

    fn check_seq(&self, key: Key, seq: &Seq) -> Result<(), Broken> {
        let room = seq.pages.len() as u32 * self.config.page_tokens;
        ensure_invariant!(
            seq.computed < seq.len() + u32::from(seq.place == Place::Held) && seq.computed <= room,
            "computed",
            "{key:?}: {} of {} tokens computed, pages for {room}",
            seq.computed,
            seq.len()
        );
        self.check_credit(key, seq)?;
        let runs = matches!(seq.place, Place::Running | Place::Paused | Place::Receiving);
        ensure_invariant!(
            runs || seq.place == Place::Held || seq.pages.is_empty(),
            "waiting_pages",
            "{key:?} waits and holds {} pages",
            seq.pages.len()
        );
        ensure_invariant!(
            !runs || seq.prefilling || seq.remaining() == 1,
            "decode_one",
            "{key:?} decodes with {} tokens to compute",
            seq.remaining()
        );
        ensure_invariant!(
            !runs || !seq.prefilling || room >= seq.len(),
            "block_table",
            "{key:?}: pages for {room} of {} tokens",
            seq.len()
        );
        ensure_invariant!(
            seq.len() <= seq.limit,
            "limit",
            "{key:?} has {} tokens, limit {}",
            seq.len(),
            seq.limit
        );
        Ok(())
    }

    /// Nothing is computed beyond what was granted, and nothing waits for a grant that has come.
    fn check_credit(&self, key: Key, seq: &Seq) -> Result<(), Broken> {
        let allowed = &self.requests[seq.request].allowed;
        let granted = allowed.get(seq.choice as usize).copied().unwrap_or(0);
        // As [`Batch::has_credit`] says.
        let has_credit = seq.joint || seq.output.len() < granted as usize;
        ensure_invariant!(
            seq.output.len() <= granted as usize,
            "credit_kept",
            "{key:?} has produced {} tokens of {granted} granted",
            seq.output.len()
        );
        let waits = match seq.place {
            Place::Fresh | Place::Resuming | Place::Running | Place::Expected | Place::Receiving => false,
            // It may have used it before it was kept.
            Place::Held => !has_credit,
            // There may be no slot for it.
            Place::Paused => !has_credit || !self.woken,
            Place::Stalled => true,
        };
        ensure_invariant!(
            waits != has_credit,
            "credit_place",
            "{key:?} has produced {} tokens of {granted} granted and is {:?}",
            seq.output.len(),
            seq.place
        );
        ensure_invariant!(
            seq.place != Place::Paused || (!seq.prefilling && !seq.joint && !seq.pages.is_empty()),
            "paused_decodes",
            "{key:?} is paused with {} pages and {} tokens to compute",
            seq.pages.len(),
            seq.remaining()
        );
        Ok(())
    }

    /// The step in flight keeps to the budget.
    fn check_budget(&self, flight: &Flight) -> Result<(), Broken> {
        let (mut tokens, mut prefills, mut decodes) = (0, 0, false);
        for slice in &flight.slices {
            tokens += slice.tokens;
            prefills += if slice.prefill { slice.tokens } else { 0 };
            decodes |= !slice.prefill;
        }
        ensure_invariant!(
            tokens <= self.config.max_batch_tokens && flight.slices.len() as u32 <= self.config.max_running,
            "budget",
            "step {} has {tokens} tokens in {} slices",
            flight.step,
            flight.slices.len()
        );
        ensure_invariant!(
            prefills <= self.config.max_mixed_tokens || !decodes,
            "mixed_budget",
            "step {} has {prefills} tokens of prompts beside decodes",
            flight.step
        );
        Ok(())
    }

    /// A slice of the step in flight writes no page that another sequence sees.
    fn check_slice(&self, step: u64, slice: &FlightSlice, seq: &Seq) -> Result<(), Broken> {
        ensure_invariant!(
            seq.place == Place::Running,
            "flight_runs",
            "{:?} is in step {step} and {:?}",
            slice.key,
            seq.place
        );
        let (start, end) = (seq.computed, seq.computed + slice.tokens);
        let first = (start / self.config.page_tokens) as usize;
        let last = end.div_ceil(self.config.page_tokens) as usize;
        ensure_invariant!(
            last <= seq.pages.len(),
            "block_table",
            "{:?} writes to page {last} of {}",
            slice.key,
            seq.pages.len()
        );
        for &page in &seq.pages[first..last] {
            ensure_invariant!(
                self.table.holders(page) == 1 && !self.table.is_cached(page),
                "page_write",
                "{:?} writes to page {page}, which others hold or find",
                slice.key
            );
        }
        Ok(())
    }
}
