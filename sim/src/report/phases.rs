//! Figures by phase of the workload.

use std::collections::BTreeMap;

use config::ids::RequestId;
use policies::time::Time;
use serde::Serialize;

use super::{Distribution, Percentiles, Seen};
use crate::node::{Outcome, Record};
use crate::scenario::Phase;

/// What became of the requests of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhaseFigures {
    /// Requests a second that were to come.
    pub rate: f64,
    /// Requests that arrived.
    pub requests: u64,
    /// Requests whose choices all ended.
    pub finished: u64,
    /// From the first arrival to the end of the last request, in seconds.
    pub seconds: f64,
    /// Tokens delivered a second.
    pub output_tokens_per_second: f64,
    /// Share of the prompt tokens that was found in a prefix cache.
    pub prefix_hit_rate: f64,
    /// Time to first token, in milliseconds.
    pub ttft_ms: Percentiles,
    /// Inter-token latency, in milliseconds.
    pub inter_token_ms: Percentiles,
}

/// The figures of each phase; requests are numbered through, from 1.
pub(super) fn figures(phases: &[Phase], records: &BTreeMap<RequestId, Record>) -> Vec<PhaseFigures> {
    let mut records = records.values();
    let of = |phase: &Phase| figures_of(phase, records.by_ref().take(phase.requests as usize));
    phases.iter().map(of).collect()
}

fn figures_of<'a>(phase: &Phase, records: impl Iterator<Item = &'a Record>) -> PhaseFigures {
    let (mut ttft, mut gaps) = (Distribution::default(), Distribution::default());
    let (mut prompt, mut cached, mut tokens) = (0_u64, 0_u64, 0_u64);
    let (mut first, mut last) = (Time::NEVER, Time::ZERO);
    let mut figures = PhaseFigures { rate: phase.rate, ..PhaseFigures::default() };
    for record in records {
        let seen = Seen::of(record, &mut gaps);
        seen.ttft.into_iter().for_each(|span| ttft.add(span));
        tokens += seen.tokens;
        if let Some(hit) = record.cached_tokens {
            prompt += u64::from(record.prompt_tokens);
            cached += u64::from(hit);
        }
        figures.requests += 1;
        first = first.min(record.arrived);
        if let Some((at, outcome)) = &record.end {
            last = last.max(*at);
            figures.finished += u64::from(matches!(outcome, Outcome::Finished));
        }
    }
    figures.seconds = last.since(first).as_secs_f64();
    figures.output_tokens_per_second =
        if figures.seconds > 0.0 { tokens as f64 / figures.seconds } else { 0.0 };
    figures.prefix_hit_rate = cached as f64 / prompt.max(1) as f64;
    (figures.ttft_ms, figures.inter_token_ms) = (ttft.percentiles(), gaps.percentiles());
    figures
}
