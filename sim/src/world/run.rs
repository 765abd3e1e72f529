//! The loop: one event after the other, until nothing is left to happen.

use policies::time::Time;

use super::{Run, World};
use crate::SimError;
use crate::event::{Came, Event};
use crate::network::{self, Addr};

impl World {
    /// Runs until nothing is left to happen.
    ///
    /// # Errors
    /// A broken invariant, or something left behind.
    pub fn run(mut self) -> Result<Run, SimError> {
        let seed = self.scenario.seed;
        let mut last = Time::ZERO;
        while let Some((now, mut place)) = self.queue.due() {
            if self.network.links().is_some() {
                let event = self.queue.take(place);
                let Some(arrived) = event.and_then(|event| self.network.arrive(event)) else { continue };
                place = self.queue.keep(arrived);
            }
            let Some(event) = self.queue.at(place) else { continue };
            if self.is_nothing(event) {
                self.queue.forget(place);
                continue;
            }
            if !self.is_idle(event) {
                last = now;
            }
            self.trace.record(now, event);
            self.probe.see(now, event, &self.gateway, &self.controller, &self.workers);
            self.out.from = network::place(event).unwrap_or(Addr::Gateway);
            if matches!(event, Event::Arrive(_, Came::ByItself)) {
                self.next_arrival(now)?;
            }
            let applied = self.happen(now, place).and_then(|()| self.check());
            applied.map_err(|broken| SimError::broken(broken, now, seed))?;
            if self.gateway.has_ended() {
                self.follow(now)?;
            }
            self.network.take(now, &mut self.out, &mut self.queue);
        }
        self.end(last)
    }

    /// Of the requests that follow nothing, just one is on its way.
    fn next_arrival(&mut self, now: Time) -> Result<(), SimError> {
        if let Some(next) = self.clients.next()? {
            self.queue.push(next.at.max(now), Event::Arrive(Box::new(next), Came::ByItself));
        }
        Ok(())
    }

    /// What follows the requests that have just ended comes when it does.
    fn follow(&mut self, now: Time) -> Result<(), SimError> {
        for (id, answer) in self.gateway.take_ended() {
            if self.clients.is_followed(id) {
                for arrival in self.clients.ended(now, id, &answer)? {
                    self.queue.push(arrival.at, Event::Arrive(Box::new(arrival), Came::AfterAnother));
                }
            }
        }
        Ok(())
    }
}
