//! Hands an event to the node that it is for.

use policies::invariant::Broken;
use policies::time::Time;

use super::World;
use crate::event::{ControllerMsg, Event, GatewayMsg};
use crate::network::Addr;
use crate::queue::Place;
use crate::workload::Arrival;

impl World {
    /// An event happens. Messages are copied once: from where they are kept to whom they are for.
    pub(super) fn happen(&mut self, now: Time, place: Place) -> Result<(), Broken> {
        match self.queue.at_mut(place) {
            Some(Event::Gateway(message)) => {
                let message = std::mem::replace(message, GatewayMsg::ControllerLost);
                self.queue.forget(place);
                self.gateway.handle(now, message, &mut self.out)
            }
            Some(Event::Controller(message)) => {
                let message = std::mem::replace(message, ControllerMsg::GatewayLeft(0));
                self.queue.forget(place);
                self.meet(Addr::Controller, &message);
                self.controller.handle(now, message, &mut self.out)
            }
            _ => match self.queue.take(place) {
                Some(event) => self.apply(now, event),
                None => Ok(()),
            },
        }
    }

    // Else each event would be copied once more.
    #[inline(always)]
    fn apply(&mut self, now: Time, event: Event) -> Result<(), Broken> {
        let out = &mut self.out;
        match event {
            Event::Arrive(arrival, _) => self.arrive(now, *arrival),
            Event::Read(id) => self.gateway.read(now, id, out),
            Event::Leave(id) => self.gateway.leave(now, id, out),
            Event::Timer(id) => self.gateway.timer(now, id, out),
            Event::Gateway(message) => self.gateway.handle(now, message, out),
            Event::Controller(message) => {
                self.meet(Addr::Controller, &message);
                self.controller.handle(now, message, &mut self.out)
            }
            Event::ControllerTick => self.controller.tick(now, out),
            Event::StandIn(message) => {
                self.meet(Addr::Gateway, &message);
                self.stand_in.handle(now, message, &mut self.out)
            }
            Event::StandInTick => self.stand_in.tick(now, out),
            Event::Worker(id, message) => self.worker(now, id, message),
            Event::StepDone(id, outcome) => self.step_done(now, &id, outcome),
            Event::KvTimer(id, request, attempt) => self.kv_timer(now, &id, (request, attempt)),
            Event::Move(index) => self.move_some(now, index),
            Event::Pool(event) => self.pool_event(now, *event),
            Event::Start(_)
            | Event::Rejoin(_)
            | Event::Crash(_)
            | Event::FalseAlarm(_)
            | Event::Drained(_)
            | Event::Fault(_)
            | Event::FaultOver(_)
            | Event::Notice { .. }
            | Event::Relink(..)
            | Event::Flow(_)
            | Event::Wire(_) => {
                self.fault(now, &event);
                Ok(())
            }
        }
    }

    /// A request arrives at the gateway, whose client may leave or begin to read later.
    fn arrive(&mut self, now: Time, arrival: Arrival) -> Result<(), Broken> {
        let Arrival { spec, leaves, reads, .. } = arrival;
        if self.network.is_dead(Addr::Gateway) {
            self.gateway.refuse(now, &spec);
            return Ok(());
        }
        if let Some(at) = leaves {
            self.out.after(at.since(now), Event::Leave(spec.id));
        }
        if let Some(at) = reads {
            self.out.after(at.since(now), Event::Read(spec.id));
        }
        self.gateway.arrive(now, spec, reads.is_none(), &mut self.out)
    }
}
