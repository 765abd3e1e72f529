//! The workers of the cluster as this node knows them, and what its roles have been told of them.

use std::collections::BTreeMap;

use cluster::wire::{ToGateway, WorkerAd};
use config::ids::{NodeId, WorkerId};
use policies::batch::BatchLoad;
use tracing::{info, warn};

use crate::doors::{ControllerMsg, Doors, GatewayMsg, Offer};
use crate::pool::PoolMsg;

/// This node's worker and the others'.
#[derive(Debug, Default)]
pub(super) struct Workers {
    own: Option<WorkerAd>,
    /// What the own worker reported last: it reports changes only, and outlives what it offers (drains, new incarnations).
    own_load: BatchLoad,
    others: BTreeMap<NodeId, WorkerAd>,
    announced: BTreeMap<WorkerId, WorkerAd>,
    offers: Vec<Offer>,
}

impl Workers {
    pub(super) fn own(&self) -> Option<&WorkerAd> {
        self.own.as_ref()
    }

    pub(super) fn set_own(&mut self, ad: Option<WorkerAd>) {
        self.own = ad.map(|ad| WorkerAd { load: self.own_load, ..ad });
    }

    pub(super) fn set_own_load(&mut self, worker: &WorkerId, load: BatchLoad) {
        self.own_load = load;
        // It may have been sent a moment before the worker took its present incarnation.
        if let Some(ad) = self.own.as_mut().filter(|ad| ad.info.id.node == worker.node) {
            ad.load = load;
        }
    }

    pub(super) fn set_other(&mut self, node: NodeId, ad: Option<WorkerAd>) {
        match ad {
            Some(ad) => self.others.insert(node, ad),
            None => self.others.remove(&node),
        };
    }

    /// The worker of `node`; none is this node's own.
    pub(super) fn of(&self, node: Option<&NodeId>) -> Option<&WorkerAd> {
        node.map_or(self.own.as_ref(), |node| self.others.get(node))
    }

    /// A role of this process is new: it is told everything again.
    pub(super) fn forget_announced(&mut self) {
        self.announced.clear();
        self.offers.clear();
    }

    /// Tells the controller and the gateway of this process what has changed since the last call.
    pub(super) fn announce(&mut self, doors: &Doors) {
        let now: BTreeMap<WorkerId, &WorkerAd> =
            self.own.iter().chain(self.others.values()).map(|ad| (ad.info.id.clone(), ad)).collect();
        let gone: Vec<WorkerId> =
            self.announced.keys().filter(|id| !now.contains_key(*id)).cloned().collect();
        for id in gone {
            warn!(worker = %id, "worker left");
            self.announced.remove(&id);
            doors.to_controller(ControllerMsg::WorkerLeft(id.clone()));
            doors.to_own_gateways(|| GatewayMsg::Wire(ToGateway::WorkerLost(id.clone())));
            doors.to_own_pool(|| PoolMsg::OwnerLost(id.clone()));
        }
        for (id, ad) in &now {
            let known = self.announced.get(id);
            if known.is_none_or(|known| known.info != ad.info) {
                if known.is_none() {
                    let models = ad.models.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(",");
                    info!(worker = %id, models, "worker joined");
                }
                doors.to_controller(ControllerMsg::WorkerJoined(ad.info.clone()));
            }
            if ad.draining && known.is_none_or(|known| !known.draining) {
                doors.to_controller(ControllerMsg::WorkerDraining(id.clone()));
            }
            if known.is_none_or(|known| known.load != ad.load) {
                let (worker, load) = (id.clone(), ad.load);
                doors.to_controller(ControllerMsg::Wire(cluster::wire::ToController::WorkerLoad {
                    worker,
                    load,
                }));
            }
            self.announced.insert(id.clone(), (*ad).clone());
        }
        doors.set_offers(self.announced.clone());
        // A draining worker still answers for its model: requests under way resume, and another may come.
        let mut offers: Vec<Offer> = Vec::new();
        for (id, ad) in &now {
            for model in &ad.models {
                offers.push(Offer { model: model.clone(), worker: id.clone() });
            }
        }
        if offers != self.offers {
            self.offers.clone_from(&offers);
            doors.to_own_gateways(|| GatewayMsg::Offers(offers.clone()));
        }
    }
}
