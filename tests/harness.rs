//! Starts real `actor-node` processes and talks to them. Everything waits on an observed state with a deadline.

pub(crate) mod cluster;
pub(crate) mod http;
pub(crate) mod model;
pub(crate) mod node;
pub(crate) mod proxy;

use std::time::{Duration, Instant};

/// Long enough for the slowest machine to load a model while other tests run; a test that needs it has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Waits until `probe` gives a value.
///
/// # Panics
/// After [`DEADLINE`], naming what was waited for.
pub(crate) fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < end, "waited {DEADLINE:?} for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}
