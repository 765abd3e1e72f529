//! What is good enough, as data.

use config::Dur;
use serde::{Deserialize, Serialize};

/// `[slo]`: limits of a request that counts as good. What is left out is not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Slo {
    /// The most that its time to first token may be.
    pub ttft: Option<Dur>,
    /// The most that its mean inter-token latency may be; of several choices, that of the slowest.
    pub inter_token: Option<Dur>,
}

impl Slo {
    /// Whether anything is asked for.
    #[must_use]
    pub const fn is_some(&self) -> bool {
        self.ttft.is_some() || self.inter_token.is_some()
    }
}
