//! What is for a worker, which may have ended since, or have another name.

use config::ids::{Attempt, RequestId, WorkerId};
use policies::invariant::Broken;
use policies::step::StepOutcome;
use policies::time::Time;

use super::{World, life};
use crate::event::{ControllerMsg, Event, GatewayMsg, WorkerMsg};
use crate::network::{self, Addr};

impl World {
    /// A message reaches the node of a worker.
    pub(super) fn worker(&mut self, now: Time, id: WorkerId, message: WorkerMsg) -> Result<(), Broken> {
        if let Some(worker) = self.workers.get_mut(&id) {
            return worker.handle(now, message, &mut self.out);
        }
        let here = match &message {
            // Placed on a life of it that is over: whoever placed it had not heard yet.
            WorkerMsg::Submit(..) | WorkerMsg::Fetch(..) | WorkerMsg::Take(..) => None,
            // A transfer is between two processes.
            WorkerMsg::Kv(_) => self.process(&id),
            // All else is for the node, whichever life of it.
            _ => Some(life(&self.lives, network::index_of(&id))),
        };
        match (here.and_then(|here| self.workers.get_mut(&here)), message) {
            (Some(worker), message) => worker.handle(now, message, &mut self.out),
            (None, WorkerMsg::Submit(spec, ..) | WorkerMsg::Fetch(spec, _) | WorkerMsg::Take(spec, ..)) => {
                self.out.send(Event::Gateway(GatewayMsg::Unreachable(spec.id, id)));
                Ok(())
            }
            (None, WorkerMsg::Kv(mail)) => {
                if let Some(lost) = network::link_lost(now, *mail, id) {
                    self.out.send(lost);
                }
                Ok(())
            }
            // There is nothing to stop, nor to go on, at a worker that is gone.
            (
                None,
                WorkerMsg::Cancel(..)
                | WorkerMsg::CancelChoice(..)
                | WorkerMsg::Grant(..)
                | WorkerMsg::Resync
                | WorkerMsg::SetRole(_)
                | WorkerMsg::GatewayLeft
                | WorkerMsg::PeerLost(_)
                | WorkerMsg::Beat(_)
                | WorkerMsg::BeatDue
                | WorkerMsg::Look
                | WorkerMsg::Drain,
            ) => Ok(()),
        }
    }

    /// The engine of a worker has run a step, for the process that began it.
    pub(super) fn step_done(
        &mut self,
        now: Time,
        id: &WorkerId,
        outcome: Box<StepOutcome>,
    ) -> Result<(), Broken> {
        let renamed = if self.workers.contains(id) { None } else { self.process(id) };
        let id = renamed.as_ref().unwrap_or(id);
        let Some(worker) = self.workers.get_mut(id) else { return Ok(()) };
        self.drawn += outcome.drawn.len() as u64;
        worker.step_done(now, outcome, &mut self.out)?;
        // As live, where a beat tells every node: whoever has no controller looks at it.
        if self.network.links().is_some_and(|links| !links.sees(Addr::Gateway, Addr::Controller)) {
            let load = worker.core().load();
            self.out.send(Event::StandIn(ControllerMsg::Load(id.clone(), load)));
        }
        Ok(())
    }

    /// A transfer of a worker asked to be called.
    pub(super) fn kv_timer(
        &mut self,
        now: Time,
        id: &WorkerId,
        of: (RequestId, Attempt),
    ) -> Result<(), Broken> {
        match self.process(id).and_then(|here| self.workers.get_mut(&here)) {
            Some(worker) => worker.kv_timer(now, of, &mut self.out),
            None => Ok(()),
        }
    }
}
