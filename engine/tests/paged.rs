//! Engine `paged` with real weights: against an independent reference, and against itself in other batches.

#[path = "paged/common.rs"]
mod common;
#[path = "paged/invariance.rs"]
mod invariance;
#[path = "paged/reference.rs"]
mod reference;
