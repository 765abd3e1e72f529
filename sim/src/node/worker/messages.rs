//! What comes from other nodes, and what is heard of the links to them.

use policies::invariant::Broken;
use policies::time::Time;

use super::Worker;
use crate::event::{ControllerMsg, Event, Outbox, WorkerMsg};

impl Worker {
    /// A message came.
    ///
    /// # Errors
    /// A broken invariant of the core.
    pub fn handle(&mut self, now: Time, message: WorkerMsg, out: &mut Outbox) -> Result<(), Broken> {
        let requests = self.core.requests();
        // As live: all else changes little about what waits.
        let offloads = matches!(
            message,
            WorkerMsg::Submit(..) | WorkerMsg::Take(..) | WorkerMsg::Kv(_) | WorkerMsg::Look
        );
        match message {
            WorkerMsg::Submit(spec, prefill, prefix) => self.submit(now, *spec, prefill, prefix, out),
            WorkerMsg::Take(spec, from, takes) => self.take(now, *spec, from, takes, out),
            WorkerMsg::Fetch(spec, from) => {
                self.transfers.fetch(now, &mut self.core, &mut self.fetches, *spec, from);
            }
            WorkerMsg::Cancel(request, attempt) => self.cancel(now, (request, attempt)),
            WorkerMsg::CancelChoice(request, attempt, choice) => {
                self.core.cancel_choice(now, request, attempt, choice);
            }
            WorkerMsg::Grant(request, attempt, choice, upto) => {
                self.core.grant(now, request, attempt, choice, upto);
            }
            WorkerMsg::Resync => self.tell_all_pages(out),
            WorkerMsg::Kv(mail) => self.mail(now, *mail, out)?,
            WorkerMsg::SetRole(role) => self.set_role(now, role, out),
            WorkerMsg::GatewayLeft => self.gateway_left(now),
            WorkerMsg::PeerLost(node) => {
                self.offloads.lost(&node);
                let (transfers, mut side) = self.transfers(now, out);
                transfers.lost(&node, &mut side)?;
            }
            WorkerMsg::Beat(ad) => self.offloads.heard(ad),
            WorkerMsg::BeatDue => self.beat(now, out),
            WorkerMsg::Look => self.offloads.looked(),
            WorkerMsg::Drain => self.drain(now, out),
        }
        self.go_on(now, Vec::new(), offloads, out)?;
        // No step may follow to report that there is room.
        if self.core.requests() < requests {
            out.send(Event::Controller(ControllerMsg::Load(self.info.id.clone(), self.core.load())));
        }
        Ok(())
    }
}
