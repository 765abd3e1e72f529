//! Penalties for tokens that were there before, and biases.

use policies::request::{Sampling, Token};
use policies::step::History;

/// Scratch memory of the penalties.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// One bit a token of the vocabulary.
    bits: Vec<u64>,
    /// The output's tokens in order of their ids.
    output: Vec<Token>,
}

impl Seen {
    /// Applies penalties and biases to a copy of the logits. Nothing that comes out is NaN or plus infinity.
    pub(super) fn apply(&mut self, logits: &mut [f32], sampling: &Sampling, history: Option<&History>) {
        if let Some(history) = history {
            if sampling.repetition_penalty != 1.0 {
                self.repetition(logits, sampling.repetition_penalty, history);
            }
            if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
                self.output.clear();
                self.output.extend_from_slice(&history.output);
                self.output.sort_unstable();
                for same in self.output.chunk_by(|a, b| a == b) {
                    let penalty = sampling.presence_penalty + sampling.frequency_penalty * same.len() as f32;
                    change(logits, same[0], |logit| logit - penalty);
                }
            }
        }
        for &(token, bias) in &sampling.logit_bias {
            change(logits, token, |logit| logit + bias);
        }
    }

    /// CTRL (arXiv 1909.05858), with the sign fix that everyone applies: a penalty above 1 makes a token less likely
    /// whatever its logit's sign. Once a token, however often it occurs.
    fn repetition(&mut self, logits: &mut [f32], penalty: f32, history: &History) {
        self.bits.clear();
        self.bits.resize(logits.len().div_ceil(64), 0);
        for &token in history.prompt.iter().chain(&history.output) {
            let Some(word) = self.bits.get_mut(token as usize / 64) else { continue };
            let bit = 1 << (token % 64);
            if *word & bit == 0 {
                *word |= bit;
                change(logits, token, |logit| if logit > 0.0 { logit / penalty } else { logit * penalty });
            }
        }
    }
}

/// Changes one logit; tokens outside of the vocabulary are left out.
fn change(logits: &mut [f32], token: Token, by: impl Fn(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        let changed = by(*logit);
        *logit = if changed.is_nan() { f32::NEG_INFINITY } else { changed.min(f32::MAX) };
    }
}
