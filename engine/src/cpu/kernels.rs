//! The inner loops of the matrix product: how each packed format yields 16 weights at a time, and the register tile
//! that multiplies them with a few rows.
#![expect(
    unsafe_code,
    reason = "the loops walk panels and row tiles by pointers whose bounds `matmul` has checked"
)]
#![expect(clippy::needless_range_loop, reason = "parallel arrays in registers read clearest by index")]

use super::simd::Simd;

/// A packed format: how its panels are laid out and read.
///
/// A panel holds 16 outputs. It is a sequence of blocks of `BLOCK` inputs; a block is a header (scales), then the
/// quants. A block has `BLOCK / GROUP` groups that share a scale, a group `GROUP / CHUNK` chunks that are read together.
pub(super) trait Format: Copy + Send + Sync + 'static {
    const BLOCK: usize;
    const GROUP: usize;
    const CHUNK: usize;
    /// Bytes of a block of a panel.
    const BYTES: usize;
    /// Quants (or values) of a chunk in registers.
    type Chunk<S: Simd>: Copy;
    /// What a group's weights share.
    type Scale<S: Simd>: Copy;

    /// # Safety
    /// `block` points at a whole block, `group < BLOCK / GROUP`.
    unsafe fn scale<S: Simd>(s: S, block: *const u8, group: usize) -> Self::Scale<S>;
    /// # Safety
    /// `block` points at a whole block, `chunk < BLOCK / CHUNK`.
    unsafe fn chunk<S: Simd>(s: S, block: *const u8, chunk: usize) -> Self::Chunk<S>;
    /// The weights of the chunk's first input; the chunk moves on by one input.
    fn weight<S: Simd>(s: S, chunk: &mut Self::Chunk<S>, scale: Self::Scale<S>) -> S::F;
}

/// Values of `BITS` = 32, 16 (f16) or 15 (bfloat16) bits, as they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dense<const BITS: usize>;

impl<const BITS: usize> Format for Dense<BITS> {
    const BLOCK: usize = 1;
    const GROUP: usize = 1;
    const CHUNK: usize = 1;
    const BYTES: usize = if BITS == 32 { 64 } else { 32 };
    type Chunk<S: Simd> = S::F;
    type Scale<S: Simd> = ();

    #[inline(always)]
    unsafe fn scale<S: Simd>(_: S, _: *const u8, _: usize) {}

    #[inline(always)]
    unsafe fn chunk<S: Simd>(s: S, block: *const u8, _: usize) -> S::F {
        // SAFETY: a block is 16 values.
        unsafe {
            match BITS {
                32 => s.load(block.cast()),
                16 => s.load_f16(block.cast()),
                _ => s.load_bf16(block.cast()),
            }
        }
    }

    #[inline(always)]
    fn weight<S: Simd>(_: S, chunk: &mut S::F, (): ()) -> S::F {
        *chunk
    }
}

/// Integers of 4 or 8 bits with a scale (and an offset, if `MIN`) for each group of `LEN` inputs.
///
/// Not `SUPER`: a block is one group; header `scale: [f16; 16]`, then `min: [f16; 16]` if any.
/// `SUPER` (K formats): a block is 256 inputs; header `scale: [f16; 16]`, `min: [f16; 16]` if any, then for each group
/// `scale: [i8; 16]`, `min: [i8; 16]` if any; a group's scale is the product of the two, which is exact.
///
/// 4-bit quants: one u32 an output with the nibbles of 8 consecutive inputs, lowest first; two's complement unless
/// `MIN`. 8-bit quants: one i8 an output, input after input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quant<const BITS: usize, const LEN: usize, const SUPER: bool, const MIN: bool>;

impl<const BITS: usize, const LEN: usize, const SUPER: bool, const MIN: bool> Quant<BITS, LEN, SUPER, MIN> {
    pub(super) const TERMS: usize = if MIN { 2 } else { 1 };
    /// Where a group's integer scales begin, for `SUPER`.
    pub(super) const GROUP_SCALES: usize = 32 * Self::TERMS;
    pub(super) const HEADER: usize =
        Self::GROUP_SCALES + if SUPER { Self::BLOCK / LEN * 16 * Self::TERMS } else { 0 };
    pub(super) const SIGNED: bool = !MIN;
}

/// The integers of a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) enum Quants<S: Simd> {
    Words(S::U),
    Bytes(S::F),
}

impl<const BITS: usize, const LEN: usize, const SUPER: bool, const MIN: bool> Format
    for Quant<BITS, LEN, SUPER, MIN>
{
    const BLOCK: usize = if SUPER { 256 } else { LEN };
    const GROUP: usize = LEN;
    const CHUNK: usize = if BITS == 4 { 8 } else { 1 };
    const BYTES: usize = Self::HEADER + Self::BLOCK * 2 * BITS;
    type Chunk<S: Simd> = Quants<S>;
    type Scale<S: Simd> = (S::F, S::F);

    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, block: *const u8, group: usize) -> (S::F, S::F) {
        // SAFETY: all offsets lie in the block's header.
        unsafe {
            let mut scale = s.load_f16(block.cast());
            let mut min = if MIN { s.load_f16(block.add(32).cast()) } else { s.splat(0.0) };
            if SUPER {
                let own = block.add(Self::GROUP_SCALES + group * 16 * Self::TERMS);
                scale = s.mul(scale, s.load_i8(own.cast()));
                if MIN {
                    min = s.mul(min, s.load_i8(own.add(16).cast()));
                }
            }
            (scale, min)
        }
    }

    #[inline(always)]
    unsafe fn chunk<S: Simd>(s: S, block: *const u8, chunk: usize) -> Quants<S> {
        // SAFETY: the chunk lies in the block.
        unsafe {
            let at = block.add(Self::HEADER + chunk * Self::CHUNK * 2 * BITS);
            if BITS == 4 { Quants::Words(s.load_u32(at.cast())) } else { Quants::Bytes(s.load_i8(at.cast())) }
        }
    }

    #[inline(always)]
    fn weight<S: Simd>(s: S, chunk: &mut Quants<S>, (scale, min): (S::F, S::F)) -> S::F {
        let quant = match *chunk {
            Quants::Words(word) => {
                *chunk = Quants::Words(s.next_nibble(word));
                // Without an offset the nibbles are two's complement.
                if MIN { s.nibble::<false>(word) } else { s.nibble::<true>(word) }
            }
            Quants::Bytes(quant) => quant,
        };
        if MIN { s.fma(scale, quant, min) } else { s.mul(scale, quant) }
    }
}

/// Where a tile's `R` rows of inputs lie.
pub(super) trait RowsOf<const R: usize>: Copy {
    /// Input `input` of row `row`.
    ///
    /// # Safety
    /// `row < R`, and the rows have that many inputs.
    unsafe fn value(self, row: usize, input: usize) -> f32;
}

/// `[inputs][R]`, through one pointer: for many rows, which are copied into tiles once and read by every panel.
#[derive(Clone, Copy)]
pub(super) struct Interleaved(pub(super) *const f32);

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
pub(super) struct Plain<const R: usize>(pub(super) [*const f32; R]);

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

/// `sums[r][p] += x[r] · panel p`, over `blocks` blocks, as one chain of fused multiply-adds for each output.
///
/// `panels` points at the first block of panel 0, the other panels follow at `stride` bytes.
///
/// # Safety
/// `panels` has `P` panels of `blocks` blocks, `x` has `blocks * F::BLOCK` inputs of `R` rows.
#[inline(always)]
pub(super) unsafe fn tile<S: Simd, F: Format, X: RowsOf<R>, const R: usize, const P: usize>(
    s: S,
    panels: *const u8,
    stride: usize,
    blocks: usize,
    x: X,
    sums: &mut [[S::F; P]; R],
) {
    let mut input = 0;
    let mut acc = *sums;
    for block in 0..blocks {
        let mut at = [panels.wrapping_add(block * F::BYTES); P];
        for p in 1..P {
            at[p] = at[0].wrapping_add(p * stride);
        }
        for p in 0..P {
            for line in 0..F::BYTES.div_ceil(64) {
                match R {
                    1..=2 => s.prefetch::<true>(at[p].wrapping_add(FAR_AHEAD + line * 64)),
                    3..=8 => s.prefetch::<false>(at[p].wrapping_add(AHEAD + line * 64)),
                    _ => {}
                }
            }
        }
        for group in 0..F::BLOCK / F::GROUP {
            // SAFETY: block and group exist. (No closures here: a closure would not get the level's instructions.)
            let mut scale = [unsafe { F::scale(s, at[0], group) }; P];
            for p in 1..P {
                // SAFETY: as above.
                scale[p] = unsafe { F::scale(s, at[p], group) };
            }
            for chunk in 0..F::GROUP / F::CHUNK {
                let chunk = group * (F::GROUP / F::CHUNK) + chunk;
                // SAFETY: block and chunk exist.
                let mut chunks = [unsafe { F::chunk(s, at[0], chunk) }; P];
                for p in 1..P {
                    // SAFETY: as above.
                    chunks[p] = unsafe { F::chunk(s, at[p], chunk) };
                }
                for _ in 0..F::CHUNK {
                    let mut weights = [s.splat(0.0); P];
                    for p in 0..P {
                        weights[p] = F::weight(s, &mut chunks[p], scale[p]);
                    }
                    for r in 0..R {
                        // SAFETY: `x` has R rows of every input.
                        let value = s.splat(unsafe { x.value(r, input) });
                        for p in 0..P {
                            acc[r][p] = s.fma(value, weights[p], acc[r][p]);
                        }
                    }
                    input += 1;
                }
            }
        }
    }
    *sums = acc;
}

/// Expands `blocks` blocks of a panel to f32, `[inputs][16]`.
///
/// # Safety
/// `panel` has `blocks` blocks, `to` room for `blocks * F::BLOCK * 16` values.
#[inline(always)]
pub(super) unsafe fn expand<S: Simd, F: Format>(s: S, panel: *const u8, blocks: usize, mut to: *mut f32) {
    for block in 0..blocks {
        let at = panel.wrapping_add(block * F::BYTES);
        for group in 0..F::BLOCK / F::GROUP {
            // SAFETY: block, group and chunk exist; `to` has room for every input.
            unsafe {
                let scale = F::scale(s, at, group);
                for chunk in 0..F::GROUP / F::CHUNK {
                    let mut chunk = F::chunk(s, at, group * (F::GROUP / F::CHUNK) + chunk);
                    for _ in 0..F::CHUNK {
                        s.store(to, F::weight(s, &mut chunk, scale));
                        to = to.add(16);
                    }
                }
            }
        }
    }
}
