//! Engine `paged`: against an independent reference and an oracle in 64 bits, and against itself in other batches.
#![expect(
    clippy::needless_pass_by_value,
    clippy::redundant_clone,
    reason = "a test builds its values in place"
)]

// Marked as test code, which may panic where other code may not.
#[cfg(test)]
#[path = "paged/common.rs"]
mod common;
#[cfg(test)]
#[path = "paged/invariance.rs"]
mod invariance;
#[cfg(test)]
#[path = "paged/oracle.rs"]
mod oracle;
#[cfg(test)]
#[path = "paged/plans.rs"]
mod plans;
#[cfg(test)]
#[path = "paged/reference.rs"]
mod reference;
#[cfg(test)]
#[path = "paged/tiny.rs"]
mod tiny;
