//! `e^x` on 16 lanes.

use super::simd::Simd;

/// Below it the result is 0: the smallest argument whose result has a full exponent range in the scaling below.
const LOWEST: f32 = -86.5;
/// Above it the result is infinite (`ln(f32::MAX)` is 88.7228).
const HIGHEST: f32 = 88.722_83;
/// `ln 2` split in two, so that `n * HIGH` is exact for the `n` that occur (9 bits of 24 are free).
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `e^x` to about 1e-7 relative; 0 below -86.5 (`-∞` included), infinite above 88.72, NaN for NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln(2) / 2`; `e^r` is its Taylor polynomial of degree 7 (truncation error below 6e-9), by Horner's scheme in
/// fused multiply-adds; the scaling by `2^n` goes in two exact steps, because `2^128` has no f32.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = s.fma(p, r, s.splat(c));
    }
    let scaled = s.mul(s.mul(p, s.exp2_whole(s.sub(n, s.splat(1.0)))), s.splat(2.0));
    let low = s.select_less(x, s.splat(LOWEST), s.splat(0.0), scaled);
    s.select_less(s.splat(HIGHEST), x, s.splat(f32::INFINITY), low)
}

#[cfg(test)]
mod tests;
