//! The start of a prompt that another worker holds: asked for by whoever computes the prompt, given by whoever holds it.
//!
//! Such a transfer has a name of its own beside that of the request that it is for ([`config::ids::Attempt::fetch`]): the
//! request may at the same time be on its way to a third worker, or be expected by the one that is asked.

use config::ids::WorkerId;
use policies::batch::{Batch, Held, Refusal};
use policies::placement::KvPeer;
use policies::request::RequestSpec;
use policies::time::Time;
use ractor::ActorRef;

use super::asking::Source;
use super::{BESIDE_STEPS, Entry, Id, Transfers};
use crate::worker::pages::{HeldAt, Pace, PageSetMsg};

/// Who holds the start of a prompt, and what to ask for.
#[derive(Debug)]
pub(super) struct Holder {
    address: String,
    spec: Box<RequestSpec>,
}

impl Transfers {
    /// Submits a request that is computed here, after what is held of it at `prefix`.
    pub(super) fn submit_held(
        &mut self,
        core: &mut Batch,
        now: Time,
        spec: RequestSpec,
        prefix: Option<HeldAt>,
    ) -> Result<(), Refusal> {
        let id = (spec.id, spec.attempt);
        let (holder, held) = self.holder(&spec, prefix);
        let taken = core.submit_held(now, spec, held);
        self.expect_held(id, holder, core);
        taken
    }

    /// Whom to ask for the start of a prompt that is computed here, and what of it is worth asking.
    pub(super) fn holder(&self, spec: &RequestSpec, prefix: Option<HeldAt>) -> (Option<Holder>, Held) {
        let asked = prefix.filter(|_| self.side.is_some()).and_then(|at| {
            let (spec, held) = Held::of(spec, at.tokens, self.kv.layout.page_tokens)?;
            Some((Some(Holder { address: at.address, spec }), held))
        });
        asked.unwrap_or_default()
    }

    /// The request will have pages for what `holder` holds, unless it was refused or is over.
    pub(super) fn expect_held(&mut self, id: Id, holder: Option<Holder>, core: &Batch) {
        if let Some(holder) = holder.filter(|holder| !holder.spec.prompt.is_empty() && core.has(id.0, id.1)) {
            self.held.insert(id, holder);
        }
    }

    /// The request has its pages: asks for their content.
    pub(super) fn ask_holder(
        &mut self,
        (request, attempt): Id,
        holder: Holder,
        pages: Vec<config::ids::PageId>,
        (cached, tokens): (u32, u32),
        worker: &WorkerId,
    ) {
        let id = (request, attempt.fetch());
        self.entries.insert(id, Entry::Receiving { set: None, table: pages });
        let peer = KvPeer { address: holder.address, fingerprint: self.fingerprint, layout: self.kv.layout };
        self.ask(id, holder.spec, Source::prompt(peer), (Some(cached), tokens), worker);
    }

    /// The first `tokens` tokens of a prompt are here, and no more come.
    pub(super) fn end_holder(&mut self, core: &mut Batch, now: Time, id: Id, tokens: u32) {
        self.entries.remove(&id);
        if let Some(attempt) = id.1.fetched_for() {
            core.compute_here(now, id.0, attempt, tokens);
        }
    }

    /// A request is gone: nobody waits for its start.
    pub(super) fn drop_holder(&mut self, (request, attempt): Id) {
        self.held.remove(&(request, attempt));
        let fetch = self.entries.remove(&(request, attempt.fetch()));
        if let Some(set) = fetch.as_ref().and_then(Entry::set) {
            // One that has ended has said so, and is not listened to any more.
            let _ = set.cast(PageSetMsg::Dropped(None));
        }
    }

    /// Gives what is here of a prompt's start to a page set that sends it.
    pub(super) fn hold(
        &mut self,
        core: &mut Batch,
        now: Time,
        spec: RequestSpec,
        set: &ActorRef<PageSetMsg>,
    ) {
        let (id, tokens) = ((spec.id, spec.attempt), u32::try_from(spec.prompt.len()).unwrap_or(u32::MAX));
        let result = core.hold_cached(now, spec).map(|_| Pace {
            least: self.chunking.flush_pages(),
            // The streams that run here are not to wait for all of it.
            most: self.chunking.message_pages(tokens).min(BESIDE_STEPS),
        });
        if result.is_ok() {
            let entry = Entry::Sending { set: set.clone(), table: Vec::new(), next: None };
            self.entries.insert(id, entry);
        }
        // A page set that has ended meanwhile has asked for the release too.
        let _ = set.cast(PageSetMsg::Submitted(result));
    }
}
