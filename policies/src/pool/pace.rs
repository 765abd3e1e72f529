//! How fast a pool gives pages: what its link and its disk carry in all while it gives any.
//!
//! ```text
//! rate = bytes sent of late / time in which a transfer was under way
//! ```
//!
//! A policy holds the time that pages take from a pool against the time of computing them. Of the pool's machine it knows the
//! link; that the pages lie on a disk shows in what was sent. So a pool measures that, and says its link to be as fast as it
//! gives. It is the rate of all transfers together: how long one of them waits for the others is what whoever sends
//! workers to the pool knows better and sooner.

use crate::time::{Span, Time};

/// What was seen so much time of transfers ago counts half: there is newer.
const HALF_LIFE: Span = Span::from_secs(5);
/// The same of time without transfers: there is nothing newer, and what was slow once is to be tried again at last.
const IDLE_HALF_LIFE: Span = Span::from_secs(60);
/// Where nothing else was seen for a while: seconds at the speed of the link, beside which a transfer counts.
const PRIOR: f64 = 0.01;

/// Bytes given and the time that took, of late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    bytes: f64,
    seconds: f64,
    at: Time,
    /// Transfers under way.
    active: u32,
}

impl Pace {
    /// A transfer begins.
    pub fn begins(&mut self, now: Time) {
        *self = self.seen(now);
        self.active += 1;
    }

    /// Pages of so many bytes are on their way.
    pub fn sends(&mut self, now: Time, bytes: u64) {
        *self = self.seen(now);
        self.bytes += bytes as f64;
    }

    /// A transfer that had begun is over, however it ended.
    pub fn ends(&mut self, now: Time) {
        *self = self.seen(now);
        self.active = self.active.saturating_sub(1);
    }

    /// Bytes a second at which it gives to all who ask now; `link` is what the link carries, and the answer where nothing was
    /// seen of late.
    #[must_use]
    pub fn rate(&self, now: Time, link: u64) -> u64 {
        let seen = self.seen(now);
        let rate = (seen.bytes + link as f64 * PRIOR) / (seen.seconds + PRIOR);
        (rate as u64).min(link).max(1)
    }

    /// The same at `now`.
    fn seen(&self, now: Time) -> Self {
        let since = now.since(self.at);
        let left = halved(since, if self.active > 0 { HALF_LIFE } else { IDLE_HALF_LIFE });
        // A transfer that is stuck tells that nothing is given, and not for longer than anything else counts.
        let busy = if self.active > 0 { since.min(HALF_LIFE).0 as f64 / 1e9 } else { 0.0 };
        Self {
            bytes: self.bytes * left,
            seconds: self.seconds * left + busy,
            at: self.at.max(now),
            active: self.active,
        }
    }
}

/// What is left of 1 after some time: half of it after each half-life, straight in between, so that it is the same on every
/// machine.
fn halved(since: Span, half_life: Span) -> f64 {
    let times = (since.0 / half_life.0).min(63);
    let part = (since.0 % half_life.0) as f64 / half_life.0 as f64;
    (1.0 - part / 2.0) / (1_u64 << times) as f64
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
    const GB: u64 = 1_000_000_000;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn near(rate: u64, gb: f64) {
        let off = rate as f64 / GB as f64 / gb;
        assert!((0.85..1.2).contains(&off), "{rate} for {gb} GB/s");
    }

    #[test]
    fn a_pool_gives_at_the_speed_of_its_link_until_it_was_seen_to_be_slower() {
        let mut pace = Pace::default();
        assert_eq!(pace.rate(at(0), LINK), LINK);
        // Two gigabytes in a second: a disk.
        pace.begins(at(1000));
        pace.sends(at(1500), GB);
        pace.sends(at(2000), GB);
        pace.ends(at(2000));
        near(pace.rate(at(2000), LINK), 2.4);
        // From RAM it is faster, and the mean of both is by time.
        pace.begins(at(2000));
        pace.sends(at(3000), 8 * GB);
        pace.ends(at(3000));
        near(pace.rate(at(3000), LINK), 5.2);
    }

    /// Three transfers at once get a third of the disk each, and the disk is as fast as before.
    #[test]
    fn what_is_given_to_several_at_once_counts_together() {
        let (mut alone, mut three) = (Pace::default(), Pace::default());
        alone.begins(at(0));
        alone.sends(at(3000), 6 * GB);
        alone.ends(at(3000));
        for _ in 0..3 {
            three.begins(at(0));
        }
        for _ in 0..3 {
            three.sends(at(3000), 2 * GB);
            three.ends(at(3000));
        }
        assert_eq!(three.rate(at(3000), LINK), alone.rate(at(3000), LINK));
        // Time in which nothing is under way does not count.
        near(three.rate(at(13_000), LINK), 2.2);
    }

    #[test]
    fn what_was_seen_is_forgotten_and_never_faster_than_the_link() {
        let mut pace = Pace::default();
        pace.begins(at(0));
        pace.sends(at(1000), 1_000_000);
        pace.ends(at(1000));
        let mut former = 0;
        for seconds in [1, 61, 121, 241, 481, 961] {
            let rate = pace.rate(at(1000 * seconds), LINK);
            assert!(rate > former, "{rate} after {seconds} s");
            former = rate;
        }
        assert!(former > LINK / 2, "{former}");
        assert_eq!(pace.rate(Time::NEVER, LINK), LINK);
        pace.sends(at(2000), u64::MAX);
        assert_eq!(pace.rate(at(2000), LINK), LINK);
        // One end too many changes nothing.
        pace.ends(at(2000));
        assert_eq!(pace.active, 0);
    }

    /// A transfer that never ends is seen as slow, and is forgotten soon after something was given again.
    #[test]
    fn a_stuck_transfer_does_not_count_for_ever() {
        let mut pace = Pace::default();
        pace.begins(at(0));
        assert!(pace.rate(at(4000), LINK) < LINK / 100);
        assert!(pace.rate(Time::NEVER, 1) >= 1);
        pace.ends(at(100_000));
        pace.begins(at(100_000));
        pace.sends(at(103_000), 60 * GB);
        pace.ends(at(103_000));
        assert!(pace.rate(at(103_000), LINK) > 7 * GB, "{}", pace.rate(at(103_000), LINK));
    }

    #[test]
    fn an_eighth_is_news() {
        assert!(!is_news(800, 800) && !is_news(800, 899) && !is_news(800, 701));
        assert!(is_news(800, 901) && is_news(800, 699));
    }
}
