//! Requests whose pages come from another worker, from when they are submitted until that one is asked.

use config::ids::{PageId, WorkerId};
use policies::batch::{Batch, Refusal};
use policies::invariant::Broken;
use policies::kv::handoff::{TransferKey, Wanted};
use policies::request::RequestSpec;
use policies::time::Time;

use super::{Entry, Id, Side, Source, Transfers};
use crate::node::worker::receive::Receiving;

impl Transfers {
    /// Submits a request, whose pages' content comes from where `source` says.
    pub(in crate::node::worker) fn submit(
        &mut self,
        now: Time,
        core: &mut Batch,
        spec: RequestSpec,
        source: Source,
    ) -> Result<(), Refusal> {
        let id = (spec.id, spec.attempt);
        let kept = Box::new(spec.clone());
        core.submit_elsewhere(now, spec, source.takes.is_some())?;
        self.waits(id, kept, source);
        Ok(())
    }

    /// Another worker computes a prompt that waits here and has its pages.
    pub(in crate::node::worker) fn leaves(&mut self, spec: RequestSpec, peer: WorkerId) {
        self.waits((spec.id, spec.attempt), Box::new(spec), Source::prompt(peer));
    }

    /// Another worker is asked for the content of a request's pages when it has them.
    pub(in crate::node::worker) fn waits(&mut self, id: Id, spec: Box<RequestSpec>, source: Source) {
        self.entries.insert(id, Entry::Waiting { spec, source });
    }

    pub(in crate::node::worker) const fn page_tokens(&self) -> u32 {
        self.layout.page_tokens
    }

    /// Asks for a prompt: of a request that has its pages, with so many that are cached, or gets them later.
    pub(super) fn ask(
        &mut self,
        id: Id,
        reserved: Option<(Vec<PageId>, u32)>,
        tokens: u32,
        side: &mut Side<'_>,
    ) -> Result<(), Broken> {
        let Some(Entry::Waiting { spec, source }) = self.entries.remove(&id) else {
            side.core.compute_here(side.now, id.0, id.1, 0);
            return Ok(());
        };
        self.last += 1;
        let key = TransferKey { transfer: self.last, generation: side.me.incarnation };
        let page_tokens = self.layout.page_tokens;
        let cached = reserved.as_ref().map_or(0, |(_, cached)| *cached * page_tokens);
        let wanted = Wanted::of(&spec, id.1, tokens, cached, page_tokens);
        let pages = reserved.map(|(pages, _)| pages);
        let mut end = Receiving::new(self.limits, self.layout, key, wanted, spec, source, pages);
        end.start(side)?;
        self.entries.insert(id, Entry::Receiving(Box::new(end)));
        Ok(())
    }
}
