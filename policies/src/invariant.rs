//! Invariants as named predicates.
//!
//! Each core has a `check` that gives back the first broken invariant. Tests and the simulator call [`enforce`] after
//! every event and panic; a serving process counts and goes on, since a wrong count is better than a dead node.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A broken invariant: its name and what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Stable name, for the metric's label.
    pub name: &'static str,
    /// The values that broke it.
    pub detail: String,
}

static PANIC: AtomicBool = AtomicBool::new(false);
static SEEN: AtomicU64 = AtomicU64::new(0);

/// From now on a broken invariant panics. Tests and the simulator set it; a release build has no `debug_assert!`.
pub fn panic_on_broken() {
    PANIC.store(true, Ordering::Relaxed);
}

/// How many broken invariants were counted in this process.
#[must_use]
pub fn broken_seen() -> u64 {
    SEEN.load(Ordering::Relaxed)
}

/// Panics or counts where `result` is a broken invariant; gives it back, so that a driver can log it.
///
/// # Panics
/// After [`panic_on_broken`], when an invariant is broken.
pub fn enforce(result: Result<(), Broken>) -> Option<Broken> {
    let broken = result.err()?;
    assert!(!PANIC.load(Ordering::Relaxed), "invariant {} is broken: {}", broken.name, broken.detail);
    SEEN.fetch_add(1, Ordering::Relaxed);
    Some(broken)
}

/// What [`ensure_invariant!`] says. Kept out of the checks themselves: they are on the path of each token, and code that never
/// runs would take the room in the instruction cache of code that does.
#[cold]
#[inline(never)]
#[must_use]
pub fn broken(name: &'static str, detail: fmt::Arguments<'_>) -> Broken {
    Broken { name, detail: detail.to_string() }
}

/// `Err(Broken)` with a formatted detail unless the condition holds.
#[macro_export]
macro_rules! ensure_invariant {
    ($cond:expr, $name:literal, $($detail:tt)+) => {
        if !$cond {
            return Err($crate::invariant::broken($name, format_args!($($detail)+)));
        }
    };
}
