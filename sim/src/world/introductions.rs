//! How nodes come to know of workers, and take them for gone that live.

use policies::placement::WorkerInfo;

use super::{World, life};
use crate::event::{ControllerMsg, Event, GatewayMsg, PoolNews, WorkerMsg};
use crate::network::{self, Addr};
use crate::node::Worker;

impl World {
    /// A worker tells the controller what it offers, and the gateway's node, which needs it only where the link to the
    /// controller may break.
    pub(super) fn rejoin(&mut self, index: u32) {
        self.worker_found(Addr::Controller, index);
        if self.network.links().is_some() {
            self.worker_found(Addr::Gateway, index);
        }
    }

    /// A worker introduces itself over a new link.
    pub(super) fn worker_found(&mut self, by: Addr, index: u32) {
        let Some(info) = self.offer(index) else { return };
        let node = info.id.node.clone();
        let draining = self.workers.get(&info.id).is_some_and(Worker::is_draining).then(|| info.id.clone());
        self.out.from = Addr::Worker(index);
        if by == Addr::Controller {
            self.out.send(Event::Controller(ControllerMsg::Joined(Box::new(info))));
            if let Some(id) = draining {
                self.out.send(Event::Controller(ControllerMsg::Draining(id)));
            }
        } else {
            self.out.send(Event::StandIn(ControllerMsg::Joined(Box::new(info))));
            if let Some(id) = draining {
                self.out.send(Event::StandIn(ControllerMsg::Draining(id)));
            }
            self.tell(Addr::Gateway, Event::Gateway(GatewayMsg::NodeFound(node)));
        }
    }

    /// What a worker that lives tells others of itself.
    fn offer(&self, index: u32) -> Option<WorkerInfo> {
        let id = life(&self.lives, index);
        self.workers.get(&id).map(|worker| worker.info().clone())
    }

    /// A message has come from a worker that introduces itself, or not.
    pub(super) fn meet(&mut self, by: Addr, message: &ControllerMsg) {
        let id = match message {
            ControllerMsg::Joined(info) => &info.id,
            ControllerMsg::Pool(news) => match &**news {
                PoolNews::Joined(info) => &info.id,
                _ => return,
            },
            _ => return,
        };
        if self.network.links().is_some() {
            self.met.insert((by, network::addr_of(id)), id.clone());
        }
    }

    /// A worker tells the others of itself at once, where any of them listens.
    pub(super) fn beats(&mut self, node: Addr) {
        if let Addr::Worker(index) = node
            && self.kinds.any_listens()
        {
            self.tell(node, Event::Worker(life(&self.lives, index), WorkerMsg::BeatDue));
        }
    }

    /// The controller and the gateway take a worker for dead that lives.
    pub(super) fn false_alarm(&mut self, index: u32) {
        self.link_lost(Addr::Controller, Addr::Worker(index));
        self.link_lost(Addr::Gateway, Addr::Worker(index));
    }
}
