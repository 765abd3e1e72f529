use super::*;
use crate::cpu::SimdLevel;
use crate::cpu::simd::Kernel;

struct Exp(f32);

impl Kernel for Exp {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        s.lanes(exp(s, s.splat(self.0)))[7]
    }
}

fn at_every_level(x: f32) -> f32 {
    let found: Vec<f32> = SimdLevel::available().map(|level| level.dispatch(Exp(x))).collect();
    assert!(found.iter().all(|v| v.to_bits() == found[0].to_bits() || v.is_nan()), "e^{x}: {found:?}");
    found[0]
}

#[test]
fn exponentials_are_accurate_over_the_whole_range() {
    let mut worst = 0.0_f64;
    for step in -86_500..=88_720 {
        let x = step as f32 / 1000.0;
        let exact = f64::from(x).exp();
        worst = worst.max((f64::from(at_every_level(x)) / exact - 1.0).abs());
    }
    assert!(worst < 1.5e-7, "relative error {worst:e}");
}

#[test]
fn exponentials_at_the_ends() {
    assert_eq!(at_every_level(0.0), 1.0);
    assert_eq!(at_every_level(-0.0), 1.0);
    for low in [-86.6, -100.0, -1e30, f32::NEG_INFINITY] {
        assert_eq!(at_every_level(low), 0.0);
    }
    for high in [88.73, 1e30, f32::INFINITY] {
        assert_eq!(at_every_level(high), f32::INFINITY);
    }
    assert!(at_every_level(f32::NAN).is_nan());
}
