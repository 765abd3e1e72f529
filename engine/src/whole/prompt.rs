//! Log-probabilities of a prompt's own tokens.

use candle_core::{DType, Tensor};
use policies::request::{Logprobs, RequestSpec};

use super::queue::Pass;
use crate::sample::Sampler;

/// mistral.rs keeps the logits of all positions at once; this many bytes of them at most (5461 tokens of a vocabulary of
/// 49152).
const MAX_BYTES: usize = 1 << 30;

/// Whether a pass asks for all logits rather than for tokens.
pub(super) fn wanted(pass: Pass) -> bool {
    matches!(pass, Pass::Prompt(..))
}

/// Why a prompt's log-probabilities cannot be had, if so.
pub(super) fn too_long(prompt: usize, vocab: u32) -> Option<String> {
    let most = MAX_BYTES / 4 / vocab.max(1) as usize;
    (prompt > most).then(|| {
        format!(
            "log-probabilities of a prompt of {prompt} tokens: engine `mistralrs` has them for up to {most}; shorten the \
             prompt, leave out echo or logprobs, or use engine.kind = \"paged\""
        )
    })
}

/// Those of tokens `1..` of the prompt, from the logits (`[tokens, vocab]`, in parts).
pub(super) fn logprobs(spec: &RequestSpec, vocab: u32, parts: &[Tensor]) -> Result<Vec<Logprobs>, String> {
    let top = spec.sampling.logprobs.unwrap_or(0);
    let mut sampler = Sampler::default();
    let mut targets = spec.prompt.iter().skip(1);
    let mut out = Vec::with_capacity(spec.prompt.len());
    for part in parts {
        let width = part.dims().last().copied().unwrap_or(0);
        let flat = part.to_dtype(DType::F32).and_then(|p| p.flatten_all()).and_then(|p| p.to_vec1::<f32>());
        let flat = flat.map_err(|e| format!("the prompt's logits cannot be read: {e}"))?;
        for row in flat.chunks_exact(width.max(1)) {
            let Some(target) = targets.next() else { return Ok(out) };
            let row = &row[..row.len().min(vocab as usize)];
            out.push(sampler.logprobs(row, *target, top).map_err(|e| e.to_string())?);
        }
    }
    match targets.len() {
        0 => Ok(out),
        missing => Err(format!("mistral.rs returned no logits for the last {missing} tokens of the prompt")),
    }
}
