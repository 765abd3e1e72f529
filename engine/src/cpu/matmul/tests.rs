use super::*;
use crate::cpu::testing::{ALL_TYPES, Rng, all_computes, assert_same_bits, random_packed};
use crate::cpu::{GgmlType, SimdLevel};

/// Rows of inputs that a format takes, with a tail where it can have one.
fn inputs_of(ty: GgmlType) -> usize {
    match ty.block_values() {
        1 => 75,
        32 => 96,
        values => values,
    }
}

fn product(compute: &Compute, weights: &Packed, bias: Option<&[f32]>, x: &[f32], rows: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * weights.outputs()];
    matmul(compute, x, rows, &mut [Product { weights, bias, out: &mut out }]);
    out
}

/// Rows one at a time, on one thread, without SIMD: what everything else must equal.
fn row_by_row(weights: &Packed, bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    let compute = Compute::with_level(1, SimdLevel::Portable).unwrap();
    x.chunks(weights.inputs()).flat_map(|row| product(&compute, weights, bias, row, 1)).collect()
}

#[test]
fn a_row_is_the_same_in_any_batch_at_any_level_with_any_threads() {
    let computes = all_computes();
    for ty in ALL_TYPES {
        for outputs in [5, 16, 50, 97] {
            let mut rng = Rng::new(ty.code() as u64 * 100 + outputs as u64);
            let inputs = inputs_of(ty);
            let weights = random_packed(&computes[0], &mut rng, ty, outputs, inputs);
            let bias = rng.values(outputs);
            let bias = (outputs % 2 == 1).then_some(bias.as_slice());
            let x = rng.values(77 * inputs);
            let expected = row_by_row(&weights, bias, &x);
            for compute in &computes {
                // The last ones are beyond what is done without an expanded buffer at any level.
                for rows in (1..=40).chain([63, 64, 65, 72, 73, 77]) {
                    let found = product(compute, &weights, bias, &x[..rows * inputs], rows);
                    let what = format!("{ty:?} {outputs}x{inputs} {rows} rows, {compute:?}");
                    assert_same_bits(&found, &expected[..rows * outputs], &what);
                }
            }
        }
    }
}

#[test]
fn sums_longer_than_the_expanded_buffer_are_the_same() {
    let computes = all_computes();
    for ty in [GgmlType::F32, GgmlType::Q4_1, GgmlType::Q6K] {
        let mut rng = Rng::new(7);
        let (outputs, inputs) = (21, 2 * EXPANDED_INPUTS + 512);
        let weights = random_packed(&computes[0], &mut rng, ty, outputs, inputs);
        let bias = rng.values(outputs);
        let x = rng.values(74 * inputs);
        let expected = row_by_row(&weights, Some(&bias), &x);
        for compute in &computes {
            let found = product(compute, &weights, Some(&bias), &x, 74);
            assert_same_bits(&found, &expected, &format!("{ty:?} {compute:?}"));
        }
    }
}

#[test]
fn results_agree_with_double_precision() {
    for compute in all_computes() {
        for ty in ALL_TYPES {
            let mut rng = Rng::new(ty.code() as u64);
            let (outputs, inputs, rows) = (35, 3 * inputs_of(ty), 14);
            let weights = random_packed(&compute, &mut rng, ty, outputs, inputs);
            let bias = rng.values(outputs);
            let x = rng.values(rows * inputs);
            let found = product(&compute, &weights, Some(&bias), &x, rows);
            let mut row_weights = vec![0.0; inputs];
            for output in 0..outputs {
                weights.dequantise_row(output, &mut row_weights);
                for (row, x) in x.chunks(inputs).enumerate() {
                    // Quantised rows are off by half their group's scale at most, and no more than that.
                    let off = |(x, w): (&[f32], &[f32])| {
                        let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                        0.51 * f64::from(largest) / 32767.0
                            * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
                    };
                    let quantised = ty.block_values() > 1;
                    let rounding = x.chunks(32).zip(row_weights.chunks(32)).map(off).sum::<f64>();
                    let rounding = if quantised { rounding } else { 0.0 };
                    let terms = x.iter().zip(&row_weights).map(|(&a, &b)| a as f64 * b as f64);
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
                    let expected = sum + bias[output] as f64;
                    let error = (found[row * outputs + output] as f64 - expected).abs();
                    assert!(
                        error <= 2e-6 * (size + 1.0) + rounding,
                        "{ty:?} row {row} output {output}: off by {error:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn several_matrices_share_one_call() {
    for compute in all_computes() {
        let mut rng = Rng::new(3);
        let inputs = 256;
        let kinds = [(GgmlType::Q4_1, 70), (GgmlType::Q6K, 3), (GgmlType::F16, 16), (GgmlType::Q8_0, 129)];
        let weights: Vec<Packed> =
            kinds.iter().map(|&(ty, n)| random_packed(&compute, &mut rng, ty, n, inputs)).collect();
        for rows in [1, 2, 5, 8, 9, 30, 70] {
            let x = rng.values(rows * inputs);
            let mut outs: Vec<Vec<f32>> = kinds.iter().map(|&(_, n)| vec![f32::NAN; rows * n]).collect();
            let mut products: Vec<Product<'_>> =
                weights.iter().zip(&mut outs).map(|(w, out)| Product::new(w, out)).collect();
            matmul(&compute, &x, rows, &mut products);
            for (w, out) in weights.iter().zip(&outs) {
                assert_same_bits(out, &row_by_row(w, None, &x), "one of several matrices");
            }
        }
    }
}

#[test]
fn a_row_of_nan_spoils_no_other_row() {
    for compute in all_computes() {
        let mut rng = Rng::new(11);
        let weights = random_packed(&compute, &mut rng, GgmlType::Q4_0, 40, 64);
        for rows in [2, 7, 13, 70] {
            let mut x = rng.values(rows * 64);
            let clean = product(&compute, &weights, None, &x, rows);
            x[64..128].fill(f32::NAN);
            let found = product(&compute, &weights, None, &x, rows);
            assert_same_bits(&found[..40], &clean[..40], "row 0");
            assert_same_bits(&found[80..], &clean[80..], "rows after");
            assert!(found[40..80].iter().all(|v| v.is_nan()));
        }
    }
}

#[test]
fn nothing_to_do_is_fine() {
    let compute = Compute::new(2).unwrap();
    let weights = random_packed(&compute, &mut Rng::new(1), GgmlType::Q8_0, 4, 32);
    matmul(&compute, &[], 0, &mut []);
    matmul(&compute, &[], 0, &mut [Product::new(&weights, &mut [])]);
}
