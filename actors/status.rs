//! `actor-node status`: the nodes of a cluster, as any of them sees it.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use config::{Config, Size, StatusArgs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::membership::{ClusterView, NodeRow, PoolRow};

/// Longest wait for a node's answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Pause between two looks of `--watch`.
const WATCH: Duration = Duration::from_secs(1);
/// More than any view of a cluster.
const MOST_BYTES: u64 = 64 << 20;

/// Shows the cluster once, or again and again.
///
/// # Errors
/// No node answers there, or it answers something else.
pub async fn run(args: &StatusArgs, config: &Config) -> Result<()> {
    let configured = config.http.listen_address(&config.node.roles);
    let at = args.at.as_deref().unwrap_or(configured);
    let at = at.strip_prefix("http://").unwrap_or(at).trim_end_matches('/');
    loop {
        let view = tokio::time::timeout(ANSWER, fetch(at))
            .await
            .with_context(|| format!("{at} did not answer within {ANSWER:?}"))??;
        let text =
            if args.json { format!("{}\n", serde_json::to_string_pretty(&view)?) } else { table(&view) };
        let mut out = std::io::stdout();
        if args.watch && out.is_terminal() && !args.json {
            // Clear the screen, as `watch` does.
            write!(out, "\x1b[2J\x1b[H")?;
        }
        if write!(out, "{text}").and_then(|()| out.flush()).is_err() || !args.watch {
            return Ok(());
        }
        tokio::time::sleep(WATCH).await;
    }
}

/// One GET of our own to a node of ours; a whole HTTP client is not needed for it.
async fn fetch(at: &str) -> Result<ClusterView> {
    let hint = "give the HTTP address that a node printed with --at HOST:PORT";
    let mut stream =
        TcpStream::connect(at).await.with_context(|| format!("no node answers at {at}; {hint}"))?;
    let request = format!("GET /v1/cluster HTTP/1.0\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.context("the node went away")?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await.context("the node went away")?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("{at} does not speak HTTP"))?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        bail!("{at} answered with status {status}: is it an actor-node? {hint}");
    }
    serde_json::from_str(body)
        .with_context(|| format!("{at} answered something else than a view of a cluster"))
}

fn table(view: &ClusterView) -> String {
    let mut text = String::new();
    let leader = view.leader.as_deref().unwrap_or("nobody: gateways place by their own choice");
    let joined = if view.joined { "" } else { ", which has not joined yet" };
    // Writing to a string does not fail.
    let _ = writeln!(text, "seen from {}{joined}; placed by {leader}", view.node);
    let mut rows = vec![
        ["NODE", "ROLES", "STATE", "ADDRESS", "HTTP", "SESSIONS", "RUNNING", "WAITING", "KV", "MODELS"]
            .map(str::to_owned),
    ];
    rows.extend(view.nodes.iter().map(row));
    let mut widths = [0; 10];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(&row) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// How full a pool's tiers are.
fn tiers(pool: &PoolRow) -> String {
    let share = |bytes: u64, of: u64| bytes as f64 * 100.0 / (of as f64).max(1.0);
    let tier = |name, bytes, of| format!("{name} {:.0}% of {}", share(bytes, of), Size::kib(of >> 10));
    let disk = (pool.disk_capacity > 0).then(|| tier("disk", pool.disk_bytes, pool.disk_capacity));
    let ram = tier("RAM", pool.ram_bytes, pool.ram_capacity);
    [Some(ram), disk].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn row(node: &NodeRow) -> [String; 10] {
    let none = || "-".to_owned();
    let state = if node.draining { format!("{},draining", node.state) } else { node.state.clone() };
    let (running, waiting, kv, models) = match &node.worker {
        Some(worker) => {
            let used = f64::from(worker.kv_pages_used) * 100.0 / f64::from(worker.kv_pages_total.max(1));
            let kv = format!("{used:.0}% of {}", worker.kv_pages_total);
            (worker.running.to_string(), worker.waiting.to_string(), kv, worker.models.join(","))
        }
        None => (none(), none(), none(), none()),
    };
    let kv = match &node.pool {
        Some(pool) => {
            let mut parts: Vec<String> = (kv != "-").then_some(kv).into_iter().collect();
            parts.push(format!("pool {} pages, {}", pool.pages, tiers(pool)));
            parts.join("; ")
        }
        None => kv,
    };
    let http = node.http.clone().unwrap_or_else(none);
    let sessions = node.sessions.to_string();
    let (name, roles, address) = (node.name.clone(), node.roles.clone(), node.address.clone());
    [name, roles, state, address, http, sessions, running, waiting, kv, models]
}
