//! Random numbers that are functions of their arguments.
//!
//! A counter-based generator has no state to lose: the draw for (seed, stream, counter) is the same wherever and
//! whenever it is made, which is what lets a stream move between machines and go on with the same tokens.

/// Finaliser of SplitMix64 (Steele, Lea and Flood, 2014): a bijection of 64 bits with full avalanche.
#[must_use]
pub const fn mix64(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 64 random bits for (`seed`, `stream`, `counter`).
#[must_use]
pub const fn bits(seed: u64, stream: u64, counter: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let a = mix64(seed.wrapping_add(GOLDEN));
    let b = mix64(a ^ stream.wrapping_mul(GOLDEN).wrapping_add(GOLDEN));
    mix64(b ^ counter.wrapping_mul(GOLDEN).wrapping_add(GOLDEN))
}

/// A number in `[0, 1)` with 53 random bits for (`seed`, `stream`, `counter`).
#[must_use]
pub fn unit(seed: u64, stream: u64, counter: u64) -> f64 {
    (bits(seed, stream, counter) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A sequence of draws for one component, seeded once; reproducible, and printed with its seed where a test fails.
#[derive(Clone, Debug)]
pub struct Rng {
    seed: u64,
    counter: u64,
}

impl Rng {
    /// A generator for `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, counter: 0 }
    }

    /// The next 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        bits(self.seed, 0, self.counter)
    }

    /// The next number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number in `0..n`; 0 when `n` is 0. The bias is below 2⁻³² for every `n` that a scheduler meets.
    pub const fn below(&mut self, n: u64) -> u64 {
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }

    /// Exponentially distributed with the given mean: gaps of Poisson arrivals.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}
