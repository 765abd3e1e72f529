//! Row-wise operations: norms, rotary embedding, the gated activation, residual sums. Each row's result depends on the
//! row alone.

use super::Compute;

/// RMS norm of each row: `out = x / sqrt(mean(x²) + eps) * weight`. `x` and `out` are `[rows, weight.len()]`; the rows
/// may be heads (`[tokens * heads, head_dim]`), as for the per-head norms of q and k in qwen3.
pub fn rms_norm(compute: &Compute, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    todo!()
}

/// [`rms_norm`] with the result in place of the input.
pub fn rms_norm_in_place(compute: &Compute, x: &mut [f32], weight: &[f32], eps: f32) {
    todo!()
}

/// Which two elements of a head a rotation mixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Elements `2i` and `2i + 1`: GGUF files of architecture llama (whose q and k are permuted for it).
    Interleaved,
    /// Elements `i` and `i + half`: Hugging Face checkpoints, GGUF files of qwen2 and qwen3.
    HalfSplit,
}

/// Cosines and sines of every position, computed in f64 and rounded once.
#[derive(Debug, Clone)]
pub struct RopeTable {}

impl RopeTable {
    /// `inv_freq` holds one angular frequency a rotated pair, after all scaling (linear, llama3, yarn, `rope_freqs`);
    /// `magnitude` multiplies cosine and sine (yarn's attention factor; 1 otherwise). Serves positions
    /// `0..max_positions`. The rotated part of a head is its first `2 * inv_freq.len()` elements.
    pub fn new(inv_freq: &[f64], max_positions: usize, magnitude: f64) -> Self {
        todo!()
    }

    /// Number of positions the table covers.
    pub fn max_positions(&self) -> usize {
        todo!()
    }
}

/// Rotates every head of every row of `x` (`[positions.len(), heads * head_dim]`) in place by its row's position.
///
/// # Panics
/// If a position is outside of the table, or lengths do not fit.
pub fn rope(
    compute: &Compute,
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    positions: &[u32],
    table: &RopeTable,
    style: RopeStyle,
) {
    todo!()
}

/// `gate = silu(gate) * up`, element by element; both `[rows, width]`.
pub fn silu_mul(compute: &Compute, gate: &mut [f32], up: &[f32]) {
    todo!()
}

/// `x += y`, element by element.
pub fn add(compute: &Compute, x: &mut [f32], y: &[f32]) {
    todo!()
}
