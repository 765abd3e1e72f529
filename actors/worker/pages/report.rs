//! What a transfer cost, for log and metrics.

use policies::kv::handoff::{Outcome, TransferReport};
use policies::time::Span;
use tracing::{debug, warn};

use crate::metrics as m;

/// Which end reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Receiver,
    Sender,
}

impl End {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Receiver => "receiver",
            Self::Sender => "sender",
        }
    }
}

/// Counts and tells how a transfer ended; `prompt`: another worker was to compute one for it.
pub(super) fn report(end: End, request: &str, peer: &str, prompt: bool, report: &TransferReport) {
    let (outcome, end_name) = (report.outcome.as_str(), end.as_str());
    metrics::counter!(m::KV_TRANSFERS, "end" => end_name, "outcome" => outcome).increment(1);
    metrics::counter!(m::KV_TRANSFER_BYTES, "end" => end_name).increment(report.bytes);
    metrics::counter!(m::KV_IGNORED).increment(u64::from(report.ignored));
    let since = |from: Option<policies::time::Time>, to: Option<policies::time::Time>| -> Option<Span> {
        Some(to?.since(from?))
    };
    let prefill = since(Some(report.asked_at), report.last_at);
    let moving = since(report.first_page_at, report.committed_at.or(report.last_at));
    if prompt && matches!(end, End::Receiver) && report.outcome == Outcome::Committed {
        if let Some(took) = prefill {
            metrics::histogram!(m::PD_PREFILL).record(took.as_secs_f64());
        }
        if let Some(took) = moving {
            metrics::histogram!(m::PD_TRANSFER).record(took.as_secs_f64());
        }
        // What is left to do when the last message is here: what the hand-off adds to the time to first token.
        if let Some(took) = since(report.last_at, report.committed_at) {
            metrics::histogram!(m::PD_COMMIT).record(took.as_secs_f64());
        }
    }
    let show = |span: Option<Span>| span.map(|span| span.to_string()).unwrap_or_default();
    let (pages, bytes, prefill, moving) = (report.pages, report.bytes, show(prefill), show(moving));
    match report.outcome {
        Outcome::Failed(_) => {
            warn!(request, end = end_name, peer, outcome, pages, bytes, "a hand-off of KV pages failed");
        }
        Outcome::Committed | Outcome::Cancelled => {
            debug!(
                request,
                end = end_name,
                peer,
                outcome,
                pages,
                bytes,
                prefill,
                moving,
                "KV pages handed off"
            );
        }
    }
}
