//! Prompts that one worker computes for another: who does it, and what is booked for that.

use config::WorkerRole;
use config::ids::{Attempt, ModelId, RequestId, WorkerId};

use super::route::Route;
use super::rows::Rows;
use super::{Booking, PlaceRequest, Placement, PlacementEffect, Row, WorkerInfo};
use crate::policy::{Prompt, Verdict};
use crate::time::Time;

/// A worker's part in a request that is booked on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Handoff {
    pub(super) worker: WorkerId,
    /// Prompt tokens that it has to compute.
    pub(super) tokens: u64,
    /// Prompt tokens that the other has to compute where this one does not.
    pub(super) otherwise: u64,
}

/// What comes of a policy's word on who computes the prompt.
#[derive(Debug)]
pub(super) enum Prefill {
    /// The worker that the request goes to.
    Here,
    /// Another.
    By(Handoff, WorkerRole),
    /// Nobody: the request is turned away.
    Nobody,
}

impl Prefill {
    /// Who computes the prompt of a request that goes to `worker`.
    pub(super) const fn worker<'a>(&'a self, worker: &'a WorkerId) -> Option<&'a WorkerId> {
        match self {
            Self::Here => Some(worker),
            Self::By(handoff, _) => Some(&handoff.worker),
            Self::Nobody => None,
        }
    }
}

impl Placement {
    /// Who computes the prompt of a request that goes to `decode`, as `verdict` says, by what is known now: of those that
    /// it names the one with the fewest prompt tokens to compute, these included; of equals the one chosen longest ago.
    /// Whoever is gone, full or no match by now is passed over; the text says why nobody was left.
    pub(super) fn prefill(
        &self,
        request: &PlaceRequest,
        decode: &WorkerInfo,
        otherwise: u64,
        verdict: &Verdict,
    ) -> (Prefill, Option<String>) {
        let (pool, limit, strict) = match &verdict.prompt {
            Prompt::Here => return (Prefill::Here, None),
            Prompt::Nobody => return (Prefill::Nobody, None),
            Prompt::By { pool, limit, strict } => (pool, *limit, *strict),
        };
        let mut best: Option<(u64, u64, &Row, u64)> = None;
        let mut why = String::from("no prefill worker is left");
        for (id, uncached) in pool.iter() {
            match self.workers.get(id) {
                None => why = format!("{id} is gone"),
                Some(row) => match row.cannot_prefill(request, decode, limit) {
                    Some(reason) => why = reason,
                    None => {
                        let key = (row.prefill_queue().saturating_add(*uncached), row.last_chosen);
                        if best.as_ref().is_none_or(|(queue, last, ..)| key < (*queue, *last)) {
                            best = Some((key.0, key.1, row, *uncached));
                        }
                    }
                },
            }
        }
        match best {
            Some((_, _, row, tokens)) => {
                let handoff = Handoff { worker: row.info.id.clone(), tokens, otherwise };
                (Prefill::By(handoff, row.info.role), None)
            }
            None if strict => (Prefill::Nobody, Some(why)),
            None => (Prefill::Here, Some(why)),
        }
    }

    /// Notes which way a request goes that a policy in production has spoken on.
    pub(super) fn note_verdict(
        &mut self,
        model: &ModelId,
        decode: WorkerRole,
        verdict: &Verdict,
        prefill: &Prefill,
    ) {
        let route = match prefill {
            Prefill::By(_, WorkerRole::Prefill) => Route::Prefill,
            Prefill::By(..) => Route::Unified,
            Prefill::Here => Route::Decode,
            Prefill::Nobody => Route::Refused,
        };
        let gone = matches!((&verdict.prompt, prefill), (Prompt::By { .. }, Prefill::Here | Prefill::Nobody));
        let reason = verdict.fallback.or(gone.then_some(Verdict::GONE));
        // What is computed where it goes for its own sake says nothing about prefill workers.
        if route == Route::Prefill || reason.is_some() {
            self.note(model, decode, route, reason);
        }
    }

    /// The prompt is computed: the first token of the attempt was seen. The worker that computed it for another has room
    /// again. Said twice, or of an attempt whose prompt nobody else computes, it changes nothing.
    pub fn prefilled(
        &mut self,
        now: Time,
        request: RequestId,
        attempt: Attempt,
        fx: &mut Vec<PlacementEffect>,
    ) {
        let Some(booking) = self.bookings.get_mut(&(request, attempt)) else { return };
        if let Some(handoff) = booking.handoff.take() {
            handoff.end(&mut self.workers);
            self.place_waiting(now, fx);
        }
    }

    /// A worker is gone: what it was computing for others is computed by those now.
    pub(super) fn take_over_prompts(&mut self, lost: &WorkerId) {
        for booking in self.bookings.values_mut() {
            if let Some(handoff) = booking.handoff.take_if(|handoff| handoff.worker == *lost) {
                booking.take_over(&handoff, self.workers.get_mut(&booking.plan.worker));
            }
        }
    }
}

impl Handoff {
    /// Counts it at its worker.
    pub(super) fn begin(&self, workers: &mut Rows, choice: u64) {
        if let Some(row) = workers.get_mut(&self.worker) {
            row.handoffs += 1;
            row.handoff_tokens += self.tokens;
            row.last_chosen = choice;
        }
    }

    /// Takes it off again.
    pub(super) fn end(&self, workers: &mut Rows) {
        if let Some(row) = workers.get_mut(&self.worker) {
            row.handoffs -= 1;
            row.handoff_tokens -= self.tokens;
        }
    }
}

impl Booking {
    /// Of its prompt tokens those that count at its worker because that one has taken them and not reported since.
    pub(super) fn untold(&self, row: &Row) -> u64 {
        self.taken.filter(|taken| taken.reports == row.reports).map_or(0, |taken| taken.tokens)
    }

    fn take_over(&mut self, handoff: &Handoff, row: Option<&mut Row>) {
        self.tokens += handoff.otherwise;
        self.prefill += handoff.otherwise;
        if let Some(row) = row {
            row.booked_tokens += handoff.otherwise;
            if !self.accepted {
                row.fresh_prefill += handoff.otherwise;
            }
        }
    }
}

impl Row {
    /// Prompt tokens that it has to compute, as far as that is known. What it computes for others is in its report, or
    /// will be: whichever says more.
    pub(super) fn prefill_queue(&self) -> u64 {
        let reported = self.load.queued_prefill_tokens.max(self.handoff_tokens);
        self.fresh_prefill.saturating_add(self.taken_prefill).saturating_add(reported)
    }

    /// Whether it could ever compute the prompt of `request`.
    pub(super) fn may_prefill(&self, request: &PlaceRequest) -> bool {
        !request.avoid.contains(&self.info.id) && request.context_tokens < self.info.max_context
    }

    /// Why it cannot compute the prompt of `request` for `decode` now.
    fn cannot_prefill(&self, request: &PlaceRequest, decode: &WorkerInfo, limit: u32) -> Option<String> {
        let id = &self.info.id;
        if *id == decode.id {
            return Some(format!("{id} is the worker itself"));
        }
        if self.draining {
            return Some(format!("{id} is draining"));
        }
        if let Some(role) = self.info.switching_to {
            return Some(format!("{id} is becoming a {role} worker"));
        }
        if request.avoid.contains(id) {
            return Some(format!("{id} has failed this request before"));
        }
        if self.handoffs >= limit || self.requests() >= self.info.max_requests {
            return Some(format!("{id} is full"));
        }
        if request.context_tokens >= self.info.max_context {
            return Some(format!("{id} has a window of {} tokens", self.info.max_context));
        }
        // Asked last: it is the policy's to know, and makes a text.
        if self.info.pairs_with(decode) { None } else { self.info.mismatch(decode) }
    }
}
