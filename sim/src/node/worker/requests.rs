//! Requests that come to a worker, and those that nobody wants any more.

use std::collections::BTreeSet;

use config::ids::{Attempt, WorkerId};
use policies::request::RequestSpec;
use policies::time::Time;

use super::Worker;
use super::transfers::Id;
use crate::event::{Event, GatewayMsg, Outbox};

impl Worker {
    /// Takes a request, whose prompt another worker is to compute, or which runs there as attempt `takes`.
    pub(super) fn submit(
        &mut self,
        now: Time,
        spec: RequestSpec,
        peer: Option<WorkerId>,
        takes: Option<Attempt>,
        out: &mut Outbox,
    ) {
        let (request, attempt) = (spec.id, spec.attempt);
        let result = self.transfers.submit(now, &mut self.core, spec, peer, takes);
        out.send(Event::Gateway(match result {
            Ok(()) => GatewayMsg::Accepted(request, attempt),
            Err(refusal) => GatewayMsg::Refused(request, attempt, refusal),
        }));
    }

    /// An attempt is to stop here. What is not here any more needs no stopping. Or nobody takes over what runs here.
    pub(super) fn cancel(&mut self, now: Time, (request, attempt): Id) {
        self.fetches.call_off((request, attempt));
        if !self.core.end_lending(now, request, attempt, false) {
            self.core.cancel(now, request, attempt);
        }
    }

    /// The link to the gateway is gone: what it had here interests nobody.
    pub(super) fn gateway_left(&mut self, now: Time) {
        let core = &self.core;
        let theirs = core.running().chain(core.waiting()).chain(core.paused());
        let theirs = theirs.map(|view| (view.seq.request, view.seq.attempt));
        // What is computed for another worker is that one's, who hears of it from its own link to the gateway.
        let own = theirs.filter(|id| !self.transfers.sends(*id));
        let all: BTreeSet<Id> = own.chain(self.transfers.awaited()).collect();
        self.fetches.clear();
        for (request, attempt) in all {
            self.core.cancel(now, request, attempt);
        }
    }
}
