//! `pool-replicate`: pools keep the pages of prompts, and workers fetch from there what they do not hold.
//!
//! ```text
//! gain   = hit(pool) − hit(own)          tokens that the worker would compute and a pool holds
//! fetch  = gain ≥ min-tokens ∧ sending the pages takes less time than computing the tokens   (where both are known)
//!
//! keep at the pool that holds most of the prompt; of equals, the one that the prompt's first page falls to
//!        ⇐ full tokens of the prompt − hit(that pool) ≥ min-tokens
//! ```
//!
//! which is what Mooncake's store and LMCache do for prefixes: what a worker has dropped, what a node held that is gone, and
//! what was computed before a restart is found again. The whole start of a prompt lies at one pool, as pages are kept only
//! where the one before them is; whose first pages are the same go to the same pool, as long as there are the same pools
//! (rendezvous hashing, Thaler & Ravishankar 1998), so that a system prompt is kept once.
//!
//! A prompt is kept when it is computed: the pool is told at its first token, and asks the worker for the pages that it does
//! not have. That this fails, or that a pool is busy, costs the pool's copy and nothing else.
//!
//! The policy keeps no state, and it is the same in shadow.

use config::PoolReplicateConfig;
use config::ids::{PolicyName, WorkerId};

use super::fetching::{self, Holder};
use super::{ClusterPolicy, Opinion, PolicyAction, PolicyEvent, PolicyQuery, PoolRow, StoreAt};
use crate::invariant::Broken;
use crate::kv::PageHash;
use crate::placement::WorkerView;
use crate::policy::disaggregate::transferable;
use crate::rng;
use crate::time::Time;

#[cfg(test)]
mod tests;

/// Options of `pool-replicate`. The configuration has their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolReplicateOptions {
    /// Fewer tokens are neither fetched nor kept; none: what follows from the machine.
    pub min_tokens: Option<u32>,
}

impl From<&PoolReplicateConfig> for PoolReplicateOptions {
    fn from(config: &PoolReplicateConfig) -> Self {
        Self { min_tokens: config.min_tokens }
    }
}

/// The policy. It keeps no state: what pools and workers hold comes with each question.
#[derive(Clone, Debug, Default)]
pub struct PoolReplicate {
    options: PoolReplicateOptions,
}

impl PoolReplicate {
    /// Its configured name.
    pub const NAME: &'static str = "pool-replicate";
    /// The action of a stage where the prompt is kept at a pool.
    pub const STORE: &'static str = "store";

    /// A policy with these options.
    #[must_use]
    pub const fn new(options: PoolReplicateOptions) -> Self {
        Self { options }
    }

    /// Where the prompt is to be kept, and what is missing there.
    fn store(&self, query: &PolicyQuery) -> Option<StoreAt> {
        let row = query.rows.iter().chain(query.prefill.iter()).find(|row| row.info.kv.is_some())?;
        let layout = &row.info.kv.as_ref()?.layout;
        let first = query.request.hashes.first()?;
        let home = |pool: &&PoolRow| (pool.hit_pages, rendezvous(first, &pool.info.id));
        let pool = query.pools.iter().max_by_key(home)?;
        let pages = query.request.hashes.len() as u32;
        let missing = pages.saturating_sub(pool.hit_pages);
        let tokens = missing.saturating_mul(layout.page_tokens);
        if tokens < fetching::least(self.options.min_tokens, row) {
            return None;
        }
        let numbers = vec![
            ("store-tokens", f64::from(tokens)),
            ("pool-tokens", f64::from(pool.hit_pages.saturating_mul(layout.page_tokens))),
            ("store-bytes", fetching::bytes_of(layout, missing)),
        ];
        let why = format!("the pool {} is to keep {tokens} tokens of the prompt", pool.info.id);
        Some(StoreAt { pool: pool.info.id.clone(), why, numbers })
    }
}

/// How much a page falls to a pool, in any life of it.
fn rendezvous(page: &PageHash, pool: &WorkerId) -> u64 {
    let key = page.0.chunks_exact(8).fold(0, |key, part| {
        let word = part.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        rng::bits(key, 1, word)
    });
    pool.node.as_str().bytes().fold(key, |key, byte| rng::bits(key, 2, byte.into()))
}

impl ClusterPolicy for PoolReplicate {
    fn name(&self) -> PolicyName {
        Self::NAME.into()
    }

    fn observe(&mut self, _now: Time, _event: &PolicyEvent) {}

    fn opinion(&mut self, _now: Time, query: &PolicyQuery) -> Opinion {
        if query.pools.is_empty() {
            return Opinion::none("no_pool", "no pool is known");
        }
        let request = &query.request;
        let best = query.pools.iter().max_by_key(|pool| (pool.hit_pages, std::cmp::Reverse(&pool.info.id)));
        let best = best.filter(|pool| pool.hit_pages > 0 && transferable(request).is_ok());
        let holder = best.map(Holder::pool);
        let rows = query.rows.iter().chain(query.prefill.iter());
        let fetches = rows
            .filter_map(|row| {
                fetching::fetch(request, row, holder.as_ref()?, fetching::least(self.options.min_tokens, row))
            })
            .collect();
        let (action, why, numbers, store) = match self.store(query) {
            Some(store) => (Self::STORE, store.why.clone(), store.numbers.clone(), Some(Box::new(store))),
            None => ("known", "what is worth keeping of it is at a pool".to_owned(), Vec::new(), None),
        };
        Opinion { fetches, store, numbers, ..Opinion::none(action, why) }
    }

    fn tick(&mut self, _now: Time, _workers: &[WorkerView], _actions: &mut Vec<PolicyAction>) {}

    /// Never broken: it keeps nothing.
    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}
