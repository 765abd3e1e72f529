//! Nodes that start, die, and take other names.

use config::ids::{NodeId, WorkerId};
use policies::time::Time;

use super::{World, controller, stand_in};
use crate::network::{self, Addr};
use crate::node::Worker;

impl World {
    /// A worker starts.
    pub(super) fn start(&mut self, index: u32) {
        if self.workers.contains(&life(&self.lives, index)) {
            return;
        }
        self.lives[index as usize] += 1;
        let again = self.lives[index as usize] > 1;
        let id = life(&self.lives, index);
        self.workers.insert(Worker::new(self.kinds.worker(index, id)).checked(self.scenario.how_checked()));
        match again {
            // It says what it offers over each link that it has.
            true => self.started(Addr::Worker(index)),
            false => {
                self.rejoin(index);
                self.beats(Addr::Worker(index));
            }
        }
    }

    /// A node has started again.
    pub(super) fn started(&mut self, node: Addr) {
        for linked in self.network.start(node) {
            self.linked(linked);
        }
    }

    /// A node dies with all that it has.
    pub(super) fn crash(&mut self, now: Time, node: Addr) {
        if self.network.is_dead(node) {
            return;
        }
        self.gone(node);
        self.network.crash(now, node, &mut self.queue);
        match node {
            Addr::Worker(_) | Addr::Pool(_) => {}
            Addr::Controller => self.controller = controller(&self.scenario),
            Addr::Gateway => {
                self.gateway.crash(now);
                self.stand_in = stand_in(&self.scenario);
            }
        }
    }

    /// What a node had is gone with it.
    pub(super) fn gone(&mut self, node: Addr) {
        if let Addr::Worker(index) = node
            && let Some(worker) = self.workers.remove(&life(&self.lives, index))
        {
            self.handoffs.merge(&worker.handoffs());
        }
        if let Addr::Pool(index) = node {
            self.pools.stop(index);
        }
        self.met.retain(|(by, _), _| *by != node);
    }

    /// A worker that was cut off from everybody takes another name.
    pub(super) fn renew(&mut self, index: u32) {
        let former = life(&self.lives, index);
        if let Some(mut worker) = self.workers.remove(&former) {
            self.lives[index as usize] += 1;
            let id = life(&self.lives, index);
            worker.renew(id);
            self.workers.insert(worker);
        }
    }

    /// The present name of the process that has, or had, this one; none where that is over.
    pub(super) fn process(&self, id: &WorkerId) -> Option<WorkerId> {
        if self.workers.contains(id) {
            return Some(id.clone());
        }
        let here = life(&self.lives, network::index_of(id));
        self.workers.get(&here).is_some_and(|worker| worker.was(id)).then_some(here)
    }
}

/// The latest life of a worker.
pub(super) fn life(lives: &[u64], index: u32) -> WorkerId {
    WorkerId::new(name(index), lives[index as usize])
}

/// The node of a worker.
pub(super) fn name(index: u32) -> NodeId {
    // Padded, so that names sort by number.
    format!("w{index:05}").into()
}
