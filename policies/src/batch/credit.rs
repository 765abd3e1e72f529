//! Credit: a choice runs ahead of its client by a bounded number of tokens, and a client that stalls stops only itself.

use config::ids::{Attempt, RequestId};

use super::Batch;
use super::fresh::Spot;
use super::seq::Place;
use super::slab::Key;
use crate::time::Time;

impl Batch {
    /// The gateway lets a choice produce tokens with an index below `upto`. Never takes back what was granted before;
    /// whether it gave more. Grants for requests, attempts and choices that are not here are nothing.
    pub fn grant(
        &mut self,
        _now: Time,
        request: RequestId,
        attempt: Attempt,
        choice: u32,
        upto: u32,
    ) -> bool {
        let Some(&key) = self.by_id.get(&(request, attempt)) else { return false };
        let request = &mut self.requests[key];
        let Some(allowed) = request.allowed.get_mut(choice as usize) else { return false };
        if *allowed >= upto {
            return false;
        }
        *allowed = upto;
        let spent = request.seqs().into_iter().find(|k| {
            let seq = &self.seqs[*k];
            !seq.joint && seq.choice == choice && matches!(seq.place, Place::Paused | Place::Stalled)
        });
        match spent {
            Some(seq) if self.has_credit(seq) => self.resume(seq),
            Some(_) | None => {}
        }
        true
    }

    /// When [`Batch::plan`] has to be called although nothing else happens: a request of which nothing runs is given up
    /// then. None while a step is in flight, which is followed by a call anyway.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let (deadline, _) = self.deadlines.first().filter(|_| self.flight.is_none())?;
        Some(*deadline)
    }

    /// Lets a sequence go on that has been granted tokens.
    fn resume(&mut self, key: Key) {
        if self.seqs[key].place == Place::Stalled {
            let rank = self.seqs[key].rank();
            self.stalled.remove(&rank);
            self.queue_as_fresh(key);
        } else {
            self.woken = true;
            self.wake();
        }
    }

    /// Runs paused sequences that have been granted tokens, the most senior first, as far as there are slots.
    pub(super) fn wake(&mut self) {
        if !self.woken {
            return;
        }
        let granted: Vec<Key> = self.paused.values().copied().filter(|k| self.has_credit(*k)).collect();
        self.woken = false;
        for key in granted {
            if !self.has_slot() {
                self.woken = true;
                return;
            }
            let rank = self.seqs[key].rank();
            self.paused.remove(&rank);
            self.run(key);
        }
    }

    /// Takes a running sequence out of the steps where it has used its credit.
    pub(super) fn pause_if_spent(&mut self, key: Key) {
        if !self.has_credit(key) {
            self.running.retain(|k| *k != key);
            self.pause(key);
        }
    }

    /// Puts a sequence that is in no list among the paused ones.
    pub(super) fn pause(&mut self, key: Key) {
        let seq = &mut self.seqs[key];
        seq.place = Place::Paused;
        let (rank, request) = (seq.rank(), seq.request);
        self.paused.insert(rank, key);
        self.watch_deadline(request);
    }

    /// Takes the pages that are kept for a conversation, or else those of the paused sequence that was admitted last;
    /// false where there is neither. The sequence loses its seniority
    /// with them: those that were admitted since have been promised room beside what was there at the time.
    pub(super) fn evict_paused(&mut self) -> bool {
        if self.release_oldest() {
            return true;
        }
        let Some((_, key)) = self.paused.pop_last() else { return false };
        let pages = self.dispossess(key);
        if self.has_credit(key) {
            self.queue_as_fresh(key);
        } else {
            let seq = &mut self.seqs[key];
            (seq.place, seq.order, seq.tier) = (Place::Stalled, seq.arrival, 0);
            let rank = seq.rank();
            self.stalled.insert(rank, key);
        }
        self.give_up(pages);
        true
    }

    /// Puts a sequence without pages, which is in no list, among those that wait for an admission.
    pub(super) fn queue_as_fresh(&mut self, key: Key) {
        let seq = &mut self.seqs[key];
        (seq.place, seq.order) = (Place::Fresh, seq.arrival);
        seq.spot = Spot::new(&self.requests[seq.request].standing, seq.order, seq.choice);
        self.fresh.insert(seq.spot, key);
        self.count_waiting(key);
    }

    /// Whether a sequence may be computed; a joint one always may, since every choice is allowed its first token.
    pub(super) fn has_credit(&self, key: Key) -> bool {
        let seq = &self.seqs[key];
        seq.joint || self.requests[seq.request].has_credit(seq.choice, seq.output.len())
    }
}
