//! Which way requests go whose prompts are worth a prefill worker: one note where that changes, and a count of those that go
//! another way.

use std::collections::BTreeMap;

use config::WorkerRole;
use config::ids::ModelId;

use super::Placement;

/// The way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// A prefill worker computes the prompt, another generates.
    Prefill,
    /// A unified worker computes the prompt for another.
    Unified,
    /// The worker that generates computes the prompt itself.
    Decode,
    /// It is turned away.
    Refused,
    /// A prefill worker does all of it.
    Whole,
}

impl Route {
    /// The way in one word, for logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Unified => "unified",
            Self::Decode => "decode",
            Self::Refused => "refused",
            Self::Whole => "whole",
        }
    }
}

/// That a request went another way than by a prefill worker and a decode worker, or that they go that way again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteNote {
    /// The model.
    pub model: ModelId,
    /// Which way.
    pub route: Route,
    /// Why, to be counted by (`pd_fallback_total`); none: nothing to count, they go the usual way again.
    pub reason: Option<&'static str>,
    /// The way of those before; none: it is the first that matters.
    pub before: Option<Route>,
    /// The way has changed: to be said once, as a warning where there is a reason.
    pub changed: bool,
}

impl RouteNote {
    /// The reason of requests that prefill workers do all of.
    pub const NO_DECODE_WORKER: &'static str = "no_decode_worker";
    /// The reason that there is no prefill worker.
    pub const NO_PREFILL_WORKER: &'static str = "no_prefill_worker";
    /// The reason that prefill workers are there and full: that comes and goes, and is counted only.
    pub const FULL: &'static str = "prefill_full";
}

/// The last way of each model's requests; none where no prefill worker has mattered yet.
#[derive(Debug, Default)]
pub(super) struct Routes(BTreeMap<ModelId, Route>);

impl Placement {
    /// A request of `model` is booked on a worker of this role.
    pub(super) fn note_worker(&mut self, model: &ModelId, role: WorkerRole) {
        if role == WorkerRole::Prefill {
            self.note(model, role, Route::Whole, Some(RouteNote::NO_DECODE_WORKER));
        } else if self.routes.0.get(model) == Some(&Route::Whole) {
            self.routes.0.remove(model);
            let before = Some(Route::Whole);
            let route = Route::Decode;
            self.policies.note(RouteNote {
                model: model.clone(),
                route,
                reason: None,
                before,
                changed: true,
            });
        }
    }

    /// A request of `model` that is worth a prefill worker goes this way, on a worker of role `decode`; `reason`: for want
    /// of one.
    pub(super) fn note(
        &mut self,
        model: &ModelId,
        decode: WorkerRole,
        route: Route,
        reason: Option<&'static str>,
    ) {
        let before = self.routes.0.get(model).copied();
        // A unified worker that computes its prompts misses nothing until there was a prefill worker.
        let none = reason == Some(RouteNote::NO_PREFILL_WORKER);
        if before.is_none() && none && decode == WorkerRole::Unified {
            return;
        }
        let passing = reason == Some(RouteNote::FULL);
        // Nobody has to be told that all is as it was meant to be.
        let changed = before != Some(route) && !passing && (before.is_some() || reason.is_some());
        if !passing && before != Some(route) {
            self.routes.0.insert(model.clone(), route);
        }
        if reason.is_some() || changed {
            self.policies.note(RouteNote { model: model.clone(), route, reason, before, changed });
        }
    }
}
