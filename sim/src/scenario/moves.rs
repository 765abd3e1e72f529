//! Requests that are moved to other workers, as data.

use config::Dur;
use serde::{Deserialize, Serialize};

use super::{NodeName, invalid, within};
use crate::SimError;
use crate::network::Addr;

/// `[[move]]`: requests change their worker while their streams run, as `POST /v1/sessions/{id}/migrate` has them do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Move {
    /// When; the first time, where it is more than once.
    pub at: Dur,
    /// From which worker (`w0`, `w1`, …); any where this is left out.
    pub from: Option<NodeName>,
    /// To which worker; where the controller says, where this is left out.
    pub to: Option<NodeName>,
    /// How many requests at most: the oldest of those that generate there.
    pub sessions: u32,
    /// How many times.
    pub times: u32,
    /// From one time to the next.
    pub every: Dur,
}

impl Default for Move {
    fn default() -> Self {
        let at = Dur::default();
        Self { at, from: None, to: None, sessions: 1, times: 1, every: Dur::from_secs(1) }
    }
}

impl Move {
    /// Number of the worker that requests leave.
    #[must_use]
    pub fn source(&self) -> Option<u32> {
        self.from.and_then(number)
    }

    /// Number of the worker that they go to.
    #[must_use]
    pub fn target(&self) -> Option<u32> {
        self.to.and_then(number)
    }

    pub(super) fn validate(&self, workers: u32) -> Result<(), SimError> {
        let last = workers.saturating_sub(1);
        for (key, name) in [("move.from", self.from), ("move.to", self.to)] {
            let Some(name) = name else { continue };
            if number(name).is_none_or(|number| number > last) {
                return Err(invalid(key, &name, format!("use a worker, w0 to w{last}")));
            }
        }
        if self.from.is_some() && self.from == self.to {
            let reason = "it is where requests come from; use another worker, or leave it out".to_owned();
            return Err(invalid("move.to", &self.to.map(String::from).unwrap_or_default(), reason));
        }
        within("move.sessions", self.sessions.into(), 1, 1_000_000)?;
        within("move.times", self.times.into(), 1, 1_000_000)
    }
}

const fn number(name: NodeName) -> Option<u32> {
    match name.0 {
        Addr::Worker(number) => Some(number),
        Addr::Gateway | Addr::Controller | Addr::Pool(_) => None,
    }
}
