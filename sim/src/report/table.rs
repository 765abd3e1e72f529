//! Tables for a terminal: one run, several side by side, several seeds.

use std::fmt::Write as _;

use super::handoff::megabytes;
use super::{Percentiles, Pools, Report};

/// Workers that a table lists one by one.
const WORKERS: usize = 16;

/// Lines of a table, without spaces at their ends.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{}", format!("{name:<22}{value}").trim_end());
    }
}

pub(super) fn one(report: &Report) -> String {
    let mut lines = Lines::default();
    lines.add("requests", &format!("{} arrived, {} finished", report.requests, report.finished));
    for (why, count) in &report.failed {
        lines.add("", &format!("{count} failed: {why}"));
    }
    for (why, count) in &report.refusals {
        lines.add("", &format!("{count} refusals: {why}"));
    }
    lines.add("placed again", &report.retries.to_string());
    lines.add("preemptions", &report.preemptions.to_string());
    lines.add("virtual time", &format!("{:.3} s", report.seconds));
    let (tokens, requests) = (report.output_tokens_per_second, report.finished_per_second);
    lines.add("throughput", &format!("{tokens:.1} tokens/s, {requests:.2} requests/s"));
    if let Some(good) = report.goodput {
        let share = 100.0 * good.share;
        lines.add(
            "goodput",
            &format!("{share:.1} % of the requests, {:.2} requests/s", good.requests_per_second),
        );
    }
    lines.add("tokens", &format!("{} delivered, {} drawn", report.output_tokens, report.drawn_tokens));
    let (rate, hits, all) = (100.0 * report.prefix_hit_rate, report.cached_tokens, report.prompt_tokens);
    lines.add("prefix hits", &format!("{rate:.1} % ({hits} of {all} prompt tokens)"));
    lines.add("hand-offs of pages", &report.transfers.text());
    if report.offloads.count() > 0 {
        lines.add("offloaded prompts", &report.offloads.text());
    }
    if report.moves.count() > 0 {
        lines.add("moves", &report.moves.text());
    }
    if let Some(pools) = &report.pools {
        lines.add("pools", &pools.text());
    }
    lines.add("", "");
    let row = |columns: [String; 6]| columns.iter().map(|c| format!("{c:>11}")).collect::<String>();
    lines.add("milliseconds", &row(["mean", "p50", "p90", "p95", "p99", "max"].map(str::to_owned)));
    for (name, p) in report.latencies() {
        lines.add(name, &row([p.mean, p.p50, p.p90, p.p95, p.p99, p.max].map(|ms| format!("{ms:.3}"))));
    }
    phases(report, &mut lines);
    workers(report, &mut lines);
    pools(report, &mut lines);
    stages(report, &mut lines);
    lines.add("", "");
    lines.add("seed", &report.seed.to_string());
    lines.add("checks", report.checks);
    lines.add("events", &report.events.to_string());
    lines.add("trace", &report.trace);
    lines.0
}

fn phases(report: &Report, lines: &mut Lines) {
    if report.phases.is_empty() {
        return;
    }
    lines.add("", "");
    let row = |columns: [String; 7]| columns.iter().map(|c| format!("{c:>11}")).collect::<String>();
    let names = ["requests", "seconds", "tokens/s", "hits", "TTFT mean", "TTFT p90", "inter-token"];
    lines.add("phase", &row(names.map(str::to_owned)));
    for phase in &report.phases {
        let columns = [
            phase.requests.to_string(),
            format!("{:.1}", phase.seconds),
            format!("{:.1}", phase.output_tokens_per_second),
            format!("{:.1} %", 100.0 * phase.prefix_hit_rate),
            format!("{:.1}", phase.ttft_ms.mean),
            format!("{:.1}", phase.ttft_ms.p90),
            format!("{:.1}", phase.inter_token_ms.mean),
        ];
        lines.add(&format!("{} requests/s", phase.rate), &row(columns));
    }
}

fn workers(report: &Report, lines: &mut Lines) {
    lines.add("", "");
    let row = |columns: [String; 5]| columns.iter().map(|c| format!("{c:>11}")).collect::<String>();
    lines.add("worker", &row(["busy", "prefilled", "drawn", "hits", "peak KV"].map(str::to_owned)));
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    for w in report.workers.iter().take(WORKERS) {
        let hits = w.prefix_hits as f64 / w.prefix_queries.max(1) as f64;
        let (prefilled, drawn) = (w.prefilled_tokens.to_string(), w.drawn_tokens.to_string());
        lines
            .add(&w.name, &row([percent(w.busy_share), prefilled, drawn, percent(hits), percent(w.peak_kv)]));
    }
    if let Some(more) = report.workers.len().checked_sub(WORKERS).filter(|more| *more > 0) {
        lines.add(&format!("and {more} more"), "");
    }
    let busy =
        |fold: fn(f64, f64) -> f64, start| report.workers.iter().map(|w| w.busy_share).fold(start, fold);
    if report.workers.len() > 1 {
        let (least, most) = (busy(f64::min, f64::INFINITY), busy(f64::max, 0.0));
        lines.add("busy", &format!("{} to {}", percent(least), percent(most)));
    }
    let slowed = || report.workers.iter().filter_map(|w| w.slowed);
    if slowed().next().is_some() {
        let (least, most) = (slowed().fold(f64::INFINITY, f64::min), slowed().fold(0.0, f64::max));
        let range =
            if report.workers.len() > 1 { format!("{least:.3} to {most:.3}") } else { format!("{most:.3}") };
        lines.add("recorded speed", &format!("steps took {range} of what is said of them"));
    }
    if report.roles.len() > 1 || report.role_changes > 0 {
        lines.add("", "");
        lines.add("role", &row(["workers", "busy", "prefilled", "drawn", ""].map(str::to_owned)));
        for r in &report.roles {
            let (workers, busy) = (r.workers.to_string(), percent(r.busy_share));
            let shares = [percent(r.prefilled_share), percent(r.drawn_share)];
            let [prefilled, drawn] = shares;
            lines.add(r.role, &row([workers, busy, prefilled, drawn, String::new()]));
        }
        lines.add("changes of role", &report.role_changes.to_string());
    }
}

fn pools(report: &Report, lines: &mut Lines) {
    let Some(pools) = &report.pools else { return };
    lines.add("", "");
    let row = |columns: [String; 7]| columns.iter().map(|c| format!("{c:>11}")).collect::<String>();
    let names = ["fetched", "found", "from RAM", "from disk", "stored", "written", "pauses"];
    lines.add("pool", &row(names.map(str::to_owned)));
    for p in pools.each.iter().take(WORKERS) {
        let found = format!("{:.1} %", 100.0 * p.found as f64 / p.looked_up.max(1) as f64);
        let [fetched, ram, disk, stored, written, pauses] =
            [p.fetched_tokens, p.given_ram, p.given_disk, p.stored, p.written, p.pauses]
                .map(|n| n.to_string());
        lines.add(&p.name, &row([fetched, found, ram, disk, stored, written, pauses]));
    }
    if let Some(more) = pools.each.len().checked_sub(WORKERS).filter(|more| *more > 0) {
        lines.add(&format!("and {more} more"), "");
    }
}

fn stages(report: &Report, lines: &mut Lines) {
    if report.stages.is_empty() {
        return;
    }
    lines.add("", "");
    lines.add("decisions", &format!("{:>11}", "count"));
    for stage in &report.stages {
        let shadow = if stage.mode == "prod" { String::new() } else { format!(" ({})", stage.mode) };
        let why = if stage.why.is_empty() { String::new() } else { format!(": {}", stage.why) };
        lines.add(&stage.policy, &format!("{:>11}  {}{shadow}{why}", stage.count, stage.action));
    }
}

/// How a figure is shown, and whether a ratio to another run's says anything.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Count,
    Fixed(usize),
    Percent,
}

impl Form {
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Count => format!("{value:.0}"),
            Self::Fixed(places) => format!("{value:.places$}"),
            Self::Percent => format!("{:.1} %", 100.0 * value),
        }
    }
}

/// A figure of a run that can stand beside those of others.
pub(crate) struct Figure {
    /// What it is of; the same for the figures of one kind, that stand together.
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) form: Form,
}

/// The figures by which runs are compared. All runs have the same ones in the same order, but for goodput; those of pools
/// only where any of the runs has pools.
pub(crate) fn figures(report: &Report, pools: bool) -> Vec<Figure> {
    let mut all = Vec::new();
    let mut add = |group, name, value, form| all.push(Figure { group, name, value, form });
    add("requests", "arrived", report.requests as f64, Form::Count);
    add("", "finished", report.finished as f64, Form::Count);
    add("", "failed", report.failed.values().sum::<u64>() as f64, Form::Count);
    add("", "refusals", report.refusals.values().sum::<u64>() as f64, Form::Count);
    add("", "placed again", report.retries as f64, Form::Count);
    add("", "preemptions", report.preemptions as f64, Form::Count);
    add("virtual time", "s", report.seconds, Form::Fixed(3));
    add("throughput", "tokens/s", report.output_tokens_per_second, Form::Fixed(1));
    add("", "requests/s", report.finished_per_second, Form::Fixed(2));
    if let Some(good) = report.goodput {
        add("goodput", "requests", good.share, Form::Percent);
        add("", "requests/s", good.requests_per_second, Form::Fixed(2));
        add("", "tokens/s", good.output_tokens_per_second, Form::Fixed(1));
    }
    add("prefix hits", "tokens", report.prefix_hit_rate, Form::Percent);
    for (name, p) in report.latencies() {
        let columns = [
            ("mean", p.mean),
            ("p50", p.p50),
            ("p90", p.p90),
            ("p95", p.p95),
            ("p99", p.p99),
            ("max", p.max),
        ];
        for (at, (column, ms)) in columns.into_iter().enumerate() {
            let group = match (at, name) {
                (0, "TTFT") => "TTFT, ms",
                (0, "inter-token latency") => "inter-token, ms",
                (0, _) => "end to end, ms",
                _ => "",
            };
            add(group, column, ms, Form::Fixed(3));
        }
    }
    let transfers = &report.transfers;
    add("hand-offs", "committed", transfers.committed as f64, Form::Count);
    add("", "other ends", (transfers.count() - transfers.committed) as f64, Form::Count);
    add("", "MB", megabytes(transfers.bytes), Form::Fixed(1));
    let offloads = &report.offloads;
    add("offloaded", "computed", offloads.computed() as f64, Form::Count);
    add("", "other ends", (offloads.count() - offloads.computed()) as f64, Form::Count);
    let moves = &report.moves;
    add("moves", "moved", moves.moved() as f64, Form::Count);
    add("", "other ends", (moves.count() - moves.moved()) as f64, Form::Count);
    add("", "p99 gap, ms", moves.gap_ms.p99, Form::Fixed(3));
    let busy: Vec<f64> = report.workers.iter().map(|w| w.busy_share).collect();
    let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
    add("workers busy", "mean", mean, Form::Percent);
    add("", "most", busy.iter().copied().fold(0.0, f64::max), Form::Percent);
    add("KV use", "peak", report.workers.iter().map(|w| w.peak_kv).fold(0.0, f64::max), Form::Percent);
    if pools {
        let none = Pools::default();
        let p = report.pools.as_ref().unwrap_or(&none);
        add("pools", "tokens fetched", p.fetched_tokens as f64, Form::Count);
        add("", "pages stored", p.stored as f64, Form::Count);
        add("", "pages written", p.written as f64, Form::Count);
        add("", "writing paused", p.pauses as f64, Form::Count);
    }
    all
}

/// Whether any of the runs has pools.
pub(crate) fn have_pools<'a>(mut reports: impl Iterator<Item = &'a Report>) -> bool {
    reports.any(|report| report.pools.is_some())
}

impl Report {
    /// The three latencies with their names.
    pub(crate) const fn latencies(&self) -> [(&'static str, Percentiles); 3] {
        [
            ("TTFT", self.ttft_ms),
            ("inter-token latency", self.inter_token_ms),
            ("end to end", self.end_to_end_ms),
        ]
    }
}

/// `value` as a multiple of `first`; none where that says nothing.
pub(crate) fn ratio(value: f64, first: f64) -> Option<f64> {
    (first > 0.0).then_some(value / first)
}

/// Runs side by side: a column each, and beside all but the first the ratio to it.
pub(crate) fn several(arms: &[(&str, &Report)]) -> String {
    let pools = have_pools(arms.iter().map(|(_, report)| *report));
    let columns: Vec<Vec<Figure>> = arms.iter().map(|(_, report)| figures(report, pools)).collect();
    let Some((first, others)) = columns.split_first() else { return String::new() };
    let wide = |name: &str| name.chars().count().max(12) + 2;
    let mut lines = Lines::default();
    let mut head = format!("{:12}", "");
    for (at, (name, _)) in arms.iter().enumerate() {
        let _ = write!(head, "{name:>0$}{1}", wide(name), if at == 0 { "" } else { "   ratio" });
    }
    lines.add("", &head);
    for (row, figure) in first.iter().enumerate() {
        let mut text = format!("{:<12}", figure.name);
        let _ = write!(text, "{:>1$}", figure.form.show(figure.value), wide(arms[0].0));
        for (other, (name, _)) in others.iter().zip(&arms[1..]) {
            // Goodput is there in all arms or has no row.
            let Some(value) = other.get(row).map(|f| f.value) else { continue };
            let ratio = ratio(value, figure.value).map_or_else(|| "–".to_owned(), |r| format!("{r:.2}×"));
            let _ = write!(text, "{:>1$}{ratio:>8}", figure.form.show(value), wide(name));
        }
        lines.add(figure.group, &text);
    }
    for (name, report) in arms {
        let (trace, seed, checks) = (&report.trace, report.seed, report.checks);
        lines.add("trace", &format!("{trace}  {name}, seed {seed}, checks {checks}"));
    }
    lines.0
}

/// The same arms with several seeds: of each figure the mean, and from where to where it goes.
pub(crate) fn seeds(arms: &[(&str, Vec<Report>)]) -> String {
    let mut lines = Lines::default();
    let pools = have_pools(arms.iter().flat_map(|(_, reports)| reports));
    for (name, reports) in arms {
        let all: Vec<Vec<Figure>> = reports.iter().map(|report| figures(report, pools)).collect();
        let Some(first) = all.first() else { continue };
        lines.add(name, &format!("{:12}{:>14}{:>14}{:>14}", "", "mean", "least", "most"));
        for (row, figure) in first.iter().enumerate() {
            let values: Vec<f64> = all.iter().filter_map(|f| f.get(row)).map(|f| f.value).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(0.0, f64::max);
            let [mean, least, most] = [mean, least, most].map(|v| figure.form.show(v));
            lines.add(figure.group, &format!("{:<12}{mean:>14}{least:>14}{most:>14}", figure.name));
        }
        lines.add("", "");
        lines.add("seeds", &format!("{}, no invariant broken", reports.len()));
    }
    lines.0
}
