//! How often a core is checked against itself.
//!
//! A whole check goes through all pages and bookings, thousands of times what an event costs. Small runs make it after
//! every event. Large ones make it after as many events as it looks at things, so that it costs an event no more than a
//! look at one thing, and after every other event see to what the event was about and to counts that have to agree.

use policies::invariant::Broken;
use serde::{Deserialize, Serialize};

/// How often cores are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checks {
    /// Everything after every event.
    #[default]
    Every,
    /// After every event what it was about, now and then everything.
    Sampled,
    /// Nothing before the end.
    Off,
}

impl Checks {
    /// The word for it in scenarios and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Every => "every",
            Self::Sampled => "sampled",
            Self::Off => "off",
        }
    }
}

/// Watches one core.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    checks: Checks,
    /// Events since the last whole check.
    since: u64,
}

impl Watch {
    /// Of a core of which nothing is known yet.
    #[must_use]
    pub const fn new(checks: Checks) -> Self {
        Self { checks, since: 0 }
    }

    /// Checks a core after an event: `whole`, which looks at `things`, where it is time for that, else `part`.
    ///
    /// # Errors
    /// What the check says.
    pub fn check(
        &mut self,
        things: u64,
        whole: impl FnOnce() -> Result<(), Broken>,
        part: impl FnOnce() -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        self.since += 1;
        let due = match self.checks {
            Checks::Every => true,
            Checks::Sampled => self.since > things,
            Checks::Off => return Ok(()),
        };
        if !due {
            return part();
        }
        self.since = 0;
        whole()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of ten events over four things, which are checked whole.
    fn whole(checks: Checks) -> (u32, u32) {
        let mut watch = Watch::new(checks);
        let (mut whole, mut part) = (0, 0);
        for _ in 0..10 {
            let seen = watch.check(
                4,
                || {
                    whole += 1;
                    Ok(())
                },
                || {
                    part += 1;
                    Ok(())
                },
            );
            assert_eq!(seen, Ok(()));
        }
        (whole, part)
    }

    #[test]
    fn a_whole_check_comes_as_often_as_it_is_wanted() {
        assert_eq!(whole(Checks::Every), (10, 0));
        assert_eq!(whole(Checks::Sampled), (2, 8));
        assert_eq!(whole(Checks::Off), (0, 0));
    }

    #[test]
    fn what_a_check_says_is_said() {
        let broken = || Err(Broken { name: "test", detail: String::new() });
        for checks in [Checks::Every, Checks::Sampled] {
            assert!(Watch::new(checks).check(0, broken, || Ok(())).is_err(), "{checks:?}");
        }
        assert!(Watch::new(Checks::Sampled).check(9, || Ok(()), broken).is_err());
        assert!(Watch::new(Checks::Off).check(0, broken, broken).is_ok());
    }
}
