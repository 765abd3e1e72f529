//! The latencies of one request, as the gateway sees them.

use policies::time::Time;

use crate::metrics::{E2E, GENERATION_TOKENS, INTER_TOKEN, REQUESTS, TTFT};

/// When things happened.
#[derive(Debug)]
pub(super) struct Timing {
    started: Time,
    first: bool,
    /// The last token of each choice.
    last: Vec<Option<Time>>,
}

impl Timing {
    pub(super) fn new(now: Time, choices: usize) -> Self {
        Self { started: now, first: true, last: vec![None; choices] }
    }

    /// A token came.
    pub(super) fn token(&mut self, now: Time, choice: usize) {
        metrics::counter!(GENERATION_TOKENS).increment(1);
        if std::mem::take(&mut self.first) {
            metrics::histogram!(TTFT).record(now.since(self.started).as_secs_f64());
        }
        if let Some(before) = self.last.get_mut(choice).and_then(|last| last.replace(now)) {
            metrics::histogram!(INTER_TOKEN).record(now.since(before).as_secs_f64());
        }
    }

    /// The request is over.
    pub(super) fn end(&self, now: Time, outcome: &'static str) {
        metrics::counter!(REQUESTS, "outcome" => outcome).increment(1);
        if outcome == "success" {
            metrics::histogram!(E2E).record(now.since(self.started).as_secs_f64());
        }
    }
}
