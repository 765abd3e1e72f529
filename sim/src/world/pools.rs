//! Pools: how they start, how others come to know of them, and what comes to them.

use config::ids::WorkerId;
use policies::invariant::Broken;
use policies::time::Time;

use super::{World, life};
use crate::event::{ControllerMsg, Event, PoolEvent, PoolMsg, PoolNews, WorkerMsg};
use crate::network::{self, Addr};
use crate::node::pools::pool_name;

mod args;
mod checks;

pub(super) use args::{args, machines};

impl World {
    /// A pool starts.
    pub(super) fn start_pool(&mut self, now: Time, index: u32) {
        if !self.pools.start(now, index) {
            return;
        }
        let node = Addr::Pool(index);
        if let Some(id) = self.pools.at(index).map(|pool| pool.info().id.clone()) {
            // What it found on its disk may be too much.
            self.tell(node, Event::pool(PoolEvent::Timer(id)));
        }
        match self.network.is_dead(node) {
            // It says what it offers over each link that it has.
            true => self.started(node),
            false => self.pool_found(index),
        }
    }

    /// A pool introduces itself to the controller.
    pub(super) fn pool_found(&mut self, index: u32) {
        let Some(info) = self.pools.at(index).map(|pool| pool.info().clone()) else { return };
        self.out.from = Addr::Pool(index);
        self.out.send(Event::Controller(ControllerMsg::Pool(Box::new(PoolNews::Joined(info)))));
    }

    /// One of two nodes, one of which is a pool, has no link to the other any more.
    pub(super) fn pool_link_lost(&mut self, who: Addr, whom: Addr) {
        match (who, whom) {
            (Addr::Controller, _) => {
                if let Some(id) = self.met.remove(&(who, whom)) {
                    self.tell(who, Event::Controller(ControllerMsg::Pool(Box::new(PoolNews::Left(id)))));
                }
            }
            (Addr::Worker(index), Addr::Pool(pool)) => {
                let lost = WorkerMsg::PeerLost(pool_name(pool, 0).node);
                self.tell(who, Event::Worker(life(&self.lives, index), lost));
            }
            (Addr::Pool(index), Addr::Worker(worker)) => {
                if let Some(id) = self.pools.at(index).map(|pool| pool.info().id.clone()) {
                    let lost = PoolMsg::PeerLost(life(&self.lives, worker));
                    self.tell(who, Event::pool(PoolEvent::Message(id, lost)));
                }
            }
            _ => {}
        }
    }

    /// Something happens to a pool.
    pub(super) fn pool_event(&mut self, now: Time, event: PoolEvent) -> Result<(), Broken> {
        match event {
            PoolEvent::Start(index) => {
                self.start_pool(now, index);
                Ok(())
            }
            PoolEvent::Message(id, message) => self.pool(now, id, message),
            PoolEvent::Timer(id) => {
                self.pools.process(&id).map_or(Ok(()), |pool| pool.tick(now, &mut self.out))
            }
            PoolEvent::DiskDone(id) => {
                self.pools.process(&id).map_or(Ok(()), |pool| pool.disk_done(now, &mut self.out))
            }
        }
    }

    /// A message reaches the node of a pool.
    fn pool(&mut self, now: Time, id: WorkerId, message: PoolMsg) -> Result<(), Broken> {
        let here = match message {
            // A transfer is between two processes.
            PoolMsg::Kv(_) => self.pools.process(&id),
            _ => self.pools.at_mut(network::index_of(&id)),
        };
        match (here, message) {
            (Some(pool), message) => return pool.handle(now, message, &mut self.out),
            (None, PoolMsg::Kv(mail)) => {
                if let Some(lost) = network::link_lost(now, *mail, id) {
                    self.out.send(lost);
                }
            }
            (None, _) => {}
        }
        Ok(())
    }

    pub(super) fn fill_disks(&mut self, nodes: &[Addr], begins: bool) {
        for node in nodes {
            if let Addr::Pool(index) = node {
                self.pools.fill(*index, begins);
            }
        }
    }
}
