//! Many latencies in bounded memory.

use policies::time::Span;
use serde::Serialize;

/// Buckets an octave are two to this power: what is read back is at most a thousandth off.
const BITS: u32 = 9;

/// Counts of spans, in buckets whose width grows with the value (as in HDR histograms). Count, mean, least and most are
/// exact; what lies between is the middle of its bucket, at most a thousandth off. Takes less than 256 KiB however many
/// there are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    least: u64,
    most: u64,
}

/// Percentiles by nearest rank; all zero where there are no values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// How many values.
    pub count: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// Nine tenths are at most this.
    pub p90: f64,
    /// All but a twentieth are at most this.
    pub p95: f64,
    /// All but a hundredth are at most this.
    pub p99: f64,
    /// The most.
    pub max: f64,
}

impl Distribution {
    /// Takes in a span.
    pub fn add(&mut self, span: Span) {
        let at = bucket(span.0);
        if at >= self.buckets.len() {
            self.buckets.resize(at + 1, 0);
        }
        self.buckets[at] += 1;
        self.least = if self.count == 0 { span.0 } else { self.least.min(span.0) };
        self.most = self.most.max(span.0);
        self.count += 1;
        self.sum += u128::from(span.0);
    }

    /// Their percentiles, in milliseconds.
    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        let [p50, p90, p95, p99] = self.at([5_000, 9_000, 9_500, 9_900]);
        let mean = if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 / 1e6 };
        Percentiles { count: self.count, mean, p50, p90, p95, p99, max: self.most as f64 / 1e6 }
    }

    /// The values in milliseconds up to which so many ten-thousandths of all lie; the shares in rising order.
    #[must_use]
    pub fn at<const N: usize>(&self, shares: [u16; N]) -> [f64; N] {
        let mut values = [0.0; N];
        for (value, ms) in values.iter_mut().zip(self.each(&shares)) {
            *value = ms;
        }
        values
    }

    /// As [`Distribution::at`], for a list; empty where there are no values.
    #[must_use]
    pub fn each(&self, shares: &[u16]) -> Vec<f64> {
        let mut values = Vec::with_capacity(shares.len());
        let mut filled = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        let (mut below, mut here) = (0_u64, 0_usize);
        for share in shares.iter().take_while(|_| self.count > 0) {
            let rank = (u128::from(self.count) * u128::from(*share)).div_ceil(10_000).max(1) as u64;
            while below < rank
                && let Some((at, n)) = filled.next()
            {
                (below, here) = (below + n, at);
            }
            let value = match (*share, rank == self.count) {
                (0, _) => self.least,
                (_, true) => self.most,
                _ => middle(here).clamp(self.least, self.most),
            };
            values.push(value as f64 / 1e6);
        }
        values
    }
}

/// Values below 2^(BITS + 1) have a bucket each; above, each power of two has 2^BITS.
const fn bucket(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(BITS + 1);
    ((shift as usize) << BITS) + (value >> shift) as usize
}

const fn middle(bucket: usize) -> u64 {
    let shift = (bucket >> BITS).saturating_sub(1);
    (((bucket - (shift << BITS)) as u64) << shift) + ((1_u64 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use policies::rng::Rng;

    use super::*;

    #[test]
    fn a_bucket_holds_what_is_put_there() {
        let mut last = 0;
        for value in (0..5000).chain((12..63).flat_map(|e| [(1 << e) - 1, 1 << e, (1 << e) + 1])) {
            let at = bucket(value);
            assert!(at >= last || value < 5000, "{value}");
            last = at;
            assert!(middle(at).abs_diff(value) as f64 <= value as f64 / 1000.0, "{value}: {}", middle(at));
        }
        assert!(bucket(u64::MAX) < 32 << 10);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let mut rng = Rng::new(5);
        let mut all: Vec<u64> = (0..10_001).map(|_| (rng.exponential(3e7)) as u64).collect();
        let mut distribution = Distribution::default();
        all.iter().for_each(|ns| distribution.add(Span(*ns)));
        all.sort_unstable();
        let p = distribution.percentiles();
        for (got, percent) in [(p.p50, 50), (p.p90, 90), (p.p95, 95), (p.p99, 99)] {
            let want = all[(all.len() * percent).div_ceil(100) - 1] as f64 / 1e6;
            assert!((got - want).abs() <= want / 1000.0, "p{percent} is {got}, not {want}");
        }
        assert_eq!((p.count, p.max), (10_001, all[10_000] as f64 / 1e6));
        assert_eq!(p.mean, all.iter().map(|n| u128::from(*n)).sum::<u128>() as f64 / 10_001.0 / 1e6);
        assert_eq!(distribution.each(&[0, 10_000]), [all[0] as f64 / 1e6, p.max]);
    }

    #[test]
    fn of_nothing_all_are_zero() {
        assert_eq!(Distribution::default().percentiles(), Percentiles::default());
        assert_eq!(Distribution::default().each(&[0, 10_000]), [] as [f64; 0]);
        let mut one = Distribution::default();
        one.add(Span::from_millis(7));
        let p = one.percentiles();
        assert_eq!((p.mean, p.p50, p.p99, p.max), (7.0, 7.0, 7.0, 7.0));
    }
}
