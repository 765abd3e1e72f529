//! Booking and release: the one path by which a worker's load changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use config::ids::{Attempt, RequestId, WorkerId};

use super::consult::Consultation;
use super::handoff::Prefill;
use super::select::Chosen;
use super::{
    Booking, GENERATION_ESTIMATE, PlaceRequest, Placement, PlacementEffect, Plan, Rejection, Waiting,
};
use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::policy::PolicyEvent;
use crate::time::Time;

impl Placement {
    /// Books `request` where it was chosen to go, and answers.
    pub(super) fn book(
        &mut self,
        now: Time,
        request: &PlaceRequest,
        chosen: Chosen,
        fx: &mut Vec<PlacementEffect>,
    ) {
        let Chosen { worker, why, stages, hit_tokens, prefill, fetch, occupies, store } = chosen;
        // What is fetched need not be computed.
        let left =
            fetch.as_ref().map_or(request.prompt_tokens, |f| request.prompt_tokens.saturating_sub(f.tokens));
        let handoff = match prefill {
            Prefill::Here => None,
            Prefill::By(mut handoff, _) => {
                handoff.tokens = handoff.tokens.min(u64::from(left).max(1));
                Some(handoff)
            }
            Prefill::Nobody => {
                let reason = Rejection::NoPrefill(request.model.clone());
                let (request, attempt) = (request.request, request.attempt);
                fx.push(PlacementEffect::Rejected { request, attempt, reason });
                return;
            }
        };
        let Some(row) = self.workers.get_mut(&worker) else { return };
        // Pages that are found are work only where policies that look for them decide: shadow changes nothing.
        let hit = if self.policies.decide() { hit_tokens } else { 0 };
        let prefill = match &handoff {
            None => u64::from(request.prompt_tokens.saturating_sub(hit).min(left)),
            Some(_) => 0,
        };
        let tokens = prefill + output_of(request);
        self.choices += 1;
        row.booked += 1;
        row.booked_tokens += tokens;
        row.booked_context += u64::from(request.context_tokens);
        row.fresh_prefill += prefill;
        row.placed += 1;
        row.last_chosen = self.choices;
        let role = row.info.role;
        if let Some(handoff) = &handoff {
            handoff.begin(&mut self.workers, self.choices);
        }
        if let Ok(model) = self.resolve(&request.model) {
            self.note_worker(&model, role);
        }
        if let Some(fetch) = fetch.as_ref().filter(|fetch| fetch.pool) {
            self.sent_to_pool(now, &fetch.from, occupies);
        }
        let prefill_worker = handoff.as_ref().map(|handoff| handoff.worker.clone());
        let plan = Plan { worker, prefill: prefill_worker, fetch, store, why, stages: stages.into() };
        let (session, pages) = (request.session.clone(), Arc::clone(&request.hashes));
        let context = request.context_tokens.into();
        let (request, attempt) = (request.request, request.attempt);
        let booking = Booking {
            plan: plan.clone(),
            tokens,
            prefill,
            context,
            handoff,
            session,
            pages,
            accepted: false,
            taken: None,
        };
        if self.policies.are_any() {
            let event = PolicyEvent::Placed(booking.placed_at(request, attempt));
            self.policies.tell(now, &event);
        }
        self.bookings.insert((request, attempt), booking);
        fx.push(PlacementEffect::Placed { request, attempt, plan });
    }

    /// Takes a booking back; whether there was one.
    pub(super) fn unbook(&mut self, now: Time, request: RequestId, attempt: Attempt) -> bool {
        let Some(booking) = self.bookings.remove(&(request, attempt)) else { return false };
        if let Some(handoff) = &booking.handoff {
            handoff.end(&mut self.workers);
        }
        if let Some(row) = self.workers.get_mut(&booking.plan.worker) {
            row.booked -= 1;
            row.booked_tokens -= booking.tokens;
            row.booked_context -= booking.context;
            if !booking.accepted {
                row.fresh_prefill -= booking.prefill;
            }
            row.taken_prefill -= booking.untold(row);
        }
        if self.policies.are_any() {
            let event = PolicyEvent::Released(booking.placed_at(request, attempt));
            self.policies.tell(now, &event);
        }
        true
    }

    /// Removes a worker with all that was booked on it, and what is known of its pages.
    pub(super) fn forget(&mut self, now: Time, worker: &WorkerId, fx: &mut Vec<PlacementEffect>) {
        self.directory.remove(worker);
        if self.workers.remove(worker).is_none() {
            return;
        }
        self.take_over_prompts(worker);
        let told = self.policies.are_any();
        self.bookings.retain(|&(request, attempt), booking| {
            let stays = booking.plan.worker != *worker;
            if !stays {
                if let Some(handoff) = &booking.handoff {
                    handoff.end(&mut self.workers);
                }
                fx.push(PlacementEffect::Lost { request, attempt, worker: worker.clone() });
                if told {
                    self.policies.tell(now, &PolicyEvent::Failed(booking.placed_at(request, attempt)));
                }
            }
            stays
        });
        if told {
            self.policies.tell(now, &PolicyEvent::WorkerLeft(worker.clone()));
        }
    }

    /// Puts `waiting` at the end of the queue, or turns it away when that is full.
    pub(super) fn wait(&mut self, waiting: Waiting, fx: &mut Vec<PlacementEffect>) {
        if let Some(waiting) = self.admit(waiting, fx) {
            self.queue.push_back(waiting);
        }
    }

    /// As [`Placement::wait`], but at the front.
    pub(super) fn wait_first(&mut self, waiting: Waiting, fx: &mut Vec<PlacementEffect>) {
        if let Some(waiting) = self.admit(waiting, fx) {
            self.queue.push_front(waiting);
        }
    }

    fn admit(&self, waiting: Waiting, fx: &mut Vec<PlacementEffect>) -> Option<Waiting> {
        let queued = self.queued();
        if queued >= self.config.max_queued {
            let reason = Rejection::QueueFull { queued };
            let (request, attempt) = waiting.key();
            fx.push(PlacementEffect::Rejected { request, attempt, reason });
            return None;
        }
        Some(Waiting { queued: true, ..waiting })
    }

    /// Places what waits and now can be, first come first served.
    pub(super) fn place_waiting(&mut self, now: Time, fx: &mut Vec<PlacementEffect>) {
        let mut rest = std::mem::take(&mut self.queue);
        while let Some(waiting) = rest.pop_front() {
            if let Some(waiting) = self.consider(now, waiting, fx) {
                self.queue.push_back(waiting);
            }
        }
    }

    /// What can be seen of [`Placement::check`] without a pass over bookings. O(1).
    ///
    /// # Errors
    /// When the queue is over its limit.
    pub fn check_counts(&self) -> Result<(), Broken> {
        ensure_invariant!(
            self.queued() <= self.config.max_queued,
            "placement_queue_bounded",
            "{} of {}",
            self.queued(),
            self.config.max_queued
        );
        Ok(())
    }

    /// The first broken invariant. Costs a pass over bookings and workers.
    ///
    /// # Errors
    /// When the counters of a worker are not the sums of its bookings, a booking is on an unknown worker, a node has two
    /// lives, the queue is over its limit, a request is in two places, or a policy that lives here says so.
    pub fn check(&self) -> Result<(), Broken> {
        // In the order of the workers.
        let mut sums: Vec<(u32, u64, u64, u64, u64)> = vec![Default::default(); self.workers.len()];
        let mut handoffs: Vec<(u32, u64)> = vec![Default::default(); self.workers.len()];
        for ((request, attempt), booking) in &self.bookings {
            let worker = &booking.plan.worker;
            let Some(place) = self.workers.place(worker) else {
                let detail = format!("{request}/{attempt} is booked on {worker}");
                return Err(Broken { name: "placement_books_known_workers", detail });
            };
            let sum = &mut sums[place as usize];
            let fresh = if booking.accepted { 0 } else { booking.prefill };
            let untold = booking.untold(&self.workers.at(place).1);
            *sum =
                (sum.0 + 1, sum.1 + booking.tokens, sum.2 + fresh, sum.3 + untold, sum.4 + booking.context);
            if let Some(handoff) = &booking.handoff {
                let Some(other) = self.workers.place(&handoff.worker).filter(|other| *other != place) else {
                    let detail = format!(
                        "the prompt of {request}/{attempt} on {worker} is booked on {}",
                        handoff.worker
                    );
                    return Err(Broken { name: "placement_hands_off_to_known_others", detail });
                };
                let sum = &mut handoffs[other as usize];
                *sum = (sum.0 + 1, sum.1 + handoff.tokens);
            }
        }
        let mut former: Option<&WorkerId> = None;
        for ((worker, row), (sum, handed)) in self.workers.iter().zip(sums.into_iter().zip(handoffs)) {
            let counts =
                (row.booked, row.booked_tokens, row.fresh_prefill, row.taken_prefill, row.booked_context);
            ensure_invariant!(
                sum == counts,
                "placement_counters_are_sums",
                "{worker} counts {counts:?}, its bookings are {sum:?}"
            );
            ensure_invariant!(
                handed == (row.handoffs, row.handoff_tokens),
                "placement_handoffs_are_sums",
                "{worker} counts {:?}, its part of bookings is {handed:?}",
                (row.handoffs, row.handoff_tokens)
            );
            ensure_invariant!(
                former.is_none_or(|f| f.node != worker.node),
                "placement_one_life_a_node",
                "{former:?} and {worker}"
            );
            former = Some(worker);
        }
        ensure_invariant!(
            self.workers.is_consistent(),
            "placement_finds_workers",
            "of {} workers not all are where they are looked for",
            self.workers.len()
        );
        self.check_counts()?;
        let asked: BTreeSet<_> = self.pending.values().map(Consultation::key).collect();
        let waits = self.queue.iter().map(Waiting::key);
        let twice = waits
            .clone()
            .find(|key| asked.contains(key))
            .or_else(|| waits.chain(asked.iter().copied()).find(|key| self.bookings.contains_key(key)));
        ensure_invariant!(
            twice.is_none() && asked.len() == self.pending.len(),
            "placement_queued_or_asked_about_or_booked",
            "{twice:?} is in two places"
        );
        self.policies.check()
    }
}

/// Tokens that a request is expected to generate.
fn output_of(request: &PlaceRequest) -> u64 {
    u64::from(request.max_tokens.min(GENERATION_ESTIMATE)) * u64::from(request.choices)
}
