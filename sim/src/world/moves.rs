//! Requests that change their workers, and workers that leave when they have nothing left.

use config::ids::WorkerId;
use policies::invariant::Broken;
use policies::time::{Span, Time};

use super::{World, life, name};
use crate::event::{Event, WorkerMsg};
use crate::network::{Addr, index_of};
use crate::node::Moving;
use crate::queue::Queue;
use crate::scenario::{FaultKind, Move};

/// Puts the times of moves into the queue.
pub(super) fn schedule(moves: &[Move], queue: &mut Queue) {
    for (index, of) in (0..).zip(moves) {
        let (first, every) = (Time::ZERO + Span::from(of.at.get()), Span::from(of.every.get()));
        for time in 0..u64::from(of.times) {
            queue.push(first + Span(every.0.saturating_mul(time)), Event::Move(index));
        }
    }
}

impl World {
    /// Somebody asks the gateway to move some of its requests.
    pub(super) fn move_some(&mut self, now: Time, index: u32) -> Result<(), Broken> {
        let of = &self.scenario.moves[index as usize];
        let moving = Moving {
            from: of.source().map(name),
            to: of.target().map(|target| life(&self.lives, target)),
            sessions: of.sessions,
        };
        self.gateway.move_some(now, &moving, &mut self.out)
    }

    /// A worker is to leave.
    pub(super) fn drain(&mut self, index: u32) {
        self.tell(Addr::Worker(index), Event::Worker(life(&self.lives, index), WorkerMsg::Drain));
    }

    /// A worker that takes nothing new had nothing left a moment ago: it says goodbye, and its node is gone.
    pub(super) fn drained(&mut self, now: Time, id: &WorkerId) {
        let Some(id) = self.process(id) else { return };
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if !worker.is_drained() {
            return worker.goes_on();
        }
        let index = index_of(&id);
        let node = Addr::Worker(index);
        let faults = self.faults.iter().filter(|fault| {
            let begun = Time::ZERO + Span::from(fault.at.get()) <= now;
            fault.kind == FaultKind::Drain && begun && fault.targets().contains(&node)
        });
        let back = faults.filter_map(|fault| fault.back_after).next_back();
        self.gone(node);
        self.network.leave(now, node, &mut self.queue);
        if let Some(after) = back {
            self.queue.push(now + Span::from(after.get()), Event::Start(index));
        }
    }
}
