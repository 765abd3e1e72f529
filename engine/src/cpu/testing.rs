//! Inputs for the kernels' tests.

use half::f16;

use super::{Compute, GgmlType, Packed, SimdLevel};

/// A small generator of repeatable numbers (xorshift64*).
#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn bits(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.bits() as usize % limit
    }

    /// Uniform in -1..1.
    pub(super) fn value(&mut self) -> f32 {
        self.bits() as f32 / u32::MAX as f32 * 2.0 - 1.0
    }

    pub(super) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }
}

pub(super) const ALL_TYPES: [GgmlType; 13] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::Bf16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2K,
    GgmlType::Q3K,
    GgmlType::Q4K,
    GgmlType::Q5K,
    GgmlType::Q6K,
];

/// Where a block keeps its f16 values.
fn f16_offsets(ty: GgmlType) -> &'static [usize] {
    match ty {
        GgmlType::F32 | GgmlType::Bf16 => &[],
        GgmlType::F16 | GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 => &[0],
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
        GgmlType::Q2K => &[80, 82],
        GgmlType::Q3K => &[108],
        GgmlType::Q6K => &[208],
    }
}

/// The bytes of a random tensor in a GGUF file: every quant and scale takes every value, f16 values are in -1..1.
pub(super) fn tensor_bytes(rng: &mut Rng, ty: GgmlType, outputs: usize, inputs: usize) -> Vec<u8> {
    let blocks = outputs * inputs / ty.block_values();
    let mut data: Vec<u8> = (0..blocks * ty.block_bytes()).map(|_| rng.bits() as u8).collect();
    for block in data.chunks_exact_mut(ty.block_bytes()) {
        match ty {
            GgmlType::F32 => block.copy_from_slice(&rng.value().to_le_bytes()),
            GgmlType::Bf16 => block.copy_from_slice(&half::bf16::from_f32(rng.value()).to_le_bytes()),
            _ => {
                for &at in f16_offsets(ty) {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(rng.value()).to_le_bytes());
                }
            }
        }
    }
    data
}

pub(super) fn random_packed(
    compute: &Compute,
    rng: &mut Rng,
    ty: GgmlType,
    outputs: usize,
    inputs: usize,
) -> Packed {
    let data = tensor_bytes(rng, ty, outputs, inputs);
    Packed::from_ggml(compute, ty.code(), &data, outputs, inputs).unwrap()
}

/// Every SIMD level of this machine with 1, 2 and 3 threads.
pub(super) fn all_computes() -> Vec<Compute> {
    SimdLevel::available()
        .flat_map(|level| (1..=3).map(move |threads| Compute::with_level(threads, level).unwrap()))
        .collect()
}

#[track_caller]
pub(super) fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: length");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!(x.to_bits() == y.to_bits(), "{what}: value {i} is {x:e}, not {y:e}");
    }
}
