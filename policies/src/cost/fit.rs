//! The prices of [`Affine`] that explain measured steps best.

use super::{Affine, Work};
use crate::time::Span;

/// A step that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What was computed.
    pub work: Vec<Work>,
    /// How long it took.
    pub took: Span,
}

/// Prices, and how far they are off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The prices.
    pub prices: Affine,
    /// Median of `|predicted - measured| / measured` over the steps.
    pub median_error: f64,
    /// The 90th percentile of the same.
    pub p90_error: f64,
}

/// Prices of a step, its prefilled tokens, its decoded sequences and the tokens that are attended to.
const PRICES: usize = 4;

impl Fit {
    /// Least squares of the relative error, so that short steps count as much as long ones; prices that would be negative
    /// are taken out and the others fitted anew (Lawson and Hanson's active set, 1974, with what was taken out left out).
    /// Steps that are off by more than three times as much as half of them are taken for disturbed ones and left out of a
    /// second pass.
    ///
    /// None where the steps do not tell: fewer than four of them, or all of one kind.
    #[must_use]
    pub fn of(steps: &[Measured]) -> Option<Self> {
        let rows: Vec<Row> = steps.iter().filter(|step| step.took > Span::ZERO).map(Row::of).collect();
        let first = solve(&rows)?;
        let limit = 3.0 * quantile(rows.iter().map(|row| row.error(&first)).collect(), 0.5)?;
        let undisturbed: Vec<Row> =
            rows.iter().filter(|row| row.error(&first) <= limit.max(0.02)).copied().collect();
        let prices = solve(&undisturbed).unwrap_or(first);
        let errors: Vec<f64> = rows.iter().map(|row| row.error(&prices)).collect();
        let [step, prefill, decode, attention] = prices.map(|ns| Span(ns.round() as u64));
        Some(Self {
            prices: Affine {
                step_overhead: step,
                prefill_per_token: prefill,
                decode_per_sequence: decode,
                attention_per_token: attention,
            },
            median_error: quantile(errors.clone(), 0.5)?,
            p90_error: quantile(errors, 0.9)?,
        })
    }
}

#[derive(Clone, Copy)]
struct Row {
    features: [f64; PRICES],
    /// Nanoseconds.
    took: f64,
}

impl Row {
    fn of(step: &Measured) -> Self {
        let mut features = [1.0, 0.0, 0.0, 0.0];
        for &Work { start, tokens } in &step.work {
            let (start, n) = (f64::from(start), f64::from(tokens));
            features[if tokens == 1 { 2 } else { 1 }] += n;
            features[3] += n * start + n * (n + 1.0) / 2.0;
        }
        Self { features, took: step.took.0 as f64 }
    }

    fn error(&self, prices: &[f64; PRICES]) -> f64 {
        let predicted: f64 = self.features.iter().zip(prices).map(|(feature, price)| feature * price).sum();
        (predicted - self.took).abs() / self.took
    }
}

fn solve(rows: &[Row]) -> Option<[f64; PRICES]> {
    let mut active = [true; PRICES];
    loop {
        let prices = normal_equations(rows, active)?;
        let least = (0..PRICES).filter(|&i| active[i] && prices[i] < 0.0);
        match least.min_by(|&a, &b| prices[a].total_cmp(&prices[b])) {
            Some(negative) => active[negative] = false,
            None => return Some(prices),
        }
    }
}

/// The least squares over the active prices by Gauss' elimination with pivots; the others are 0.
fn normal_equations(rows: &[Row], active: [bool; PRICES]) -> Option<[f64; PRICES]> {
    let used: Vec<usize> = (0..PRICES).filter(|&i| active[i]).collect();
    let n = used.len();
    if n == 0 || rows.len() < PRICES {
        return None;
    }
    // Each feature in units of its largest, so that pivots can be compared.
    let scale: Vec<f64> =
        used.iter().map(|&i| rows.iter().map(|r| r.features[i]).fold(0.0, f64::max)).collect();
    if scale.contains(&0.0) {
        return None;
    }
    let mut matrix = vec![vec![0.0; n + 1]; n];
    for row in rows {
        let x: Vec<f64> = used.iter().zip(&scale).map(|(&i, s)| row.features[i] / s).collect();
        let weight = 1.0 / (row.took * row.took);
        for (a, line) in matrix.iter_mut().enumerate() {
            (0..n).for_each(|b| line[b] += weight * x[a] * x[b]);
            line[n] += weight * x[a] * row.took;
        }
    }
    let largest = (0..n).map(|a| matrix[a][a]).fold(0.0, f64::max);
    for column in 0..n {
        let pivot =
            (column..n).max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))?;
        matrix.swap(column, pivot);
        if matrix[column][column].abs() <= 1e-12 * largest {
            return None;
        }
        let line = matrix[column].clone();
        for (_, other) in matrix.iter_mut().enumerate().filter(|(row, _)| *row != column) {
            let factor = other[column] / line[column];
            other.iter_mut().zip(&line).for_each(|(value, pivot)| *value -= factor * pivot);
        }
    }
    let mut prices = [0.0; PRICES];
    for (a, &i) in used.iter().enumerate() {
        prices[i] = matrix[a][n] / matrix[a][a] / scale[a];
    }
    Some(prices)
}

fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(values[(last as f64 * share).round() as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostModel;
    use crate::rng::Rng;

    const REAL: Affine = Affine {
        step_overhead: Span(3_400_000),
        prefill_per_token: Span(1_200_000),
        decode_per_sequence: Span(2_000_000),
        attention_per_token: Span(900),
    };

    fn steps(noise: f64) -> Vec<Measured> {
        let mut rng = Rng::new(7);
        let mut works: Vec<Vec<Work>> = Vec::new();
        for start in [0, 300, 900] {
            works.extend([16, 60, 128, 512].map(|tokens| vec![Work { start, tokens }]));
            works.extend([1, 2, 4, 8, 16].map(|n| vec![Work { start, tokens: 1 }; n]));
            works.push(vec![Work { start, tokens: 1 }, Work { start: 0, tokens: 100 }]);
        }
        let cost = CostModel::Affine(REAL);
        let measured = |work: Vec<Work>| {
            let took = cost.step(work.iter().copied());
            let factor = 1.0 + noise * (2.0 * rng.unit() - 1.0);
            Measured { work, took: Span((took.0 as f64 * factor) as u64) }
        };
        works.into_iter().map(measured).collect()
    }

    fn close(found: Span, real: Span, share: f64) -> bool {
        (found.0 as f64 - real.0 as f64).abs() <= share * real.0 as f64
    }

    #[test]
    fn prices_are_found_from_steps_that_they_made() {
        let fit = Fit::of(&steps(0.0)).unwrap();
        assert!(fit.p90_error < 1e-3, "{fit:?}");
        assert!(close(fit.prices.prefill_per_token, REAL.prefill_per_token, 0.01), "{fit:?}");
        assert!(close(fit.prices.attention_per_token, REAL.attention_per_token, 0.02), "{fit:?}");
    }

    #[test]
    fn noise_and_a_few_disturbed_steps_do_little() {
        let mut steps = steps(0.05);
        steps[3].took = Span(steps[3].took.0 * 5);
        steps[17].took = Span(steps[17].took.0 * 3);
        let fit = Fit::of(&steps).unwrap();
        assert!(fit.median_error < 0.06, "{fit:?}");
        assert!(close(fit.prices.prefill_per_token, REAL.prefill_per_token, 0.1), "{fit:?}");
        assert!(close(fit.prices.decode_per_sequence, REAL.decode_per_sequence, 0.2), "{fit:?}");
    }

    #[test]
    fn no_price_is_negative() {
        // Longer contexts are faster here, which no price of attention explains.
        let step = |start: u32, tokens: u32| Measured {
            work: vec![Work { start, tokens }],
            took: Span(1_000_000 + u64::from(tokens) * 1000 - u64::from(start) * 100),
        };
        let steps: Vec<Measured> =
            [1, 1, 8, 64].into_iter().flat_map(|n| [0, 500, 1000].map(|start| step(start, n))).collect();
        let fit = Fit::of(&steps).unwrap();
        assert_eq!(fit.prices.attention_per_token, Span::ZERO);
        assert!(fit.p90_error < 0.2, "{fit:?}");
    }

    #[test]
    fn steps_that_do_not_tell_are_not_explained() {
        assert_eq!(Fit::of(&[]), None);
        let one = Measured { work: vec![Work { start: 0, tokens: 8 }], took: Span(1000) };
        assert_eq!(Fit::of(&vec![one; 20]), None);
    }
}
