//! Requests that come to a worker, and those that nobody wants any more.

use std::collections::BTreeSet;

use config::ids::{Attempt, WorkerId};
use policies::batch::Refusal;
use policies::placement::Prefix;
use policies::request::RequestSpec;
use policies::time::Time;

use super::Worker;
use super::transfers::{Id, Source};
use crate::event::{Event, GatewayMsg, Outbox};

impl Worker {
    /// Takes a request, whose prompt `prefill` is to compute, after what is held of it elsewhere.
    pub(super) fn submit(
        &mut self,
        now: Time,
        spec: RequestSpec,
        prefill: Option<WorkerId>,
        prefix: Option<Box<Prefix>>,
        out: &mut Outbox,
    ) {
        let id = (spec.id, spec.attempt);
        let (transfers, core) = (&mut self.transfers, &mut self.core);
        let result = match prefill {
            Some(peer) => transfers.submit(now, core, spec, Source { peer, takes: None, prefix }),
            None => transfers.submit_held(now, core, spec, prefix),
        };
        answer(id, result, out);
    }

    /// Takes a request that runs at `from` as attempt `takes`.
    pub(super) fn take(
        &mut self,
        now: Time,
        spec: RequestSpec,
        from: WorkerId,
        takes: Attempt,
        out: &mut Outbox,
    ) {
        let id = (spec.id, spec.attempt);
        let source = Source { takes: Some(takes), ..Source::prompt(from) };
        answer(id, self.transfers.submit(now, &mut self.core, spec, source), out);
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

fn answer((request, attempt): Id, result: Result<(), Refusal>, out: &mut Outbox) {
    out.send(Event::Gateway(match result {
        Ok(()) => GatewayMsg::Accepted(request, attempt),
        Err(refusal) => GatewayMsg::Refused(request, attempt, refusal),
    }));
}
