//! Which workers may be given prompts of others.

use super::{NodeName, Scenario, invalid};
use crate::SimError;
use crate::network::Addr;

impl Scenario {
    /// The workers that `worker-policy.offload.peers` names, by number; empty: all.
    ///
    /// # Errors
    /// A name that no simulated worker has.
    pub fn peers(&self) -> Result<Vec<u32>, SimError> {
        let last = self.workers().saturating_sub(1);
        let number = |name: &String| match name.trim().parse::<NodeName>() {
            Ok(NodeName(Addr::Worker(number))) if number <= last => Ok(number),
            _ => {
                let reason = format!(
                    "simulated workers are w0 to w{last}; name those here, or set it to [] for all: what the \
                     scenario says counts more than a node's configuration"
                );
                Err(invalid("worker-policy.offload.peers", name, reason))
            }
        };
        self.worker_policy.offload.peers.iter().map(number).collect()
    }

    /// Whether a list of a worker's policies has prompts leave.
    pub(crate) fn offloads(list: &[String]) -> bool {
        list.iter().any(|name| name == policies::order::offload::NAME)
    }
}
