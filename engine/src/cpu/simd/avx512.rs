//! The lanes as one AVX-512 register.
#![expect(unsafe_code, reason = "SIMD intrinsics; the token proves that the machine has them")]

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Made by [`Avx512::detect`] alone.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Avx512(());

impl Avx512 {
    #[inline(always)]
    pub(in super::super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Avx512(()))
    }

    #[inline(always)]
    pub(super) fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` exists, so the features were detected.
        unsafe { enter(self, kernel) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn enter<K: Kernel>(token: Avx512, kernel: K) -> K::Output {
    kernel.run(token)
}

// SAFETY of every block below: `self` exists, so the instructions were detected; pointers are the caller's promise.
impl Simd for Avx512 {
    type F = __m512;
    type U = __m512i;
    const TILE_ROWS: usize = 12;
    const TILE_PANELS: usize = 2;
    const DIRECT_ROWS: usize = 8;
    const WIDE: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F) {
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::F {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::F {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_u32(self, from: *const u32) -> Self::U {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_u32(self, to: *mut u32, value: Self::U) {
        unsafe { _mm512_storeu_si512(to.cast(), value) }
    }
    #[inline(always)]
    unsafe fn load_i8_pairs(self, from: *const i8) -> Self::U {
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    fn splat_u32(self, value: u32) -> Self::U {
        unsafe { _mm512_set1_epi32(value as i32) }
    }
    #[inline(always)]
    fn xor(self, a: Self::U, b: Self::U) -> Self::U {
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    fn nibble_pairs(self, word: Self::U) -> Self::U {
        unsafe { _mm512_and_si512(word, _mm512_set1_epi32(0x000F_000F)) }
    }
    #[inline(always)]
    fn next_nibble(self, word: Self::U) -> Self::U {
        unsafe { _mm512_srli_epi32::<4>(word) }
    }
    #[inline(always)]
    fn dot(self, sum: Self::U, a: Self::U, b: Self::U) -> Self::U {
        // The saturating form, though nothing saturates: the compiler takes the plain one apart into a product and a sum,
        // which is faster in a single chain of sums and half as fast in the many that a tile has.
        unsafe { _mm512_dpwssds_epi32(sum, a, b) }
    }
    #[inline(always)]
    fn to_f32(self, value: Self::U) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(value) }
    }
    #[inline(always)]
    fn magnitude(self, a: Self::F, b: Self::F) -> f32 {
        // Without the sign, the bits of floats are in the order of their magnitudes; infinities and NaN come last.
        unsafe {
            let bits = _mm512_set1_epi32(i32::MAX);
            let a = _mm512_and_si512(_mm512_castps_si512(a), bits);
            let b = _mm512_and_si512(_mm512_castps_si512(b), bits);
            f32::from_bits(_mm512_reduce_max_epu32(_mm512_max_epu32(a, b)))
        }
    }
    #[inline(always)]
    unsafe fn narrow(self, a: Self::F, b: Self::F, to: *mut i16) -> (i32, i32) {
        unsafe {
            let (a, b) = (_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(a));
            _mm256_storeu_si256(to.add(16).cast(), _mm512_cvtepi32_epi16(b));
            (_mm512_reduce_add_epi32(a), _mm512_reduce_add_epi32(b))
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
    }
    #[inline(always)]
    fn keep_first(self, count: usize, value: Self::F, rest: Self::F) -> Self::F {
        let mask = if count >= 16 { u16::MAX } else { (1_u16 << count) - 1 };
        unsafe { _mm512_mask_blend_ps(mask, rest, value) }
    }
    #[inline(always)]
    fn round(self, value: Self::F) -> Self::F {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value) }
    }
    #[inline(always)]
    fn exp2_whole(self, n: Self::F) -> Self::F {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
}
