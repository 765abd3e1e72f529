//! Limits that follow from what workers say of their machines and their model, where none are configured.
//!
//! How many tokens are many depends on how fast a worker computes them: 512 are a second of two CPU cores, and a sixtieth of
//! one of an H200.

use super::{DisaggregateOptions, PREFILL_BUSY_TOKENS};
use crate::policy::CandidateRow;

/// Missing tokens that are worth sending to others at most; llm-d's default.
const MIN_REMOTE: u64 = 512;
/// What a worker computes in so many seconds is worth sending, where that is fewer tokens.
const WORTH_SECONDS: f64 = 0.3;
/// What is worth sending whatever its share, in multiples of what is worth sending at all: as Dynamo's 2048 to llm-d's 512.
const EFFECTIVE: u64 = 4;
/// A prefill worker that has work for longer is the bottleneck.
const BUSY_SECONDS: f64 = 8.0;
/// The pace is that of a prompt of so many tokens.
const SAMPLE: u32 = 2048;

impl DisaggregateOptions {
    /// Fewer missing tokens are computed where they are generated.
    pub(super) fn min_remote(&self, decode: &CandidateRow) -> u64 {
        self.min_remote_tokens.unwrap_or_else(|| match tokens_in(decode, WORTH_SECONDS) {
            Some(tokens) => tokens.clamp(1, MIN_REMOTE),
            None => MIN_REMOTE,
        })
    }

    /// As many missing tokens are worth sending whatever their share of the prompt.
    pub(super) fn effective(&self, decode: &CandidateRow) -> u64 {
        self.effective_tokens.unwrap_or_else(|| self.min_remote(decode).saturating_mul(EFFECTIVE))
    }

    /// Prompt tokens that may wait at a worker that computes prompts.
    pub(super) fn busy(&self, prefill: &CandidateRow) -> u64 {
        let by_pace = || tokens_in(prefill, BUSY_SECONDS).unwrap_or(PREFILL_BUSY_TOKENS);
        self.prefill_busy_tokens.unwrap_or_else(by_pace)
    }

    /// Prompts that one worker computes for others at once; what it takes at once is a limit besides.
    pub(super) fn outstanding(&self) -> u32 {
        self.max_outstanding.unwrap_or(u32::MAX)
    }
}

/// Prompt tokens that a worker computes in so many seconds, by its hardware profile; none where it says nothing of its model.
pub(in crate::policy) fn tokens_in(row: &CandidateRow, seconds: f64) -> Option<u64> {
    let shape = row.info.shape.as_ref()?;
    let took = row.info.hardware.figures.prefill(shape, 0, SAMPLE)?.as_secs_f64();
    // A machine that takes no time has no limit; the cast saturates.
    Some((f64::from(SAMPLE) * seconds / took) as u64)
}
