//! Rows of activations as integers, for products with integer weights.
//!
//! Every 32 consecutive inputs of a row share a scale, their largest magnitude over 32767, and are rounded to 16 bits:
//! an input is off by at most half its group's scale, `2^-16` of the largest (the 8 bits that quantised inference commonly
//! gives activations are off by `2^-8`). A row's integers are a function of the row alone.
//!
//! A tile of `R` rows lies group after group; a group is `[R][32]` integers (i16), `[R]` scales (f32), `[R]` sums (scale ×
//! the sum of the integers, f32), then `[2][R]` such sums of either half for formats with groups of 16.
#![expect(unsafe_code, reason = "groups are read and written by pointers within checked bounds")]

use super::simd::{Kernel, Simd};

/// Inputs that share a scale.
pub(super) const GROUP: usize = 32;
/// The integers' largest magnitude.
const LARGEST: f32 = 32767.0;
/// Groups whose values are all smaller count as zero: the inverse of their scale might have no f32.
const SMALLEST: f32 = 1e-30;
/// Bytes a group takes of a row.
const ROW_BYTES: usize = 2 * GROUP + 4 * size_of::<f32>();

/// Which part of a group's inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    Whole,
    First,
    Second,
}

impl Parts {
    #[inline(always)]
    pub(super) fn half(half: usize) -> Self {
        if half == 0 { Parts::First } else { Parts::Second }
    }

    /// The first pair of inputs that belongs to it.
    #[inline(always)]
    pub(super) fn first_pair(self) -> usize {
        if self == Parts::Second { GROUP / 4 } else { 0 }
    }

    /// Whether it ends with the group.
    #[inline(always)]
    pub(super) fn is_last(self) -> bool {
        self != Parts::First
    }
}

/// Bytes of a group of `rows` rows.
#[inline(always)]
pub(super) const fn group_bytes(rows: usize) -> usize {
    rows * ROW_BYTES
}

/// Room for `rows` rows of `inputs` inputs, in f32 values.
pub(super) const fn row_values(inputs: usize, rows: usize) -> usize {
    inputs / GROUP * group_bytes(rows) / size_of::<f32>()
}

/// Inputs `2 * pair` and `2 * pair + 1` of a row, the first in the lower half.
///
/// # Safety
/// `group` points at a whole group of `R` rows, `row < R`, `pair < 16`; here and below.
#[inline(always)]
pub(super) unsafe fn pair<const R: usize>(group: *const u8, row: usize, pair: usize) -> u32 {
    // SAFETY: the caller's.
    unsafe { group.add(row * 2 * GROUP + pair * 4).cast::<u32>().read_unaligned() }
}

/// The scale of a row's group.
///
/// # Safety
/// See [`pair`].
#[inline(always)]
pub(super) unsafe fn scale<const R: usize>(group: *const u8, row: usize) -> f32 {
    // SAFETY: the caller's.
    unsafe { group.add(R * 2 * GROUP + row * 4).cast::<f32>().read_unaligned() }
}

/// Scale × sum of the integers of a part.
///
/// # Safety
/// See [`pair`].
#[inline(always)]
pub(super) unsafe fn sum<const R: usize>(group: *const u8, row: usize, part: Parts) -> f32 {
    let at = R * 2 * GROUP + (1 + part as usize) * R * 4 + row * 4;
    // SAFETY: the caller's.
    unsafe { group.add(at).cast::<f32>().read_unaligned() }
}

/// Quantises `x`, some rows of `inputs` values, into a tile of `tile_rows` rows; rows of the tile past those of `x` are
/// left as they are.
pub(super) struct Quantise<'a> {
    pub(super) x: &'a [f32],
    pub(super) inputs: usize,
    pub(super) tile_rows: usize,
    pub(super) tile: &'a mut [f32],
}

impl Kernel for Quantise<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.tile_rows;
        assert!(self.inputs.is_multiple_of(GROUP), "rows of {} inputs", self.inputs);
        assert!(self.x.len() <= rows * self.inputs, "a tile of {rows} rows");
        assert!(self.tile.len() >= row_values(self.inputs, rows), "a tile of {}", self.tile.len());
        let tile = self.tile.as_mut_ptr().cast::<u8>();
        for (row, values) in self.x.chunks_exact(self.inputs).enumerate() {
            for (group, values) in values.as_chunks::<GROUP>().0.iter().enumerate() {
                // SAFETY: the group has 32 values; the tile has room for every group of every row.
                unsafe {
                    let to = tile.add(group * group_bytes(rows));
                    let (low, high) = (s.load(values.as_ptr()), s.load(values.as_ptr().add(16)));
                    let (scale, inverse) = scale_of(s.magnitude(low, high));
                    let inverse = s.splat(inverse);
                    let ints = to.add(row * 2 * GROUP).cast::<i16>();
                    let (first, second) = s.narrow(s.mul(low, inverse), s.mul(high, inverse), ints);
                    let floats = to.add(rows * 2 * GROUP).cast::<f32>();
                    for (at, value) in [
                        scale,
                        scale * first.wrapping_add(second) as f32,
                        scale * first as f32,
                        scale * second as f32,
                    ]
                    .into_iter()
                    .enumerate()
                    {
                        floats.add(at * rows + row).write_unaligned(value);
                    }
                }
            }
        }
    }
}

/// Scale and its inverse for values of at most `magnitude`. One that is not finite has a scale of NaN, and so have the
/// row's results.
#[inline(always)]
fn scale_of(magnitude: f32) -> (f32, f32) {
    if !magnitude.is_finite() {
        (f32::NAN, 0.0)
    } else if magnitude < SMALLEST {
        (0.0, 0.0)
    } else {
        (magnitude / LARGEST, LARGEST / magnitude)
    }
}

#[cfg(test)]
mod tests;
