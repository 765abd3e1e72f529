//! Models of workers in other processes: their descriptors are fetched once, in parts, from a worker that offers them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use cluster::wire::ToWorker;
use config::ids::{NodeId, WorkerId};
use engine::ModelCard;
use tracing::{debug, error};

use crate::card;
use crate::doors::{Doors, Offer};

/// Parts that a descriptor may have: 1 GiB, far more than any tokenizer.
const MOST_PARTS: u32 = 1024;

/// Descriptors on their way, by hash.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    open: BTreeMap<[u8; 32], Fetch>,
}

#[derive(Debug)]
struct Fetch {
    from: WorkerId,
    parts: BTreeMap<u32, Vec<u8>>,
    /// Something has happened since it was last looked at.
    moved: bool,
}

impl Fetches {
    /// What is offered now: gives back the cards that are known, and asks for the others. A fetch from a worker that is
    /// gone begins again with another.
    pub(super) fn offered(&mut self, offers: &[Offer], doors: &Doors, node: &NodeId) -> Vec<Arc<ModelCard>> {
        let mut known = BTreeMap::new();
        self.open.retain(|hash, fetch| {
            offers.iter().any(|o| o.model.descriptor == *hash && o.worker == fetch.from)
        });
        for Offer { model, worker } in offers {
            let descriptor = model.descriptor;
            if let Some(card) = doors.card(&descriptor) {
                known.insert(descriptor, card);
            } else if let Entry::Vacant(place) = self.open.entry(descriptor) {
                debug!(model = %model.name, %worker, bytes = model.bytes, "asking for a model's descriptor");
                let ask = ToWorker::DescribeModel { gateway: node.clone(), descriptor };
                if doors.to_worker(worker, ask) {
                    place.insert(Fetch { from: worker.clone(), parts: BTreeMap::new(), moved: true });
                }
            }
        }
        known.into_values().collect()
    }

    /// Asks again where nothing has come since the last call: what goes over a link that is just being replaced is lost.
    pub(super) fn ask_again(&mut self, doors: &Doors, node: &NodeId) {
        for (descriptor, fetch) in &mut self.open {
            if !std::mem::take(&mut fetch.moved) {
                debug!(worker = %fetch.from, "asking for a model's descriptor again");
                let ask = ToWorker::DescribeModel { gateway: node.clone(), descriptor: *descriptor };
                // Where there is no way to it the next offers say so.
                doors.to_worker(&fetch.from, ask);
            }
        }
    }

    /// A part came; gives back the card with the last one.
    pub(super) fn part(
        &mut self,
        descriptor: &[u8; 32],
        part: u32,
        parts: u32,
        bytes: Vec<u8>,
    ) -> Option<Arc<ModelCard>> {
        let fetch = self.open.get_mut(descriptor)?;
        if parts > MOST_PARTS || part >= parts {
            error!(worker = %fetch.from, part, parts, "a descriptor's part makes no sense");
            self.open.remove(descriptor);
            return None;
        }
        fetch.parts.insert(part, bytes);
        fetch.moved = true;
        if fetch.parts.len() < parts as usize {
            return None;
        }
        let fetch = self.open.remove(descriptor)?;
        let bytes = fetch.parts.into_values().collect::<Vec<_>>().concat();
        match card::read(descriptor, &bytes) {
            Ok(card) => Some(Arc::new(card)),
            Err(e) => {
                error!(worker = %fetch.from, error = %e, "a model cannot be used");
                None
            }
        }
    }
}
