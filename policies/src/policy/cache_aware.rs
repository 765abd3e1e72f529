//! `cache-aware`: load and locality in one cost.
//!
//! The cost of a request on a worker, in tokens, is what has to be computed before its first token comes, plus what
//! slows its tokens down:
//!
//! > `prefill-load-scale` × (own prompt tokens that the worker does not hold + prompt tokens that wait there)
//! > + `decode-load-scale` × (tokens that are being generated there)
//!
//! On a decode worker, where prefill workers are there to compute the prompt, the first part is what the best of those has
//! to do first, the same for all decode workers, and what slows tokens down is the KV that each step reads:
//!
//! > `prefill-load-scale` × (least of: own prompt tokens that a prefill worker does not hold + those that wait there)
//! > + ½ × (tokens whose keys and values the decode worker holds, or will for what is booked there, these included)
//!
//! That is the cost of NVIDIA Dynamo's KV router, in tokens instead of blocks. There is no cliff: as a worker with the
//! prefix gets busier, the next one takes over by itself once computing the prefix again is the shorter wait. Two guards
//! carry names of SGLang's router for those who know them, with a difference: where SGLang falls back to the least
//! loaded worker as soon as loads are out of balance, and so gives up locality just when it pays most, here only the
//! workers that are overloaded are left out, and the others are compared as before.

use config::ids::PolicyName;
use config::{CacheAwareConfig, WorkerRole};

use super::{CandidateRow, ClusterPolicy, Opinion, PolicyAction, PolicyEvent, PolicyQuery};
use crate::invariant::Broken;
use crate::placement::WorkerView;
use crate::time::Time;

/// Weight of a token of KV at a decode worker, in prompt tokens: what it adds to a step there, as often as an answer has
/// tokens (256), beside the time of a prompt token. By the rooflines of H100 and H200 that is 0.1 to 0.4 for models of 70 to 8
/// thousand million weights, and 0.6 by the cost curve of the reference simulations; it ranks decode workers among each other
/// whatever it is.
const KV_LOAD: f64 = 0.5;

/// Options of `cache-aware`: those of its table that it decides by. The configuration has their defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheAwareOptions {
    /// A prompt of which no worker holds more than this share is cold and goes by load alone. SGLang's name and command
    /// line default. In `[0, 1]`.
    pub cache_threshold: f64,
    /// A worker is overloaded when it has more requests than the least busy one, by more than this … SGLang's name and
    /// command line default.
    pub balance_abs_threshold: u32,
    /// … and more than this many times as many. SGLang's name and command line default. At least 1.
    pub balance_rel_threshold: f64,
    /// A worker is overloaded, too, when sequences hold more than this share of its KV pages and another worker has room;
    /// 1 is never. SGLang's name; its default is 1, ours is lower, since a full worker preempts.
    pub overload_token_usage: f64,
    /// Weight of a prompt token, own or waiting. Dynamo's name (before: `kv-overlap-score-weight`) and default.
    pub prefill_load_scale: f64,
    /// Weight of a token that is generated. Dynamo weighs a block in decode like one in prefill; but decode of many
    /// sequences is one pass, which a prompt in front of it delays and a sequence more hardly does.
    pub decode_load_scale: f64,
}

impl Default for CacheAwareOptions {
    fn default() -> Self {
        Self::from(&CacheAwareConfig::default())
    }
}

impl From<&CacheAwareConfig> for CacheAwareOptions {
    fn from(cache_aware: &CacheAwareConfig) -> Self {
        Self {
            cache_threshold: cache_aware.cache_threshold,
            balance_abs_threshold: cache_aware.balance_abs_threshold,
            balance_rel_threshold: cache_aware.balance_rel_threshold,
            overload_token_usage: cache_aware.overload_token_usage,
            prefill_load_scale: cache_aware.prefill_load_scale,
            decode_load_scale: cache_aware.decode_load_scale,
        }
    }
}

/// The policy. It keeps no state: what workers hold and have to do comes with each question.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheAware {
    options: CacheAwareOptions,
}

impl CacheAware {
    /// Its configured name.
    pub const NAME: &'static str = "cache-aware";

    /// A policy with these options.
    #[must_use]
    pub const fn new(options: CacheAwareOptions) -> Self {
        Self { options }
    }

    /// What the prompt costs where a prefill worker computes it; none where there is none.
    fn cost_elsewhere(&self, query: &PolicyQuery) -> Option<f64> {
        let there = |row: &CandidateRow| row.prefill_tokens.saturating_add(row.uncached(&query.request));
        let least = query.prefill.iter().map(there).min()?;
        Some(self.options.prefill_load_scale * least as f64)
    }

    /// What a request costs where `uncached` of its tokens have to be computed, or brought from where they are computed
    /// for the cost of `elsewhere`.
    fn cost(&self, row: &CandidateRow, uncached: u64, elsewhere: Option<f64>) -> u64 {
        if let Some(elsewhere) = elsewhere.filter(|_| row.info.role == WorkerRole::Decode) {
            return (elsewhere + KV_LOAD * row.kv_tokens.saturating_add(uncached) as f64) as u64;
        }
        let prefill = uncached.saturating_add(row.prefill_tokens) as f64;
        let decode = row.work_tokens.saturating_sub(row.prefill_tokens) as f64;
        // Rounded to whole tokens; saturates.
        (self.options.prefill_load_scale * prefill + self.options.decode_load_scale * decode) as u64
    }

    fn is_overloaded(&self, row: &CandidateRow, least: u32, roomiest: f64) -> bool {
        let o = &self.options;
        let ahead = row.requests.saturating_sub(least) > o.balance_abs_threshold
            && f64::from(row.requests) > o.balance_rel_threshold * f64::from(least);
        let full = usage(row) > o.overload_token_usage && roomiest <= o.overload_token_usage;
        ahead || full
    }
}

impl ClusterPolicy for CacheAware {
    fn name(&self) -> PolicyName {
        Self::NAME.into()
    }

    fn observe(&mut self, _now: Time, _event: &PolicyEvent) {}

    fn opinion(&mut self, _now: Time, query: &PolicyQuery) -> Opinion {
        let (request, rows) = (&query.request, &query.rows);
        let least = rows.iter().map(|r| r.requests).min().unwrap_or(0);
        let roomiest = rows.iter().map(usage).fold(f64::INFINITY, f64::min);
        let best_hit = rows.iter().map(|r| r.hit_tokens).max().unwrap_or(0);
        let share = f64::from(best_hit) / f64::from(request.prompt_tokens.max(1));
        let warm = share > self.options.cache_threshold;
        let elsewhere = self.cost_elsewhere(query);
        let (mut exclude, mut costs) = (Vec::new(), Vec::with_capacity(rows.len()));
        // The cheapest of those that are left; what it holds decides what is said.
        let mut best: Option<(u64, &CandidateRow)> = None;
        for row in rows.iter() {
            let uncached = if warm { row.uncached(request) } else { request.prompt_tokens.into() };
            let cost = self.cost(row, uncached, elsewhere);
            if self.is_overloaded(row, least, roomiest) {
                exclude.push(row.worker.clone());
            } else if best.is_none_or(|(c, b)| {
                (cost, row.work_tokens, row.last_chosen) < (c, b.work_tokens, b.last_chosen)
            }) {
                best = Some((cost, row));
            }
            costs.push((row.worker.clone(), cost));
        }
        let hit = best.map_or(0, |(_, row)| row.hit_tokens);
        let heard = CandidateRow::least_loaded(rows).map_or(0, |row| row.hit_tokens);
        let (action, why) = match (warm, best) {
            (false, _) => {
                ("cold", format!("no worker holds more than {best_hit} of {} tokens", request.prompt_tokens))
            }
            (true, Some((_, row))) if hit == best_hit => {
                ("hit", format!("{} holds {hit} tokens of the prompt", row.worker))
            }
            (true, Some((_, row))) if hit > 0 => (
                "partial-hit",
                format!("{} holds {hit} tokens, and those with {best_hit} are busier", row.worker),
            ),
            (true, _) => (
                "miss",
                format!("those that hold {best_hit} tokens are so busy that computing them is sooner done"),
            ),
        };
        Opinion {
            numbers: vec![
                ("best-hit-tokens", best_hit.into()),
                ("hit-tokens", hit.into()),
                ("cost", best.map_or(0, |(cost, _)| cost) as f64),
                ("overloaded", exclude.len() as f64),
            ],
            exclude,
            pin: None,
            costs,
            verdicts: Vec::new(),
            action,
            why,
            saved: Some(i64::from(hit) - i64::from(heard)),
        }
    }

    fn tick(&mut self, _now: Time, _workers: &[WorkerView], _actions: &mut Vec<PolicyAction>) {}

    /// Never broken: there is no state.
    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}

/// Share of a worker's pages that sequences hold.
fn usage(row: &CandidateRow) -> f64 {
    f64::from(row.pages_used) / f64::from(row.pages_total.max(1))
}

#[cfg(test)]
mod tests;
