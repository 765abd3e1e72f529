//! How often a run is checked.

use super::Scenario;
use crate::watch::Checks;

/// Requests, times the things that a check after each event goes through, up to which every event is worth it: about ten
/// seconds.
const SMALL: u64 = 5_000_000;

impl Scenario {
    /// How often the cores are checked: as [`Scenario::checks`] says, or as the size of the run suggests.
    #[must_use]
    pub fn how_checked(&self) -> Checks {
        let w = &self.workload;
        // How many lines a file has is not known before.
        let requests = match (&w.trace, w.limit) {
            (None, _) => w.drawn(),
            (Some(_), 0) => u64::MAX,
            (Some(_), limit) => limit,
        };
        let things = u64::from(self.cluster.pages) + u64::from(self.workers());
        let small = requests.saturating_mul(things) <= SMALL;
        self.checks.unwrap_or(if small { Checks::Every } else { Checks::Sampled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_runs_are_checked_after_every_event() {
        let mut scenario = Scenario::default();
        assert_eq!(scenario.how_checked(), Checks::Every);
        scenario.workload.requests = 10_000;
        assert_eq!(scenario.how_checked(), Checks::Sampled);
        scenario.workload = crate::scenario::Workload { trace: Some("a.jsonl".into()), ..Default::default() };
        assert_eq!(scenario.how_checked(), Checks::Sampled);
        scenario.workload.limit = 100;
        assert_eq!(scenario.how_checked(), Checks::Every);
        scenario.cluster.workers = 100_000;
        assert_eq!(scenario.how_checked(), Checks::Sampled);
    }

    #[test]
    fn what_the_scenario_says_goes() {
        for (text, checks) in [("every", Checks::Every), ("sampled", Checks::Sampled), ("off", Checks::Off)] {
            let scenario = Scenario::from_toml(&format!("checks = \"{text}\""), "test").unwrap();
            assert_eq!((scenario.how_checked(), checks.as_str()), (checks, text));
        }
    }
}
