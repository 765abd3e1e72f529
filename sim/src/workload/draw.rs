//! Random gaps and lengths. They use floating-point logarithms, roots and cosines: the one part of a run that another
//! platform's libm could round otherwise.

use policies::request::Token;
use policies::rng::{self, Rng};
use policies::time::{Span, Time};

use crate::scenario::{Arrivals, Class, Lengths, Workload};

/// A request's draws for one purpose, so that another length or patience does not move the rest.
pub(super) const fn stream(seed: u64, purpose: u64, number: u64) -> Rng {
    Rng::new(rng::bits(rng::bits(seed, 7, purpose), 1, number))
}

pub(super) fn length(lengths: Lengths, rng: &mut Rng) -> u32 {
    match lengths {
        Lengths::Fixed(n) => n,
        Lengths::Uniform { min, max } => min + rng.below(u64::from(max - min) + 1) as u32,
        Lengths::Exponential { mean, max } => (rng.exponential(mean.into()).ceil() as u32).clamp(1, max),
    }
}

/// A byte of text from random bits.
pub(super) const fn byte(bits: u64) -> Token {
    (bits >> 56) as Token
}

/// Saturates.
pub(super) fn seconds(s: f64) -> Span {
    Span((s * 1e9) as u64)
}

/// The index of the kind that a request is of.
pub(super) fn class(classes: &[Class], rng: &mut Rng) -> usize {
    let total: f64 = classes.iter().map(|class| class.share).sum();
    let mut left = rng.unit() * total;
    let found = classes.iter().position(|class| {
        left -= class.share;
        left < 0.0
    });
    found.unwrap_or(classes.len().saturating_sub(1))
}

/// Times of arrivals.
#[derive(Debug)]
pub(super) struct Gaps {
    arrivals: Arrivals,
    /// Mean gap in seconds; while they arrive at all.
    mean: f64,
    rng: Rng,
    /// Where it is; between bursts no time passes here.
    at: Time,
}

impl Gaps {
    /// Of arrivals that bring `each` requests.
    pub(super) fn new(w: &Workload, each: u32, seed: u64) -> Self {
        let mean = f64::from(each) / (w.rate * w.speedup);
        let burst = match w.arrivals {
            Arrivals::OnOff { on, off } => on.as_nanos() as f64 / (on.as_nanos() + off.as_nanos()) as f64,
            _ => 1.0,
        };
        Self {
            arrivals: w.arrivals,
            mean: mean * burst,
            rng: Rng::new(rng::bits(seed, 7, 0)),
            at: Time::ZERO,
        }
    }

    /// The next arrival.
    pub(super) fn next(&mut self) -> Time {
        let gap = match self.arrivals {
            Arrivals::Poisson | Arrivals::OnOff { .. } => self.rng.exponential(self.mean),
            Arrivals::Constant => self.mean,
            Arrivals::Gamma { cv } => gamma(1.0 / (cv * cv), &mut self.rng) * self.mean * cv * cv,
            // All at once, at the start; from there on each client goes by itself.
            Arrivals::Closed { .. } => 0.0,
        };
        self.at = self.at + seconds(gap);
        match self.arrivals {
            Arrivals::OnOff { on, off } => {
                let pauses = self.at.0 / on.as_nanos();
                Time(self.at.0.saturating_add(pauses.saturating_mul(off.as_nanos())))
            }
            _ => self.at,
        }
    }
}

/// Gamma-distributed with mean and variance `shape`: Marsaglia and Tsang, "A simple method for generating gamma
/// variables" (2000), with their boost for shapes below 1.
fn gamma(shape: f64, rng: &mut Rng) -> f64 {
    if shape < 1.0 {
        let boost = (1.0 - rng.unit()).powf(1.0 / shape);
        return gamma(shape + 1.0, rng) * boost;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - rng.unit()).ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
            return d * v;
        }
    }
}

/// Standard normal, by Box and Muller.
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

#[cfg(test)]
mod tests {
    use config::Dur;

    use super::*;

    fn times(arrivals: Arrivals, speedup: f64, n: usize) -> Vec<f64> {
        let w = Workload { arrivals, speedup, rate: 10.0, ..Workload::default() };
        let mut gaps = Gaps::new(&w, 1, 5);
        (0..n).map(|_| gaps.next().since(Time::ZERO).as_secs_f64()).collect()
    }

    /// Mean and coefficient of variation of the gaps.
    fn moments(times: &[f64]) -> (f64, f64) {
        let gaps: Vec<f64> = times.windows(2).map(|w| w[1] - w[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn gaps_have_the_mean_and_the_spread_that_were_asked_for() {
        let cases = [
            (Arrivals::Poisson, 1.0),
            (Arrivals::Constant, 0.0),
            (Arrivals::Gamma { cv: 0.5 }, 0.5),
            (Arrivals::Gamma { cv: 1.0 }, 1.0),
            (Arrivals::Gamma { cv: 3.0 }, 3.0),
        ];
        for (arrivals, want) in cases {
            for speedup in [1.0, 4.0] {
                let (mean, cv) = moments(&times(arrivals, speedup, 100_000));
                assert!((mean * 10.0 * speedup - 1.0).abs() < 0.05, "{arrivals:?}: {mean}");
                assert!((cv - want).abs() < 0.05 * want.max(0.01), "{arrivals:?}: {cv}");
            }
        }
    }

    #[test]
    fn bursts_have_the_mean_rate_and_nothing_comes_between_them() {
        let (on, off) = (Dur::from_secs(2), Dur::from_secs(6));
        let times = times(Arrivals::OnOff { on, off }, 1.0, 20_000);
        assert!(times.iter().all(|t| t % 8.0 <= 2.0), "in a pause");
        let rate = times.len() as f64 / times[times.len() - 1];
        assert!((rate / 10.0 - 1.0).abs() < 0.05, "{rate}");
    }

    #[test]
    fn kinds_come_as_often_as_their_shares_say() {
        let classes: Vec<Class> = [1.0, 2.0, 5.0].map(|share| Class { share, ..Class::default() }).into();
        let mut counts = [0_u32; 3];
        (0..8000).for_each(|n| counts[class(&classes, &mut stream(3, 9, n))] += 1);
        for (count, want) in counts.into_iter().zip([1000_u32, 2000, 5000]) {
            assert!(count.abs_diff(want) < want / 10, "{counts:?}");
        }
        assert_eq!(class(&[], &mut stream(3, 9, 1)), 0);
    }
}
