//! One page with charts.

use crate::{Report, Scenario, SimError};

/// A run to be shown.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Its name.
    pub name: &'a str,
    /// What was simulated.
    pub scenario: &'a Scenario,
    /// What came of it.
    pub report: &'a Report,
}

/// The page.
///
/// # Errors
/// None yet.
pub fn html(shown: &[Shown<'_>]) -> Result<String, SimError> {
    Ok(format!("{}", shown.len()))
}
