//! The inner loops over integer weights: products of quantised weights with quantised rows (see [`rows`](super::rows)).
//!
//! A group of weights that share a scale is multiplied as integers: `Σ q · x` over the group is exact in 32 bits
//! (`128 · 32767 · 32 < 2^31`), so that it does not matter in which order, or how many at a time, a machine adds. What is
//! left to round is a group's share of an output, `scale · row's scale · Σ q · x` and, where the format has an offset,
//! `min · row's scale · Σ x`: one chain of fused multiply-adds over the groups.
#![expect(
    unsafe_code,
    reason = "the loops walk panels and row tiles by pointers whose bounds `matmul` has checked"
)]
#![expect(clippy::needless_range_loop, reason = "parallel arrays in registers read clearest by index")]

use super::kernels::{Format, RowTile, fetch_ahead};
use super::rows::{self, GROUP, Parts};
use super::simd::Simd;

/// Integers of 4 or 8 bits with a scale (and an offset, if `MIN`) for each group of `LEN` inputs, 16 or 32.
///
/// Not `SUPER`: a block is one group; header `scale: [f16; 16]`, then `min: [f16; 16]` if any.
/// `SUPER` (K formats): a block is 256 inputs; header `scale: [f16; 16]`, `min: [f16; 16]` if any, then for each group
/// `scale: [i8; 16]`, `min: [i8; 16]` if any; a group's scale is the product of the two, which is exact.
///
/// 4-bit quants: one u32 an output with the nibbles of 8 consecutive inputs, the even ones in the lower half, lowest
/// first, the odd ones in the upper; two's complement unless `MIN`. 8-bit quants: for every two inputs a pair of i8 an
/// output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quant<const BITS: usize, const LEN: usize, const SUPER: bool, const MIN: bool>;

impl<const BITS: usize, const LEN: usize, const SUPER: bool, const MIN: bool> Quant<BITS, LEN, SUPER, MIN> {
    pub(super) const TERMS: usize = if MIN { 2 } else { 1 };
    /// Where a group's integer scales begin, for `SUPER`.
    pub(super) const GROUP_SCALES: usize = 32 * Self::TERMS;
    pub(super) const HEADER: usize =
        Self::GROUP_SCALES + if SUPER { <Self as Source>::BLOCK / LEN * 16 * Self::TERMS } else { 0 };
    pub(super) const SIGNED: bool = !MIN;
    /// Signed nibbles are multiplied as `0..=15`, and 8 times the scale taken off again.
    const SHIFTED: bool = BITS == 4 && !MIN;
}

/// Where nibble `input` (of 8) lies in its word, in bits.
pub(super) const fn nibble_shift(input: usize) -> usize {
    input % 2 * 16 + input / 2 * 4
}

/// A group's integers as the tile reads them: from a packed panel, or from one that was expanded before.
trait Source: Copy {
    const BLOCK: usize;
    const LEN: usize;
    /// Inputs that are read together.
    const CHUNK: usize;
    /// Bytes of a block of a panel.
    const BYTES: usize;
    const OFFSET: bool;

    /// Scale and offset of a group.
    ///
    /// # Safety
    /// `block` points at a whole block, `group < BLOCK / LEN`.
    unsafe fn scale<S: Simd>(s: S, block: *const u8, group: usize) -> (S::F, S::F);
    /// # Safety
    /// `block` points at a whole block, `chunk < BLOCK / CHUNK`.
    unsafe fn chunk<S: Simd>(s: S, block: *const u8, chunk: usize) -> S::U;
    /// The integers of the chunk's first two inputs; the chunk moves on by two.
    fn pair<S: Simd>(s: S, chunk: &mut S::U) -> S::U;
}

impl<const BITS: usize, const LEN: usize, const SUPER: bool, const MIN: bool> Source
    for Quant<BITS, LEN, SUPER, MIN>
{
    const BLOCK: usize = if SUPER { 256 } else { LEN };
    const LEN: usize = LEN;
    const CHUNK: usize = if BITS == 4 { 8 } else { 2 };
    const BYTES: usize = Self::HEADER + <Self as Source>::BLOCK * 2 * BITS;
    const OFFSET: bool = MIN || Self::SHIFTED;

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
            if Self::SHIFTED {
                min = s.mul(scale, s.splat(-8.0));
            }
            (scale, min)
        }
    }

    #[inline(always)]
    unsafe fn chunk<S: Simd>(s: S, block: *const u8, chunk: usize) -> S::U {
        // SAFETY: the chunk lies in the block.
        unsafe {
            let at = block.add(Self::HEADER + chunk * Self::CHUNK * 2 * BITS);
            match (BITS, Self::SHIFTED) {
                (4, false) => s.load_u32(at.cast()),
                (4, true) => s.xor(s.load_u32(at.cast()), s.splat_u32(0x8888_8888)),
                _ => s.load_i8_pairs(at.cast()),
            }
        }
    }

    #[inline(always)]
    fn pair<S: Simd>(s: S, chunk: &mut S::U) -> S::U {
        if BITS == 4 {
            let pair = s.nibble_pairs(*chunk);
            *chunk = s.next_nibble(*chunk);
            pair
        } else {
            *chunk
        }
    }
}

/// Expanded groups: `scale: [f32; 16]`, `offset: [f32; 16]` if any, then for every two inputs a pair of i16 an output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wide<const LEN: usize, const OFFSET: bool>;

impl<const LEN: usize, const OFFSET: bool> Wide<LEN, OFFSET> {
    const HEADER: usize = if OFFSET { 128 } else { 64 };
    const GROUP_BYTES: usize = Self::HEADER + LEN * 32;
}

impl<const LEN: usize, const OFFSET: bool> Source for Wide<LEN, OFFSET> {
    const BLOCK: usize = GROUP;
    const LEN: usize = LEN;
    const CHUNK: usize = 2;
    const BYTES: usize = GROUP / LEN * Self::GROUP_BYTES;
    const OFFSET: bool = OFFSET;

    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, block: *const u8, group: usize) -> (S::F, S::F) {
        // SAFETY: both lie in the group's header.
        unsafe {
            let at = block.add(group * Self::GROUP_BYTES);
            let scale = s.load(at.cast());
            (scale, if OFFSET { s.load(at.add(64).cast()) } else { scale })
        }
    }

    #[inline(always)]
    unsafe fn chunk<S: Simd>(s: S, block: *const u8, chunk: usize) -> S::U {
        let (group, chunk) = (chunk / (LEN / 2), chunk % (LEN / 2));
        // SAFETY: the chunk lies in the block.
        unsafe { s.load_u32(block.add(group * Self::GROUP_BYTES + Self::HEADER + chunk * 64).cast()) }
    }

    #[inline(always)]
    fn pair<S: Simd>(_: S, chunk: &mut S::U) -> S::U {
        *chunk
    }
}

/// Gives a [`Source`] the form that `matmul` calls.
macro_rules! format_of_source {
    ([$($params:tt)*] $ty:ty, $wide:ty) => {
        impl<$($params)*> Format for $ty {
            const BLOCK: usize = <Self as Source>::BLOCK;
            const BYTES: usize = <Self as Source>::BYTES;
            const QUANTISED: bool = true;
            type Wide = $wide;

            #[inline(always)]
            unsafe fn tile<S: Simd, const R: usize, const P: usize>(
                s: S,
                panels: *const u8,
                stride: usize,
                blocks: usize,
                x: RowTile<R>,
                sums: &mut [[S::F; P]; R],
            ) {
                let RowTile::Tile(x) = x else { unreachable!("integer weights multiply quantised rows") };
                // SAFETY: the caller's.
                unsafe { tile::<S, Self, R, P>(s, panels, stride, blocks, x.cast(), sums) };
            }

            #[inline(always)]
            unsafe fn expand<S: Simd>(s: S, panel: *const u8, blocks: usize, to: *mut u8) {
                // SAFETY: the caller's.
                unsafe { expand::<S, Self>(s, panel, blocks, to) };
            }
        }
    };
}

// `Wide` depends on the parameters in ways that generic constants cannot express yet, so the formats are listed.
format_of_source!([const LEN: usize, const OFFSET: bool] Wide<LEN, OFFSET>, Self);
format_of_source!([] Quant<4, 32, false, false>, Wide<32, true>);
format_of_source!([] Quant<4, 32, false, true>, Wide<32, true>);
format_of_source!([] Quant<8, 32, false, false>, Wide<32, false>);
format_of_source!([] Quant<8, 32, false, true>, Wide<32, true>);
format_of_source!([] Quant<4, 16, true, true>, Wide<16, true>);
format_of_source!([] Quant<4, 16, true, false>, Wide<16, true>);
format_of_source!([] Quant<4, 32, true, true>, Wide<32, true>);
format_of_source!([] Quant<8, 32, true, true>, Wide<32, true>);
format_of_source!([] Quant<8, 16, true, false>, Wide<16, false>);

/// `sums[r][p] += x[r] · panel p`, over `blocks` blocks.
///
/// `panels` points at the first block of panel 0, the other panels follow at `stride` bytes; `x` at the first group of a
/// tile of `R` quantised rows.
///
/// # Safety
/// `panels` has `P` panels of `blocks` blocks, `x` has `blocks * W::BLOCK` inputs of `R` rows.
#[inline(always)]
unsafe fn tile<S: Simd, W: Source, const R: usize, const P: usize>(
    s: S,
    panels: *const u8,
    stride: usize,
    blocks: usize,
    mut x: *const u8,
    sums: &mut [[S::F; P]; R],
) {
    let mut acc = *sums;
    for block in 0..blocks {
        let mut at = [panels.wrapping_add(block * W::BYTES); P];
        for p in 1..P {
            at[p] = at[0].wrapping_add(p * stride);
        }
        for p in 0..P {
            let left = (blocks - block) * W::BYTES;
            fetch_ahead::<S, R>(s, at[p], W::BYTES, left, (P - 1) * stride);
        }
        for group in 0..W::BLOCK / W::LEN {
            let part = if W::LEN == GROUP { Parts::Whole } else { Parts::half(group % 2) };
            let mut ints = [[s.splat_u32(0); P]; R];
            for chunk in 0..W::LEN / W::CHUNK {
                let own = group * (W::LEN / W::CHUNK) + chunk;
                // SAFETY: block and chunk exist. (No closures here: a closure would not get the level's instructions.)
                let mut chunks = [unsafe { W::chunk(s, at[0], own) }; P];
                for p in 1..P {
                    // SAFETY: as above.
                    chunks[p] = unsafe { W::chunk(s, at[p], own) };
                }
                for pair in 0..W::CHUNK / 2 {
                    let mut weights = [s.splat_u32(0); P];
                    for p in 0..P {
                        weights[p] = W::pair(s, &mut chunks[p]);
                    }
                    for r in 0..R {
                        let pair = part.first_pair() + chunk * (W::CHUNK / 2) + pair;
                        // SAFETY: the group has 16 pairs of each of R rows.
                        let value = s.splat_u32(unsafe { rows::pair::<R>(x, r, pair) });
                        for p in 0..P {
                            ints[r][p] = s.dot(ints[r][p], weights[p], value);
                        }
                    }
                }
            }
            // SAFETY: block and group exist.
            let mut scales = [unsafe { W::scale(s, at[0], group) }; P];
            for p in 1..P {
                // SAFETY: as above.
                scales[p] = unsafe { W::scale(s, at[p], group) };
            }
            for r in 0..R {
                // SAFETY: the group has scales and sums of R rows.
                let (scale, sum) = unsafe { (rows::scale::<R>(x, r), rows::sum::<R>(x, r, part)) };
                for p in 0..P {
                    let both = s.mul(scales[p].0, s.splat(scale));
                    acc[r][p] = s.fma(s.to_f32(ints[r][p]), both, acc[r][p]);
                    if W::OFFSET {
                        acc[r][p] = s.fma(scales[p].1, s.splat(sum), acc[r][p]);
                    }
                }
            }
            if part.is_last() {
                x = x.wrapping_add(rows::group_bytes(R));
            }
        }
    }
    *sums = acc;
}

/// Expands `blocks` blocks of a panel to groups of [`Wide`].
///
/// # Safety
/// `panel` has `blocks` blocks, `to` room for their groups.
#[inline(always)]
unsafe fn expand<S: Simd, W: Source>(s: S, panel: *const u8, blocks: usize, mut to: *mut u8) {
    for block in 0..blocks {
        let at = panel.wrapping_add(block * W::BYTES);
        for group in 0..W::BLOCK / W::LEN {
            // SAFETY: block, group and chunk exist; `to` has room for every group.
            unsafe {
                let (scale, offset) = W::scale(s, at, group);
                s.store(to.cast(), scale);
                to = to.add(64);
                if W::OFFSET {
                    s.store(to.cast(), offset);
                    to = to.add(64);
                }
                for chunk in 0..W::LEN / W::CHUNK {
                    let mut chunk = W::chunk(s, at, group * (W::LEN / W::CHUNK) + chunk);
                    for _ in 0..W::CHUNK / 2 {
                        s.store_u32(to.cast(), W::pair(s, &mut chunk));
                        to = to.add(64);
                    }
                }
            }
        }
    }
}
