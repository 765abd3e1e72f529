//! Exponentials and sums that are the same on every machine.

use super::SCALE;

/// Elements that one round of the loops takes: whole vectors of every SIMD width.
pub(super) const LANES: usize = 16;

/// Arguments below give 0. e⁻⁸⁷ is still a normal number.
const LEAST: f32 = -87.0;

/// `e^x` for `x <= 0`, within 2 units in the last place; 0 below [`LEAST`] and for NaN.
///
/// Cody and Waite's reduction by ln 2 in two parts, then a polynomial of degree 6; the coefficients are Cephes' `expf`.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2²³ rounds to the nearest integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let in_range = x >= LEAST;
    let x = if in_range { x } else { LEAST };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4_f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let value = p.mul_add(r * r, r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    if in_range { value * power } else { 0.0 }
}

/// `Σ e^(x - max)` over all `x`; `max` is the largest. Lanes are added in a fixed order.
pub(super) fn sum_exp(values: &[f32], max: f32) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (rounds, rest) = values.as_chunks::<LANES>();
    for round in rounds {
        for (lane, x) in lanes.iter_mut().zip(round) {
            *lane += f64::from(exp(x - max));
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(exp(x - max));
    }
    lanes.iter().sum()
}

/// Weight of a token of logit `value` where the largest is `max`: [`SCALE`] at the maximum, rounded down.
#[inline(always)]
pub(super) fn weight(value: f32, max: f32, temperature: f32) -> u64 {
    to_integer(exp((value - max) / temperature) * SCALE)
}

/// [`weight`] of every token.
pub(super) fn weights(values: &[f32], max: f32, temperature: f32, out: &mut Vec<u64>) {
    out.resize(values.len(), 0);
    let (rounds, rest) = values.as_chunks::<LANES>();
    let (out_rounds, out_rest) = out.as_chunks_mut::<LANES>();
    for (round, out) in rounds.iter().zip(out_rounds) {
        // Two loops: the first compiles to vectors, the conversion to integers does not.
        let mut exps = [0.0; LANES];
        for (e, value) in exps.iter_mut().zip(round) {
            *e = exp((value - max) / temperature) * SCALE;
        }
        for (out, e) in out.iter_mut().zip(exps) {
            *out = to_integer(e);
        }
    }
    for (value, out) in rest.iter().zip(out_rest) {
        *out = weight(*value, max, temperature);
    }
}

/// Rounds a number in `0..=SCALE` down; by way of signed integers, which processors convert to faster.
#[inline(always)]
fn to_integer(x: f32) -> u64 {
    (x as i64).cast_unsigned()
}
