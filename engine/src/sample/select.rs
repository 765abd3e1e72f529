//! The largest few of many, without sorting the many.

use policies::request::Token;

use super::scan::{BLOCK, Maxima};

/// A token with its weight in the draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weighed {
    pub(super) weight: u64,
    pub(super) token: Token,
}

impl Weighed {
    /// Whether this one is at least as heavy as `other`, or equally heavy and no higher a token.
    pub(super) fn reaches(self, other: Self) -> bool {
        self.weight > other.weight || (self.weight == other.weight && self.token <= other.token)
    }
}

/// The `n` largest values with their tokens, largest first, ties by lower token.
///
/// The `n`-th largest block maximum is a lower bound of the `n`-th largest value, so only blocks that reach it are
/// looked into: some `n` of them for `n` small, in place of a whole vocabulary.
pub(super) fn top(values: &[f32], maxima: &Maxima, n: usize, out: &mut Vec<(f32, Token)>) {
    out.clear();
    if n == 0 {
        return;
    }
    let mut blocks = maxima.blocks().to_vec();
    let bound = match blocks.len().checked_sub(n) {
        Some(_) => *blocks.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1,
        None => f32::NEG_INFINITY,
    };
    for (index, _) in maxima.blocks().iter().enumerate().filter(|(_, max)| **max >= bound) {
        let start = index * BLOCK;
        let block = &values[start..values.len().min(start + BLOCK)];
        let reaching = block.iter().zip(start as Token..).filter(|(value, _)| **value >= bound);
        // Adding zero turns -0 into 0: the two are equal logits, but ordered by `total_cmp`.
        out.extend(reaching.map(|(value, token)| (value + 0.0, token)));
    }
    let order = |a: &(f32, Token), b: &(f32, Token)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if out.len() > n {
        out.select_nth_unstable_by(n - 1, order);
        out.truncate(n);
    }
    out.sort_unstable_by(order);
}

/// The lightest of the smallest set of heaviest candidates whose weights add up to `mass` (ties by lower token); the
/// lightest of all when they do not reach it. Reorders the candidates, of which there is at least one.
///
/// Halves the range in which the boundary lies, as a quickselect does by rank: linear time.
pub(super) fn nucleus(candidates: &mut [Weighed], mass: u64) -> Weighed {
    let order = |a: &Weighed, b: &Weighed| b.weight.cmp(&a.weight).then(a.token.cmp(&b.token));
    let (mut low, mut high, mut below) = (0, candidates.len(), 0_u64);
    // The boundary is in low..high: the heaviest `low` weigh `below`, less than `mass`.
    while high - low > 1 {
        let half = (high - low) / 2;
        candidates[low..high].select_nth_unstable_by(half, order);
        let weight = candidates[low..low + half].iter().map(|c| c.weight).sum::<u64>();
        if below + weight >= mass {
            high = low + half;
        } else {
            low += half;
            below += weight;
        }
    }
    candidates[low]
}
