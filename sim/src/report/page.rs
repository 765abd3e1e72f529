//! One page with charts and tables, complete in itself: it loads nothing.

use std::fmt::Write as _;

use toml::{Table, Value};

use self::axis::{Axis, Unit};
use self::chart::{COLOURS, Chart, Mark};
use super::table::{figures, have_pools, ratio};
use crate::{Report, Scenario, SimError};

mod axis;
mod chart;
mod plots;

const STYLE: &str = include_str!("page/style.css");

/// Workers that the page lists one by one.
const WORKERS: usize = 64;

/// A run to be shown.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Its name.
    pub name: &'a str,
    /// What was simulated.
    pub scenario: &'a Scenario,
    /// What came of it.
    pub report: &'a Report,
}

/// The page.
///
/// # Errors
/// A scenario that cannot be written as TOML, a chart that cannot be drawn.
pub fn html(arms: &[Shown<'_>]) -> Result<String, SimError> {
    let title: Vec<String> = arms.iter().map(|arm| escape(arm.name)).collect();
    let title = format!("Simulation: {}", title.join(" · "));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n"
    );
    for arm in arms {
        let r = arm.report;
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "<p>{}: {} requests, {:.1} s of virtual time, {} events, seed {}, checks {}, trace <code>{}</code></p>",
            escape(arm.name),
            r.requests,
            r.seconds,
            r.events,
            r.seed,
            r.checks,
            r.trace
        );
    }
    out.push_str("<div class=\"legend\">");
    for (at, arm) in arms.iter().enumerate() {
        let _ = write!(out, "<span>{}{}</span>", swatch(at), escape(arm.name));
    }
    out.push_str("</div>\n");
    summary(arms, &mut out);
    plots::latencies(arms, &mut out)?;
    plots::over_time(arms, &mut out)?;
    plots::load(arms, &mut out)?;
    workers(arms, &mut out);
    handoffs(arms, &mut out);
    pools(arms, &mut out);
    stages(arms, &mut out);
    refusals(arms, &mut out);
    scenarios(arms, &mut out)?;
    out.push_str("</body>\n</html>\n");
    Ok(out)
}

/// A header row with a column for each arm.
fn head(first: &[&str], arms: &[Shown<'_>], span: usize, out: &mut String) {
    out.push_str("<div class=\"wide\"><table>\n<tr>");
    for name in first {
        let _ = write!(out, "<th class=\"text\">{name}</th>");
    }
    for (at, arm) in arms.iter().enumerate() {
        let span = if at == 0 || span == 1 { String::new() } else { format!(" colspan=\"{span}\"") };
        let _ = write!(out, "<th{span}>{}{}</th>", swatch(at), escape(arm.name));
    }
    out.push_str("</tr>\n");
}

fn summary(arms: &[Shown<'_>], out: &mut String) {
    out.push_str("<h2>Summary</h2>\n");
    if arms.len() > 1 {
        out.push_str("<p>Ratios are to the first arm.</p>\n");
    }
    head(&["", ""], arms, 2, out);
    let pools = have_pools(arms.iter().map(|arm| arm.report));
    let columns: Vec<_> = arms.iter().map(|arm| figures(arm.report, pools)).collect();
    let rows = columns.first().map_or(0, Vec::len);
    for row in 0..rows {
        let first = &columns[0][row];
        let class = if first.group.is_empty() { "" } else { " class=\"first\"" };
        let _ = write!(out, "<tr{class}><td>{}</td><td class=\"text\">{}</td>", first.group, first.name);
        for (at, column) in columns.iter().enumerate() {
            // Arms that ask for no goodput have fewer rows: the name tells what stands where.
            let figure = column.get(row).filter(|f| (f.group, f.name) == (first.group, first.name));
            let shown = figure.map_or_else(|| "–".to_owned(), |f| f.form.show(f.value));
            let _ = write!(out, "<td>{shown}</td>");
            if at > 0 {
                let ratio = figure.and_then(|f| ratio(f.value, first.value));
                let _ = write!(
                    out,
                    "<td class=\"ratio\">{}</td>",
                    ratio.map_or_else(String::new, |r| format!("{r:.2}×"))
                );
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn workers(arms: &[Shown<'_>], out: &mut String) {
    out.push_str("<h2>Workers</h2>\n<div class=\"wide\"><table>\n<tr><th>arm</th>");
    for name in [
        "worker",
        "role",
        "busy",
        "",
        "steps",
        "tokens prefilled",
        "tokens drawn",
        "prefix hits",
        "peak KV use",
        "preemptions",
        "starts",
    ] {
        let _ = write!(out, "<th>{name}</th>");
    }
    out.push_str("</tr>\n");
    for (at, arm) in arms.iter().enumerate() {
        for (row, w) in arm.report.workers.iter().take(WORKERS).enumerate() {
            let class = if row == 0 { " class=\"first\"" } else { "" };
            let _ = writeln!(
                out,
                "<tr{class}><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                swatch(at),
                escape(arm.name),
                escape(&w.name),
                w.role,
                percent(w.busy_share),
                bar(at, w.busy_share),
                w.steps,
                w.prefilled_tokens,
                w.drawn_tokens,
                percent(w.prefix_hits as f64 / w.prefix_queries.max(1) as f64),
                percent(w.peak_kv),
                w.preemptions,
                w.lives,
            );
        }
        if let Some(more) = arm.report.workers.len().checked_sub(WORKERS).filter(|more| *more > 0) {
            let _ =
                writeln!(out, "<tr><td>{}{}</td><td>and {more} more</td></tr>", swatch(at), escape(arm.name));
        }
    }
    out.push_str("</table></div>\n");
}

fn handoffs(arms: &[Shown<'_>], out: &mut String) {
    out.push_str("<h2>Roles and hand-offs</h2>\n<div class=\"wide\"><table>\n<tr><th>arm</th>");
    for name in ["role", "workers", "busy", "of the tokens prefilled", "of the tokens drawn"] {
        let _ = write!(out, "<th>{name}</th>");
    }
    out.push_str("</tr>\n");
    for (at, arm) in arms.iter().enumerate() {
        for (row, r) in arm.report.roles.iter().enumerate() {
            let class = if row == 0 { " class=\"first\"" } else { "" };
            let _ = writeln!(
                out,
                "<tr{class}><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                swatch(at),
                escape(arm.name),
                r.role,
                r.workers,
                percent(r.busy_share),
                percent(r.prefilled_share),
                percent(r.drawn_share),
            );
        }
    }
    out.push_str("</table></div>\n");
    for arm in arms {
        let r = arm.report;
        let _ = writeln!(
            out,
            "<p>{}: pages handed off between workers: {}. Offloaded prompts: {}. Moves: {}. Changes of role: {}.</p>",
            escape(arm.name),
            escape(&r.transfers.text()),
            escape(&r.offloads.text()),
            escape(&r.moves.text()),
            r.role_changes
        );
    }
}

fn pools(arms: &[Shown<'_>], out: &mut String) {
    if !have_pools(arms.iter().map(|arm| arm.report)) {
        return;
    }
    out.push_str("<h2>Pools</h2>\n<div class=\"wide\"><table>\n<tr><th>arm</th>");
    for name in [
        "pool",
        "tokens fetched",
        "pages found",
        "given from RAM",
        "given from disk",
        "stored",
        "written",
        "dropped",
        "writes that found the disk full",
        "pauses",
        "starts",
    ] {
        let _ = write!(out, "<th>{name}</th>");
    }
    out.push_str("</tr>\n");
    for (at, arm) in arms.iter().enumerate() {
        let each = arm.report.pools.iter().flat_map(|pools| &pools.each);
        for (row, p) in each.take(WORKERS).enumerate() {
            let class = if row == 0 { " class=\"first\"" } else { "" };
            let _ = write!(
                out,
                "<tr{class}><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td>",
                swatch(at),
                escape(arm.name),
                escape(&p.name),
                p.fetched_tokens,
                percent(p.found as f64 / p.looked_up.max(1) as f64),
            );
            let counts = [p.given_ram, p.given_disk, p.stored, p.written, p.dropped, p.no_space, p.pauses];
            for count in counts {
                let _ = write!(out, "<td>{count}</td>");
            }
            let _ = writeln!(out, "<td>{}</td></tr>", p.lives);
        }
    }
    out.push_str("</table></div>\n");
}

fn stages(arms: &[Shown<'_>], out: &mut String) {
    out.push_str("<h2>Stage decisions</h2>\n<p>What policies and the controller said of placements, and how often; N stands for any number.</p>\n");
    head(&["policy", "mode", "action", "why"], arms, 2, out);
    let key = |s: &super::StageCount| (s.policy.clone(), s.mode.clone(), s.action.clone(), s.why.clone());
    let mut keys: Vec<_> = Vec::new();
    for stage in arms.iter().flat_map(|arm| &arm.report.stages) {
        if !keys.contains(&key(stage)) {
            keys.push(key(stage));
        }
    }
    let most = arms.iter().flat_map(|arm| &arm.report.stages).map(|s| s.count).max().unwrap_or(1);
    for wanted in &keys {
        let (policy, mode, action, why) = wanted;
        out.push_str("<tr>");
        for text in [policy, mode, action, why] {
            let _ = write!(out, "<td class=\"text\">{}</td>", escape(text));
        }
        for (at, arm) in arms.iter().enumerate() {
            let count = arm.report.stages.iter().find(|s| key(s) == *wanted).map_or(0, |s| s.count);
            let span = if at == 0 { "" } else { " colspan=\"2\"" };
            let _ = write!(out, "<td{span}>{count}{}</td>", bar(at, count as f64 / most as f64));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn refusals(arms: &[Shown<'_>], out: &mut String) {
    let all = |arm: &Shown<'_>| {
        let failed = arm.report.failed.iter().map(|(why, n)| (format!("failed: {why}"), *n));
        let refused = arm.report.refusals.iter().map(|(why, n)| (format!("refused: {why}"), *n));
        failed.chain(refused).collect::<std::collections::BTreeMap<String, u64>>()
    };
    let counts: Vec<_> = arms.iter().map(all).collect();
    let reasons: std::collections::BTreeSet<&String> = counts.iter().flat_map(|c| c.keys()).collect();
    out.push_str("<h2>Failures and refusals</h2>\n");
    if reasons.is_empty() {
        out.push_str("<p>None.</p>\n");
        return;
    }
    out.push_str("<p>A refused request may have been placed again.</p>\n");
    head(&["why"], arms, 1, out);
    for why in reasons {
        let _ = write!(out, "<tr><td class=\"text\">{}</td>", escape(why));
        for count in &counts {
            let _ = write!(out, "<td>{}</td>", count.get(why).copied().unwrap_or(0));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn scenarios(arms: &[Shown<'_>], out: &mut String) -> Result<(), SimError> {
    out.push_str("<h2>Scenarios</h2>\n");
    let tables = arms.iter().map(|arm| Table::try_from(arm.scenario)).collect::<Result<Vec<Table>, _>>();
    let tables = tables.map_err(|e| SimError::Chart(e.to_string()))?;
    let mut leaves: Vec<std::collections::BTreeMap<String, String>> = Vec::new();
    for table in &tables {
        let mut all = std::collections::BTreeMap::new();
        flatten("", table, &mut all);
        leaves.push(all);
    }
    let keys: std::collections::BTreeSet<&String> = leaves.iter().flat_map(|l| l.keys()).collect();
    let differ: Vec<&String> =
        keys.into_iter().filter(|key| leaves.iter().any(|l| l.get(*key) != leaves[0].get(*key))).collect();
    if !differ.is_empty() {
        out.push_str("<p>What differs:</p>\n");
        head(&["key"], arms, 1, out);
        for key in differ {
            let _ = write!(out, "<tr><td class=\"text\">{}</td>", escape(key));
            for l in &leaves {
                let _ = write!(out, "<td>{}</td>", l.get(key).map_or_else(|| "–".to_owned(), |v| escape(v)));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</table></div>\n");
    }
    for (arm, table) in arms.iter().zip(&tables) {
        let text = toml::to_string(table).map_err(|e| SimError::Chart(e.to_string()))?;
        let _ = writeln!(
            out,
            "<details><summary>{}, in full</summary><pre>{}</pre></details>",
            escape(arm.name),
            escape(&text)
        );
    }
    Ok(())
}

/// The values of a tree by their whole keys; a list is one value.
fn flatten(prefix: &str, table: &Table, out: &mut std::collections::BTreeMap<String, String>) {
    for (key, value) in table {
        let whole = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(table) => flatten(&whole, table, out),
            value => _ = out.insert(whole, value.to_string()),
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn colour(arm: usize) -> String {
    let (r, g, b) = COLOURS[arm % COLOURS.len()];
    format!("rgb({r} {g} {b})")
}

fn swatch(arm: usize) -> String {
    format!("<i class=\"swatch\" style=\"background:{}\"></i>", colour(arm))
}

/// A bar of a share of the whole width.
fn bar(arm: usize, share: f64) -> String {
    let width = 6.0 * share.clamp(0.0, 1.0);
    format!(
        "<span class=\"track\"><i class=\"bar\" style=\"width:{width:.2}rem;background:{}\"></i></span>",
        colour(arm)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A chart with its heading and what is to be said of it.
fn figure(title: &str, note: &str, chart: &Chart, out: &mut String) -> Result<(), SimError> {
    let _ = write!(out, "<figure><h3>{title}</h3>\n{}", chart.svg()?);
    if !note.is_empty() {
        let _ = write!(out, "<figcaption>{note}</figcaption>");
    }
    out.push_str("</figure>\n");
    Ok(())
}

/// A chart with room for all marks.
fn chart(x: (&str, Unit), y: (&str, Unit), marks: Vec<Mark>) -> Chart {
    let points: Vec<(f64, f64)> = marks.iter().flat_map(Mark::points).collect();
    let x = Axis::new(x.0, x.1, points.iter().map(|p| p.0));
    let y = Axis::new(y.0, y.1, points.iter().map(|p| p.1));
    Chart { x, y, marks }
}

#[cfg(test)]
mod tests;
