//! Samples of a run: as many for a minute as for a day.

use std::collections::BTreeMap;

use config::ids::NodeId;
use policies::batch::BatchLoad;
use policies::time::{Span, Time};
use serde::Serialize;

/// Samples that are kept at most.
pub const SAMPLES: usize = 600;

/// In a cluster of up to so many workers each has its own series.
pub const WORKERS: usize = 16;

/// Figures over time, a column each; all are as long as `seconds`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// When, in virtual seconds since the start.
    pub seconds: Vec<f64>,
    /// Requests that have arrived and not ended.
    pub live: Vec<u64>,
    /// Requests that wait at the controller.
    pub queued: Vec<u64>,
    /// Sequences that wait at workers.
    pub waiting: Vec<u64>,
    /// Sequences that are being computed.
    pub running: Vec<u64>,
    /// Share of the KV pages that sequences hold: the mean of all workers, in `[0, 1]`.
    pub kv_mean: Vec<f64>,
    /// The same of the worker with the most.
    pub kv_max: Vec<f64>,
    /// Prompt tokens that living workers have looked up in their prefix caches since they started.
    pub prefix_queries: Vec<u64>,
    /// How many of those they found.
    pub prefix_hits: Vec<u64>,
    /// Tokens drawn since the start.
    pub drawn_tokens: Vec<u64>,
}

/// Figures of one worker over time, at [`Series::seconds`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkerSeries {
    /// Sequences that wait there.
    pub waiting: Vec<u32>,
    /// Sequences that it computes.
    pub running: Vec<u32>,
    /// Share of its KV pages that sequences hold.
    pub kv: Vec<f64>,
}

/// A worker at a point in time; all zero where it is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Glimpse {
    waiting: u32,
    running: u32,
    pub(super) kv: f64,
    queries: u64,
    hits: u64,
}

impl Glimpse {
    pub(super) fn of(load: &BatchLoad) -> Self {
        Self {
            waiting: load.waiting,
            running: load.running,
            kv: f64::from(load.pages_used) / f64::from(load.pages_total.max(1)),
            queries: load.prefix_queries,
            hits: load.prefix_hits,
        }
    }
}

/// One sample.
#[derive(Clone, Debug)]
pub(super) struct Row {
    at: Time,
    live: u64,
    queued: u64,
    drawn: u64,
    sum: Glimpse,
    kv_max: f64,
    /// Of a small cluster.
    each: BTreeMap<NodeId, Glimpse>,
}

impl Row {
    pub(super) fn new(at: Time, live: u64, queued: u32, drawn: u64, each: Vec<(&NodeId, Glimpse)>) -> Self {
        let mut sum = Glimpse::default();
        let mut kv_max = 0.0_f64;
        for (_, g) in &each {
            sum.waiting += g.waiting;
            sum.running += g.running;
            sum.kv += g.kv;
            sum.queries += g.queries;
            sum.hits += g.hits;
            kv_max = kv_max.max(g.kv);
        }
        sum.kv /= each.len().max(1) as f64;
        let named = |(node, g): (&NodeId, Glimpse)| (node.clone(), g);
        let each = if each.len() > WORKERS { BTreeMap::new() } else { each.into_iter().map(named).collect() };
        Self { at, live, queued: queued.into(), drawn, sum, kv_max, each }
    }
}

/// The samples of a run whose length is not known before: when there are too many, every second one is dropped, and from
/// then on they are taken half as often.
#[derive(Debug)]
pub(super) struct Samples {
    every: Span,
    next: Time,
    rows: Vec<Row>,
}

impl Default for Samples {
    fn default() -> Self {
        Self { every: Span::from_millis(1), next: Time::ZERO, rows: Vec::new() }
    }
}

impl Samples {
    /// The time of the next sample, if it is not after `now`.
    pub(super) fn due(&self, now: Time) -> Option<Time> {
        (self.next <= now).then_some(self.next)
    }

    pub(super) fn push(&mut self, row: Row) {
        self.next = row.at + self.every;
        self.rows.push(row);
        if self.rows.len() >= SAMPLES {
            let mut keep = false;
            self.rows.retain(|_| {
                keep = !keep;
                keep
            });
            self.every = Span(self.every.0.saturating_mul(2));
            self.next = self.rows.last().map_or(self.next, |last| last.at + self.every);
        }
    }

    pub(super) fn series(&self) -> Series {
        let mut series = Series::default();
        for row in &self.rows {
            series.seconds.push(row.at.since(Time::ZERO).as_secs_f64());
            series.live.push(row.live);
            series.queued.push(row.queued);
            series.waiting.push(row.sum.waiting.into());
            series.running.push(row.sum.running.into());
            series.kv_mean.push(round(row.sum.kv));
            series.kv_max.push(round(row.kv_max));
            series.prefix_queries.push(row.sum.queries);
            series.prefix_hits.push(row.sum.hits);
            series.drawn_tokens.push(row.drawn);
        }
        series
    }

    /// The series of one worker; none in a large cluster.
    pub(super) fn of(&self, node: &NodeId) -> Option<WorkerSeries> {
        let mut series = WorkerSeries::default();
        for row in &self.rows {
            let g = row.each.get(node).copied().unwrap_or_default();
            series.waiting.push(g.waiting);
            series.running.push(g.running);
            series.kv.push(round(g.kv));
        }
        self.rows.iter().any(|row| row.each.contains_key(node)).then_some(series)
    }
}

/// To four places: it is for a plot.
fn round(share: f64) -> f64 {
    (share * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(until: Time, step: Span) -> Samples {
        let mut samples = Samples::default();
        let mut now = Time::ZERO;
        while now <= until {
            while let Some(at) = samples.due(now) {
                samples.push(Row::new(at, 0, 0, at.0, Vec::new()));
            }
            now = now + step;
        }
        samples
    }

    #[test]
    fn samples_are_bounded_and_evenly_spaced_however_long_the_run_is() {
        for (seconds, step) in
            [(1, 1_000_000), (100, 7_000_000), (86_400, 9_000_000_000), (86_400, 43_200_000_000_000)]
        {
            let end = Time::ZERO + Span::from_secs(seconds);
            let series = run(end, Span(step)).series();
            let times = &series.seconds;
            assert!((SAMPLES / 2 - 1..SAMPLES).contains(&times.len()), "{seconds} s: {}", times.len());
            assert_eq!(times[0], 0.0);
            let gap = times[1] - times[0];
            assert!(times.windows(2).all(|w| (w[1] - w[0] - gap).abs() < 1e-6), "{seconds} s");
            assert!(times[times.len() - 1] + 2.0 * gap > seconds as f64, "{seconds} s: ends at {times:?}");
        }
    }

    #[test]
    fn large_clusters_have_no_series_a_worker() {
        let workers = |n: usize| {
            let names: Vec<NodeId> = (0..n).map(|i| format!("w{i}").into()).collect();
            let each = names.iter().map(|name| (name, Glimpse { kv: 0.5, ..Glimpse::default() }));
            let mut samples = Samples::default();
            samples.push(Row::new(Time::ZERO, 0, 0, 0, each.collect()));
            samples
        };
        assert_eq!(workers(WORKERS).of(&"w3".into()).map(|s| s.kv), Some(vec![0.5]));
        assert_eq!(workers(WORKERS + 1).of(&"w3".into()), None);
        assert_eq!(workers(WORKERS + 1).series().kv_mean, [0.5]);
    }
}
