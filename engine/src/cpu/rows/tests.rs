use super::*;
use crate::cpu::SimdLevel;
use crate::cpu::testing::Rng;

/// One row as integers at a level: its groups in a tile of one row.
fn quantised(level: SimdLevel, x: &[f32]) -> Vec<f32> {
    let mut tile = vec![0.0; row_values(x.len(), 1)];
    level.dispatch(Quantise { x, inputs: x.len(), tile_rows: 1, tile: &mut tile });
    tile
}

/// Integers and scale of each group.
fn groups(tile: &[f32]) -> impl Iterator<Item = ([i16; GROUP], f32)> {
    tile.chunks_exact(group_bytes(1) / 4).map(|group| {
        let at = group.as_ptr().cast::<u8>();
        // SAFETY: a whole group of one row.
        let ints = std::array::from_fn(|i| (unsafe { pair::<1>(at, 0, i / 2) } >> (i % 2 * 16)) as i16);
        // SAFETY: as above.
        (ints, unsafe { scale::<1>(at, 0) })
    })
}

#[test]
fn a_value_is_off_by_half_its_groups_scale_at_most() {
    let mut rng = Rng::new(1);
    for size in [1e-20_f32, 1e-3, 1.0, 7e4, 3e38] {
        let x: Vec<f32> = rng.values(10 * GROUP).iter().map(|v| v * size).collect();
        let tile = quantised(SimdLevel::detect(), &x);
        for ((ints, scale), x) in groups(&tile).zip(x.chunks(GROUP)) {
            let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            assert_eq!(scale, largest / 32767.0);
            for (int, x) in ints.iter().zip(x) {
                let error = (f64::from(*int) * f64::from(scale) - f64::from(*x)).abs();
                assert!(error <= f64::from(scale) * 0.51, "{x} as {int} of {scale}");
            }
            assert!(ints.iter().any(|i| i.abs() == 32767));
        }
    }
}

#[test]
fn sums_are_those_of_the_integers() {
    let x = Rng::new(2).values(3 * GROUP);
    let tile = quantised(SimdLevel::detect(), &x);
    for (group, (ints, scale)) in tile.chunks_exact(group_bytes(1) / 4).zip(groups(&tile)) {
        let at = group.as_ptr().cast::<u8>();
        let expected = |ints: &[i16]| ints.iter().map(|i| i32::from(*i)).sum::<i32>() as f32 * scale;
        // SAFETY: a whole group of one row.
        let found = unsafe { [Parts::Whole, Parts::First, Parts::Second].map(|part| sum::<1>(at, 0, part)) };
        assert_eq!(found, [expected(&ints), expected(&ints[..16]), expected(&ints[16..])]);
    }
}

#[test]
fn all_levels_give_the_same_integers() {
    let mut rng = Rng::new(3);
    let mut x = rng.values(20 * GROUP);
    // Halves are rounded to even ones, zeros and very small groups have no scale.
    for (i, v) in x[..GROUP].iter_mut().enumerate() {
        *v = if i == 0 { 32767.0 } else { i as f32 + 0.5 };
    }
    x[GROUP..2 * GROUP].fill(0.0);
    x[2 * GROUP..3 * GROUP].fill(-1e-38);
    let expected: Vec<u32> = quantised(SimdLevel::Portable, &x).iter().map(|v| v.to_bits()).collect();
    for level in SimdLevel::available() {
        let found: Vec<u32> = quantised(level, &x).iter().map(|v| v.to_bits()).collect();
        assert_eq!(found, expected, "{level:?}");
    }
}

#[test]
fn a_value_that_is_not_finite_makes_its_groups_scale_nan() {
    for level in SimdLevel::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 15, 16, 31] {
                let mut x = Rng::new(4).values(3 * GROUP);
                x[GROUP + at] = bad;
                let scales: Vec<f32> = groups(&quantised(level, &x)).map(|(_, scale)| scale).collect();
                assert!(scales[0].is_finite() && scales[1].is_nan() && scales[2].is_finite(), "{scales:?}");
            }
        }
    }
}

#[test]
fn rows_of_a_tile_are_those_of_single_rows() {
    let mut rng = Rng::new(5);
    let inputs = 2 * GROUP;
    let x = rng.values(3 * inputs);
    let mut tile = vec![0.0; row_values(inputs, 4)];
    SimdLevel::detect().dispatch(Quantise { x: &x, inputs, tile_rows: 4, tile: &mut tile });
    for (row, x) in x.chunks(inputs).enumerate() {
        let single = quantised(SimdLevel::detect(), x);
        for group in 0..2 {
            let many = tile.as_ptr().cast::<u8>().wrapping_add(group * group_bytes(4));
            let one = single.as_ptr().cast::<u8>().wrapping_add(group * group_bytes(1));
            // SAFETY: whole groups of 4 rows and of one.
            unsafe {
                for i in 0..GROUP / 2 {
                    assert_eq!(pair::<4>(many, row, i), pair::<1>(one, 0, i));
                }
                assert_eq!(scale::<4>(many, row), scale::<1>(one, 0));
                for part in [Parts::Whole, Parts::First, Parts::Second] {
                    assert_eq!(sum::<4>(many, row, part), sum::<1>(one, 0, part));
                }
            }
        }
    }
}
