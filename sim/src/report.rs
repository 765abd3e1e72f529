//! Figures of a run.

use std::collections::BTreeMap;

use config::ids::{RequestId, WorkerId};
use policies::session::Failure;
use policies::time::{Span, Time};
use serde::Serialize;

use crate::node::worker::Handoffs;
use crate::node::{Outcome, Record, Worker};
use crate::scenario::Slo;
use crate::trace::Trace;
use crate::watch::Checks;

pub mod distribution;
pub mod handoff;
pub mod probe;
pub mod series;

pub(crate) mod json;
pub(crate) mod table;

pub mod page;

pub use distribution::{Distribution, Percentiles};
pub use handoff::{RoleFigures, Transfers};
pub use probe::{Glance, Probe};
pub use series::{Series, WorkerSeries};

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
    /// How often the cores were checked against themselves: `every`, `sampled` or `off`.
    pub checks: &'static str,
    /// What policies and the controller said of placements, and how often.
    pub stages: Vec<StageCount>,
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
    pub(crate) slo: Slo,
    pub(crate) records: &'a BTreeMap<RequestId, Record>,
    pub(crate) drawn_tokens: u64,
    pub(crate) last: Time,
    pub(crate) trace: Trace,
    pub(crate) probe: &'a Probe,
    pub(crate) handoffs: &'a Handoffs,
    pub(crate) checks: Checks,
    pub(crate) workers: &'a BTreeMap<WorkerId, Worker>,
}

impl Report {
    pub(crate) fn new(left: &Left<'_>) -> Self {
        let records = left.records;
        let (mut ttft, mut gaps, mut whole) = <(Distribution, Distribution, Distribution)>::default();
        let (mut finished, mut failed) = (0, BTreeMap::new());
        let (mut prompt_tokens, mut cached_tokens, mut output_tokens) = (0, 0, 0);
        let (mut good, mut good_tokens) = (0, 0);
        for record in records.values() {
            let seen = Seen::of(record, &mut gaps);
            seen.ttft.into_iter().for_each(|span| ttft.add(span));
            output_tokens += seen.tokens;
            if let Some(cached) = record.cached_tokens {
                prompt_tokens += u64::from(record.prompt_tokens);
                cached_tokens += u64::from(cached);
            }
            match &record.end {
                Some((at, Outcome::Finished)) => {
                    finished += 1;
                    whole.add(at.since(record.arrived));
                    if seen.keeps(&left.slo) {
                        good += 1;
                        good_tokens += seen.tokens;
                    }
                }
                Some((_, Outcome::Failed(failure))) => *failed.entry(name(failure)).or_default() += 1,
                None => *failed.entry("unanswered").or_default() += 1,
            }
        }
        let workers = left.probe.workers(left.last, left.workers);
        let seconds = left.last.since(Time::ZERO).as_secs_f64();
        let a_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let goodput = left.slo.is_some().then(|| Goodput {
            requests: good,
            share: good as f64 / records.len().max(1) as f64,
            requests_per_second: a_second(good),
            output_tokens_per_second: a_second(good_tokens),
        });
        Self {
            seed: left.seed,
            requests: records.len() as u64,
            finished,
            failed,
            retries: records.values().map(|r| u64::from(r.retries)).sum(),
            preemptions: records.values().map(|r| u64::from(r.preemptions)).sum(),
            prompt_tokens,
            cached_tokens,
            prefix_hit_rate: cached_tokens as f64 / prompt_tokens.max(1) as f64,
            output_tokens,
            drawn_tokens: left.drawn_tokens,
            seconds,
            output_tokens_per_second: a_second(output_tokens),
            finished_per_second: a_second(finished),
            ttft_ms: ttft.percentiles(),
            inter_token_ms: gaps.percentiles(),
            end_to_end_ms: whole.percentiles(),
            events: left.trace.events(),
            trace: format!("{:016x}", left.trace.hash()),
            goodput,
            refusals: left.probe.refusals.clone(),
            roles: handoff::roles(&workers),
            workers,
            role_changes: left.probe.role_changes,
            transfers: left.handoffs.into(),
            checks: left.checks.as_str(),
            stages: left.probe.stages(),
            cdf: Cdf::of(&ttft, &gaps, &whole),
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

/// What a client saw of its request, summed up.
struct Seen {
    ttft: Option<Span>,
    /// Mean inter-token latency of the slowest choice.
    pace: Option<Span>,
    tokens: u64,
}

impl Seen {
    fn of(record: &Record, gaps: &mut Distribution) -> Self {
        let mut seen = Self { ttft: None, pace: None, tokens: 0 };
        for answer in &record.answers {
            seen.tokens += answer.len() as u64;
            answer.windows(2).for_each(|w| gaps.add(w[1].0.since(w[0].0)));
            let (Some((first, _)), Some((last, _))) = (answer.first(), answer.last()) else { continue };
            let ttft = first.since(record.arrived);
            seen.ttft = Some(seen.ttft.map_or(ttft, |least| least.min(ttft)));
            let pace = last.since(*first).0.checked_div(answer.len() as u64 - 1).map(Span);
            seen.pace = seen.pace.max(pace);
        }
        seen
    }

    fn keeps(&self, slo: &Slo) -> bool {
        let within = |seen: Option<Span>, limit: Option<config::Dur>| {
            limit.is_none_or(|limit| seen.is_none_or(|seen| seen <= Span::from(limit.get())))
        };
        within(self.ttft, slo.ttft) && within(self.pace, slo.inter_token)
    }
}

const fn name(failure: &Failure) -> &'static str {
    match failure {
        Failure::UnknownModel(_) => "unknown-model",
        Failure::Overloaded(_) => "overloaded",
        Failure::Unavailable(_) => "unavailable",
        Failure::Invalid(_) => "invalid",
        Failure::WorkerLost(_) => "worker-lost",
        Failure::Engine(_) => "engine",
        Failure::Hopeless(_) => "hopeless",
        Failure::Deadline => "deadline",
        Failure::Cancelled => "client-left",
    }
}
