//! How fast a pool gives pages: what its link, its disk and those that ask at the same time leave to one of them.
//!
//! A policy holds the time that pages take from a pool against the time of computing them. Of the pool's machine it knows the
//! link; that the pages lie on a disk, and that others are read from there, shows in what transfers took. So a pool measures
//! that, and says its link to be as fast as it gives.

use crate::time::{Span, Time};

/// What was seen so long ago counts half.
const HALF_LIFE: Span = Span::from_secs(5);
/// Where nothing else was seen for a while: seconds at the speed of the link, beside which a transfer counts.
const PRIOR: f64 = 0.01;

/// Bytes given and the time that took, of late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    bytes: f64,
    seconds: f64,
    at: Time,
}

impl Pace {
    /// A transfer of `bytes` bytes of pages has ended well, `took` after it was asked for.
    pub fn gave(&mut self, now: Time, bytes: u64, took: Span) {
        let left = self.left(now);
        self.bytes = self.bytes * left + bytes as f64;
        self.seconds = self.seconds * left + took.0 as f64 / 1e9;
        self.at = now;
    }

    /// Bytes a second that one who asks now is given at; `link` is what the link carries, and the answer where nothing was seen
    /// of late.
    #[must_use]
    pub fn rate(&self, now: Time, link: u64) -> u64 {
        let left = self.left(now);
        let bytes = self.bytes * left + link as f64 * PRIOR;
        let rate = bytes / (self.seconds * left + PRIOR);
        (rate as u64).min(link).max(1)
    }

    /// What is left of what was seen: halved each half-life, straight in between, so that it is the same on every machine.
    fn left(&self, now: Time) -> f64 {
        let since = now.since(self.at).0;
        let halved = (since / HALF_LIFE.0).min(63);
        let part = (since % HALF_LIFE.0) as f64 / HALF_LIFE.0 as f64;
        (1.0 - part / 2.0) / (1_u64 << halved) as f64
    }
}

/// Whether a rate differs enough from the one that was told to be told.
#[must_use]
pub const fn is_news(told: u64, rate: u64) -> bool {
    told.abs_diff(rate) > told / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u64 = 50_000_000_000;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn a_pool_gives_at_the_speed_of_its_link_until_it_was_seen_to_be_slower() {
        let mut pace = Pace::default();
        assert_eq!(pace.rate(at(0), LINK), LINK);
        // Two gigabytes in a second: a disk.
        pace.gave(at(1000), 2_000_000_000, Span::from_secs(1));
        let rate = pace.rate(at(1000), LINK);
        assert!((2_000_000_000..2_600_000_000).contains(&rate), "{rate}");
        // From RAM it is faster, and the mean of both is by time.
        pace.gave(at(1000), 8_000_000_000, Span::from_secs(1));
        let mixed = pace.rate(at(1000), LINK);
        assert!((4_900_000_000..5_400_000_000).contains(&mixed), "{mixed}");
    }

    #[test]
    fn what_was_seen_is_forgotten_and_never_faster_than_the_link() {
        let mut pace = Pace::default();
        pace.gave(at(1000), 1_000_000, Span::from_secs(1));
        let mut former = 0;
        for seconds in [1, 6, 11, 21, 41, 81] {
            let rate = pace.rate(at(1000 * seconds), LINK);
            assert!(rate > former, "{rate} after {seconds} s");
            former = rate;
        }
        assert!(former > LINK / 2, "{former}");
        assert_eq!(pace.rate(Time::NEVER, LINK), LINK);
        pace.gave(at(2000), u64::MAX, Span(1));
        assert_eq!(pace.rate(at(2000), LINK), LINK);
        let mut stuck = Pace::default();
        stuck.gave(at(1), 0, Span(u64::MAX));
        assert!(stuck.rate(at(1), 1) >= 1);
    }

    #[test]
    fn an_eighth_is_news() {
        assert!(!is_news(800, 800) && !is_news(800, 899) && !is_news(800, 701));
        assert!(is_news(800, 901) && is_news(800, 699));
    }
}
