//! Which worker a request goes to.

use config::ids::{ModelId, WorkerId};

use super::{Choice, DEFAULT_MODEL, PlaceRequest, Placement, Rejection, Row};

/// What can be done for a request now.
#[derive(Debug)]
pub(super) enum Selected {
    /// Book it there.
    Place(WorkerId, &'static str),
    /// Someone can take it, later.
    Wait,
    /// Nobody can.
    Reject(Rejection),
}

impl Placement {
    /// Chooses for `request`; books nothing.
    pub(super) fn select(&mut self, request: &PlaceRequest) -> Selected {
        let model = match self.resolve(&request.model) {
            Ok(model) => model,
            Err(reason) => return Selected::Reject(reason),
        };
        let serving: Vec<&Row> =
            self.workers.values().filter(|r| !r.draining && r.info.models.contains(&model)).collect();
        if serving.is_empty() {
            // A request under way waits for its worker to come back; a new one is told at once.
            return match request.attempt.0 {
                0 => Selected::Reject(Rejection::NoWorker(model)),
                _ => Selected::Wait,
            };
        }
        let window = serving.iter().map(|r| r.info.max_context).max().unwrap_or(0);
        if request.context_tokens >= window {
            return Selected::Reject(Rejection::TooLong { tokens: request.context_tokens, window });
        }
        let fits: Vec<&Row> =
            serving.into_iter().filter(|r| request.context_tokens < r.info.max_context).collect();
        let others: Vec<&Row> =
            fits.iter().filter(|r| !request.avoid.contains(&r.info.id)).copied().collect();
        let eligible = if others.is_empty() { fits } else { others };
        let only = eligible.len() == 1;
        let free: Vec<&Row> = eligible.into_iter().filter(|r| r.requests() < r.info.max_requests).collect();
        let rng = &mut self.rng;
        let (chosen, why) = match (free.as_slice(), self.config.choice) {
            ([], _) => return Selected::Wait,
            ([one], _) => (*one, if only { "only-worker" } else { "only-free-worker" }),
            ([_, _, ..], Choice::LeastLoaded) => (least(&free), "least-loaded"),
            (many @ [_, _, ..], Choice::PowerOfTwo) => {
                let first = rng.below(many.len() as u64) as usize;
                let step = 1 + rng.below(many.len() as u64 - 1) as usize;
                (least(&[many[first], many[(first + step) % many.len()]]), "power-of-two")
            }
        };
        Selected::Place(chosen.info.id.clone(), why)
    }

    /// Whether a worker offers `model` now.
    pub(super) fn is_served(&self, model: &ModelId) -> bool {
        self.workers.values().any(|r| r.info.models.contains(model))
    }

    /// The model that a name stands for.
    fn resolve(&self, name: &ModelId) -> Result<ModelId, Rejection> {
        if self.models.contains(name) {
            return Ok(name.clone());
        }
        if name.as_str() != DEFAULT_MODEL {
            return Err(Rejection::UnknownModel(name.clone()));
        }
        let served = self.models.iter().find(|m| self.is_served(m));
        served.or_else(|| self.models.first()).cloned().ok_or_else(|| Rejection::NoWorker(name.clone()))
    }
}

/// The row with the least work; among equals the one chosen longest ago, never the first by name.
fn least<'a>(rows: &[&'a Row]) -> &'a Row {
    rows.iter().min_by_key(|r| (r.work(), r.last_chosen)).expect("the caller has at least one row")
}

impl Row {
    /// Requests: those booked here, and those of others.
    const fn requests(&self) -> u32 {
        self.booked.saturating_add(self.foreign)
    }

    /// Tokens of work, booked here and of others.
    const fn work(&self) -> u64 {
        self.booked_tokens.saturating_add(self.foreign_tokens)
    }
}
