//! Figures of a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use config::ids::RequestId;
use policies::session::Failure;
use policies::time::{Span, Time};
use serde::Serialize;

use crate::node::{Outcome, Record};
use crate::trace::Trace;

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
}

/// Percentiles by nearest rank; all zero where there are no values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// How many values.
    pub count: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// Nine tenths are at most this.
    pub p90: f64,
    /// All but a hundredth are at most this.
    pub p99: f64,
}

impl Percentiles {
    /// Of spans, in milliseconds.
    #[must_use]
    pub fn of(mut spans: Vec<Span>) -> Self {
        if spans.is_empty() {
            return Self::default();
        }
        spans.sort_unstable();
        let ms = |s: Span| s.0 as f64 / 1e6;
        let rank = |percent: usize| ms(spans[(spans.len() * percent).div_ceil(100).max(1) - 1]);
        let sum: u128 = spans.iter().map(|s| u128::from(s.0)).sum();
        Self {
            count: spans.len() as u64,
            mean: sum as f64 / spans.len() as f64 / 1e6,
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
        }
    }
}

impl Report {
    pub(crate) fn new(
        seed: u64,
        records: &BTreeMap<RequestId, Record>,
        drawn_tokens: u64,
        last: Time,
        trace: Trace,
    ) -> Self {
        let (mut ttft, mut gaps, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        let (mut finished, mut failed) = (0, BTreeMap::new());
        let (mut prompt_tokens, mut cached_tokens, mut output_tokens) = (0, 0, 0);
        for record in records.values() {
            let firsts = record.answers.iter().filter_map(|a| a.first());
            ttft.extend(firsts.map(|(at, _)| at.since(record.arrived)).min());
            for answer in &record.answers {
                output_tokens += answer.len() as u64;
                gaps.extend(answer.windows(2).map(|w| w[1].0.since(w[0].0)));
            }
            if let Some(cached) = record.cached_tokens {
                prompt_tokens += u64::from(record.prompt_tokens);
                cached_tokens += u64::from(cached);
            }
            match &record.end {
                Some((at, Outcome::Finished)) => {
                    finished += 1;
                    whole.push(at.since(record.arrived));
                }
                Some((_, Outcome::Failed(failure))) => *failed.entry(name(failure)).or_default() += 1,
                None => *failed.entry("unanswered").or_default() += 1,
            }
        }
        let seconds = last.since(Time::ZERO).as_secs_f64();
        let a_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        Self {
            seed,
            requests: records.len() as u64,
            finished,
            failed,
            retries: records.values().map(|r| u64::from(r.retries)).sum(),
            preemptions: records.values().map(|r| u64::from(r.preemptions)).sum(),
            prompt_tokens,
            cached_tokens,
            prefix_hit_rate: cached_tokens as f64 / prompt_tokens.max(1) as f64,
            output_tokens,
            drawn_tokens,
            seconds,
            output_tokens_per_second: a_second(output_tokens),
            finished_per_second: a_second(finished),
            ttft_ms: Percentiles::of(ttft),
            inter_token_ms: Percentiles::of(gaps),
            end_to_end_ms: Percentiles::of(whole),
            events: trace.events(),
            trace: format!("{:016x}", trace.hash()),
        }
    }

    /// For people.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{name:<22}{value}");
        };
        line("requests", format!("{} arrived, {} finished", self.requests, self.finished));
        for (why, count) in &self.failed {
            line("", format!("{count} failed: {why}"));
        }
        line("placed again", self.retries.to_string());
        line("preemptions", self.preemptions.to_string());
        line("virtual time", format!("{:.3} s", self.seconds));
        line(
            "throughput",
            format!(
                "{:.1} tokens/s, {:.2} requests/s",
                self.output_tokens_per_second, self.finished_per_second
            ),
        );
        line("tokens", format!("{} delivered, {} drawn", self.output_tokens, self.drawn_tokens));
        line(
            "prefix hits",
            format!(
                "{:.1} % ({} of {} prompt tokens)",
                100.0 * self.prefix_hit_rate,
                self.cached_tokens,
                self.prompt_tokens
            ),
        );
        line("", String::new());
        line("milliseconds", format!("{:>11}{:>11}{:>11}{:>11}", "mean", "p50", "p90", "p99"));
        let rows = [
            ("TTFT", self.ttft_ms),
            ("inter-token latency", self.inter_token_ms),
            ("end to end", self.end_to_end_ms),
        ];
        for (name, p) in rows {
            line(name, format!("{:>11.3}{:>11.3}{:>11.3}{:>11.3}", p.mean, p.p50, p.p90, p.p99));
        }
        line("", String::new());
        line("seed", self.seed.to_string());
        line("events", self.events.to_string());
        line("trace", self.trace.clone());
        out.lines().map(|l| format!("{}\n", l.trim_end())).collect()
    }

    /// For programs: one JSON object, with line breaks.
    ///
    /// # Errors
    /// Never for the figures of a run; the signature is the serializer's.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
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
