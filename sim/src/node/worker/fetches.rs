//! Pages that are fetched ahead of a request: it runs elsewhere, and is to go on here in a moment.
//!
//! As live: the scheduler's core has it as a request whose content comes from another worker, and drops it when that is
//! here; the pages that are full then lie in the prefix cache, where the request finds them when it comes.

use std::collections::BTreeSet;

use config::ids::WorkerId;
use policies::batch::Batch;
use policies::request::RequestSpec;
use policies::time::Time;

use super::transfers::{Id, Side, Source, Transfers};
use crate::event::{Event, GatewayMsg, Outbox};

/// The fetches of one worker.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    open: BTreeSet<Id>,
    /// Over, and not told.
    ended: Vec<(Id, Result<(), String>)>,
}

impl Fetches {
    pub(super) fn has(&self, id: Id) -> bool {
        self.open.contains(&id)
    }

    /// What was asked for is here, or will not come. Nothing where it is no fetch.
    pub(super) fn end(&mut self, id: Id, result: Result<(), String>) {
        if self.open.remove(&id) {
            self.ended.push((id, result));
        }
    }

    /// Nobody waits for a fetch any more; its request is cancelled next.
    pub(super) fn call_off(&mut self, id: Id) {
        self.open.remove(&id);
    }

    /// The gateway is gone: nobody waits for any.
    pub(super) fn clear(&mut self) {
        self.open.clear();
    }

    /// Tells of those that are over.
    pub(super) fn tell(&mut self, out: &mut Outbox) {
        for ((request, attempt), result) in self.ended.drain(..) {
            out.send(Event::Gateway(GatewayMsg::Fetched(request, attempt, result)));
        }
    }
}

impl Side<'_> {
    /// The first `tokens` tokens of what was fetched are here, and no more come.
    pub(super) fn end_fetch(&mut self, id: Id, tokens: u32, result: Result<(), String>) {
        self.fetches.end(id, result);
        if !self.core.keep_received(self.now, id.0, id.1, tokens) {
            self.core.cancel(self.now, id.0, id.1);
        }
    }
}

impl Transfers {
    /// Fetches the full pages of a sequence from the worker that generates it.
    pub(super) fn fetch(
        &mut self,
        now: Time,
        core: &mut Batch,
        fetches: &mut Fetches,
        spec: RequestSpec,
        from: WorkerId,
    ) {
        let id = (spec.id, spec.attempt);
        let spec = spec.up_to_full_pages(self.page_tokens());
        let kept = Box::new(spec.clone());
        // However little is missing: it is not to be computed here.
        if let Err(refusal) = core.submit_received(now, spec, 1) {
            fetches.ended.push((id, Err(refusal.to_string())));
        } else if !core.has(id.0, id.1) || !Batch::is_transferable(&kept) {
            core.cancel(now, id.0, id.1);
            fetches.ended.push((id, Err("the request is about to end".to_owned())));
        } else {
            fetches.open.insert(id);
            self.waits(id, kept, Source::prompt(from));
        }
    }
}
