//! The inner loops of the matrix product: what a packed format has to offer, and the register tile that multiplies dense
//! weights, 16 at a time, with a few rows. Integer weights are in [`quants`](super::quants).
#![expect(
    unsafe_code,
    reason = "the loops walk panels and row tiles by pointers whose bounds `matmul` has checked"
)]
#![expect(clippy::needless_range_loop, reason = "parallel arrays in registers read clearest by index")]

use super::simd::Simd;

/// A packed format: how its panels are laid out, multiplied and expanded.
///
/// A panel holds 16 outputs. It is a sequence of blocks of `BLOCK` inputs.
pub(super) trait Format: Copy + Send + Sync + 'static {
    const BLOCK: usize;
    /// Bytes of a block of a panel.
    const BYTES: usize;
    /// Whether its weights are integers, which multiply quantised rows (see [`rows`](super::rows)).
    const QUANTISED: bool;
    /// What its panels are expanded to.
    type Wide: Format;

    /// `sums[r][p] += x[r] · panel p`, over `blocks` blocks, as one chain for each output.
    ///
    /// `panels` points at the first block of panel 0, the other panels follow at `stride` bytes.
    ///
    /// # Safety
    /// `panels` has `P` panels of `blocks` blocks, `x` has `blocks * BLOCK` inputs of `R` rows.
    unsafe fn tile<S: Simd, const R: usize, const P: usize>(
        s: S,
        panels: *const u8,
        stride: usize,
        blocks: usize,
        x: RowTile<R>,
        sums: &mut [[S::F; P]; R],
    );

    /// Expands `blocks` blocks of a panel to panels of `Wide`.
    ///
    /// # Safety
    /// `panel` has `blocks` blocks, `to` room for `blocks * BLOCK` inputs of `Wide`.
    unsafe fn expand<S: Simd>(s: S, panel: *const u8, blocks: usize, to: *mut u8);
}

/// Where a tile's rows lie.
#[derive(Clone, Copy)]
pub(super) enum RowTile<const R: usize> {
    /// A pointer to each row as it is.
    Plain([*const f32; R]),
    /// The rows interleaved: `[inputs][R]`, or the groups of [`rows`](super::rows) for quantised formats.
    Tile(*const f32),
}

/// Values of `BITS` = 32, 16 (f16) or 15 (bfloat16) bits, as they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dense<const BITS: usize>;

impl<const BITS: usize> Dense<BITS> {
    /// The weights of input `input` of a panel.
    ///
    /// # Safety
    /// The panel has that many inputs.
    #[inline(always)]
    unsafe fn weights<S: Simd>(s: S, panel: *const u8, input: usize) -> S::F {
        let at = panel.wrapping_add(input * Self::BYTES);
        // SAFETY: an input is 16 values.
        unsafe {
            match BITS {
                32 => s.load(at.cast()),
                16 => s.load_f16(at.cast()),
                _ => s.load_bf16(at.cast()),
            }
        }
    }
}

impl<const BITS: usize> Format for Dense<BITS> {
    const BLOCK: usize = 1;
    const BYTES: usize = if BITS == 32 { 64 } else { 32 };
    const QUANTISED: bool = false;
    type Wide = Dense<32>;

    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const P: usize>(
        s: S,
        panels: *const u8,
        stride: usize,
        blocks: usize,
        x: RowTile<R>,
        sums: &mut [[S::F; P]; R],
    ) {
        // SAFETY: the caller's.
        unsafe {
            match x {
                RowTile::Plain(x) => tile::<S, BITS, _, R, P>(s, panels, stride, blocks, Plain(x), sums),
                RowTile::Tile(x) => tile::<S, BITS, _, R, P>(s, panels, stride, blocks, Interleaved(x), sums),
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(s: S, panel: *const u8, blocks: usize, to: *mut u8) {
        for input in 0..blocks {
            // SAFETY: the panel has the input, `to` room for it.
            unsafe { s.store(to.add(input * 64).cast(), Self::weights(s, panel, input)) };
        }
    }
}

/// Reads a tile's `R` rows of inputs.
trait RowsOf<const R: usize>: Copy {
    /// Input `input` of row `row`.
    ///
    /// # Safety
    /// `row < R`, and the rows have that many inputs.
    unsafe fn value(self, row: usize, input: usize) -> f32;
}

/// `[inputs][R]`, through one pointer: for many rows, which are copied into tiles once and read by every panel.
#[derive(Clone, Copy)]
struct Interleaved(*const f32);

impl<const R: usize> RowsOf<R> for Interleaved {
    #[inline(always)]
    unsafe fn value(self, row: usize, input: usize) -> f32 {
        // SAFETY: the caller's.
        unsafe { *self.0.add(input * R + row) }
    }
}

/// Rows as they are: for few rows, where a copy by one thread would cost more than it saves. A tile with fewer rows than
/// `R` repeats its last one, whose sums are dropped.
#[derive(Clone, Copy)]
struct Plain<const R: usize>([*const f32; R]);

impl<const R: usize> RowsOf<R> for Plain<R> {
    #[inline(always)]
    unsafe fn value(self, row: usize, input: usize) -> f32 {
        // SAFETY: the caller's.
        unsafe { *self.0[row].add(input) }
    }
}

/// How far ahead of its use a panel is fetched, in bytes. The hardware's own prefetching stops at every 4 KiB page, and
/// panels are read once a step, from memory. One or two rows wait for memory alone, so they go far ahead; tiles of more
/// than 8 rows read expanded panels, which lie in L2.
const AHEAD: usize = 2048;
const FAR_AHEAD: usize = 8192;

/// Fetches what lies some way ahead of a block of `bytes` bytes, `left` bytes before the end of its panel, for a tile of
/// `R` rows. The panel that a thread is likely to read next in the block's place begins `skip` bytes after that end.
#[inline(always)]
pub(super) fn fetch_ahead<S: Simd, const R: usize>(
    s: S,
    block: *const u8,
    bytes: usize,
    left: usize,
    skip: usize,
) {
    if R > 8 {
        return;
    }
    let distance = if R <= 2 { FAR_AHEAD } else { AHEAD };
    let ahead = block.wrapping_add(distance + if distance < left { 0 } else { skip });
    for line in 0..bytes.div_ceil(64) {
        if R <= 2 {
            s.prefetch::<true>(ahead.wrapping_add(line * 64));
        } else {
            s.prefetch::<false>(ahead.wrapping_add(line * 64));
        }
    }
}

/// [`Format::tile`] of dense weights: one chain of fused multiply-adds for each output.
///
/// # Safety
/// See there.
#[inline(always)]
unsafe fn tile<S: Simd, const BITS: usize, X: RowsOf<R>, const R: usize, const P: usize>(
    s: S,
    panels: *const u8,
    stride: usize,
    inputs: usize,
    x: X,
    sums: &mut [[S::F; P]; R],
) {
    let mut acc = *sums;
    for input in 0..inputs {
        let mut weights = [s.splat(0.0); P];
        for p in 0..P {
            let panel = panels.wrapping_add(p * stride);
            let bytes = Dense::<BITS>::BYTES;
            let left = (inputs - input) * bytes;
            fetch_ahead::<S, R>(s, panel.wrapping_add(input * bytes), bytes, left, (P - 1) * stride);
            // SAFETY: the input exists. (No closures here: a closure would not get the level's instructions.)
            weights[p] = unsafe { Dense::<BITS>::weights(s, panel, input) };
        }
        for r in 0..R {
            // SAFETY: `x` has R rows of every input.
            let value = s.splat(unsafe { x.value(r, input) });
            for p in 0..P {
                acc[r][p] = s.fma(value, weights[p], acc[r][p]);
            }
        }
    }
    *sums = acc;
}
