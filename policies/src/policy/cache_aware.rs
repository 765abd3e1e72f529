//! `cache-aware`: load and locality in one cost.
//!
//! The cost of a request on a worker, in tokens, is what has to be computed before its first token comes, plus what
//! slows its tokens down:
//!
//! > `prefill-load-scale` × (own prompt tokens that the worker does not hold + prompt tokens that wait there
//! >   + `eviction-scale` × tokens that it has to forget for the own ones)
//! > + `decode-load-scale` × (tokens that are being generated there)
//!
//! Where prefill workers are there to compute the prompt, the first part is what the best of those has to do first, unless
//! the worker itself is sooner done: mostly because it has generated the turns before this one and holds their keys and
//! values. What slows tokens down is the KV that each step reads:
//!
//! > least of: the first part, as above; `prefill-load-scale` × (least of: own prompt tokens that a prefill worker does not
//! >   hold + those that wait there)
//! > + ½ × (tokens whose keys and values the worker holds, or will for what is booked there, these included)
//!
//! That is the cost of NVIDIA Dynamo's KV router, in tokens instead of blocks, and the price of memory, as Preble's E2 has
//! it (Srivatsa et al., 2024): a copy of a prefix on a worker whose pages are all in use is paid for a second time by
//! whoever comes for what it has replaced. Without it, the copies that are made where workers are busy push prefixes out of
//! each other's memory, and the more there is to do, the less is found. There is no cliff: as a worker with the prefix
//! gets busier, the next one takes over by itself once computing the prefix again is the shorter wait. Two guards
//! carry names of SGLang's router for those who know them, with a difference: where SGLang falls back to the least
//! loaded worker as soon as loads are out of balance, and so gives up locality just when it pays most, here only the
//! workers that are overloaded are left out, and the others are compared as before.
//!
//! What a worker holds is what it has told, and what is on its way there (`index = "events"`); or, where that is late or
//! lost, what was sent there (`index = "routed"`).

use std::time::Duration;

use config::ids::PolicyName;
use config::{CacheAwareConfig, PrefixIndex, WorkerRole};

use super::{CandidateRow, ClusterPolicy, Opinion, PolicyAction, PolicyEvent, PolicyQuery};
use crate::invariant::Broken;
use crate::placement::WorkerView;
use crate::time::{Span, Time};

use coming::Coming;
use routed::Routed;

mod coming;
mod routed;

/// Tokens that are remembered of a worker that has not said how many it holds: 31,250 blocks of 16, the default of the
/// Kubernetes inference gateway.
const UNKNOWN_TOKENS: u64 = 500_000;

/// Weight of a token of KV where prompts are computed by others, in prompt tokens: what it adds to a step there, as often as an answer has
/// tokens (256), beside the time of a prompt token. By the rooflines of H100 and H200 that is 0.1 to 0.4 for models of 70 to 8
/// thousand million weights, and 0.6 by the cost curve of the reference simulations.
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
    /// A worker is overloaded, too, when sequences hold more than this share of its KV pages, another worker has room, and
    /// it does not hold the prompt; 1 is never. SGLang's name; its default is 1, ours is lower, since a full worker preempts.
    pub overload_token_usage: f64,
    /// Weight of a prompt token, own or waiting. Dynamo's name (before: `kv-overlap-score-weight`) and default.
    pub prefill_load_scale: f64,
    /// Weight of a token of other prompts that a worker without free pages has to forget for one that it computes: how
    /// likely it is asked for again.
    pub eviction_scale: f64,
    /// Weight of a token that is generated. Dynamo weighs a block in decode like one in prefill; but decode of many
    /// sequences is one pass, which a prompt in front of it delays and a sequence more hardly does.
    pub decode_load_scale: f64,
    /// How it knows what workers hold.
    pub index: PrefixIndex,
    /// Tokens that the index `routed` remembers of each worker; none: as many as its pages hold.
    pub max_tree_tokens: Option<u64>,
    /// How long the index `routed` remembers a prompt after its last use.
    pub index_ttl: Span,
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
            eviction_scale: cache_aware.eviction_scale,
            decode_load_scale: cache_aware.decode_load_scale,
            index: cache_aware.index,
            max_tree_tokens: cache_aware.max_tree_tokens,
            index_ttl: Duration::from(cache_aware.index_ttl).into(),
        }
    }
}

/// The policy. What workers have to do comes with each question.
#[derive(Clone, Debug)]
pub struct CacheAware {
    options: CacheAwareOptions,
    index: Index,
}

#[derive(Clone, Debug)]
enum Index {
    Events(Coming),
    Routed(Routed),
}

impl Default for CacheAware {
    fn default() -> Self {
        Self::new(CacheAwareOptions::default())
    }
}

impl CacheAware {
    /// Its configured name.
    pub const NAME: &'static str = "cache-aware";

    /// A policy with these options.
    #[must_use]
    pub fn new(options: CacheAwareOptions) -> Self {
        let index = match options.index {
            PrefixIndex::Events => Index::Events(Coming::default()),
            PrefixIndex::Routed => Index::Routed(Routed::default()),
        };
        Self { options, index }
    }

    /// How many tokens of the prompt it takes each worker to hold, in the order of the rows.
    fn hits(&mut self, now: Time, query: &PolicyQuery) -> Vec<u32> {
        let (options, prompt) = (self.options, &query.request);
        let tokens = |row: &CandidateRow, pages: u32| {
            // The last token is computed in any case: its logits are what the answer begins with.
            pages.saturating_mul(row.info.page_tokens).min(prompt.prompt_tokens.saturating_sub(1))
        };
        let hit = |row: &CandidateRow| match &mut self.index {
            Index::Events(coming) => {
                row.hit_tokens.max(tokens(row, coming.hits(&row.worker, &prompt.hashes)))
            }
            Index::Routed(routed) => {
                routed.set_most(&row.worker, most(&options, row.info.page_tokens, row.pages_total));
                tokens(row, routed.hits(now, options.index_ttl, &row.worker, &prompt.hashes))
            }
        };
        query.rows.iter().map(hit).collect()
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
        let free = u64::from(row.pages_free) * u64::from(row.info.page_tokens);
        let evicted = if row.pages_total > 0 { uncached.saturating_sub(free) } else { 0 };
        let evicted = self.options.eviction_scale * evicted as f64;
        let prefill = evicted + uncached.saturating_add(row.prefill_tokens) as f64;
        let here = self.options.prefill_load_scale * prefill;
        let cost = match elsewhere.filter(|_| row.info.role != WorkerRole::Prefill) {
            Some(elsewhere) => here.min(elsewhere) + KV_LOAD * row.kv_tokens.saturating_add(uncached) as f64,
            None => {
                let decode = row.work_tokens.saturating_sub(row.prefill_tokens) as f64;
                here + self.options.decode_load_scale * decode
            }
        };
        // Rounded to whole tokens; saturates.
        cost as u64
    }

    /// Whether a worker should not take a prompt of which it holds more than the threshold (`warm`), or not.
    fn is_overloaded(&self, row: &CandidateRow, warm: bool, least: u32, roomiest: f64) -> bool {
        let o = &self.options;
        let ahead = row.requests.saturating_sub(least) > o.balance_abs_threshold
            && f64::from(row.requests) > o.balance_rel_threshold * f64::from(least);
        // A prompt that it holds needs next to no room there, and as much as a new one anywhere else.
        let full = !warm && usage(row) > o.overload_token_usage && roomiest <= o.overload_token_usage;
        ahead || full
    }

    /// Whether so many tokens of a prompt are worth looking at.
    fn is_warm(&self, hit: u32, prompt_tokens: u32) -> bool {
        f64::from(hit) / f64::from(prompt_tokens.max(1)) > self.options.cache_threshold
    }
}

impl ClusterPolicy for CacheAware {
    fn name(&self) -> PolicyName {
        Self::NAME.into()
    }

    fn observe(&mut self, now: Time, event: &PolicyEvent) {
        match (&mut self.index, event) {
            (Index::Events(coming), PolicyEvent::Placed(at)) => coming.placed(at),
            (Index::Events(coming), PolicyEvent::Failed(at) | PolicyEvent::Released(at)) => coming.over(at),
            // What a worker has to do with ends with each of its requests, and what it holds is not known here.
            (Index::Events(_), _) | (Index::Routed(_), PolicyEvent::WorkerJoined(_)) => {}
            (Index::Routed(routed), PolicyEvent::Placed(at)) => routed.placed(now, at),
            (Index::Routed(routed), PolicyEvent::Accepted(at)) => routed.taken(now, at),
            (Index::Routed(routed), PolicyEvent::Failed(at) | PolicyEvent::Released(at)) => {
                routed.over(now, at);
            }
            (Index::Routed(routed), PolicyEvent::WorkerLeft(worker)) => routed.forget(worker),
        }
    }

    fn opinion(&mut self, now: Time, query: &PolicyQuery) -> Opinion {
        let (request, rows) = (&query.request, &query.rows);
        let hits = self.hits(now, query);
        let uncached = |hit: u32| u64::from(request.prompt_tokens.saturating_sub(hit));
        let least = rows.iter().map(|r| r.requests).min().unwrap_or(0);
        let roomiest = rows.iter().map(usage).fold(f64::INFINITY, f64::min);
        let best_hit = hits.iter().copied().max().unwrap_or(0);
        let warm = self.is_warm(best_hit, request.prompt_tokens);
        let elsewhere = self.cost_elsewhere(query);
        let (mut exclude, mut costs) = (Vec::new(), Vec::with_capacity(rows.len()));
        // The cheapest of those that are left; what it holds decides what is said.
        let mut best: Option<(u64, &CandidateRow, u32)> = None;
        for (row, &hit) in rows.iter().zip(&hits) {
            let cost = self.cost(row, uncached(if warm { hit } else { 0 }), elsewhere);
            if self.is_overloaded(row, self.is_warm(hit, request.prompt_tokens), least, roomiest) {
                exclude.push(row.worker.clone());
            } else if best.is_none_or(|(c, b, _)| {
                (cost, row.work_tokens, row.last_chosen) < (c, b.work_tokens, b.last_chosen)
            }) {
                best = Some((cost, row, hit));
            }
            costs.push((row.worker.clone(), cost));
        }
        let hit = best.map_or(0, |(_, _, hit)| hit);
        let heard = (0..rows.len()).min_by_key(|at| (rows[*at].work_tokens, rows[*at].last_chosen));
        let heard = heard.map_or(0, |at| hits[at]);
        let (action, mut why) = match (warm, best) {
            (false, _) => {
                ("cold", format!("no worker holds more than {best_hit} of {} tokens", request.prompt_tokens))
            }
            (true, Some((_, row, _))) if hit == best_hit => {
                ("hit", format!("{} holds {hit} tokens of the prompt", row.worker))
            }
            (true, Some((_, row, _))) if hit > 0 => (
                "partial-hit",
                format!("{} holds {hit} tokens, and those with {best_hit} are busier", row.worker),
            ),
            (true, _) => (
                "miss",
                format!("those that hold {best_hit} tokens are so busy that computing them is sooner done"),
            ),
        };
        if matches!(self.index, Index::Routed(_)) {
            why.push_str(", by the index routed");
        }
        Opinion {
            numbers: vec![
                ("best-hit-tokens", best_hit.into()),
                ("hit-tokens", hit.into()),
                ("cost", best.map_or(0, |(cost, ..)| cost) as f64),
                ("overloaded", exclude.len() as f64),
            ],
            exclude: exclude.into(),
            pin: None,
            costs,
            hits,
            verdicts: Vec::new(),
            fetches: Box::default(),
            store: None,
            action,
            why,
            saved: Some(i64::from(hit) - i64::from(heard)),
        }
    }

    fn tick(&mut self, now: Time, workers: &[WorkerView], _actions: &mut Vec<PolicyAction>) {
        let Index::Routed(routed) = &mut self.index else { return };
        for worker in workers {
            let most = most(&self.options, worker.info.page_tokens, worker.load.pages_total);
            routed.set_most(&worker.info.id, most);
        }
        routed.expire(now, self.options.index_ttl);
    }

    /// # Errors
    /// When the index remembers more of a worker than it may, or its counts do not agree.
    fn check(&self) -> Result<(), Broken> {
        match &self.index {
            Index::Events(coming) => coming.check(),
            Index::Routed(routed) => routed.check(),
        }
    }
}

/// Pages that the index `routed` remembers of a worker.
fn most(options: &CacheAwareOptions, page_tokens: u32, pages_total: u32) -> usize {
    let page = u64::from(page_tokens.max(1));
    let pages = match (options.max_tree_tokens, pages_total) {
        (Some(tokens), _) => tokens / page,
        (None, 0) => UNKNOWN_TOKENS / page,
        (None, pages) => pages.into(),
    };
    usize::try_from(pages).unwrap_or(usize::MAX)
}

/// Share of a worker's pages that sequences hold.
fn usage(row: &CandidateRow) -> f64 {
    f64::from(row.pages_used) / f64::from(row.pages_total.max(1))
}

#[cfg(test)]
mod tests;
