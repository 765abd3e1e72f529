//! What happens to nodes and links, and what the nodes are told of it.
//!
//! Each node hears of its own links, as live ones do from their membership: a controller forgets the workers that it
//! cannot reach and releases what a lost gateway has booked; a gateway places the requests of lost workers again, and by its
//! own choice while it has no controller; a worker cancels what a lost gateway has there, and takes another name once it was
//! cut off from everybody, since all have given up what it did.

use policies::time::{Span, Time};

use super::{World, controller, life, placement_config};
use crate::event::{ControllerMsg, Event, GatewayMsg, WorkerMsg};
use crate::network::Addr;
use crate::network::links::{Linked, Slow};
use crate::node::{Controller, Worker};
use crate::queue::Queue;
use crate::scenario::{Fault, FaultKind};
use crate::workload::GATEWAY;

/// Puts the beginnings and ends of faults into the queue.
pub(super) fn schedule(faults: &[Fault], queue: &mut Queue) {
    for (index, fault) in (0..).zip(faults) {
        let at = Time::ZERO + Span::from(fault.at.get());
        queue.push(at, Event::Fault(index));
        // A worker that is drained comes back so long after it has left.
        if let Some(after) = fault.back_after.filter(|_| fault.kind != FaultKind::Drain) {
            queue.push(at + Span::from(after.get()), Event::FaultOver(index));
        }
    }
}

impl World {
    /// Something happens to nodes or links.
    pub(super) fn fault(&mut self, now: Time, event: &Event) {
        match *event {
            Event::Fault(index) => self.begins(now, index),
            Event::FaultOver(index) => self.is_over(now, index),
            Event::Notice { who, whom, why }
                if self.network.notices(now, who, whom, why, &mut self.queue) =>
            {
                self.link_lost(who, whom);
            }
            Event::Relink(a, b) => {
                if let Some(linked) = self.network.relink(now, a, b, &mut self.queue) {
                    self.linked(linked);
                }
            }
            Event::Flow(generation) => self.network.flow(now, generation, &mut self.queue),
            _ => {}
        }
    }

    fn begins(&mut self, now: Time, index: u32) {
        let fault = self.faults[index as usize].clone();
        let targets = fault.targets();
        match fault.kind {
            FaultKind::Crash => targets.into_iter().for_each(|node| self.crash(now, node)),
            FaultKind::FalseAlarm => workers(&targets).for_each(|worker| self.false_alarm(worker)),
            FaultKind::Freeze => {
                targets.into_iter().for_each(|node| self.network.freeze(now, node, index, &mut self.queue));
            }
            FaultKind::Partition => self.network.cut(now, &targets, &mut self.queue),
            FaultKind::Drain => workers(&targets).for_each(|worker| self.drain(worker)),
            FaultKind::Reset => self.network.reset(now, &targets, &mut self.queue),
            FaultKind::SlowNode | FaultKind::SlowLink => self.slow(now, index, true),
            // Refused when the scenario was looked at.
            FaultKind::PoolDiskFull => {}
        }
    }

    fn is_over(&mut self, now: Time, index: u32) {
        let fault = self.faults[index as usize].clone();
        let targets = fault.targets();
        match fault.kind {
            FaultKind::Crash => {
                for node in targets {
                    match node {
                        Addr::Worker(worker) => self.start(worker),
                        Addr::Gateway | Addr::Controller if self.network.is_dead(node) => self.started(node),
                        Addr::Gateway | Addr::Controller => {}
                    }
                }
            }
            FaultKind::FalseAlarm => workers(&targets).for_each(|worker| self.rejoin(worker)),
            FaultKind::Freeze => {
                targets.into_iter().for_each(|node| self.network.thaw(now, node, index, &mut self.queue));
            }
            FaultKind::Partition => self.network.heal(now, &targets, &mut self.queue),
            FaultKind::SlowNode | FaultKind::SlowLink => self.slow(now, index, false),
            FaultKind::Reset | FaultKind::Drain | FaultKind::PoolDiskFull => {}
        }
    }

    fn slow(&mut self, now: Time, index: u32, begins: bool) {
        let fault = &self.faults[index as usize];
        let permille = fault.permille();
        let slow = match fault.kind {
            FaultKind::SlowNode => Slow { fault: index, steps: permille, link: 1000, added: Span::ZERO },
            _ => Slow { fault: index, steps: 1000, link: permille, added: fault.added.get().into() },
        };
        for node in fault.targets() {
            self.network.slow(now, node, slow, begins, &mut self.queue);
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
            Addr::Worker(_) => {}
            Addr::Controller => self.controller = controller(&self.scenario),
            Addr::Gateway => {
                self.gateway.crash(now);
                self.stand_in =
                    Controller::stand_in(&placement_config(&self.scenario.cluster, self.scenario.seed));
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
        self.met.retain(|(by, _), _| *by != node);
    }

    /// The controller and the gateway take a worker for dead that lives.
    pub(super) fn false_alarm(&mut self, index: u32) {
        self.link_lost(Addr::Controller, Addr::Worker(index));
        self.link_lost(Addr::Gateway, Addr::Worker(index));
    }

    /// A worker tells the controller what it offers, and the gateway's node, which needs it only where the link to the
    /// controller may break.
    pub(super) fn rejoin(&mut self, index: u32) {
        self.worker_found(Addr::Controller, index);
        if self.network.links().is_some() {
            self.worker_found(Addr::Gateway, index);
        }
    }

    /// A node has started again.
    pub(super) fn started(&mut self, node: Addr) {
        for linked in self.network.start(node) {
            self.linked(linked);
        }
    }

    /// Two nodes have a link: who had not noticed that the former one was gone does so first.
    fn linked(&mut self, linked: Linked) {
        let [a, b] = linked.nodes;
        for ((who, whom), unaware) in [(a, b), (b, a)].into_iter().zip(linked.unaware) {
            if unaware {
                self.link_lost(who, whom);
            }
        }
        match linked.nodes {
            [who @ (Addr::Gateway | Addr::Controller), Addr::Worker(index)] => self.worker_found(who, index),
            [Addr::Gateway, Addr::Controller] => {
                self.tell(Addr::Gateway, Event::Gateway(GatewayMsg::ControllerFound));
            }
            [a @ Addr::Worker(_), b @ Addr::Worker(_)] => {
                self.beats(a);
                self.beats(b);
            }
            _ => {}
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

    /// A worker introduces itself over a new link.
    fn worker_found(&mut self, by: Addr, index: u32) {
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

    /// What a node does that has no link to another one any more.
    fn link_lost(&mut self, who: Addr, whom: Addr) {
        match (who, whom) {
            (Addr::Controller, Addr::Worker(index)) => {
                if let Some(id) = self.met.remove(&(who, index)) {
                    self.tell(who, Event::Controller(ControllerMsg::Left(id)));
                }
            }
            (Addr::Controller, _) => {
                self.tell(who, Event::Controller(ControllerMsg::GatewayLeft(GATEWAY)));
            }
            (Addr::Gateway, Addr::Worker(index)) => {
                let known = self.met.remove(&(who, index));
                if let Some(id) = known.clone() {
                    self.tell(who, Event::StandIn(ControllerMsg::Left(id)));
                }
                let node = life(&self.lives, index).node;
                self.tell(who, Event::Gateway(GatewayMsg::NodeLost(node, known)));
            }
            (Addr::Gateway, _) => self.tell(who, Event::Gateway(GatewayMsg::ControllerLost)),
            (Addr::Worker(index), Addr::Worker(other)) => {
                let peer = life(&self.lives, other).node;
                self.tell(who, Event::Worker(life(&self.lives, index), WorkerMsg::PeerLost(peer)));
            }
            (Addr::Worker(index), Addr::Gateway) => {
                self.tell(who, Event::Worker(life(&self.lives, index), WorkerMsg::GatewayLeft));
            }
            (Addr::Worker(_), Addr::Controller) => {}
        }
        if let Addr::Worker(index) = who
            && self.network.links().is_some_and(|links| links.is_alone(who))
        {
            self.renew(index);
        }
    }

    /// A worker that was cut off from everybody takes another name.
    fn renew(&mut self, index: u32) {
        let former = life(&self.lives, index);
        if let Some(mut worker) = self.workers.remove(&former) {
            self.lives[index as usize] += 1;
            let id = life(&self.lives, index);
            worker.renew(id);
            self.workers.insert(worker);
        }
    }

    /// A message has come from a worker that introduces itself, or not.
    pub(super) fn meet(&mut self, by: Addr, message: &ControllerMsg) {
        if let ControllerMsg::Joined(info) = message
            && self.network.links().is_some()
        {
            self.met.insert((by, crate::network::index_of(&info.id)), info.id.clone());
        }
    }

    /// Tells a node something that it finds out by itself.
    pub(super) fn tell(&mut self, node: Addr, event: Event) {
        self.out.from = node;
        self.out.after(Span::ZERO, event);
    }
}

fn workers(targets: &[Addr]) -> impl Iterator<Item = u32> {
    targets.iter().filter_map(|node| match node {
        Addr::Worker(index) => Some(*index),
        Addr::Gateway | Addr::Controller => None,
    })
}
