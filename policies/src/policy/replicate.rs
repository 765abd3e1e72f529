//! `replicate`: the start of a prompt is fetched from a worker that holds it, where the request goes to another.
//!
//! ```text
//! gain   = hit(best) − hit(own)          tokens that the worker would compute and another one holds
//! fetch  = gain ≥ min-tokens
//!          ∧ the two exchange pages of one kind
//!          ∧ sending the pages takes less time than computing the tokens   (where both are known)
//! ```
//!
//! which is Mooncake's transfer of a prefix to the worker that a request is routed to (FAST'25, algorithm 1: worth it where the
//! best match is longer than the own one by a threshold) with predicted times in place of the threshold. Whoever computes
//! the prompt fetches: the worker of the request, or the prefill worker that `disaggregate` has named, for which the worker
//! that generated the last turn mostly is the one to ask. What is fetched is found there by later requests.
//!
//! Who computes the prompt is not known when policies are asked, so there is a word for each that may. The policy keeps no
//! state, and it is the same in shadow.

use config::ReplicateConfig;
use config::ids::PolicyName;

use super::fetching::{self, Holder};
use super::{CandidateRow, ClusterPolicy, Opinion, PolicyAction, PolicyEvent, PolicyQuery};
use crate::invariant::Broken;
use crate::placement::WorkerView;
use crate::policy::disaggregate::transferable;
use crate::time::Time;

#[cfg(test)]
mod tests;

/// Options of `replicate`. The configuration has their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicateOptions {
    /// Fewer tokens are computed again; none: what follows from the machine.
    pub min_tokens: Option<u32>,
}

impl From<&ReplicateConfig> for ReplicateOptions {
    fn from(replicate: &ReplicateConfig) -> Self {
        Self { min_tokens: replicate.min_tokens }
    }
}

/// The policy. It keeps no state: what workers hold comes with each question.
#[derive(Clone, Debug, Default)]
pub struct Replicate {
    options: ReplicateOptions,
}

impl Replicate {
    /// Its configured name.
    pub const NAME: &'static str = "replicate";
    /// The action of a stage where something is fetched.
    pub const FETCH: &'static str = "fetch";

    /// A policy with these options.
    #[must_use]
    pub const fn new(options: ReplicateOptions) -> Self {
        Self { options }
    }
}

/// The worker that holds most of the prompt, of those the one with the least to do.
fn best(query: &PolicyQuery) -> Option<&CandidateRow> {
    let rows = query.rows.iter().chain(query.prefill.iter());
    let holders = rows.filter(|row| row.hit_tokens > 0 && row.info.kv.is_some());
    holders.max_by_key(|row| (row.hit_tokens, std::cmp::Reverse((row.work_tokens, &row.worker))))
}

impl ClusterPolicy for Replicate {
    fn name(&self) -> PolicyName {
        Self::NAME.into()
    }

    fn observe(&mut self, _now: Time, _event: &PolicyEvent) {}

    fn opinion(&mut self, _now: Time, query: &PolicyQuery) -> Opinion {
        let request = &query.request;
        let Some(best) = best(query) else {
            return Opinion::none("cold", "no worker that exchanges pages holds any of the prompt");
        };
        if let Err(why) = transferable(request) {
            return Opinion::none("not_transferable", why);
        }
        let rows = query.rows.iter().chain(query.prefill.iter());
        let holder = Holder::worker(best);
        let pairs = rows.filter(|row| row.worker != best.worker && best.info.pairs_with(&row.info));
        let fetches = pairs
            .filter_map(|row| {
                fetching::fetch(request, row, &holder, fetching::least(self.options.min_tokens, row))
            })
            .collect();
        let held =
            format!("{} holds {} of {} prompt tokens", best.worker, best.hit_tokens, request.prompt_tokens);
        Opinion {
            numbers: vec![("holder-tokens", f64::from(best.hit_tokens))],
            fetches,
            ..Opinion::none("own", format!("{held}, and who computes it holds or computes them as soon"))
        }
    }

    fn tick(&mut self, _now: Time, _workers: &[WorkerView], _actions: &mut Vec<PolicyAction>) {}

    /// Never broken: it keeps nothing.
    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}
