//! One pass over a row of logits: is it finite, and how large is each block of it at most.

use policies::request::Token;

use super::NonFinite;
use super::math::LANES;

/// Tokens a block: small enough that few blocks hold candidates, large enough that there are few blocks.
pub(super) const BLOCK: usize = 64;

/// The largest value of every [`BLOCK`] consecutive values of a row.
#[derive(Debug, Default)]
pub(super) struct Maxima {
    blocks: Vec<f32>,
    max: f32,
}

impl Maxima {
    /// Scans a row that may hold minus infinity but no NaN.
    pub(super) fn scan(&mut self, values: &[f32]) {
        self.blocks.clear();
        self.blocks.extend(values.chunks(BLOCK).map(|block| largest(block).0));
        self.max = largest(&self.blocks).0;
    }

    /// Scans a row whose values all have to be finite.
    pub(super) fn scan_finite(&mut self, values: &[f32]) -> Result<(), NonFinite> {
        self.blocks.clear();
        let mut finite = true;
        self.blocks.extend(values.chunks(BLOCK).map(|block| {
            let (max, block_finite) = largest(block);
            finite &= block_finite;
            max
        }));
        if !finite {
            let first = values.iter().position(|x| !x.is_finite()).unwrap_or_default();
            return Err(NonFinite { token: first as Token });
        }
        self.max = largest(&self.blocks).0;
        Ok(())
    }

    /// The largest value.
    pub(super) fn max(&self) -> f32 {
        self.max
    }

    /// The largest value of each block.
    pub(super) fn blocks(&self) -> &[f32] {
        &self.blocks
    }

    /// The first token that has the largest value.
    pub(super) fn argmax(&self, values: &[f32]) -> Token {
        let block = self.blocks.iter().position(|x| *x == self.max).unwrap_or_default();
        let start = block * BLOCK;
        let within = values.iter().skip(start).position(|x| *x == self.max).unwrap_or_default();
        (start + within) as Token
    }
}

/// The largest value (minus infinity when there is none) and whether all are finite.
fn largest(values: &[f32]) -> (f32, bool) {
    const EXPONENT: u32 = 0x7f80_0000;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut bad = [false; LANES];
    let (rounds, rest) = values.as_chunks::<LANES>();
    for round in rounds {
        for lane in 0..LANES {
            let x = round[lane];
            lanes[lane] = if x > lanes[lane] { x } else { lanes[lane] };
            bad[lane] |= x.to_bits() & EXPONENT == EXPONENT;
        }
    }
    let mut finite = !bad.contains(&true);
    let mut max = lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
    for &x in rest {
        finite &= x.is_finite();
        max = if x > max { x } else { max };
    }
    (max, finite)
}
