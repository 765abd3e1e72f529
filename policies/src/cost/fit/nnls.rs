//! Least squares without negative prices, by coordinates in turn (Franc, Hlaváč, Navara, "Sequential coordinate-wise
//! algorithm for the non-negative least squares problem", CAIP 2005).

/// Sweeps over all prices at most; few hundred do.
const SWEEPS: usize = 50_000;
/// A sweep that changes no price by more than this share of the largest is the last.
const SETTLED: f64 = 1e-12;

/// Prices `x ≥ 0` that make `Σ ((parts · x - took) / took)²` least over the rows `(parts, took)`. A part that no row has
/// is priced 0. None without rows.
pub(super) fn solve(rows: &[(Vec<f64>, f64)]) -> Option<Vec<f64>> {
    let n = rows.first()?.0.len();
    // Each part in units of the largest relative share that it has in a row, so that steps towards the least are alike.
    let mut scale = vec![0.0_f64; n];
    for (parts, took) in rows {
        scale.iter_mut().zip(parts).for_each(|(scale, part)| *scale = scale.max(part / took));
    }
    let (mut matrix, mut wanted) = (vec![vec![0.0; n]; n], vec![0.0; n]);
    for (parts, took) in rows {
        let relative: Vec<f64> = parts
            .iter()
            .zip(&scale)
            .map(|(part, scale)| if *scale > 0.0 { part / took / scale } else { 0.0 })
            .collect();
        for (line, a) in matrix.iter_mut().zip(&relative) {
            line.iter_mut().zip(&relative).for_each(|(sum, b)| *sum += a * b);
        }
        wanted.iter_mut().zip(&relative).for_each(|(sum, a)| *sum += a);
    }
    let mut prices = vec![0.0_f64; n];
    // The gradient `matrix · prices - wanted`.
    let mut gradient: Vec<f64> = wanted.iter().map(|w| -w).collect();
    for _ in 0..SWEEPS {
        let (mut moved, mut largest) = (0.0_f64, 0.0_f64);
        for at in 0..n {
            let slope = matrix[at][at];
            if slope <= 0.0 {
                continue;
            }
            let next = (prices[at] - gradient[at] / slope).max(0.0);
            let change = next - prices[at];
            prices[at] = next;
            gradient.iter_mut().zip(&matrix[at]).for_each(|(g, m)| *g += change * m);
            moved = moved.max(change.abs());
            largest = largest.max(next);
        }
        if moved <= SETTLED * largest {
            break;
        }
    }
    let unscaled = |(price, scale): (&f64, &f64)| if *scale > 0.0 { price / scale } else { 0.0 };
    Some(prices.iter().zip(&scale).map(unscaled).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(parts: &[[f64; 2]], took: impl Fn(&[f64; 2]) -> f64) -> Vec<(Vec<f64>, f64)> {
        parts.iter().map(|p| (p.to_vec(), took(p))).collect()
    }

    const PARTS: [[f64; 2]; 4] = [[1.0, 3.0], [1.0, 50.0], [1.0, 700.0], [1.0, 20.0]];

    #[test]
    fn prices_that_made_the_rows_are_found() {
        let found = solve(&rows(&PARTS, |p| 1e6 * p[0] + 250.0 * p[1])).unwrap();
        assert!((found[0] / 1e6 - 1.0).abs() < 1e-6 && (found[1] / 250.0 - 1.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn what_would_be_negative_is_nothing_and_the_rest_is_the_best_without_it() {
        let falling = rows(&PARTS, |p| 1e6 * p[0] - 500.0 * p[1]);
        let found = solve(&falling).unwrap();
        assert_eq!(found[1], 0.0);
        let alone: Vec<_> = falling.iter().map(|(parts, took)| (parts[..1].to_vec(), *took)).collect();
        assert!((found[0] / solve(&alone).unwrap()[0] - 1.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn a_part_that_is_never_there_costs_nothing() {
        let found = solve(&[(vec![2.0, 0.0], 8.0)]).unwrap();
        assert!((found[0] - 4.0).abs() < 1e-9 && found[1] == 0.0, "{found:?}");
        assert_eq!(solve(&[]), None);
    }
}
