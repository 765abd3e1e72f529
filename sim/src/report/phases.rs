//! Figures by phase of the workload.

use policies::time::{Span, Time};
use serde::Serialize;

use super::tally::{Outcome, Seen};
use super::{Distribution, Percentiles};
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

/// What clients saw of the requests of one phase, summed up as it happens.
#[derive(Debug)]
pub struct PhaseTally {
    /// Of it and of the phases before: requests are numbered through, from 1.
    until: u64,
    figures: PhaseFigures,
    prompt_tokens: u64,
    cached_tokens: u64,
    tokens: u64,
    first: Time,
    last: Time,
    ttft: Distribution,
    gaps: Distribution,
}

impl PhaseTally {
    pub(super) fn each(phases: &[Phase]) -> Vec<Self> {
        let mut until = 0;
        let each = |phase: &Phase| {
            until += phase.requests;
            Self {
                until,
                figures: PhaseFigures { rate: phase.rate, ..PhaseFigures::default() },
                prompt_tokens: 0,
                cached_tokens: 0,
                tokens: 0,
                first: Time::NEVER,
                last: Time::ZERO,
                ttft: Distribution::default(),
                gaps: Distribution::default(),
            }
        };
        phases.iter().map(each).collect()
    }

    /// The phase of a request.
    pub(super) fn of(phases: &mut [Self], number: u64) -> Option<&mut Self> {
        phases.iter_mut().find(|phase| number <= phase.until)
    }

    /// An inter-token latency.
    pub(super) fn gap(&mut self, gap: Span) {
        self.gaps.add(gap);
    }

    /// A request is over.
    pub(super) fn ended(&mut self, seen: &Seen, end: Option<(Time, &Outcome)>) {
        seen.ttft().into_iter().for_each(|span| self.ttft.add(span));
        self.tokens += seen.tokens();
        if let Some(hit) = seen.cached_tokens {
            self.prompt_tokens += u64::from(seen.prompt_tokens);
            self.cached_tokens += u64::from(hit);
        }
        self.figures.requests += 1;
        self.first = self.first.min(seen.arrived);
        if let Some((at, outcome)) = end {
            self.last = self.last.max(at);
            self.figures.finished += u64::from(matches!(outcome, Outcome::Finished));
        }
    }

    pub(super) fn figures(&self) -> PhaseFigures {
        let seconds = self.last.since(self.first).as_secs_f64();
        PhaseFigures {
            seconds,
            output_tokens_per_second: if seconds > 0.0 { self.tokens as f64 / seconds } else { 0.0 },
            prefix_hit_rate: self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64,
            ttft_ms: self.ttft.percentiles(),
            inter_token_ms: self.gaps.percentiles(),
            ..self.figures
        }
    }
}
