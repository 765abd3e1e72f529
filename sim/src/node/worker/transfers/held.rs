//! The start of a prompt that another worker holds: asked for by whoever computes the prompt, given by whoever holds it.
//!
//! As live, such a transfer has a name of its own beside that of the request ([`config::ids::Attempt::fetch`]).

use config::ids::PageId;
use policies::batch::{Batch, Held, Refusal};
use policies::invariant::Broken;
use policies::placement::Prefix;
use policies::request::RequestSpec;
use policies::time::Time;

use super::{Entry, Id, Side, Source, Transfers};

/// Who holds the start of a prompt, and what to ask for.
#[derive(Debug)]
pub(super) struct Holder {
    source: Source,
    spec: Box<RequestSpec>,
}

impl Transfers {
    /// Submits a request that is computed here, after what is held of it elsewhere.
    pub(in crate::node::worker) fn submit_held(
        &mut self,
        now: Time,
        core: &mut Batch,
        spec: RequestSpec,
        prefix: Option<Box<Prefix>>,
    ) -> Result<(), Refusal> {
        let id = (spec.id, spec.attempt);
        let (holder, held) = self.holder(Some(&spec), prefix);
        let taken = core.submit_held(now, spec, held);
        self.expect_held(id, holder, core);
        taken
    }

    /// Whom to ask for the start of a prompt that is computed here, and what of it is worth asking.
    pub(super) fn holder(
        &self,
        spec: Option<&RequestSpec>,
        prefix: Option<Box<Prefix>>,
    ) -> (Option<Holder>, Held) {
        let asked = spec.zip(prefix).and_then(|(spec, prefix)| {
            let (spec, held) = Held::of(spec, prefix.tokens, self.layout.page_tokens)?;
            Some((Some(Holder { source: Source::prompt(prefix.from), spec }), held))
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
        Holder { source, spec }: Holder,
        pages: (Vec<PageId>, u32),
        tokens: u32,
        side: &mut Side<'_>,
    ) -> Result<(), Broken> {
        let id = (request, attempt.fetch());
        self.waits(id, spec, source);
        self.ask(id, Some(pages), tokens, side)
    }

    /// A request is gone: nobody waits for its start.
    pub(super) fn drop_holder(&mut self, (request, attempt): Id, side: &mut Side<'_>) -> Result<(), Broken> {
        self.held.remove(&(request, attempt));
        self.at((request, attempt.fetch()), side, |end, side| match end {
            Entry::Receiving(end) => end.dropped(side).map(|()| true),
            Entry::Waiting { .. } | Entry::Sending(_) => Ok(false),
        })
    }
}
