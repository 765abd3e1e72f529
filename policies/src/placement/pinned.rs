//! A request that moves to a worker which somebody has named.

use config::WorkerRole;
use config::ids::WorkerId;

use super::handoff::Prefill;
use super::select::Chosen;
use super::{PlaceRequest, Placement, PlacementEffect, Rejection};
use crate::time::{Span, Time};

impl Placement {
    /// Books `request` on `worker`, or turns it away with the reason: it has a place where it is, and does not wait.
    pub(super) fn place_pinned(
        &mut self,
        now: Time,
        request: &PlaceRequest,
        worker: WorkerId,
        fx: &mut Vec<PlacementEffect>,
    ) {
        if let Some(why) = self.cannot_take(request, &worker) {
            let (request, attempt) = (request.request, request.attempt);
            let reason = Rejection::Pinned { worker, why };
            fx.push(PlacementEffect::Rejected { request, attempt, reason });
            return;
        }
        // It has been sent what the request has computed so far, so that next to nothing is left to compute.
        let hit_tokens = request.prompt_tokens;
        let stages = Vec::new();
        let chosen = Chosen {
            worker,
            why: "pinned",
            stages,
            hit_tokens,
            prefill: Prefill::Here,
            fetch: None,
            occupies: Span::ZERO,
            store: None,
        };
        self.book(now, request, chosen, fx);
    }

    /// Why a worker cannot take a request now; none: it can.
    fn cannot_take(&self, request: &PlaceRequest, worker: &WorkerId) -> Option<String> {
        let Some(row) = self.workers.get(worker) else { return Some("it is not there".to_owned()) };
        let model = match self.resolve(&request.model) {
            Ok(model) => model,
            Err(reason) => return Some(reason.to_string()),
        };
        let info = &row.info;
        if !info.models.contains(&model) {
            return Some(format!("it does not serve the model `{model}`"));
        }
        if info.role == WorkerRole::Prefill {
            return Some("it is a prefill worker".to_owned());
        }
        if row.draining {
            return Some("it is draining".to_owned());
        }
        if request.context_tokens >= info.max_context {
            return Some(format!("its window is {} tokens", info.max_context));
        }
        let full = row.requests() >= info.max_requests;
        full.then(|| format!("it has {} requests, its limit", row.requests()))
    }
}
