//! The live driver's clock: monotonic nanoseconds since the process started, as the cores want them.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

use policies::time::{Span, Time};

/// One moment on the clock that never goes back, and on the one that others have too.
static ORIGIN: OnceLock<(Instant, SystemTime)> = OnceLock::new();

fn origin() -> (Instant, SystemTime) {
    *ORIGIN.get_or_init(|| (Instant::now(), SystemTime::now()))
}

/// Now. Handlers read it once a message and pass it down.
#[must_use]
pub fn now() -> Time {
    Time::ZERO + Span::from(origin().0.elapsed())
}

/// Microseconds from 1970 to `at`, for what is read beside what other machines wrote. It is told from one look at their clock
/// at the start, so that it never goes back.
#[must_use]
pub fn unix_us(at: Time) -> u64 {
    let start = origin().1.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(start.as_micros()).unwrap_or(u64::MAX).saturating_add(at.0 / 1000)
}

/// The point on tokio's clock at which a core wants to be called; `None` for [`Time::NEVER`].
#[must_use]
pub fn instant_of(at: Time) -> Option<tokio::time::Instant> {
    (at != Time::NEVER).then(|| tokio::time::Instant::now() + at.since(now()).to_duration())
}
