//! What happens to nodes and links.

use policies::time::{Span, Time};

use super::World;
use crate::event::Event;
use crate::network::Addr;
use crate::network::links::Slow;
use crate::queue::Queue;
use crate::scenario::{Fault, FaultKind};

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
            Event::Start(worker) => self.start(worker),
            Event::Rejoin(worker) => self.rejoin(worker),
            Event::Crash(worker) => self.crash(now, Addr::Worker(worker)),
            Event::FalseAlarm(worker) => self.false_alarm(worker),
            Event::Drained(ref worker) => self.drained(now, worker),
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
            FaultKind::PoolDiskFull => self.fill_disks(&targets, true),
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
                        Addr::Pool(pool) => self.start_pool(now, pool),
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
            FaultKind::PoolDiskFull => self.fill_disks(&targets, false),
            FaultKind::Reset | FaultKind::Drain => {}
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
}

fn workers(targets: &[Addr]) -> impl Iterator<Item = u32> {
    targets.iter().filter_map(|node| match node {
        Addr::Worker(index) => Some(*index),
        Addr::Gateway | Addr::Controller | Addr::Pool(_) => None,
    })
}
