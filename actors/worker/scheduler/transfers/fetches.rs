//! Pages that are fetched ahead of a request: it runs elsewhere, and is to go on here in a moment.
//!
//! The scheduler's core has it as a request whose content comes from another worker, and drops it when that is here: the
//! pages that are full then lie in the prefix cache, where the request finds them when it comes.

use std::collections::BTreeMap;

use config::ids::{Attempt, NodeId, RequestId};
use policies::batch::Batch;
use policies::placement::KvPeer;
use policies::request::RequestSpec;
use policies::time::Time;

use super::asking::Source;
use super::{Entry, Id, Transfers};

/// Whom to tell what of which request.
pub(in crate::worker::scheduler) type Fetched = (NodeId, Id, Result<(), String>);

/// The fetches of one scheduler.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    /// Under way, with whom to tell.
    open: BTreeMap<Id, NodeId>,
    /// Over, and not told.
    ended: Vec<Fetched>,
}

impl Fetches {
    pub(super) fn has(&self, id: Id) -> bool {
        self.open.contains_key(&id)
    }

    /// What was asked for is here, or will not come. Nothing where it is no fetch.
    pub(super) fn end(&mut self, id: Id, result: Result<(), String>) {
        if let Some(gateway) = self.open.remove(&id) {
            self.ended.push((gateway, id, result));
        }
    }
}

impl Transfers {
    /// Fetches the full pages of a sequence from the worker at `peer`.
    pub(in crate::worker::scheduler) fn fetch(
        &mut self,
        core: &mut Batch,
        now: Time,
        spec: RequestSpec,
        peer: Option<KvPeer>,
        gateway: NodeId,
    ) {
        let id = (spec.id, spec.attempt);
        let Some(peer) = peer.filter(|_| self.side.is_some()) else {
            let why = "the worker that it runs on exchanges no KV pages with this one".to_owned();
            self.fetches.ended.push((gateway, id, Err(why)));
            return;
        };
        let spec = spec.up_to_full_pages(self.kv.layout.page_tokens);
        let kept = Box::new(spec.clone());
        // However little is missing: it is not to be computed here.
        let result = core.submit_received(now, spec, 1);
        if let Err(refusal) = result {
            self.fetches.ended.push((gateway, id, Err(refusal.to_string())));
        } else if !core.has(id.0, id.1) || !Batch::is_transferable(&kept) {
            core.cancel(now, id.0, id.1);
            self.fetches.ended.push((gateway, id, Err("the request is about to end".to_owned())));
        } else {
            self.fetches.open.insert(id, gateway);
            self.entries.insert(id, Entry::Waiting { spec: kept, source: Source::prompt(peer) });
        }
    }

    /// Nobody waits for a fetch any more; its request is cancelled next.
    pub(in crate::worker::scheduler) fn call_off(&mut self, request: RequestId, attempt: Attempt) {
        self.fetches.open.remove(&(request, attempt));
    }

    /// A gateway is gone: gives back what was fetched for it, to be cancelled.
    pub(in crate::worker::scheduler) fn gateway_left(&mut self, gateway: &NodeId) -> Vec<Id> {
        let open = &mut self.fetches.open;
        let gone: Vec<Id> = open.iter().filter(|(_, of)| *of == gateway).map(|(id, _)| *id).collect();
        open.retain(|_, of| of != gateway);
        gone
    }

    /// Fetches that are over and not told.
    pub(in crate::worker::scheduler) fn take_fetched(&mut self) -> Vec<Fetched> {
        std::mem::take(&mut self.fetches.ended)
    }

    /// The first `tokens` tokens of what was fetched are here, and no more come.
    pub(super) fn end_fetch(
        &mut self,
        core: &mut Batch,
        now: Time,
        id: Id,
        tokens: u32,
        result: Result<(), String>,
    ) {
        self.entries.remove(&id);
        self.fetches.end(id, result);
        if !core.keep_received(now, id.0, id.1, tokens) {
            core.cancel(now, id.0, id.1);
        }
    }
}
