//! The lanes as two AVX2 registers.
#![expect(unsafe_code, reason = "SIMD intrinsics; the token proves that the machine has them")]

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Made by [`Avx2::detect`] alone.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Avx2(());

impl Avx2 {
    #[inline(always)]
    pub(in super::super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Avx2(()))
    }

    #[inline(always)]
    pub(super) fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` exists, so the features were detected.
        unsafe { enter(self, kernel) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn enter<K: Kernel>(token: Avx2, kernel: K) -> K::Output {
    kernel.run(token)
}

// SAFETY of every block below: `self` exists, so the instructions were detected; pointers are the caller's promise.
impl Simd for Avx2 {
    type F = [__m256; 2];
    type U = [__m256i; 2];
    const TILE_ROWS: usize = 6;
    const TILE_PANELS: usize = 1;
    const DIRECT_ROWS: usize = 4;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        unsafe { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F) {
        unsafe {
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::F {
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::F {
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::F {
        unsafe {
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast()))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_u32(self, from: *const u32) -> Self::U {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())] }
    }
    #[inline(always)]
    unsafe fn store_u32(self, to: *mut u32, value: Self::U) {
        unsafe {
            _mm256_storeu_si256(to.cast(), value[0]);
            _mm256_storeu_si256(to.add(8).cast(), value[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_i8_pairs(self, from: *const i8) -> Self::U {
        unsafe {
            [
                _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(from.add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    fn splat_u32(self, value: u32) -> Self::U {
        unsafe { [_mm256_set1_epi32(value as i32); 2] }
    }
    #[inline(always)]
    fn xor(self, a: Self::U, b: Self::U) -> Self::U {
        unsafe { [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])] }
    }
    #[inline(always)]
    fn nibble_pairs(self, word: Self::U) -> Self::U {
        unsafe {
            let low = _mm256_set1_epi32(0x000F_000F);
            [_mm256_and_si256(word[0], low), _mm256_and_si256(word[1], low)]
        }
    }
    #[inline(always)]
    fn next_nibble(self, word: Self::U) -> Self::U {
        unsafe { [_mm256_srli_epi32::<4>(word[0]), _mm256_srli_epi32::<4>(word[1])] }
    }
    #[inline(always)]
    fn dot(self, sum: Self::U, a: Self::U, b: Self::U) -> Self::U {
        unsafe {
            [
                _mm256_add_epi32(sum[0], _mm256_madd_epi16(a[0], b[0])),
                _mm256_add_epi32(sum[1], _mm256_madd_epi16(a[1], b[1])),
            ]
        }
    }
    #[inline(always)]
    fn to_f32(self, value: Self::U) -> Self::F {
        unsafe { [_mm256_cvtepi32_ps(value[0]), _mm256_cvtepi32_ps(value[1])] }
    }
    #[inline(always)]
    fn magnitude(self, a: Self::F, b: Self::F) -> f32 {
        // Without the sign, the bits of floats are in the order of their magnitudes; infinities and NaN come last.
        unsafe {
            let bits = _mm256_set1_epi32(i32::MAX);
            let magnitude = |v: __m256| _mm256_and_si256(_mm256_castps_si256(v), bits);
            let a = _mm256_max_epu32(magnitude(a[0]), magnitude(a[1]));
            let b = _mm256_max_epu32(magnitude(b[0]), magnitude(b[1]));
            let all = _mm256_max_epu32(a, b);
            let four = _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
            let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            let one = _mm_max_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
            f32::from_bits(_mm_cvtsi128_si32(one) as u32)
        }
    }
    #[inline(always)]
    unsafe fn narrow(self, a: Self::F, b: Self::F, to: *mut i16) -> (i32, i32) {
        let mut sums = [0; 2];
        for (i, half) in [a, b].into_iter().enumerate() {
            unsafe {
                let (low, high) = (_mm256_cvtps_epi32(half[0]), _mm256_cvtps_epi32(half[1]));
                // Packing works within halves of registers; the permutation puts the quarters in order.
                let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
                _mm256_storeu_si256(to.add(i * 16).cast(), packed);
                let eight = _mm256_add_epi32(low, high);
                let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
                let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
                let one = _mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
                sums[i] = _mm_cvtsi128_si32(one);
            }
        }
        (sums[0], sums[1])
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        let one =
            |i: usize| unsafe { _mm256_blendv_ps(no[i], yes[i], _mm256_cmp_ps::<_CMP_LT_OQ>(a[i], b[i])) };
        [one(0), one(1)]
    }
    #[inline(always)]
    fn keep_first(self, count: usize, value: Self::F, rest: Self::F) -> Self::F {
        unsafe {
            let count = _mm256_set1_epi32(count.min(16) as i32);
            let low = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            let high = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
            [
                _mm256_blendv_ps(rest[0], value[0], _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(rest[1], value[1], _mm256_castsi256_ps(high)),
            ]
        }
    }
    #[inline(always)]
    fn round(self, value: Self::F) -> Self::F {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        unsafe { [_mm256_round_ps::<NEAREST>(value[0]), _mm256_round_ps::<NEAREST>(value[1])] }
    }
    #[inline(always)]
    fn exp2_whole(self, n: Self::F) -> Self::F {
        let one = |n| unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        };
        [one(n[0]), one(n[1])]
    }
}
