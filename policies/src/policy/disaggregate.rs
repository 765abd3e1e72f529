//! `disaggregate`: long prompts are computed where they stall nobody.
//!
//! A prompt is worth sending to a prefill worker where the part that the decode worker does not hold is long:
//!
//! ```text
//! uncached = prompt − hit           tokens that the worker of the request would have to compute itself
//! remote   = uncached ≥ min-remote-tokens
//!            ∧ (uncached ≥ effective-tokens ∨ uncached / prompt ≥ effective-ratio ∨ full)
//!            ∧ a compatible prefill worker has room, and (no more than prefill-busy-tokens waiting ∨ full)
//! full     = running requests hold more than decode-busy-threshold of the KV pages there
//! ```
//!
//! which is Dynamo's conditional disaggregation (`isl_bounding`, `prefill_load` and its veto for busy decode workers) with a
//! floor. What is computed where
//! it generates anyway (short, cached, a busy pool) is no failure. Where a prompt is worth sending and no prefill worker
//! can have it, `fallback` says what happens: a unified worker computes it for a decode worker, the decode worker does
//! it itself, or the request is turned away. A unified worker always can compute its own prompts.
//!
//! Which worker the request goes to is not known when policies are asked, so there is a verdict for each that may get it.
//! Of requests the policy keeps no state, and it is the same in shadow; the predicted times come from what workers say of their machines
//! and their model ([`crate::cost`]).

use std::sync::Arc;

use config::ids::{PolicyName, WorkerId};
use config::{DisaggregateConfig, PrefillFallback, WorkerRole};

use super::{CandidateRow, ClusterPolicy, Opinion, PolicyAction, PolicyEvent, PolicyQuery, Prompt, Verdict};
use crate::invariant::Broken;
use crate::placement::{PlaceRequest, RouteNote, WorkerView};
use crate::time::Time;

mod forecast;
mod limits;
mod rebalance;

pub(super) use limits::tokens_in;
pub use rebalance::RebalanceOptions;

use rebalance::Rebalance;

#[cfg(test)]
mod tests;

/// Prompt tokens that may wait at a prefill worker before it is the bottleneck, where nothing else is configured and nothing is
/// known of its model: eight steps of the default budget of 512 tokens.
pub const PREFILL_BUSY_TOKENS: u64 = 8 * 512;

/// Options of `disaggregate`: those of its table that the controller decides by. The configuration has their defaults. What is
/// none follows from what the workers say of their machines (`disaggregate/limits.rs`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DisaggregateOptions {
    /// A prompt of which fewer tokens are missing is computed where it is generated.
    pub min_remote_tokens: Option<u64>,
    /// As many missing tokens are worth sending whatever their share of the prompt.
    pub effective_tokens: Option<u64>,
    /// As large a share of the prompt is worth sending although it is fewer tokens than that.
    pub effective_ratio: f64,
    /// A prefill worker with more prompt tokens waiting is not sent more.
    pub prefill_busy_tokens: Option<u64>,
    /// A worker of whose pages running requests hold more than this share computes nothing that could be sent.
    pub decode_busy_threshold: f64,
    /// Prompts that one worker computes for others at once.
    pub max_outstanding: Option<u32>,
    /// Where a prompt that is worth sending is computed when no prefill worker can have it.
    pub fallback: PrefillFallback,
    /// When workers change sides; none: never.
    pub rebalance: Option<RebalanceOptions>,
}

impl Default for DisaggregateOptions {
    fn default() -> Self {
        Self::from(&DisaggregateConfig::default())
    }
}

impl From<&DisaggregateConfig> for DisaggregateOptions {
    fn from(disaggregate: &DisaggregateConfig) -> Self {
        Self {
            min_remote_tokens: disaggregate.min_remote_tokens.map(u64::from),
            effective_tokens: disaggregate.effective_tokens.map(u64::from),
            effective_ratio: disaggregate.effective_ratio,
            prefill_busy_tokens: disaggregate.prefill_busy_tokens,
            decode_busy_threshold: disaggregate.decode_busy_threshold,
            max_outstanding: disaggregate.max_outstanding,
            fallback: disaggregate.fallback,
            rebalance: RebalanceOptions::configured(disaggregate),
        }
    }
}

/// Whether a request can be handed from one worker to another after its prompt.
///
/// # Errors
/// It cannot, in these words: log-probabilities of the prompt come from logits that do not travel, and a hand-off has the
/// pages of one sequence, where choices that have produced something are several.
pub fn transferable(request: &PlaceRequest) -> Result<(), &'static str> {
    if request.prompt_logprobs {
        return Err("log-probabilities of the prompt do not travel");
    }
    if request.resumed && request.choices > 1 {
        return Err("several choices that go on after a failure are several sequences");
    }
    Ok(())
}

/// The policy. On requests it keeps no state: what workers are, hold and have to do comes with each question.
#[derive(Clone, Debug, Default)]
pub struct Disaggregate {
    options: DisaggregateOptions,
    rebalance: Rebalance,
}

/// Why a prompt is not worth sending, or nobody is to be sent it.
#[derive(Debug)]
struct Local {
    /// In one word.
    code: &'static str,
    why: String,
}

/// Who could compute prompts for workers of one kind of page.
#[derive(Debug)]
enum Pool<'a> {
    /// These, best first; why it is not a prefill worker, where it is not.
    Of(Vec<&'a CandidateRow>, Option<Local>),
    /// Prefill workers are there, and their queues are long.
    Busy(Local),
    /// Nobody can, for want of a prefill worker.
    Lacking(Local),
}

impl Disaggregate {
    /// Its configured name.
    pub const NAME: &'static str = "disaggregate";
    /// The name of its stages.
    pub const STAGE: &'static str = "pd_disaggregation";

    /// A policy with these options.
    #[must_use]
    pub fn new(options: DisaggregateOptions) -> Self {
        Self { options, rebalance: Rebalance::default() }
    }

    /// Whether the prompt is worth sending where it goes to `row`.
    fn worth(&self, request: &PlaceRequest, row: &CandidateRow) -> Result<(), Local> {
        let o = &self.options;
        let (uncached, prompt) = (row.uncached(request), request.prompt_tokens);
        let missing = format!("{uncached} of {prompt} prompt tokens are not held by {}", row.worker);
        if row.info.role == WorkerRole::Prefill {
            let why = format!("no decode or unified worker serves the model, {} takes all of it", row.worker);
            return Err(Local { code: RouteNote::NO_DECODE_WORKER, why });
        }
        let least = o.min_remote(row);
        if uncached < least {
            let code = if u64::from(prompt) < least { "short" } else { "cached" };
            let why = format!("{missing}, fewer than min-remote-tokens = {least}");
            return Err(Local { code, why });
        }
        let share = uncached as f64 / f64::from(prompt.max(1));
        let enough = o.effective(row);
        if uncached < enough && share < o.effective_ratio && !self.is_full(row) {
            let why = format!(
                "{missing}, fewer than effective-tokens = {enough} and a smaller share than effective-ratio = {}",
                o.effective_ratio
            );
            return Err(Local { code: "ratio", why });
        }
        if let Err(why) = transferable(request) {
            return Err(Local { code: "not_transferable", why: why.to_owned() });
        }
        Ok(())
    }

    /// Who could compute the prompt for `decode`.
    fn pool<'a>(&self, query: &'a PolicyQuery, decode: &CandidateRow) -> Pool<'a> {
        let request = &query.request;
        if query.prefill.is_empty() {
            return self.second_choice(query, decode, none_there(query));
        }
        let matching: Vec<_> = query.prefill.iter().filter(|row| row.info.pairs_with(&decode.info)).collect();
        if matching.is_empty() {
            let first = query.prefill.first().and_then(|row| row.info.mismatch(&decode.info));
            let lacking = Local { code: INCOMPATIBLE, why: first.unwrap_or_default() };
            return self.second_choice(query, decode, lacking);
        }
        let with_room: Vec<_> = matching.iter().copied().filter(|row| self.has_room(row)).collect();
        if with_room.is_empty() {
            let why = format!("all {} prefill workers are full", matching.len());
            return self.second_choice(query, decode, Local { code: RouteNote::FULL, why });
        }
        let full = self.is_full(decode);
        let calm = |row: &&CandidateRow| full || row.prefill_tokens <= self.options.busy(row);
        let mut able: Vec<_> = with_room.iter().copied().filter(calm).collect();
        if able.is_empty() {
            let least = with_room.iter().map(|row| row.prefill_tokens).min().unwrap_or(0);
            let busy = with_room.iter().map(|row| self.options.busy(row)).max().unwrap_or(0);
            let why = format!(
                "{least} or more prompt tokens wait at each prefill worker, over prefill-busy-tokens = {busy}"
            );
            return Pool::Busy(Local { code: "prefill_busy", why });
        }
        able.sort_by_key(|row| order(request, row));
        Pool::Of(able, None)
    }

    /// Who could compute the prompt for `decode` for want of a prefill worker. Only for a decode worker is that another:
    /// a unified one is what the fallback asks for.
    fn second_choice<'a>(&self, query: &'a PolicyQuery, decode: &CandidateRow, lacking: Local) -> Pool<'a> {
        if self.options.fallback != PrefillFallback::Unified || decode.info.role != WorkerRole::Decode {
            return Pool::Lacking(lacking);
        }
        let able = |row: &&CandidateRow| {
            row.info.role == WorkerRole::Unified
                && !query.request.avoid.contains(&row.worker)
                && query.request.context_tokens < row.info.max_context
                && row.info.pairs_with(&decode.info)
                && self.has_room(row)
                && row.prefill_tokens <= self.options.busy(row)
        };
        let mut able: Vec<_> = query.rows.iter().filter(able).collect();
        if able.is_empty() {
            return Pool::Lacking(lacking);
        }
        able.sort_by_key(|row| order(&query.request, row));
        Pool::Of(able, Some(lacking))
    }

    /// Whether the streams of a worker are slow enough as it is.
    fn is_full(&self, row: &CandidateRow) -> bool {
        f64::from(row.pages_used) > self.options.decode_busy_threshold * f64::from(row.pages_total)
    }

    fn has_room(&self, row: &CandidateRow) -> bool {
        row.handoffs < self.options.outstanding() && row.requests < row.max_requests
    }

    /// What it says of a request that goes to `row`, for which `pool` could compute the prompt.
    fn verdict(&self, query: &PolicyQuery, row: &CandidateRow, pool: &Shared<'_>) -> Verdict {
        let request = &query.request;
        let uncached = row.uncached(request);
        let missing = || {
            format!("{uncached} of {} prompt tokens are not held by {}", request.prompt_tokens, row.worker)
        };
        // What is under way is not given up for want of a prefill worker, and a unified worker does not want one.
        let strict = self.options.fallback == PrefillFallback::None
            && row.info.role == WorkerRole::Decode
            && request.attempt.0 == 0;
        let mut numbers = forecast::sizes(request, row);
        let (prompt, word, why, fallback) = match &pool.pool {
            Pool::Of(able, lacking) => {
                if let Some(best) = able.first() {
                    forecast::times(request, best, row, &mut numbers);
                }
                let prompt =
                    Prompt::By { pool: Arc::clone(&pool.workers), limit: self.options.outstanding(), strict };
                match lacking {
                    None => (prompt, REMOTE, missing(), None),
                    Some(Local { code, why }) => {
                        (prompt, REMOTE, format!("{code}: {why}; {}", missing()), Some(*code))
                    }
                }
            }
            Pool::Busy(Local { code, why }) => (Prompt::Here, LOCAL, format!("{code}: {why}"), None),
            Pool::Lacking(Local { code, why }) if strict => {
                let why = format!("{code}: {why}, and fallback = none");
                (Prompt::Nobody, REFUSED, why, Some(*code))
            }
            Pool::Lacking(Local { code, why }) => {
                (Prompt::Here, LOCAL, format!("{code}: {why}"), Some(*code))
            }
        };
        let (action, would) = word;
        Verdict { worker: row.worker.clone(), prompt, action, would, why, numbers, fallback }
    }
}

/// Why no prefill worker can have a prompt whose pages are of no use to the decode worker.
const INCOMPATIBLE: &str = "incompatible";

/// What is done, and the same in shadow.
type Word = (&'static str, &'static str);

const REMOTE: Word = ("remote", "would_disaggregate");
const LOCAL: Word = ("local", "would_local");
const REFUSED: Word = ("refused", "would_refused");

/// A pool and the workers in it as the controller is told of them.
struct Shared<'a> {
    pool: Pool<'a>,
    workers: Arc<[(WorkerId, u64)]>,
}

impl<'a> Shared<'a> {
    fn new(request: &PlaceRequest, pool: Pool<'a>) -> Self {
        let workers = match &pool {
            Pool::Of(able, _) => able.iter().map(|r| (r.worker.clone(), r.uncached(request))).collect(),
            Pool::Busy(_) | Pool::Lacking(_) => Arc::default(),
        };
        Self { pool, workers }
    }
}

impl ClusterPolicy for Disaggregate {
    fn name(&self) -> PolicyName {
        Self::NAME.into()
    }

    fn observe(&mut self, _now: Time, _event: &PolicyEvent) {}

    fn opinion(&mut self, _now: Time, query: &PolicyQuery) -> Opinion {
        let request = &query.request;
        // The pool depends on the kind of page, the role, which are mostly the same for all, and whether the worker is full.
        let mut pools: [Option<(&CandidateRow, Shared<'_>)>; 2] = [None, None];
        let mut verdicts = Vec::with_capacity(query.rows.len());
        for row in query.rows.iter() {
            if let Err(Local { code, why }) = self.worth(request, row) {
                verdicts.push(Verdict {
                    worker: row.worker.clone(),
                    prompt: Prompt::Here,
                    action: LOCAL.0,
                    would: LOCAL.1,
                    why: format!("{code}: {why}"),
                    numbers: forecast::sizes(request, row),
                    fallback: None,
                });
                continue;
            }
            let same = |of: &CandidateRow| of.info.role == row.info.role && of.info.pairs_with(&row.info);
            // What does not match is said of each by name.
            let matched = |pool: &Pool<'_>| !matches!(pool, Pool::Lacking(l) if l.code == INCOMPATIBLE);
            let former = &mut pools[usize::from(self.is_full(row))];
            if !former.as_ref().is_some_and(|(of, shared)| same(of) && matched(&shared.pool)) {
                *former = Some((row, Shared::new(request, self.pool(query, row))));
            }
            if let Some((_, pool)) = former {
                verdicts.push(self.verdict(query, row, pool));
            }
        }
        let remote = verdicts.iter().filter(|v| matches!(v.prompt, Prompt::By { .. })).count();
        Opinion {
            numbers: vec![("prefill-workers", query.prefill_known.into()), ("remote", remote as f64)],
            verdicts,
            ..Opinion::none(LOCAL.0, "the worker was not free when the policy was asked")
        }
    }

    fn tick(&mut self, now: Time, workers: &[WorkerView], actions: &mut Vec<PolicyAction>) {
        if let Some(options) = &self.options.rebalance {
            self.rebalance.tick(now, options, workers, actions);
        }
    }

    /// Never broken: what is remembered is replaced at each tick.
    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}

/// By which those that could compute a prompt are taken: what they would have to compute until it is done, then last use.
fn order(request: &PlaceRequest, row: &CandidateRow) -> (u64, u64) {
    (row.prefill_tokens.saturating_add(row.uncached(request)), row.last_chosen)
}

/// Why no prefill worker could have the request at all.
fn none_there(query: &PolicyQuery) -> Local {
    let request = &query.request;
    match query.prefill_known {
        0 => Local {
            code: RouteNote::NO_PREFILL_WORKER,
            why: format!("no prefill worker serves {}", request.model),
        },
        n if !request.avoid.is_empty() => {
            Local { code: "prefill_failed", why: format!("none of {n} prefill workers is left to be tried") }
        }
        n => {
            let tokens = request.context_tokens;
            Local {
                code: "window",
                why: format!("none of {n} prefill workers has a window for {tokens} tokens"),
            }
        }
    }
}
