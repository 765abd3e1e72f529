//! The pools of the cluster as this node knows them, and what its roles have been told of them.

use std::collections::BTreeMap;

use cluster::wire::PoolAd;
use config::ids::{NodeId, WorkerId};
use tracing::{info, warn};

use crate::doors::{ControllerMsg, Doors};

/// This node's pool and the others'.
#[derive(Debug, Default)]
pub(super) struct Pools {
    own: Option<PoolAd>,
    others: BTreeMap<NodeId, PoolAd>,
    announced: BTreeMap<WorkerId, PoolAd>,
}

impl Pools {
    pub(super) fn own(&self) -> Option<&PoolAd> {
        self.own.as_ref()
    }

    pub(super) fn set_own(&mut self, ad: Option<PoolAd>) {
        self.own = ad;
    }

    pub(super) fn set_other(&mut self, node: NodeId, ad: Option<PoolAd>) {
        match ad {
            Some(ad) => self.others.insert(node, ad),
            None => self.others.remove(&node),
        };
    }

    /// The pool of `node`; none is this node's own.
    pub(super) fn of(&self, node: Option<&NodeId>) -> Option<&PoolAd> {
        node.map_or(self.own.as_ref(), |node| self.others.get(node))
    }

    /// A role of this process is new: it is told everything again.
    pub(super) fn forget_announced(&mut self) {
        self.announced.clear();
    }

    /// Tells the controller of this process what has changed since the last call.
    pub(super) fn announce(&mut self, doors: &Doors) {
        let now: BTreeMap<WorkerId, PoolAd> =
            self.own.iter().chain(self.others.values()).map(|ad| (ad.info.id.clone(), ad.clone())).collect();
        for id in self.announced.keys().filter(|id| !now.contains_key(*id)) {
            warn!(pool = %id, "pool left");
            doors.to_controller(ControllerMsg::PoolLeft(id.clone()));
        }
        for (id, ad) in &now {
            let known = self.announced.get(id);
            if known.is_none_or(|known| known.info != ad.info) {
                // It says again what it is when it gives faster or slower.
                if known.is_none() {
                    info!(pool = %id, address = ad.info.address, "pool joined");
                }
                doors.to_controller(ControllerMsg::PoolJoined(ad.info.clone()));
            }
        }
        if self.announced != now {
            doors.set_pools(now.values().map(|ad| (ad.info.id.clone(), ad.info.address.clone())).collect());
            self.announced = now;
        }
    }
}
