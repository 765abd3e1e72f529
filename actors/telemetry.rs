//! Logs and figures: `tracing` to standard error, `metrics` rendered as Prometheus text.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use config::{LogConfig, LogFormat};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Buckets of request latencies in seconds: the union of what vLLM's and SGLang's dashboards use.
const LATENCY: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 240.0];
/// Buckets of tokens in a step.
const TOKENS: [f64; 12] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0];

/// Starts logging. Fails on a second call and on a filter that does not parse.
pub fn start_logs(log: &LogConfig) -> Result<()> {
    let mut filter = EnvFilter::try_new(&log.level)
        .with_context(|| format!("log.level = {:?} is no level and no filter", log.level))?;
    // Every connection is a page of ractor's own remarks, and every line a chain of its spans. Who names it gets it.
    if !log.level.contains("ractor") && filter.max_level_hint() > Some(LevelFilter::WARN) {
        for quiet in ["ractor=warn", "ractor_cluster=warn"] {
            filter = filter.add_directive(quiet.parse().context("a filter of our own")?);
        }
    }
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|e| anyhow::anyhow!("cannot start logging: {e}"))
}

/// Installs the recorder of figures; the handle renders them.
pub fn start_metrics() -> Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets(&LATENCY)
        .and_then(|b| {
            b.set_buckets_for_metric(Matcher::Full(crate::metrics::STEP_TOKENS.to_owned()), &TOKENS)
        })
        .context("cannot set histogram buckets")?
        .install_recorder()
        .context("cannot install the recorder of figures")?;
    crate::metrics::describe();
    Ok(handle)
}
