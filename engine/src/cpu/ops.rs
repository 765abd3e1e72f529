//! Row-wise operations: norms, rotary embedding, the gated activation, residual sums. Each row's result depends on the
//! row alone.
#![expect(
    unsafe_code,
    reason = "SIMD loads and stores by pointer within checked slices; rows divided among threads"
)]

use super::Compute;
use super::exp::exp;
use super::packed::SharedMut;
use super::simd::{Kernel, Simd};

/// Values below which an operation stays on the calling thread: a region costs a microsecond or two.
const SERIAL_VALUES: usize = 16 * 1024;

/// RMS norm of each row: `out = x / sqrt(mean(x²) + eps) * weight`. `x` and `out` are `[rows, weight.len()]`; the rows
/// may be heads (`[tokens * heads, head_dim]`), as for the per-head norms of q and k in qwen3.
///
/// # Panics
/// If lengths do not fit.
pub fn rms_norm(compute: &Compute, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "norm of x into out");
    out.copy_from_slice(x);
    rms_norm_in_place(compute, out, weight, eps);
}

/// [`rms_norm`] with the result in place of the input.
///
/// # Panics
/// If lengths do not fit.
pub fn rms_norm_in_place(compute: &Compute, x: &mut [f32], weight: &[f32], eps: f32) {
    for_rows(compute, x, weight.len(), |rows, _| {
        compute.level().dispatch(RmsNorm { rows, weight, eps });
    });
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
pub struct RopeTable {
    /// Rotated pairs of a head.
    pairs: usize,
    max_positions: usize,
    /// `[position][pair]`.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// `inv_freq` holds one angular frequency a rotated pair, after all scaling (linear, llama3, yarn, `rope_freqs`);
    /// `magnitude` multiplies cosine and sine (yarn's attention factor; 1 otherwise). Serves positions
    /// `0..max_positions`. The rotated part of a head is its first `2 * inv_freq.len()` elements.
    pub fn new(inv_freq: &[f64], max_positions: usize, magnitude: f64) -> Self {
        let angles =
            (0..max_positions).flat_map(|position| inv_freq.iter().map(move |f| position as f64 * f));
        let (cos, sin) = angles
            .map(|angle| {
                let (sin, cos) = angle.sin_cos();
                ((cos * magnitude) as f32, (sin * magnitude) as f32)
            })
            .unzip();
        RopeTable { pairs: inv_freq.len(), max_positions, cos, sin }
    }

    /// Number of positions the table covers.
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    /// Rotated elements of a head.
    pub fn rotated(&self) -> usize {
        2 * self.pairs
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
    let width = heads * head_dim;
    assert_eq!(x.len(), positions.len() * width, "x of {} rows of {width}", positions.len());
    assert!(table.rotated() <= head_dim, "{} rotated elements in heads of {head_dim}", table.rotated());
    if let Some(&last) = positions.iter().max() {
        assert!((last as usize) < table.max_positions, "position {last} of {}", table.max_positions);
    }
    for_rows(compute, x, width, |rows, first| {
        for (row, &position) in rows.chunks_exact_mut(width).zip(&positions[first..]) {
            let at = position as usize * table.pairs;
            let (cos, sin) = (&table.cos[at..][..table.pairs], &table.sin[at..][..table.pairs]);
            for head in row.chunks_exact_mut(head_dim) {
                rotate(&mut head[..2 * table.pairs], cos, sin, style);
            }
        }
    });
}

/// The rotation is written with two fused multiply-adds and two products of fixed association, so that it does not
/// depend on how the compiler vectorises it.
fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32], style: RopeStyle) {
    let turn = |a: f32, b: f32, cos: f32, sin: f32| (a.mul_add(cos, -(b * sin)), a.mul_add(sin, b * cos));
    match style {
        RopeStyle::Interleaved => {
            for ((pair, &cos), &sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                (pair[0], pair[1]) = turn(pair[0], pair[1], cos, sin);
            }
        }
        RopeStyle::HalfSplit => {
            let (low, high) = head.split_at_mut(cos.len());
            for (((a, b), &cos), &sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                (*a, *b) = turn(*a, *b, cos, sin);
            }
        }
    }
}

/// `gate = silu(gate) * up`, element by element, with `silu(x) = x / (1 + e^-x)`; both of any one shape.
///
/// # Panics
/// If lengths differ.
pub fn silu_mul(compute: &Compute, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up");
    for_rows(compute, gate, 1, |gate, first| {
        compute.level().dispatch(SiluMul { gate, up: &up[first..] });
    });
}

/// `x += y`, element by element.
///
/// # Panics
/// If lengths differ.
pub fn add(compute: &Compute, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "x and y");
    for_rows(compute, x, 1, |x, first| {
        for (x, y) in x.iter_mut().zip(&y[first..]) {
            *x += y;
        }
    });
}

/// Calls `body(rows, index of the first row)` for parts of `x`, in parallel if that pays.
fn for_rows(compute: &Compute, x: &mut [f32], width: usize, body: impl Fn(&mut [f32], usize) + Sync) {
    if x.is_empty() {
        return;
    }
    assert!(width > 0 && x.len().is_multiple_of(width), "{} values in rows of {width}", x.len());
    if x.len() <= SERIAL_VALUES {
        body(x, 0);
        return;
    }
    let rows = x.len() / width;
    let part = (SERIAL_VALUES / 4 / width).max(1);
    let x = SharedMut::new(x);
    compute.run(rows.div_ceil(part), |task| {
        let first = task * part;
        let count = part.min(rows - first);
        // SAFETY: each task has its own rows.
        body(unsafe { x.part(first * width, count * width) }, first);
    });
}

struct RmsNorm<'a> {
    rows: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.rows.chunks_exact_mut(self.weight.len()) {
            let mut squares = s.splat(0.0);
            for part in row.chunks(16) {
                let x = load(s, part);
                squares = s.fma(x, x, squares);
            }
            let mean = s.sum(squares) / row.len() as f32;
            let scale = s.splat(1.0 / (mean + self.eps).sqrt());
            for (part, weight) in row.chunks_mut(16).zip(self.weight.chunks(16)) {
                let y = s.mul(s.mul(load(s, part), scale), load(s, weight));
                store(s, part, y);
            }
        }
    }
}

struct SiluMul<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SiluMul<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (gate, up) in self.gate.chunks_mut(16).zip(self.up.chunks(16)) {
            let x = load(s, gate);
            let denominator = s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x)));
            store(s, gate, s.mul(s.div(x, denominator), load(s, up)));
        }
    }
}

/// Up to 16 values, zeros where there are fewer.
#[inline(always)]
fn load<S: Simd>(s: S, from: &[f32]) -> S::F {
    if from.len() >= 16 {
        // SAFETY: 16 values.
        return unsafe { s.load(from.as_ptr()) };
    }
    let mut lanes = [0.0; 16];
    lanes[..from.len()].copy_from_slice(from);
    // SAFETY: 16 values.
    unsafe { s.load(lanes.as_ptr()) }
}

/// As many lanes as `to` has room for.
#[inline(always)]
fn store<S: Simd>(s: S, to: &mut [f32], value: S::F) {
    if to.len() >= 16 {
        // SAFETY: 16 values.
        unsafe { s.store(to.as_mut_ptr(), value) };
    } else {
        let count = to.len();
        to.copy_from_slice(&s.lanes(value)[..count]);
    }
}

#[cfg(test)]
mod tests;
