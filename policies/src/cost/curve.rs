//! Step times as polynomials: what a profile of an engine looks like when only two things are known of a step.
//!
//! ```text
//! step = prefill(T) + decode(p)
//! T    = tokens of prompts that the step computes; prefill(0) = 0
//! p    = share of the KV pages that sequences hold; decode = 0 where no sequence decodes
//! ```
//!
//! This is the form of NVIDIA Dynamo's mocker, and that a mixed step costs the sum of both is read off its published
//! behaviour: the p99 inter-token latency of a unified worker there is that of one full prefill chunk and one decode.

use crate::time::Span;

/// Attoseconds in a millisecond.
const MILLISECOND: f64 = 1e15;
/// Attoseconds in a nanosecond.
const NANOSECOND: i128 = 1_000_000_000;

/// A polynomial of degree two. Coefficients are whole attoseconds, so that a time is the same on every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polynomial {
    constant: i64,
    linear: i64,
    quadratic: i64,
}

impl Polynomial {
    /// The most that a coefficient may be, in milliseconds.
    pub const MOST_MS: f64 = 9000.0;

    /// `constant + linear · x + quadratic · x²`, in milliseconds; coefficients beyond ±[`Polynomial::MOST_MS`] are cut.
    #[must_use]
    pub fn from_millis(constant: f64, linear: f64, quadratic: f64) -> Self {
        let whole = |ms: f64| (ms.clamp(-Self::MOST_MS, Self::MOST_MS) * MILLISECOND).round() as i64;
        Self { constant: whole(constant), linear: whole(linear), quadratic: whole(quadratic) }
    }

    /// Its value at `above / below` (which is not 0), in nanoseconds, rounded up; never below 0.
    fn at(&self, above: u32, below: u32) -> u64 {
        let (above, below) = (i128::from(above), i128::from(below.max(1)));
        // Up to 2⁶³ · 2⁶⁴: within 128 bits.
        let scaled = i128::from(self.quadratic) * above * above / (below * below)
            + i128::from(self.linear) * above / below
            + i128::from(self.constant);
        let nanoseconds = scaled.max(0).unsigned_abs().div_ceil(NANOSECOND.unsigned_abs());
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }
}

/// The two polynomials of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    /// Of prompt tokens computed in a step.
    pub prefill: Polynomial,
    /// Of the share of KV pages in use.
    pub decode: Polynomial,
    /// The least that a step with decodes takes.
    pub decode_floor: Span,
}

/// KV pages of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvUse {
    /// Pages that sequences hold.
    pub used: u32,
    /// All pages.
    pub total: u32,
}

impl Curve {
    /// Time of a step that computes `prompt_tokens` and, where `decodes`, a token of sequences that hold their share of
    /// the pages.
    #[must_use]
    pub fn step(&self, prompt_tokens: u32, decodes: bool, kv: KvUse) -> Span {
        let prefill = if prompt_tokens > 0 { Span(self.prefill.at(prompt_tokens, 1)) } else { Span::ZERO };
        if !decodes {
            return prefill;
        }
        prefill + Span(self.decode.at(kv.used.min(kv.total), kv.total)).max(self.decode_floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The curve of the reference runs.
    fn reference() -> Curve {
        Curve {
            prefill: Polynomial::from_millis(16.50142, 1.518_344e-2, 4.209_989e-7),
            decode: Polynomial::from_millis(5.74, 54.01, -25.74),
            decode_floor: Span::from_millis(1),
        }
    }

    fn close(span: Span, ms: f64) {
        assert!((span.0 as f64 / 1e6 - ms).abs() < 1e-5, "{span} is not {ms} ms");
    }

    #[test]
    fn figures_by_hand() {
        let (curve, half) = (reference(), KvUse { used: 500, total: 1000 });
        close(curve.step(8192, false, half), 28.252_758 + 124.382_740 + 16.501_42);
        close(curve.step(1, false, half), 16.516_604);
        close(curve.step(0, true, half), 5.74 + 27.005 - 6.435);
        close(curve.step(0, true, KvUse { used: 7, total: 7 }), 34.01);
        // A mixed step is the sum.
        let both = curve.step(8192, true, half);
        assert_eq!(both, curve.step(8192, false, half) + curve.step(0, true, half));
        assert_eq!(curve.step(0, false, half), Span::ZERO);
        // No pages, more in use than there are, and the largest numbers: no panic.
        close(curve.step(0, true, KvUse::default()), 5.74);
        close(curve.step(0, true, KvUse { used: 9, total: 3 }), 34.01);
        assert!(curve.step(u32::MAX, true, KvUse { used: u32::MAX, total: u32::MAX }) > Span::from_secs(1));
    }

    #[test]
    fn a_decode_takes_its_floor_and_nothing_is_negative() {
        let falling = Polynomial::from_millis(-3.0, 0.0, 0.0);
        let curve = Curve { prefill: falling, decode: falling, decode_floor: Span::from_millis(1) };
        let kv = KvUse { used: 1, total: 2 };
        assert_eq!(curve.step(100, false, kv), Span::ZERO);
        assert_eq!(curve.step(0, true, kv), Span::from_millis(1));
    }
}
