//! The costs that explain measured steps best: a table over rows ([`StepCosts`]) and, coarser, prices ([`Affine`]).
//!
//! Both are sums of parts that are not negative: least squares of the relative error, so that short steps count as much as
//! long ones, under that condition. Steps that are off by more than three times as much as half of them are taken for
//! disturbed ones and left out of a second pass.

use super::{Affine, CostModel, SlicePrices, StepCosts, Work};
use crate::time::Span;

mod nnls;

/// Rows at which a table has points, where steps of so many rows were measured: close where kernels for few rows give way
/// to those for many.
const ROWS: [u32; StepCosts::KNOTS] = [1, 2, 3, 4, 6, 8, 10, 12, 16, 32, 64, 110, 180, 320, 512, 1200];

/// A step that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What was computed.
    pub work: Vec<Work>,
    /// How long it took.
    pub took: Span,
}

/// What a step is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Tokens of prompts.
    Prefill,
    /// A token each of several sequences.
    Decode,
    /// Both.
    Mixed,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Prefill, Self::Decode, Self::Mixed];

    /// Of a step; a prompt's last single token counts as a decode, as it does for the costs.
    #[must_use]
    pub fn of(work: &[Work]) -> Self {
        match (work.iter().any(|w| w.tokens > 1), work.iter().any(|w| w.tokens == 1)) {
            (true, true) => Self::Mixed,
            (true, false) => Self::Prefill,
            (false, _) => Self::Decode,
        }
    }

    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
        }
    }
}

/// How well costs explain steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// How many steps.
    pub steps: usize,
    /// Median of `|predicted - measured| / measured`.
    pub median: f64,
    /// The 90th percentile of the same.
    pub p90: f64,
    /// Time of all steps as predicted, as a multiple of what was measured.
    pub sum: f64,
}

impl Residual {
    /// Of steps; none where there are none.
    #[must_use]
    pub fn of<'a>(cost: &CostModel, steps: impl IntoIterator<Item = &'a Measured>) -> Option<Self> {
        let (mut errors, mut predicted, mut measured) = (Vec::new(), 0.0, 0.0);
        for step in steps {
            let (said, took) = (cost.step(step.work.iter().copied()).0 as f64, step.took.0.max(1) as f64);
            errors.push((said - took).abs() / took);
            predicted += said;
            measured += took;
        }
        let (median, p90) = (quantile(&mut errors, 0.5)?, quantile(&mut errors, 0.9)?);
        Some(Self { steps: errors.len(), median, p90, sum: predicted / measured })
    }
}

/// The table that explains steps best, with points at the rows that were measured.
///
/// None where the steps do not tell: fewer than four different ones.
#[must_use]
pub fn steps(steps: &[Measured]) -> Option<StepCosts> {
    let measured = |rows: u32| steps.iter().any(|step| rows_of(&step.work) == u64::from(rows));
    let knots: Vec<u32> = ROWS.into_iter().filter(|&rows| measured(rows)).collect();
    if knots.is_empty() {
        return None;
    }
    let parts = fitted(steps, |work| {
        let (mut decode, mut prefill) = (0.0, 0.0);
        for w in work {
            *(if w.tokens == 1 { &mut decode } else { &mut prefill }) += contexts(*w);
        }
        let mut parts = vec![0.0; knots.len()];
        place(&knots, rows_of(work) as f64, &mut parts);
        parts.extend([work.len() as f64, decode, prefill]);
        parts
    })?;
    let (took, prices) = parts.split_at(knots.len());
    // More rows never take less, whatever the noise says.
    let mut least = 0.0_f64;
    let table: Vec<(u32, Span)> = knots
        .iter()
        .zip(took)
        .map(|(&rows, &ns)| {
            least = least.max(ns);
            (rows, span(least))
        })
        .collect();
    let &[per_slice, attention_decode, attention_prefill] = prices else { return None };
    let [per_slice, attention_decode, attention_prefill] =
        [per_slice, attention_decode, attention_prefill].map(span);
    StepCosts::new(&table, SlicePrices { per_slice, attention_decode, attention_prefill })
}

/// The prices that explain steps best.
///
/// None where the steps do not tell: fewer than four different ones.
#[must_use]
pub fn affine(steps: &[Measured]) -> Option<Affine> {
    let parts = fitted(steps, |work| {
        let mut parts = vec![1.0, 0.0, 0.0, 0.0];
        for w in work {
            parts[if w.tokens == 1 { 2 } else { 1 }] += f64::from(w.tokens);
            parts[3] += contexts(*w);
        }
        parts
    })?;
    let &[step, prefill, decode, attention] = &parts[..] else { return None };
    Some(Affine {
        step_overhead: span(step),
        prefill_per_token: span(prefill),
        decode_per_sequence: span(decode),
        attention_per_token: span(attention),
    })
}

fn span(ns: f64) -> Span {
    Span(ns.round() as u64)
}

fn rows_of(work: &[Work]) -> u64 {
    work.iter().map(|w| u64::from(w.tokens)).sum()
}

/// Tokens that the tokens of a slice attend to.
fn contexts(Work { start, tokens }: Work) -> f64 {
    let (start, n) = (f64::from(start), f64::from(tokens));
    n * start + n * (n + 1.0) / 2.0
}

/// Shares of the points around `rows` in a straight line between them; it goes on before the first and after the last,
/// as [`StepCosts`] has it.
fn place(knots: &[u32], rows: f64, shares: &mut [f64]) {
    let after = knots.partition_point(|&knot| f64::from(knot) < rows);
    let second = after.min(knots.len() - 1);
    if after == 0 {
        shares[0] = 1.0;
    } else if second == 0 {
        shares[0] = rows / f64::from(knots[0]);
    } else {
        let (from, to) = (f64::from(knots[second - 1]), f64::from(knots[second]));
        let share = (rows - from) / (to - from);
        (shares[second - 1], shares[second]) = (1.0 - share, share);
    }
}

/// Prices of the parts of steps, in nanoseconds, none below 0.
fn fitted(steps: &[Measured], parts: impl Fn(&[Work]) -> Vec<f64>) -> Option<Vec<f64>> {
    let mut rows: Vec<(Vec<f64>, f64)> = steps
        .iter()
        .filter(|step| step.took > Span::ZERO && !step.work.is_empty())
        .map(|step| (parts(&step.work), step.took.0 as f64))
        .collect();
    let mut different: Vec<&[f64]> = Vec::new();
    for (parts, _) in &rows {
        if different.len() < 4 && !different.contains(&&parts[..]) {
            different.push(parts);
        }
    }
    if different.len() < 4 {
        return None;
    }
    let first = nnls::solve(&rows)?;
    let error = |(parts, took): &(Vec<f64>, f64)| {
        let predicted: f64 = parts.iter().zip(&first).map(|(part, price)| part * price).sum();
        (predicted - took).abs() / took
    };
    let limit = 3.0 * quantile(&mut rows.iter().map(error).collect::<Vec<_>>(), 0.5)?;
    rows.retain(|row| error(row) <= limit.max(0.02));
    nnls::solve(&rows).or(Some(first))
}

fn quantile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(values[(last as f64 * share).round() as usize])
}

#[cfg(test)]
mod tests;
