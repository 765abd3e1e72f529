//! 16 virtual lanes on what the machine has.
//!
//! A kernel is written once against [`Simd`] and instantiated per level. Every operation here is one IEEE operation with
//! one rounding (or exact), so the levels agree bit for bit.
#![expect(unsafe_code, reason = "loads and stores take pointers")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

pub(super) use portable::Portable;

/// Which implementation of the lanes runs. All agree bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SimdLevel {
    /// Plain Rust; any machine.
    Portable,
    /// Two registers of 8 lanes; x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// One register of 16 lanes; x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

impl SimdLevel {
    /// The widest level of this machine.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if avx512::Avx512::detect().is_some() {
                return SimdLevel::Avx512;
            }
            if avx2::Avx2::detect().is_some() {
                return SimdLevel::Avx2;
            }
        }
        SimdLevel::Portable
    }

    /// The levels this machine can run, narrowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        [SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512].into_iter().filter(|&l| l <= Self::detect())
    }

    /// Runs `kernel` at this level, or at the widest below it that the machine has.
    #[inline]
    pub(super) fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        {
            if self == SimdLevel::Avx512
                && let Some(token) = avx512::Avx512::detect()
            {
                return token.enter(kernel);
            }
            if self >= SimdLevel::Avx2
                && let Some(token) = avx2::Avx2::detect()
            {
                return token.enter(kernel);
            }
        }
        kernel.run(Portable)
    }
}

/// A piece of work generic over the level. `run` and everything it calls must be `#[inline(always)]`: only then is it
/// compiled with the level's instructions.
pub(super) trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// 16 lanes of f32 and u32. A value of an implementing type proves that the machine has its instructions.
pub(super) trait Simd: Copy + Send + Sync + 'static {
    /// 16 lanes of f32.
    type F: Copy;
    /// 16 lanes of u32.
    type U: Copy;
    /// Rows and panels of 16 outputs of a register tile over expanded weights: as many sums as registers allow.
    const TILE_ROWS: usize;
    const TILE_PANELS: usize;
    /// Most rows for which expanding weights in registers beats expanding them into a buffer.
    const DIRECT_ROWS: usize;
    /// Whether a 16-lane value is one register.
    const WIDE: bool;

    fn splat(self, value: f32) -> Self::F;
    /// # Safety
    /// 16 readable values; any alignment, here and below.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// # Safety
    /// 16 writable values.
    unsafe fn store(self, to: *mut f32, value: Self::F);
    /// 16 half-precision values, expanded (exact).
    /// # Safety
    /// 16 readable values.
    unsafe fn load_f16(self, from: *const u16) -> Self::F;
    /// 16 bfloat16 values, expanded (exact).
    /// # Safety
    /// 16 readable values.
    unsafe fn load_bf16(self, from: *const u16) -> Self::F;
    /// 16 signed bytes, converted (exact).
    /// # Safety
    /// 16 readable values.
    unsafe fn load_i8(self, from: *const i8) -> Self::F;
    /// # Safety
    /// 16 readable values.
    unsafe fn load_u32(self, from: *const u32) -> Self::U;
    /// # Safety
    /// 16 writable values.
    unsafe fn store_u32(self, to: *mut u32, value: Self::U);
    /// 16 pairs of signed bytes, each byte widened to 16 bits.
    /// # Safety
    /// 32 readable values.
    unsafe fn load_i8_pairs(self, from: *const i8) -> Self::U;
    fn splat_u32(self, value: u32) -> Self::U;
    fn xor(self, a: Self::U, b: Self::U) -> Self::U;
    /// The lowest 4 bits of either half of each lane, as `0..=15`.
    fn nibble_pairs(self, word: Self::U) -> Self::U;
    /// The next 4 bits of each lane become the lowest.
    fn next_nibble(self, word: Self::U) -> Self::U;
    /// Lanes of `a` and `b` are pairs of i16, lanes of `sum` i32: `sum + a.0 * b.0 + a.1 * b.1`. Exact while it fits.
    fn dot(self, sum: Self::U, a: Self::U, b: Self::U) -> Self::U;
    /// Lanes as i32, converted (rounded once).
    fn to_f32(self, value: Self::U) -> Self::F;
    /// The largest magnitude of 32 values; not finite if one of them is not.
    fn magnitude(self, a: Self::F, b: Self::F) -> f32;
    /// Rounds 32 values, each within ±32767, to the nearest integer, ties to even, and writes them in order; returns the
    /// sums of the lanes of `a` and of `b`. What it gives for other values is unspecified.
    /// # Safety
    /// 32 writable values.
    unsafe fn narrow(self, a: Self::F, b: Self::F, to: *mut i16) -> (i32, i32);

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`, so `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? yes : no` per lane (`no` where either is NaN).
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// `value` in the first `count` lanes, `rest` in the others.
    fn keep_first(self, count: usize, value: Self::F, rest: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round(self, value: Self::F) -> Self::F;
    /// `2^n` for whole `n` in `-126..=127`; anything for other values.
    fn exp2_whole(self, n: Self::F) -> Self::F;

    /// Asks for a cache line that will be read soon, into L1 or (`FAR`) into L2, where more requests can be under way;
    /// any address is fine.
    #[inline(always)]
    fn prefetch<const FAR: bool>(self, at: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint; it never faults, and SSE is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
            if FAR {
                _mm_prefetch::<_MM_HINT_T1>(at.cast());
            } else {
                _mm_prefetch::<_MM_HINT_T0>(at.cast());
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// The lanes in memory.
    #[inline(always)]
    fn lanes(self, value: Self::F) -> [f32; 16] {
        let mut lanes = [0.0; 16];
        // SAFETY: the array holds 16 values.
        unsafe { self.store(lanes.as_mut_ptr(), value) };
        lanes
    }

    /// Sum of the lanes by one fixed tree: distance 8, 4, 2, 1.
    #[inline(always)]
    fn sum(self, value: Self::F) -> f32 {
        let mut lanes = self.lanes(value);
        let mut width = 8;
        while width > 0 {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
            width /= 2;
        }
        lanes[0]
    }

    /// Largest lane (NaN lanes are passed over unless lane 0 is one).
    #[inline(always)]
    fn largest(self, value: Self::F) -> f32 {
        let lanes = self.lanes(value);
        let mut best = lanes[0];
        for &lane in &lanes[1..] {
            best = if lane > best { lane } else { best };
        }
        best
    }
}
