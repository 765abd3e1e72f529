//! The end of a transfer that takes pages in.

use config::ids::{Attempt, PageId, WorkerId};
use policies::kv::PageLayout;
use policies::kv::handoff::{HandoffConfig, Receiver, TransferKey, TransferReport, Wanted};
use policies::placement::Prefix;
use policies::request::RequestSpec;
use policies::step::Drawn;
use policies::time::Time;

use super::transfers::{Id, Source};
use crate::event::PageBlock;

mod driver;
mod effects;
mod mail;
mod pages;

#[derive(Debug)]
pub(super) struct Receiving {
    end: Receiver,
    id: Id,
    key: TransferKey,
    /// What is asked for runs at the other worker as this attempt, and goes on here.
    takes: Option<Attempt>,
    /// Who holds the start of what the other worker is to compute.
    prefix: Option<Box<Prefix>>,
    wanted: Wanted,
    spec: Box<RequestSpec>,
    peer: WorkerId,
    layout: PageLayout,
    /// The pages that are reserved.
    table: Vec<PageId>,
    /// Pages that have just come.
    here: Option<PageBlock>,
    /// What the last message brought: tokens that the other worker had cached, and the first tokens.
    last: Option<(u32, Vec<Drawn>)>,
    /// When it is called.
    timer: Option<Time>,
    report: Option<TransferReport>,
}

impl Receiving {
    pub(super) fn new(
        limits: HandoffConfig,
        layout: PageLayout,
        key: TransferKey,
        wanted: Wanted,
        spec: Box<RequestSpec>,
        Source { peer, takes, prefix }: Source,
        pages: Option<Vec<PageId>>,
    ) -> Self {
        let mut end = match pages {
            Some(_) => Receiver::new(limits, key, wanted),
            None => Receiver::unreserved(limits, key, wanted),
        };
        if takes.is_some() {
            end = end.up_to((spec.prompt.len() as u32).saturating_add(spec.max_tokens));
        }
        let (id, table) = ((spec.id, spec.attempt), pages.unwrap_or_default());
        let (here, last, timer, report) = (None, None, None, None);
        Self { end, id, key, takes, prefix, wanted, spec, peer, layout, table, here, last, timer, report }
    }

    pub(super) const fn peer(&self) -> &WorkerId {
        &self.peer
    }

    /// Once it is over.
    pub(super) const fn report(&self) -> Option<TransferReport> {
        self.report
    }
}
