use super::*;
use crate::cpu::testing::{Rng, all_computes, assert_same_bits};

/// Runs `op` on all rows at once, at every level and thread count, and on each row alone; all must be equal.
fn rows_alone_and_together(rows: usize, width: usize, op: impl Fn(&Compute, &mut [f32], usize)) -> Vec<f32> {
    let x = Rng::new(width as u64).values(rows * width);
    let computes = all_computes();
    let mut expected = x.clone();
    for (row, values) in expected.chunks_mut(width).enumerate() {
        op(&computes[0], values, row);
    }
    for compute in &computes {
        let mut found = x.clone();
        op(compute, &mut found, 0);
        assert_same_bits(&found, &expected, &format!("{rows} rows of {width}, {compute:?}"));
    }
    expected
}

#[test]
fn norms_are_row_wise_and_accurate() {
    for (rows, width) in [(1, 576), (7, 576), (100, 576), (33, 1), (400, 100), (50, 64)] {
        let weight = Rng::new(9).values(width);
        let eps = 1e-5;
        let found = rows_alone_and_together(rows, width, |compute, x, _| {
            let mut out = vec![f32::NAN; x.len()];
            rms_norm(compute, x, &weight, eps, &mut out);
            rms_norm_in_place(compute, x, &weight, eps);
            assert_same_bits(&out, x, "in place");
        });
        let x = Rng::new(width as u64).values(rows * width);
        for (x, found) in x.chunks(width).zip(found.chunks(width)) {
            let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / width as f64;
            for i in 0..width {
                let exact = f64::from(x[i]) / (mean + f64::from(eps)).sqrt() * f64::from(weight[i]);
                assert!((f64::from(found[i]) - exact).abs() <= 1e-6 * (exact.abs() + 1e-3));
            }
        }
    }
}

#[test]
fn rotations_are_row_wise_and_accurate() {
    for (heads, head_dim, pairs) in [(9, 64, 32), (2, 24, 12), (3, 40, 8), (1, 8, 4)] {
        let inv_freq: Vec<f64> =
            (0..pairs).map(|i| 10_000_f64.powf(-(2.0 * i as f64) / (2 * pairs) as f64)).collect();
        let table = RopeTable::new(&inv_freq, 300, 1.25);
        assert_eq!((table.max_positions(), table.rotated()), (300, 2 * pairs));
        let positions: Vec<u32> = (0..70).map(|i| (i * 37) % 300).collect();
        let width = heads * head_dim;
        for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
            let found = rows_alone_and_together(70, width, |compute, x, row| {
                let rows = x.len() / width;
                rope(compute, x, heads, head_dim, &positions[row..row + rows], &table, style);
            });
            let x = Rng::new(width as u64).values(70 * width);
            for (row, &position) in positions.iter().enumerate() {
                for head in 0..heads {
                    let at = row * width + head * head_dim;
                    for (pair, frequency) in inv_freq.iter().enumerate() {
                        let (i, j) = match style {
                            RopeStyle::Interleaved => (at + 2 * pair, at + 2 * pair + 1),
                            RopeStyle::HalfSplit => (at + pair, at + pair + pairs),
                        };
                        let (sin, cos) = (f64::from(position) * frequency).sin_cos();
                        let (a, b) = (f64::from(x[i]), f64::from(x[j]));
                        assert!((f64::from(found[i]) - 1.25 * (a * cos - b * sin)).abs() < 4e-7);
                        assert!((f64::from(found[j]) - 1.25 * (a * sin + b * cos)).abs() < 4e-7);
                    }
                    let rest = at + 2 * pairs..at + head_dim;
                    assert_same_bits(&found[rest.clone()], &x[rest], "what is not rotated");
                }
            }
        }
    }
}

#[test]
fn the_gated_activation_is_element_wise_and_accurate() {
    for (rows, width) in [(1, 5), (1, 1536), (40, 1536), (3, 30_000)] {
        let up = Rng::new(5).values(rows * width);
        let found = rows_alone_and_together(rows, width, |compute, x, row| {
            for v in &mut *x {
                *v *= 100.0;
            }
            let len = x.len();
            silu_mul(compute, x, &up[row * width..][..len]);
        });
        let x = Rng::new(width as u64).values(rows * width);
        for i in 0..x.len() {
            let gate = f64::from(x[i] * 100.0);
            let exact = gate / (1.0 + (-gate).exp()) * f64::from(up[i]);
            assert!((f64::from(found[i]) - exact).abs() <= 5e-7 * exact.abs() + 1e-30, "{gate} {}", found[i]);
        }
    }
    let compute = &all_computes()[0];
    let mut ends = [f32::NEG_INFINITY, f32::INFINITY, -1e30, 0.0, f32::NAN];
    silu_mul(compute, &mut ends, &[1.0; 5]);
    assert!(ends[0].is_nan() || ends[0] == 0.0);
    assert_eq!(&ends[1..4], &[f32::INFINITY, 0.0, 0.0]);
    assert!(ends[4].is_nan());
}

#[test]
fn sums_are_element_wise() {
    let y = Rng::new(6).values(60_000);
    let found = rows_alone_and_together(100, 600, |compute, x, row| {
        let len = x.len();
        add(compute, x, &y[row * 600..][..len]);
    });
    let x = Rng::new(600).values(60_000);
    assert!(found.iter().zip(x.iter().zip(&y)).all(|(f, (x, y))| *f == x + y));
}
