//! The lanes in plain Rust.
#![expect(unsafe_code, reason = "the trait's loads take pointers")]

use half::{bf16, f16};

use super::Simd;

#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Portable;

#[inline(always)]
fn map2(a: [f32; 16], b: [f32; 16], f: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type F = [f32; 16];
    type U = [u32; 16];
    const TILE_ROWS: usize = 4;
    const TILE_PANELS: usize = 1;
    const DIRECT_ROWS: usize = 1;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; 16]
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: the caller gives 16 readable values.
        unsafe { from.cast::<[f32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F) {
        // SAFETY: the caller gives 16 writable values.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(value) };
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::F {
        // SAFETY: the caller gives 16 readable values.
        let bits = unsafe { from.cast::<[u16; 16]>().read_unaligned() };
        bits.map(|b| f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::F {
        // SAFETY: the caller gives 16 readable values.
        let bits = unsafe { from.cast::<[u16; 16]>().read_unaligned() };
        bits.map(|b| bf16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::F {
        // SAFETY: the caller gives 16 readable values.
        unsafe { from.cast::<[i8; 16]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn load_u32(self, from: *const u32) -> Self::U {
        // SAFETY: the caller gives 16 readable values.
        unsafe { from.cast::<[u32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_u32(self, to: *mut u32, value: Self::U) {
        // SAFETY: the caller gives 16 writable values.
        unsafe { to.cast::<[u32; 16]>().write_unaligned(value) };
    }
    #[inline(always)]
    unsafe fn load_i8_pairs(self, from: *const i8) -> Self::U {
        // SAFETY: the caller gives 32 readable values.
        let pairs = unsafe { from.cast::<[[i8; 2]; 16]>().read_unaligned() };
        pairs.map(|[low, high]| u32::from(i16::from(low) as u16) | u32::from(i16::from(high) as u16) << 16)
    }
    #[inline(always)]
    fn splat_u32(self, value: u32) -> Self::U {
        [value; 16]
    }
    #[inline(always)]
    fn xor(self, a: Self::U, b: Self::U) -> Self::U {
        std::array::from_fn(|i| a[i] ^ b[i])
    }
    #[inline(always)]
    fn nibble_pairs(self, word: Self::U) -> Self::U {
        word.map(|w| w & 0x000F_000F)
    }
    #[inline(always)]
    fn next_nibble(self, word: Self::U) -> Self::U {
        word.map(|w| w >> 4)
    }
    #[inline(always)]
    fn dot(self, sum: Self::U, a: Self::U, b: Self::U) -> Self::U {
        std::array::from_fn(|i| {
            let low = i32::from(a[i] as i16) * i32::from(b[i] as i16);
            let high = (a[i] as i32 >> 16) * (b[i] as i32 >> 16);
            sum[i].wrapping_add(low as u32).wrapping_add(high as u32)
        })
    }
    #[inline(always)]
    fn to_f32(self, value: Self::U) -> Self::F {
        value.map(|v| v as i32 as f32)
    }
    #[inline(always)]
    fn magnitude(self, a: Self::F, b: Self::F) -> f32 {
        // Without the sign, the bits of floats are in the order of their magnitudes; infinities and NaN come last.
        let bits = a.iter().chain(&b).map(|v| v.to_bits() & !(1 << 31));
        f32::from_bits(bits.fold(0, u32::max))
    }
    #[inline(always)]
    unsafe fn narrow(self, a: Self::F, b: Self::F, to: *mut i16) -> (i32, i32) {
        let whole = |values: Self::F| values.map(|v| v.round_ties_even() as i32);
        let (a, b) = (whole(a), whole(b));
        let sum = |values: [i32; 16]| values.into_iter().fold(0, i32::wrapping_add);
        // SAFETY: the caller gives 32 writable values.
        unsafe { to.cast::<[[i16; 16]; 2]>().write_unaligned([a, b].map(|half| half.map(|v| v as i16))) };
        (sum(a), sum(b))
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn keep_first(self, count: usize, value: Self::F, rest: Self::F) -> Self::F {
        std::array::from_fn(|i| if i < count { value[i] } else { rest[i] })
    }
    #[inline(always)]
    fn round(self, value: Self::F) -> Self::F {
        value.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn exp2_whole(self, n: Self::F) -> Self::F {
        n.map(|n| f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23))
    }
}
