//! What is between the nodes.

use config::{Dur, Size};
use serde::{Deserialize, Serialize};

use super::{share, within};
use crate::SimError;

/// Links between the nodes. Messages between two nodes stay in order, as on a TCP connection: one that is late delays
/// those behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Network {
    /// Time that a message takes from node to node; [`super::Cluster::network`] where this is left out.
    pub latency: Option<Dur>,
    /// A message takes up to so much longer, each value as likely.
    pub jitter: Dur,
    /// What a node can send in bulk, and what it can receive, a second. Transfers share both fairly. The link of the
    /// node's machine where this is left out.
    pub bandwidth: Option<Size>,
    /// Share of the messages that get lost on the way and are sent again after `retransmit`, in `[0, 1]`.
    pub loss: f64,
    /// How long it takes until what was lost is sent again.
    pub retransmit: Dur,
    /// A link that broke is made again so long after both ends can reach each other.
    pub relink: Dur,
    /// The ends of a link notice that it is silent up to so much later than [`super::Cluster::detect`], each value as
    /// likely: they need not notice at the same time.
    pub detect_spread: Dur,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            latency: None,
            jitter: Dur::default(),
            bandwidth: None,
            loss: 0.0,
            retransmit: Dur::from_millis(200),
            relink: Dur::from_millis(100),
            detect_spread: Dur::default(),
        }
    }
}

impl Network {
    pub(super) fn validate(&self) -> Result<(), SimError> {
        share("network.loss", self.loss)?;
        let hour = Dur::from_secs(3600).as_nanos();
        within("network.jitter (ns)", self.jitter.as_nanos(), 0, hour)?;
        within("network.retransmit (ns)", self.retransmit.as_nanos(), 0, hour)?;
        within("network.relink (ns)", self.relink.as_nanos(), 0, hour)?;
        within("network.detect-spread (ns)", self.detect_spread.as_nanos(), 0, hour)?;
        match self.bandwidth {
            Some(bandwidth) => within("network.bandwidth (bytes)", bandwidth.bytes(), 1, u64::MAX),
            None => Ok(()),
        }
    }
}
