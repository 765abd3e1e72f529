//! Sequences leave: they end, are called off, or give up their pages to others.

use config::ids::PageId;

use super::order::{running_tier, tier};
use super::seq::{Choice, Place, Request, Seq};
use super::slab::Key;
use super::{Batch, BatchEffect};
use crate::kv::PageHash;
use crate::order::OrderEvent;
use crate::time::Time;

/// Wanted pages that the table has not been told of, at most: each report of the load looks at them.
const MOST_UNTOLD: u32 = 1024;

impl Batch {
    /// Takes a request with all its sequences out of every list; `reason` says why it fails.
    pub(super) fn remove_request(&mut self, key: Key, reason: Option<&str>) -> Option<Request> {
        let request = self.requests.remove(key)?;
        self.drop_transfer(&request, reason);
        self.by_id.remove(&(request.spec.id, request.spec.attempt));
        self.order.tell(|| OrderEvent::Ended { key: request.key() });
        self.deadlines.remove(&(request.spec.deadline, key));
        for seq in request.seqs() {
            self.remove_seq(seq);
        }
        Some(request)
    }

    /// Ends a choice and, with the last one, the request. False where the choice does not exist or has ended.
    pub(super) fn end_choice(&mut self, key: Key, choice: u32) -> bool {
        let request = &mut self.requests[key];
        let Some(state) = request.choices.get_mut(choice as usize) else { return false };
        let before = std::mem::replace(state, Choice::Ended);
        let turn = match before {
            Choice::Ended => return false,
            Choice::Own(seq) => Some(seq),
            Choice::Joint => request.joint,
        };
        request.live -= 1;
        if let Some(seq) = turn {
            self.keep_turn(key, seq);
        }
        let request = &mut self.requests[key];
        if request.live == 0 {
            if let Choice::Own(seq) = before {
                self.remove_seq(seq);
            }
            self.finish_request(key);
            return true;
        }
        let left = request.joint_choices().next();
        // What ends may have been all that ran.
        self.watch_deadline(key);
        let request = &mut self.requests[key];
        let seq = match before {
            Choice::Own(seq) => Some(seq),
            // The others have sequences of their own, so that nobody waits for the joint one any more.
            Choice::Joint if left.is_none() => request.joint.take(),
            Choice::Joint | Choice::Ended => None,
        };
        let shared = request.joint;
        if let Some(seq) = seq {
            self.remove_seq(seq);
        }
        if let Some(shared) = shared {
            self.recount(shared);
        }
        true
    }

    fn remove_seq(&mut self, key: Key) {
        let Some(mut seq) = self.seqs.remove(key) else { return };
        match seq.place {
            Place::Running => self.running.retain(|k| *k != key),
            Place::Resuming | Place::Fresh => self.unqueue(&seq),
            Place::Paused => _ = self.paused.remove(&seq.rank()),
            Place::Stalled => _ = self.stalled.remove(&seq.rank()),
            Place::Expected => _ = self.expected.remove(&seq.rank()),
            Place::Receiving => _ = self.receiving.remove(&seq.rank()),
            Place::Held => _ = self.held.remove(&seq.rank()),
        }
        self.give_up(seq.pages.take());
    }

    /// The request is given up at its deadline if nothing of it runs then.
    pub(super) fn watch_deadline(&mut self, key: Key) {
        let deadline = self.requests[key].spec.deadline;
        if deadline < Time::NEVER {
            self.deadlines.insert((deadline, key));
        }
    }

    /// Takes a waiting sequence out of its queue.
    pub(super) fn unqueue(&mut self, seq: &Seq) {
        if seq.place == Place::Fresh {
            self.fresh.remove(seq.spot);
        } else {
            self.resuming.remove(&seq.rank());
        }
        self.uncount(seq);
    }

    /// A sequence that was counted with [`Batch::count_waiting`] waits no more; what it was counted with is void.
    fn uncount(&mut self, seq: &Seq) {
        self.waiting_tokens -= u64::from(seq.len());
        self.waiting_work -= seq.waiting_work;
        self.wanted_tokens -= u64::from(seq.wanted) * u64::from(self.config.page_tokens);
        if seq.told {
            self.table.unwant((0..seq.wanted as usize).filter_map(|i| seq.hash(i)));
        }
    }

    /// As [`Batch::uncount`], of one that stays.
    pub(super) fn uncount_waiting(&mut self, key: Key) {
        let seq = &mut self.seqs[key];
        self.waiting_tokens -= u64::from(seq.len());
        self.waiting_work -= std::mem::take(&mut seq.waiting_work);
        let wanted = std::mem::take(&mut seq.wanted);
        self.wanted_tokens -= u64::from(wanted) * u64::from(self.config.page_tokens);
        if std::mem::take(&mut seq.told) {
            self.table.unwant((0..wanted as usize).filter_map(|i| seq.hash(i)));
        }
    }

    /// Counts a sequence that has come to wait. The table hears of its pages when it is still waiting after the next step has
    /// been put together: most that come are in that step.
    pub(super) fn count_waiting(&mut self, key: Key) {
        let work = self.work(&self.seqs[key]);
        let seq = &mut self.seqs[key];
        seq.waiting_work = work;
        self.waiting_work += work;
        self.waiting_tokens += u64::from(seq.len());
        seq.wanted = seq.known_pages(self.config.page_tokens);
        self.wanted_tokens += u64::from(seq.wanted) * u64::from(self.config.page_tokens);
        self.untold.push(key);
        self.untold_pages += seq.wanted;
        if self.untold_pages > MOST_UNTOLD {
            self.tell_wanted();
        }
    }

    /// Tells the table what those want who have come to wait and still do.
    pub(super) fn tell_wanted(&mut self) {
        self.untold_pages = 0;
        for key in self.untold.drain(..) {
            let Some(seq) = self.seqs.get_mut(key).filter(|seq| seq.is_untold()) else { continue };
            seq.told = true;
            self.table.want((0..seq.wanted as usize).filter_map(|i| seq.hash(i)));
        }
    }

    /// Pages beside [`crate::kv::table::PageTable::missing`] that those want of whom the table does not know.
    pub(super) fn missing_untold(&self) -> u64 {
        let untold = self.untold.iter().filter_map(|key| self.seqs.get(*key)).filter(|seq| seq.is_untold());
        let pages = untold.flat_map(|seq| (0..seq.wanted as usize).filter_map(|i| seq.hash(i)));
        let mut missing: Vec<PageHash> = pages.filter(|page| self.table.would_miss(page)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing.len() as u64
    }

    /// A choice less is asked of a waiting sequence.
    fn recount(&mut self, key: Key) {
        if matches!(self.seqs[key].place, Place::Fresh | Place::Resuming) {
            let work = self.work(&self.seqs[key]);
            let before = std::mem::replace(&mut self.seqs[key].waiting_work, work);
            self.waiting_work = self.waiting_work - before + work;
        }
    }

    /// Releases a sequence's pages, once the step in flight no longer uses them.
    pub(super) fn give_up(&mut self, pages: Vec<PageId>) {
        if self.flight.is_some() {
            self.fenced.extend(pages.into_iter().rev());
        } else {
            for page in pages.into_iter().rev() {
                self.table.release(page);
            }
        }
    }

    pub(super) fn lift_fence(&mut self) {
        for page in self.fenced.drain(..) {
            self.table.release(page);
        }
    }

    /// Takes a running sequence's pages; it waits, ahead of new ones, to be computed again.
    pub(super) fn preempt(&mut self, key: Key) {
        self.seqs[key].preemptions += 1;
        let pages = self.dispossess(key);
        self.running.retain(|k| *k != key);
        self.queue_again(key);
        self.give_up(pages);
    }

    /// Takes a sequence's pages off it and says so.
    pub(super) fn dispossess(&mut self, key: Key) -> Vec<PageId> {
        let seq = &mut self.seqs[key];
        let dropped = seq.computed;
        let pages = seq.pages.take();
        (seq.computed, seq.prefilling) = (0, true);
        let owner = seq.request;
        let request = &mut self.requests[owner];
        request.usage.preemptions += 1;
        self.totals.preemptions += 1;
        let key = request.key();
        self.order.tell(|| OrderEvent::Preempted { key });
        let choice =
            if seq.joint { request.joint_choices().next().unwrap_or(seq.choice) } else { seq.choice };
        self.effects.push(BatchEffect::Preempted { seq: request.seq_key(choice), dropped });
        self.recall_pages(owner);
        self.watch_deadline(owner);
        pages
    }

    /// Puts a sequence without pages among those that wait to run again.
    pub(super) fn queue_again(&mut self, key: Key) {
        let level = self.level(&self.seqs[key]);
        let seq = &mut self.seqs[key];
        seq.computed = 0;
        seq.prefilling = true;
        (seq.place, seq.tier) = (Place::Resuming, tier(level));
        self.resuming.insert(seq.rank(), key);
        self.count_waiting(key);
    }

    /// Puts a sequence among the running ones, by level and seniority.
    pub(super) fn run(&mut self, key: Key) {
        let level = self.level(&self.seqs[key]);
        let seq = &mut self.seqs[key];
        (seq.place, seq.tier) = (Place::Running, running_tier(level, seq.preemptions));
        let rank = self.seqs[key].rank();
        let at = self.running.partition_point(|k| self.seqs[*k].rank() < rank);
        self.running.insert(at, key);
    }
}
