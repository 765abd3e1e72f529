//! Prompts that one worker computes for another: what a worker has to do with that, and who does it.
//!
//! As live, where page sets are actors: each end of a transfer drives a hand-off core ([`policies::kv::handoff`]). There is
//! no engine that would be busy, so what goes in or out of pages takes no time; the link does.
//!
//! Here is the table of the ends. `asks` makes those that receive, `mail` those that send; what the batch has to tell them
//! is in `news`, what comes from the other worker in `mail`.

use std::collections::BTreeMap;

use config::ids::{Attempt, RequestId, WorkerId};
use policies::invariant::Broken;
use policies::kv::PageLayout;
use policies::kv::handoff::HandoffConfig;
use policies::kv::handoff::chunking::Chunking;
use policies::placement::Prefix;
use policies::request::RequestSpec;

use super::receive::Receiving;
use super::send::Sending;

mod asks;
mod handoffs;
mod held;
mod mail;
mod news;
mod pace;
mod side;
mod whose;

pub use handoffs::Handoffs;
use held::Holder;
pub(super) use side::Side;

pub(super) type Id = (RequestId, Attempt);

/// The transfers of one worker.
#[derive(Debug)]
pub(super) struct Transfers {
    limits: HandoffConfig,
    layout: PageLayout,
    pub(super) chunking: Chunking,
    entries: BTreeMap<Id, Entry>,
    /// What other workers hold of prompts that are computed here and have no pages yet.
    held: BTreeMap<Id, Holder>,
    /// Transfers that this worker has asked for.
    last: u64,
    pub(super) ended: Handoffs,
}

#[derive(Debug)]
enum Entry {
    /// The other worker was not asked yet.
    Waiting { spec: Box<RequestSpec>, source: Source },
    /// It was asked for the content of the request's pages.
    Receiving(Box<Receiving>),
    /// It is computed for another worker.
    Sending(Box<Sending>),
}

/// Where the content of a request's pages comes from.
#[derive(Debug)]
pub(super) struct Source {
    /// Who computes its prompt, or runs it.
    pub(super) peer: WorkerId,
    /// It runs there, as this attempt.
    pub(super) takes: Option<Attempt>,
    /// Who holds the start of what is computed.
    pub(super) prefix: Option<Box<Prefix>>,
}

impl Source {
    /// `peer` computes the prompt.
    pub(super) const fn prompt(peer: WorkerId) -> Self {
        Self { peer, takes: None, prefix: None }
    }
}

impl Transfers {
    /// None under way; a step of this worker has `budget` tokens at most, and its link takes `link` bytes a second.
    pub(super) fn new(limits: HandoffConfig, layout: PageLayout, budget: u32, link: u64) -> Self {
        let chunking = pace::chunking(&limits, &layout, budget, link);
        let (entries, held, ended) = (BTreeMap::new(), BTreeMap::new(), Handoffs::default());
        Self { limits, layout, chunking, entries, held, last: 0, ended }
    }

    /// Calls an end, which says whether it is over; then it is forgotten.
    fn at(
        &mut self,
        id: Id,
        side: &mut Side<'_>,
        call: impl FnOnce(&mut Entry, &mut Side<'_>) -> Result<bool, Broken>,
    ) -> Result<(), Broken> {
        let Some(entry) = self.entries.get_mut(&id) else { return Ok(()) };
        if call(entry, side)?
            && let Some(Entry::Receiving(end)) = self.entries.remove(&id)
            && let Some(report) = end.report()
        {
            self.ended.add(&report);
        }
        Ok(())
    }

    /// As [`Transfers::at`], where it is an end that receives.
    fn at_receiver(
        &mut self,
        id: Id,
        side: &mut Side<'_>,
        call: impl FnOnce(&mut Receiving, &mut Side<'_>) -> Result<bool, Broken>,
    ) -> Result<(), Broken> {
        self.at(id, side, |end, side| match end {
            Entry::Receiving(end) => call(end, side),
            Entry::Waiting { .. } | Entry::Sending(_) => Ok(false),
        })
    }

    /// As [`Transfers::at`], where it is an end that sends.
    fn at_sender(
        &mut self,
        id: Id,
        side: &mut Side<'_>,
        call: impl FnOnce(&mut Sending, &mut Side<'_>) -> Result<bool, Broken>,
    ) -> Result<(), Broken> {
        self.at(id, side, |end, side| match end {
            Entry::Sending(end) => call(end, side),
            Entry::Waiting { .. } | Entry::Receiving(_) => Ok(false),
        })
    }

    pub(super) fn has(&self, id: Id) -> bool {
        self.entries.contains_key(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
