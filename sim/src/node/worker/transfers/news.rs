//! What the batch has to say about transfers.

use config::ids::PageId;
use policies::batch::KvWork;
use policies::invariant::Broken;
use policies::order::offload::End;

use super::{Entry, Id, Side, Transfers};
use crate::node::worker::send::Prefilled;

impl Transfers {
    /// Carries out what the scheduler's core has to say about transfers; false where that is nothing.
    pub(in crate::node::worker) fn news(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        let (mut work, mut any) = (Vec::new(), false);
        loop {
            side.core.take_kv_work(&mut work);
            if work.is_empty() {
                return Ok(any);
            }
            any = true;
            let mut news = std::mem::take(&mut work).into_iter().peekable();
            while let Some(item) = news.next() {
                // What the last step of a prompt has filled goes with the end of it.
                let ends = match (&item, news.peek()) {
                    (
                        KvWork::Computed { request, attempt, .. },
                        Some(KvWork::Prefilled { request: then, attempt: also, .. }),
                    ) => (request, attempt) == (then, also),
                    _ => false,
                };
                self.hear(item, ends, side)?;
            }
        }
    }

    fn hear(&mut self, news: KvWork, ends: bool, side: &mut Side<'_>) -> Result<(), Broken> {
        match news {
            KvWork::Expected { request, attempt, tokens } => self.ask((request, attempt), None, tokens, side),
            KvWork::Reserved { request, attempt, pages, cached, tokens } => {
                self.reserved((request, attempt), pages, cached, tokens, side)
            }
            KvWork::NotNeeded { request, attempt } => self.not_needed((request, attempt), side),
            KvWork::Begun { request, attempt } => {
                self.at_sender((request, attempt), side, |end, side| end.begun(side))
            }
            KvWork::Computed { request, attempt, first, pages } => {
                self.at_sender((request, attempt), side, |end, side| end.computed(first, &pages, ends, side))
            }
            KvWork::Prefilled { request, attempt, computed, cached, tail, drawn, ends } => {
                let prefilled = Prefilled { tokens: computed, cached, drawn };
                self.at_sender((request, attempt), side, |end, side| {
                    end.prefilled(prefilled, tail, ends, side)
                })
            }
            KvWork::Dropped { request, attempt, reason } => self.dropped((request, attempt), reason, side),
        }
    }

    /// A request has its pages here, and the first `cached` of its `tokens` tokens in them.
    fn reserved(
        &mut self,
        id: Id,
        pages: Vec<PageId>,
        cached: u32,
        tokens: u32,
        side: &mut Side<'_>,
    ) -> Result<(), Broken> {
        let page = self.layout.page_tokens;
        if let Some(holder) = self.held.remove(&id) {
            return self.ask_holder(id, holder, (pages, cached / page), tokens, side);
        }
        if side.fetches.has(id) && cached / page >= tokens / page {
            // Every full page is here.
            self.entries.remove(&id);
            side.end_fetch(id, cached, Ok(()));
            return Ok(());
        }
        let cached = cached / page;
        if matches!(self.entries.get(&id), Some(Entry::Receiving(_))) {
            self.at_receiver(id, side, |end, side| end.reserved(pages, cached, side))
        } else {
            self.ask(id, Some((pages, cached)), tokens, side)
        }
    }

    /// All that another worker would compute is here.
    fn not_needed(&mut self, id: Id, side: &mut Side<'_>) -> Result<(), Broken> {
        self.held.remove(&id);
        self.at(id, side, |end, side| match end {
            Entry::Receiving(end) => end.dropped(side).map(|()| true),
            Entry::Waiting { .. } | Entry::Sending(_) => Ok(true),
        })
    }

    /// The batch has a request no more.
    fn dropped(&mut self, id: Id, reason: Option<String>, side: &mut Side<'_>) -> Result<(), Broken> {
        let failed = reason.is_some();
        side.fetches.end(id, Err(reason.unwrap_or_else(|| "it was called off".to_owned())));
        side.offloads.end(side.now, id, End::Withdrawn);
        self.drop_holder(id, side)?;
        self.at(id, side, |end, side| match end {
            Entry::Waiting { .. } => Ok(true),
            Entry::Receiving(end) => end.dropped(side).map(|()| true),
            Entry::Sending(end) => end.dropped(failed, side).map(|()| true),
        })
    }
}
