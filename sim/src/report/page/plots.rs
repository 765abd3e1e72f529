//! Which charts there are.

use super::axis::Unit;
use super::chart::Mark;
use super::{Shown, chart, figure};
use crate::SimError;
use crate::report::Series;

/// Samples over which a rate is taken.
const WINDOW: usize = 20;

/// Bars that can still be told apart.
const BARS: usize = 64;

/// How the latencies of the requests are distributed.
pub(super) fn latencies(arms: &[Shown<'_>], out: &mut String) -> Result<(), SimError> {
    out.push_str("<h2>Latencies</h2>\n<div class=\"charts\">\n");
    let kinds = [
        ("Time to first token", "TTFT"),
        ("Inter-token latency", "inter-token latency"),
        ("End to end", "time from arrival to the last token"),
    ];
    for (kind, (title, name)) in kinds.into_iter().enumerate() {
        let line = |(arm, shown): (usize, &Shown<'_>)| {
            let cdf = &shown.report.cdf;
            let values = [&cdf.ttft_ms, &cdf.inter_token_ms, &cdf.end_to_end_ms][kind];
            let points = values.iter().copied().zip(cdf.shares.iter().copied()).collect();
            Mark::Line { arm, faint: false, points }
        };
        let marks: Vec<Mark> = arms.iter().enumerate().map(line).collect();
        let of = if kind == 1 { "share of tokens" } else { "share of requests" };
        let note = "So many have at most this latency.";
        figure(title, note, &chart((name, Unit::Latency), (of, Unit::Share), marks), out)?;
    }
    out.push_str("</div>\n");
    Ok(())
}

/// How the cluster was from time to time.
pub(super) fn over_time(arms: &[Shown<'_>], out: &mut String) -> Result<(), SimError> {
    out.push_str("<h2>Over time</h2>\n<div class=\"charts\">\n");
    let plots: [(&str, &str, (&str, Unit), Lines); 5] = [
        (
            "Queue",
            "Requests that wait at the controller and sequences that wait at workers.",
            ("waiting", Unit::Count),
            |s| vec![zip(s, s.queued.iter().zip(&s.waiting).map(|(a, b)| (a + b) as f64))],
        ),
        (
            "Running",
            "Sequences that workers compute; faint: requests that have arrived and not ended.",
            ("running", Unit::Count),
            |s| vec![zip(s, s.running.iter().map(|n| *n as f64)), zip(s, s.live.iter().map(|n| *n as f64))],
        ),
        (
            "KV use",
            "Share of the KV pages that sequences hold: mean of the workers; faint: the worker with the most.",
            ("pages held", Unit::Share),
            |s| vec![zip(s, s.kv_mean.iter().copied()), zip(s, s.kv_max.iter().copied())],
        ),
        (
            "Prefix hit rate",
            "Share of the prompt tokens looked up lately that were found in a worker's cache.",
            ("tokens found", Unit::Share),
            |s| {
                vec![rates(s, &s.prefix_hits, |from, to| {
                    (s.prefix_queries[to].checked_sub(s.prefix_queries[from]))
                        .filter(|n| *n > 0)
                        .map(|n| n as f64)
                })]
            },
        ),
        ("Tokens drawn", "Over the time before.", ("tokens a second", Unit::Count), |s| {
            vec![rates(s, &s.drawn_tokens, |from, to| Some(s.seconds[to] - s.seconds[from]))]
        }),
    ];
    for (title, note, y, lines) in plots {
        let marks = arms.iter().enumerate().flat_map(|(arm, shown)| {
            let lines = lines(&shown.report.series).into_iter().enumerate();
            lines.map(move |(at, points)| Mark::Line { arm, faint: at > 0, points })
        });
        figure(title, note, &chart(("virtual time", Unit::Time), y, marks.collect()), out)?;
    }
    out.push_str("</div>\n");
    Ok(())
}

type Lines = fn(&Series) -> Vec<Vec<(f64, f64)>>;

fn zip(series: &Series, values: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    series.seconds.iter().copied().zip(values).collect()
}

/// What a counter grew over a window, by what `of` grew.
fn rates(series: &Series, counter: &[u64], of: impl Fn(usize, usize) -> Option<f64>) -> Vec<(f64, f64)> {
    let rate = |to: usize| {
        let from = to.saturating_sub(WINDOW);
        // A worker that is lost takes its counts with it.
        let grown = counter[to].checked_sub(counter[from])? as f64;
        of(from, to).filter(|n| *n > 0.0).map(|n| (series.seconds[to], grown / n))
    };
    (1..counter.len()).filter_map(rate).collect()
}

/// How the load was shared among the workers.
pub(super) fn load(arms: &[Shown<'_>], out: &mut String) -> Result<(), SimError> {
    out.push_str("<h2>Load by worker</h2>\n<div class=\"charts\">\n");
    let most = arms.iter().map(|arm| arm.report.workers.len()).max().unwrap_or(0);
    let bars = most * arms.len() <= BARS;
    /// A title, the axis, what is shown of a worker.
    type Panel = (&'static str, (&'static str, Unit), fn(&crate::report::WorkerFigures) -> f64);
    let of: [Panel; 3] = [
        ("Busy", ("share of the time", Unit::Share), |w| w.busy_share),
        ("Prefill", ("tokens computed", Unit::Count), |w| w.prefilled_tokens as f64),
        ("Prefix hits", ("tokens found", Unit::Share), |w| {
            w.prefix_hits as f64 / w.prefix_queries.max(1) as f64
        }),
    ];
    for (title, y, value) in of {
        let mut marks = Vec::new();
        for (arm, shown) in arms.iter().enumerate() {
            let mut values: Vec<f64> = shown.report.workers.iter().map(value).collect();
            if bars {
                let width = 0.8 / arms.len() as f64;
                let bar = |(at, y): (usize, f64)| {
                    let left = at as f64 - 0.4 + width * arm as f64;
                    Mark::Bar { arm, x: (left, left + 0.92 * width), y }
                };
                marks.extend(values.into_iter().enumerate().map(bar));
            } else {
                values.sort_by(|a, b| b.total_cmp(a));
                let points = values.into_iter().enumerate().map(|(at, y)| (at as f64, y)).collect();
                marks.push(Mark::Line { arm, faint: false, points });
            }
        }
        let x = if bars { "worker" } else { "workers, the one with the most first" };
        figure(title, "", &chart((x, Unit::Worker), y, marks), out)?;
    }
    out.push_str("</div>\n");
    Ok(())
}
