//! Step times as they were measured: a table over the rows of a step, and prices for what comes with each slice.
//!
//! ```text
//! step  = serving · (rows(R) + slice · S + Σ attention) + between
//! R     = tokens of all slices: each is a row of every matrix product, whichever slice it is of
//! S     = slices; each draws from its last row
//! attention = decode · context                                of a slice of one token
//!             max(decode · (start + 1), prefill · Σ context)  of a slice of more
//! ```
//!
//! Kernels work in blocks of rows and change their ways with the number of rows, so that `rows` is no straight line, and a
//! token that is decoded beside a prompt costs what a row more costs there: far less than alone. `serving` and `between`
//! are what the rest of a node does to an engine that shares the machine with it.

use crate::time::Span;

/// Thousandths: a factor of one.
const ONE: u32 = 1000;

/// What steps of one engine on one machine take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCosts {
    /// The first `knots` are used.
    rows: [u32; Self::KNOTS],
    took: [Span; Self::KNOTS],
    knots: usize,
    prices: SlicePrices,
    serving: u32,
    between: Span,
}

/// Prices beside the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlicePrices {
    /// A slice.
    pub per_slice: Span,
    /// A token of context that a token alone in its slice attends to.
    pub attention_decode: Span,
    /// A token of context that each token of a longer slice attends to.
    pub attention_prefill: Span,
}

/// What is in a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Content {
    pub(super) rows: u128,
    pub(super) slices: u128,
    /// Nanoseconds.
    pub(super) attention: u128,
}

impl StepCosts {
    /// Points that a table has at most.
    pub const KNOTS: usize = 16;

    /// Of an engine that has a machine to itself; `table` is what a step of so many rows takes without slices and
    /// attention. Between two points it is a straight line, and so it goes on after the last.
    ///
    /// None for a table without points or with too many, one that is not in order, or one in which more rows take less.
    #[must_use]
    pub fn new(table: &[(u32, Span)], prices: SlicePrices) -> Option<Self> {
        let in_order = table.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1);
        if !(1..=Self::KNOTS).contains(&table.len()) || table[0].0 == 0 || !in_order {
            return None;
        }
        let (mut rows, mut took) = ([0; Self::KNOTS], [Span::ZERO; Self::KNOTS]);
        for (at, point) in table.iter().enumerate() {
            (rows[at], took[at]) = *point;
        }
        Some(Self { rows, took, knots: table.len(), prices, serving: ONE, between: Span::ZERO })
    }

    /// The same engine in a node that serves: its steps take `serving` thousandths of what they take alone, and a step
    /// begins `between` after the one before it has ended.
    #[must_use]
    pub const fn serving(mut self, serving: u32, between: Span) -> Self {
        (self.serving, self.between) = (serving, between);
        self
    }

    /// The points of the table.
    pub fn table(&self) -> impl Iterator<Item = (u32, Span)> {
        self.rows.iter().copied().zip(self.took).take(self.knots)
    }

    /// The prices beside it.
    #[must_use]
    pub const fn prices(&self) -> SlicePrices {
        self.prices
    }

    /// From the end of a step to the beginning of the next.
    #[must_use]
    pub const fn between(&self) -> Span {
        self.between
    }

    /// Attention of a slice, in nanoseconds: of `tokens` tokens after `start`, which attend to `contexts` in all.
    pub(super) fn attention(&self, start: u128, tokens: u128, contexts: u128) -> u128 {
        let alone = u128::from(self.prices.attention_decode.0) * (start + 1);
        if tokens == 1 { alone } else { alone.max(u128::from(self.prices.attention_prefill.0) * contexts) }
    }

    /// Nanoseconds of a step that is not empty, rounded up.
    pub(super) fn step(&self, content: Content) -> u128 {
        let slices = content.slices * u128::from(self.prices.per_slice.0);
        let alone = self.at(content.rows) + slices + content.attention;
        (alone * u128::from(self.serving)).div_ceil(u128::from(ONE)) + u128::from(self.between.0)
    }

    /// The table at a number of rows.
    fn at(&self, rows: u128) -> u128 {
        let (knots, took) = (&self.rows[..self.knots], &self.took[..self.knots]);
        let point = |at: usize| (u128::from(knots[at]), u128::from(took[at].0));
        let after = knots.partition_point(|&knot| u128::from(knot) < rows);
        if after == 0 {
            return point(0).1;
        }
        // After the last point the last line goes on, and with one point the one from nothing at all.
        let second = after.min(self.knots - 1);
        let (from, to) = match second {
            0 => ((0, 0), point(0)),
            second => (point(second - 1), point(second)),
        };
        from.1 + ((to.1 - from.1) * (rows - from.0)).div_ceil(to.0 - from.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{CostModel, Work};

    fn costs() -> StepCosts {
        let table = [(1, Span(1000)), (4, Span(1300)), (8, Span(3300))];
        let (per_slice, attention_decode, attention_prefill) = (Span(10), Span(5), Span(2));
        let prices = SlicePrices { per_slice, attention_decode, attention_prefill };
        StepCosts::new(&table, prices).unwrap()
    }

    fn step(costs: StepCosts, slices: &[(u32, u32)]) -> u64 {
        CostModel::Steps(costs).step(slices.iter().map(|&(start, tokens)| Work { start, tokens })).0
    }

    #[test]
    fn figures_by_hand() {
        let alone = costs();
        assert_eq!(step(alone, &[(99, 1)]), 1000 + 10 + 5 * 100);
        assert_eq!(step(alone, &[(0, 2)]), 1100 + 10 + 2 * (1 + 2));
        // Where it is longer, one token of the slice attends alone.
        assert_eq!(step(alone, &[(99, 2)]), 1100 + 10 + 5 * 100);
        // Two decodes beside a prompt of four: six rows.
        assert_eq!(step(alone, &[(0, 1), (9, 1), (0, 4)]), 2300 + 30 + 5 + 50 + 2 * 10);
        // On from the last point.
        assert_eq!(step(alone, &[(0, 10)]), 4300 + 10 + 2 * 55);
        assert_eq!(step(alone.serving(1100, Span(7)), &[(0, 2)]), 1228 + 7);
        assert_eq!(step(alone, &[]), 0);
    }

    #[test]
    fn a_table_is_in_order() {
        let of = |table: &[(u32, u64)]| {
            let table: Vec<_> = table.iter().map(|&(rows, ns)| (rows, Span(ns))).collect();
            StepCosts::new(&table, SlicePrices::default())
        };
        for bad in [&[][..], &[(0, 1)], &[(2, 1), (2, 1)], &[(1, 2), (2, 1)], &[(1, 1); 17]] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        // One point: in proportion.
        assert_eq!(step(of(&[(2, 100)]).unwrap(), &[(0, 6)]), 300);
        assert_eq!(step(of(&[(2, 100)]).unwrap(), &[(0, 1)]), 100);
    }
}
