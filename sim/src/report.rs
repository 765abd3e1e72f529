//! Figures of a run.

use std::collections::BTreeMap;

use policies::time::Time;
use serde::Serialize;

use crate::node::Workers;
use crate::node::worker::Handoffs;
use crate::trace::Trace;
use crate::watch::Checks;

pub mod distribution;
pub mod handoff;
pub mod moves;
pub mod phases;
pub mod pools;
pub mod probe;
pub mod series;
pub mod tally;

pub(crate) mod json;
pub(crate) mod table;

pub mod page;

pub use distribution::{Distribution, Percentiles};
pub use handoff::{Offloads, RoleFigures, Transfers};
pub use moves::Moves;
pub use phases::PhaseFigures;
pub use pools::{PoolFigures, Pools};
pub use probe::{Glance, Probe};
pub use series::{Series, WorkerSeries};
pub use tally::Tally;

/// What came of a run. Times are virtual.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The scenario's seed.
    pub seed: u64,
    /// Requests that arrived.
    pub requests: u64,
    /// Requests whose choices all ended.
    pub finished: u64,
    /// Requests that failed, by why.
    pub failed: BTreeMap<&'static str, u64>,
    /// Placements after a first one.
    pub retries: u64,
    /// Times that a sequence lost its pages to others.
    pub preemptions: u64,
    /// Prompt tokens of the requests that were answered.
    pub prompt_tokens: u64,
    /// How many of those were found in a prefix cache.
    pub cached_tokens: u64,
    /// `cached_tokens` of `prompt_tokens`.
    pub prefix_hit_rate: f64,
    /// Tokens delivered to clients.
    pub output_tokens: u64,
    /// Tokens that workers drew. The others were for clients that had left, or lost with a worker.
    pub drawn_tokens: u64,
    /// Time from the start to the last event, in seconds.
    pub seconds: f64,
    /// Tokens delivered a second.
    pub output_tokens_per_second: f64,
    /// Requests finished a second.
    pub finished_per_second: f64,
    /// Time to first token, in milliseconds.
    pub ttft_ms: Percentiles,
    /// Inter-token latency, in milliseconds.
    pub inter_token_ms: Percentiles,
    /// From arrival to the last token of finished requests, in milliseconds.
    pub end_to_end_ms: Percentiles,
    /// Events that happened.
    pub events: u64,
    /// Hash of all of them, in hexadecimal: the same scenario gives the same.
    pub trace: String,
    /// Requests that kept to `[slo]`; none where it asks for nothing.
    pub goodput: Option<Goodput>,
    /// Times that a controller or a worker refused a request, by why; each number in it is `N`. A session may have tried
    /// again.
    pub refusals: BTreeMap<String, u64>,
    /// What each worker did, by name.
    pub workers: Vec<WorkerFigures>,
    /// What the workers of each role did together.
    pub roles: Vec<RoleFigures>,
    /// Times that a worker took another role.
    pub role_changes: u64,
    /// KV pages that went from worker to worker.
    pub transfers: Transfers,
    /// Prompts that busy workers had computed by others.
    pub offloads: Offloads,
    /// Requests that changed their workers while they ran.
    pub moves: Moves,
    /// What pools of KV pages did; nothing where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<Pools>,
    /// How often the cores were checked against themselves: `every`, `sampled` or `off`.
    pub checks: &'static str,
    /// What policies and the controller said of placements, and how often.
    pub stages: Vec<StageCount>,
    /// The same by phase of the workload, where it has phases.
    pub phases: Vec<PhaseFigures>,
    /// Latencies by share of the requests.
    pub cdf: Cdf,
    /// Figures over time.
    pub series: Series,
}

/// Requests that kept to the limits of `[slo]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// How many.
    pub requests: u64,
    /// Of all that arrived, in `[0, 1]`.
    pub share: f64,
    /// How many a second.
    pub requests_per_second: f64,
    /// Tokens of those a second.
    pub output_tokens_per_second: f64,
}

/// What a worker did, in all its lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkerFigures {
    /// Its name.
    pub name: String,
    /// What it was last: `unified`, `prefill` or `decode`.
    pub role: &'static str,
    /// Times that it started.
    pub lives: u32,
    /// Steps of its engine.
    pub steps: u64,
    /// Time in them, in seconds.
    pub busy_seconds: f64,
    /// The same as a share of the run's time, in `[0, 1]`.
    pub busy_share: f64,
    /// Time of its steps as a multiple of what `[cost]` says of them, of its last life; none without a recorded speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowed: Option<f64>,
    /// Tokens that it computed in prefill; of a life that ended in a crash, those of its last report.
    pub prefilled_tokens: u64,
    /// Tokens that it drew.
    pub drawn_tokens: u64,
    /// Prompt tokens looked up in its prefix cache.
    pub prefix_queries: u64,
    /// How many of those were found.
    pub prefix_hits: u64,
    /// Times that a sequence lost its pages to others there.
    pub preemptions: u64,
    /// Share of its KV pages that sequences held, at most, in `[0, 1]`.
    pub peak_kv: f64,
    /// Its figures over time; only in a small cluster.
    pub series: Option<WorkerSeries>,
}

/// How often something was said of a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageCount {
    /// By which policy, or by the controller itself: `placement`.
    pub policy: String,
    /// `shadow` or `prod`.
    pub mode: String,
    /// What was done, in one word.
    pub action: String,
    /// Why; each number in it is `N`.
    pub why: String,
    /// How often.
    pub count: u64,
    /// Prompt tokens that were, or would have been, computed less for it than without the policy; all together.
    pub saved_tokens: i64,
}

/// Cumulative distributions: the values up to which the shares lie. A list is empty where there are no values.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cdf {
    /// Shares, in `[0, 1]`.
    pub shares: Vec<f64>,
    /// Time to first token, in milliseconds.
    pub ttft_ms: Vec<f64>,
    /// Inter-token latency, in milliseconds.
    pub inter_token_ms: Vec<f64>,
    /// From arrival to the last token, in milliseconds.
    pub end_to_end_ms: Vec<f64>,
}

impl Cdf {
    fn of(ttft: &Distribution, gaps: &Distribution, whole: &Distribution) -> Self {
        // Each half percent, and more of the last one.
        let grid =
            (0..9_900).step_by(50).chain((9_900..9_990).step_by(10)).chain([9_990, 9_995, 9_999, 10_000]);
        let shares: Vec<u16> = grid.collect();
        let [ttft_ms, inter_token_ms, end_to_end_ms] = [ttft, gaps, whole].map(|d| d.each(&shares));
        let shares = shares.iter().map(|s| f64::from(*s) / 1e4).collect();
        Self { shares, ttft_ms, inter_token_ms, end_to_end_ms }
    }
}

/// What a run leaves to report on.
pub(crate) struct Left<'a> {
    pub(crate) seed: u64,
    pub(crate) tally: &'a Tally,
    pub(crate) drawn_tokens: u64,
    pub(crate) last: Time,
    pub(crate) trace: Trace,
    pub(crate) probe: &'a Probe,
    pub(crate) handoffs: &'a Handoffs,
    pub(crate) checks: Checks,
    pub(crate) workers: &'a Workers,
    pub(crate) pools: Option<Pools>,
}

impl Report {
    pub(crate) fn new(left: Left<'_>) -> Self {
        let workers = left.probe.workers(left.last, left.workers);
        let tally = left.tally;
        let seconds = left.last.since(Time::ZERO).as_secs_f64();
        let a_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let goodput = tally.slo.is_some().then(|| Goodput {
            requests: tally.good,
            share: tally.good as f64 / tally.requests.max(1) as f64,
            requests_per_second: a_second(tally.good),
            output_tokens_per_second: a_second(tally.good_tokens),
        });
        Self {
            seed: left.seed,
            requests: tally.requests,
            finished: tally.finished,
            failed: tally.failed.clone(),
            retries: tally.retries,
            preemptions: tally.preemptions,
            prompt_tokens: tally.prompt_tokens,
            cached_tokens: tally.cached_tokens,
            prefix_hit_rate: tally.cached_tokens as f64 / tally.prompt_tokens.max(1) as f64,
            output_tokens: tally.output_tokens,
            drawn_tokens: left.drawn_tokens,
            seconds,
            output_tokens_per_second: a_second(tally.output_tokens),
            finished_per_second: a_second(tally.finished),
            ttft_ms: tally.ttft.percentiles(),
            inter_token_ms: tally.gaps.percentiles(),
            end_to_end_ms: tally.whole.percentiles(),
            events: left.trace.events(),
            trace: format!("{:016x}", left.trace.hash()),
            goodput,
            refusals: left.probe.refusals.clone(),
            roles: handoff::roles(&workers),
            workers,
            role_changes: left.probe.role_changes,
            transfers: left.handoffs.into(),
            offloads: (&left.handoffs.offloaded).into(),
            moves: tally.moves.figures(),
            pools: left.pools,
            checks: left.checks.as_str(),
            stages: left.probe.stages(),
            phases: tally.phases.iter().map(phases::PhaseTally::figures).collect(),
            cdf: Cdf::of(&tally.ttft, &tally.gaps, &tally.whole),
            series: left.probe.samples.series(),
        }
    }

    /// For people.
    #[must_use]
    pub fn to_table(&self) -> String {
        table::one(self)
    }

    /// For programs: one JSON object, with line breaks.
    ///
    /// # Errors
    /// Never for the figures of a run; the signature is the serializer's.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        json::pretty(self)
    }
}
