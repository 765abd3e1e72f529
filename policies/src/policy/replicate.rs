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
use config::ids::{PolicyName, WorkerId};

use super::{CandidateRow, ClusterPolicy, Fetch, Opinion, PolicyAction, PolicyEvent, PolicyQuery};
use crate::invariant::Broken;
use crate::kv::PageLayout;
use crate::placement::{PlaceRequest, WorkerView};
use crate::policy::disaggregate::{tokens_in, transferable};
use crate::time::{Span, Time};

#[cfg(test)]
mod tests;

/// Tokens that are worth fetching at most, whatever the machine.
const MIN_TOKENS: u32 = 512;
/// What a worker computes in so many seconds is worth fetching, where that is fewer tokens.
const WORTH_SECONDS: f64 = 0.1;
/// Asking takes longer than computing what fewer pages hold.
const LEAST_PAGES: u32 = 2;

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

    /// Fewer tokens are computed again by `row`.
    fn least(&self, row: &CandidateRow) -> u32 {
        let by_pace = || match tokens_in(row, WORTH_SECONDS) {
            Some(tokens) => {
                (tokens.min(u64::from(MIN_TOKENS)) as u32).max(LEAST_PAGES * row.info.page_tokens)
            }
            None => MIN_TOKENS,
        };
        self.options.min_tokens.unwrap_or_else(by_pace)
    }

    /// What `row` is to fetch from `best` if it computes the prompt.
    fn fetch(&self, request: &PlaceRequest, row: &CandidateRow, best: &CandidateRow) -> Option<Fetch> {
        if row.worker == best.worker || !best.info.pairs_with(&row.info) {
            return None;
        }
        let gain = best.hit_tokens.saturating_sub(row.hit_tokens);
        let layout = &row.info.kv.as_ref()?.layout;
        // The last token is no hit, and its page is there all the same.
        let tokens = best.hit_tokens.next_multiple_of(layout.page_tokens).min(request.prompt_tokens);
        let least = self.least(row);
        if gain < least {
            return None;
        }
        let (bytes, sending) = sending(row, best, layout, tokens);
        let figures = &row.info.hardware.figures;
        let computing =
            row.info.shape.as_ref().and_then(|shape| figures.prefill(shape, row.hit_tokens, gain));
        if computing.is_some_and(|computing| computing <= sending) {
            return None;
        }
        let mut numbers = vec![
            ("fetch-tokens", f64::from(gain)),
            ("holder-tokens", f64::from(best.hit_tokens)),
            ("own-tokens", f64::from(row.hit_tokens)),
            ("transfer-bytes", bytes),
            ("transfer-ms", milliseconds(sending)),
        ];
        numbers.extend(computing.map(|took| ("compute-ms", milliseconds(took))));
        let why = format!("{} holds {gain} more tokens of the prompt than {}", best.worker, row.worker);
        Some(Fetch { to: row.worker.clone(), from: best.worker.clone(), tokens, why, numbers })
    }
}

/// Bytes of the pages that `from` holds of the first `tokens` tokens and `to` does not, and the time that they take on the
/// slower link of the two.
fn sending(to: &CandidateRow, from: &CandidateRow, layout: &PageLayout, tokens: u32) -> (f64, Span) {
    let pages = layout.pages_for(tokens).saturating_sub(to.hit_tokens / layout.page_tokens);
    // As a fraction: what a worker says of itself is not to overflow here.
    let sizes = [layout.layers, layout.page_tokens, layout.kv_heads, layout.head_dim, layout.element_bytes];
    let bytes = sizes.iter().fold(2.0 * f64::from(pages), |bytes, n| bytes * f64::from(*n));
    (bytes, from.info.hardware.figures.send(&to.info.hardware.figures, bytes as u64))
}

fn milliseconds(span: Span) -> f64 {
    span.0 as f64 / 1e6
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
        let fetches = rows.filter_map(|row| self.fetch(request, row, best)).collect();
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

impl Opinion {
    /// What is fetched where `worker` computes the prompt.
    #[must_use]
    pub fn fetch(&self, worker: &WorkerId) -> Option<&Fetch> {
        self.fetches.iter().find(|fetch| fetch.to == *worker)
    }
}
