//! Booking and release: the one path by which a worker's load changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{Attempt, RequestId, WorkerId};

use super::select::Selected;
use super::{
    Booking, GENERATION_ESTIMATE, PlaceRequest, Placement, PlacementEffect, Plan, Rejection, Waiting,
};
use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::policy::{PolicyMode, Stage};
use crate::time::{Span, Time};

impl Placement {
    /// Books `request` on `worker` and answers.
    pub(super) fn book(
        &mut self,
        request: &PlaceRequest,
        worker: WorkerId,
        why: &'static str,
        fx: &mut Vec<PlacementEffect>,
    ) {
        let Some(row) = self.workers.get_mut(&worker) else { return };
        let tokens = work_of(request);
        self.choices += 1;
        row.booked += 1;
        row.booked_tokens += tokens;
        row.placed += 1;
        row.last_chosen = self.choices;
        let stages = Arc::new([chosen(why)]);
        let plan = Plan { worker, why, stages };
        let (request, attempt) = (request.request, request.attempt);
        self.bookings.insert((request, attempt), Booking { plan: plan.clone(), tokens, accepted: false });
        fx.push(PlacementEffect::Placed { request, attempt, plan });
    }

    /// Takes a booking back; whether there was one.
    pub(super) fn unbook(&mut self, request: RequestId, attempt: Attempt) -> bool {
        let Some(booking) = self.bookings.remove(&(request, attempt)) else { return false };
        if let Some(row) = self.workers.get_mut(&booking.plan.worker) {
            row.booked -= 1;
            row.booked_tokens -= booking.tokens;
        }
        true
    }

    /// Removes a worker with all that was booked on it.
    pub(super) fn forget(&mut self, worker: &WorkerId, fx: &mut Vec<PlacementEffect>) {
        if self.workers.remove(worker).is_none() {
            return;
        }
        self.bookings.retain(|&(request, attempt), booking| {
            let stays = booking.plan.worker != *worker;
            if !stays {
                fx.push(PlacementEffect::Lost { request, attempt, worker: worker.clone() });
            }
            stays
        });
    }

    /// Puts `request` at the end of the queue, or turns it away when that is full.
    pub(super) fn wait(&mut self, now: Time, request: PlaceRequest, fx: &mut Vec<PlacementEffect>) {
        let queued = self.queued();
        if queued >= self.config.max_queued {
            let reason = Rejection::QueueFull { queued };
            let (request, attempt) = (request.request, request.attempt);
            fx.push(PlacementEffect::Rejected { request, attempt, reason });
            return;
        }
        let until = (now + self.config.queue_timeout).min(request.deadline);
        self.queue.push_back(Waiting { request, since: now, until });
    }

    /// Places what waits and now can be, first come first served.
    pub(super) fn place_waiting(&mut self, fx: &mut Vec<PlacementEffect>) {
        let mut rest = std::mem::take(&mut self.queue);
        while let Some(waiting) = rest.pop_front() {
            match self.select(&waiting.request) {
                Selected::Place(worker, why) => self.book(&waiting.request, worker, why, fx),
                Selected::Wait => self.queue.push_back(waiting),
                // It was admitted, so the model is known; its last worker is gone or drains, and another may come.
                Selected::Reject(Rejection::NoWorker(_)) => self.queue.push_back(waiting),
                Selected::Reject(reason) => {
                    let (request, attempt) = (waiting.request.request, waiting.request.attempt);
                    fx.push(PlacementEffect::Rejected { request, attempt, reason });
                }
            }
        }
    }

    /// The first broken invariant. Costs a pass over bookings and workers.
    ///
    /// # Errors
    /// When the counters of a worker are not the sums of its bookings, a booking is on an unknown worker, a node has two lives, or the queue is over its limit.
    pub fn check(&self) -> Result<(), Broken> {
        let mut sums: BTreeMap<&WorkerId, (u32, u64)> = BTreeMap::new();
        for ((request, attempt), booking) in &self.bookings {
            let worker = &booking.plan.worker;
            ensure_invariant!(
                self.workers.contains_key(worker),
                "placement_books_known_workers",
                "{request}/{attempt} is booked on {worker}"
            );
            let sum = sums.entry(worker).or_default();
            *sum = (sum.0 + 1, sum.1 + booking.tokens);
        }
        let mut former: Option<&WorkerId> = None;
        for (worker, row) in &self.workers {
            let sum = sums.get(worker).copied().unwrap_or_default();
            ensure_invariant!(
                sum == (row.booked, row.booked_tokens),
                "placement_counters_are_sums",
                "{worker} counts {:?}, its bookings are {sum:?}",
                (row.booked, row.booked_tokens)
            );
            ensure_invariant!(
                former.is_none_or(|f| f.node != worker.node),
                "placement_one_life_a_node",
                "{former:?} and {worker}"
            );
            former = Some(worker);
        }
        ensure_invariant!(
            self.queued() <= self.config.max_queued,
            "placement_queue_bounded",
            "{} of {}",
            self.queued(),
            self.config.max_queued
        );
        let both =
            self.queue.iter().find(|w| self.bookings.contains_key(&(w.request.request, w.request.attempt)));
        ensure_invariant!(
            both.is_none(),
            "placement_queued_or_booked",
            "{:?} is both",
            both.map(|w| w.request.request)
        );
        Ok(())
    }
}

/// The stage of the choice itself.
fn chosen(why: &'static str) -> Stage {
    Stage {
        policy: Stage::PLACEMENT.into(),
        mode: PolicyMode::Prod,
        action: why.into(),
        why: String::new(),
        numbers: Vec::new(),
        saved: None,
        took: Span::ZERO,
    }
}

/// Tokens of work that a request stands for.
fn work_of(request: &PlaceRequest) -> u64 {
    let output = u64::from(request.max_tokens.min(GENERATION_ESTIMATE)) * u64::from(request.choices);
    u64::from(request.prompt_tokens) + output
}
