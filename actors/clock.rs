//! The live driver's clock: monotonic nanoseconds since the process started, as the cores want them.

use std::sync::OnceLock;
use std::time::Instant;

use policies::time::{Span, Time};

static ORIGIN: OnceLock<Instant> = OnceLock::new();

/// Now. Handlers read it once a message and pass it down.
#[must_use]
pub fn now() -> Time {
    Time::ZERO + Span::from(ORIGIN.get_or_init(Instant::now).elapsed())
}

/// The point on tokio's clock at which a core wants to be called; `None` for [`Time::NEVER`].
#[must_use]
pub fn instant_of(at: Time) -> Option<tokio::time::Instant> {
    (at != Time::NEVER).then(|| tokio::time::Instant::now() + at.since(now()).to_duration())
}
