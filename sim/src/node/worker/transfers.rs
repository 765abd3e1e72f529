//! Prompts that one worker computes for another: what a worker has to do with that, and who does it.
//!
//! As live, where page sets are actors: each end of a transfer drives a hand-off core ([`policies::kv::handoff`]). There is
//! no engine that would be busy, so what goes in or out of pages takes no time; the link does.

use std::collections::BTreeMap;

use config::ids::{Attempt, NodeId, PageId, RequestId, WorkerId};
use policies::batch::{Batch, BatchEffect, KvWork, Refusal};
use policies::cost::fake::FakePages;
use policies::invariant::Broken;
use policies::kv::PageLayout;
use policies::kv::handoff::chunking::{ChunkLimits, Chunking, Rates};
use policies::kv::handoff::{HandoffConfig, Outcome, TransferKey, TransferReport, Wanted};
use policies::order::offload::End;
use policies::request::RequestSpec;
use policies::time::{Span, Time};

use super::fetches::Fetches;
use super::offloads::{Offloaded, Offloads};
use super::receive::Receiving;
use super::send::{Prefilled, Sending};
use crate::event::{Event, KvMail, KvMessage, Outbox, WorkerMsg};

/// As the live worker's: fewer tokens than this many pages hold are computed where they are needed.
const LEAST_PAGES: u32 = 2;

/// As the live worker's: steps with fewer tokens say nothing about the speed of prefill.
const TELLING_TOKENS: usize = 32;

/// As the live worker assumes until it has measured: prompt tokens a second.
const ASSUMED_COMPUTE: f64 = 500.0;

pub(super) type Id = (RequestId, Attempt);

/// How transfers ended, as their receivers saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handoffs {
    /// Transfers by how they ended: `committed`, `cancelled`, or why they failed.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Pages that came.
    pub pages: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Of the prompts, those that workers had computed by others of their own accord.
    pub offloaded: Offloaded,
}

impl Handoffs {
    fn add(&mut self, report: &TransferReport) {
        *self.outcomes.entry(report.outcome.as_str()).or_default() += 1;
        self.pages += u64::from(report.pages);
        self.bytes += report.bytes;
    }

    /// Adds those of another worker.
    pub fn merge(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.pages += other.pages;
        self.bytes += other.bytes;
        self.offloaded.merge(&other.offloaded);
    }

    /// Transfers whose receivers took the sequence over.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.outcomes.get(Outcome::Committed.as_str()).copied().unwrap_or(0)
    }
}

/// What a transfer's end works with.
#[derive(Debug)]
pub(super) struct Side<'a> {
    pub(super) now: Time,
    pub(super) me: &'a WorkerId,
    pub(super) core: &'a mut Batch,
    pub(super) pages: &'a mut FakePages,
    pub(super) offloads: &'a mut Offloads,
    pub(super) fetches: &'a mut Fetches,
    pub(super) out: &'a mut Outbox,
}

impl Side<'_> {
    /// Sends a message without pages to the other end of a transfer.
    pub(super) fn send(&mut self, to: &WorkerId, id: Id, key: TransferKey, message: KvMessage) {
        let mail = Box::new(KvMail { id, key, from: self.me.clone(), at: self.now, message });
        self.out.send(Event::Worker(to.clone(), WorkerMsg::Kv(mail)));
    }

    /// Sends one with pages of `bytes` bytes.
    pub(super) fn send_pages(
        &mut self,
        to: &WorkerId,
        id: Id,
        key: TransferKey,
        bytes: u64,
        message: KvMessage,
    ) {
        let mail = Box::new(KvMail { id, key, from: self.me.clone(), at: self.now, message });
        self.out.bulk(to, bytes, Event::Worker(to.clone(), WorkerMsg::Kv(mail)));
    }

    /// Has the end be called at `due`, unless it is called earlier anyway.
    pub(super) fn wake(&mut self, timer: &mut Option<Time>, due: Option<Time>, id: Id) {
        if let Some(due) = due
            && timer.is_none_or(|at| due < at)
        {
            *timer = Some(due);
            self.out.after(due.since(self.now), Event::KvTimer(self.me.clone(), id.0, id.1));
        }
    }
}

/// The transfers of one worker.
#[derive(Debug)]
pub(super) struct Transfers {
    limits: HandoffConfig,
    layout: PageLayout,
    pub(super) chunking: Chunking,
    entries: BTreeMap<Id, Entry>,
    /// Transfers that this worker has asked for.
    last: u64,
    pub(super) ended: Handoffs,
}

#[derive(Debug)]
enum Entry {
    /// The other worker was not asked yet.
    Waiting { spec: Box<RequestSpec>, peer: WorkerId, takes: Option<Attempt> },
    /// It was asked for the content of the request's pages.
    Receiving(Box<Receiving>),
    /// It is computed for another worker.
    Sending(Box<Sending>),
}

impl Transfers {
    /// None under way; a step of this worker has `budget` tokens at most, and its link takes `link` bytes a second.
    pub(super) fn new(limits: HandoffConfig, layout: PageLayout, budget: u32, link: u64) -> Self {
        let chunks = ChunkLimits {
            page_tokens: layout.page_tokens,
            page_bytes: layout.page_bytes() as u64,
            budget_tokens: budget,
            message_pages: limits.pages_per_message,
        };
        let link = if link == 0 { 1e9 } else { link as f64 };
        Self {
            limits,
            layout,
            chunking: Chunking::new(chunks, Rates { compute: ASSUMED_COMPUTE, link }),
            entries: BTreeMap::new(),
            last: 0,
            ended: Handoffs::default(),
        }
    }

    /// Submits a request, whose prompt `peer` is to compute, or which runs there as attempt `takes` and goes on here.
    pub(super) fn submit(
        &mut self,
        now: Time,
        core: &mut Batch,
        spec: RequestSpec,
        peer: Option<WorkerId>,
        takes: Option<Attempt>,
    ) -> Result<(), Refusal> {
        let Some(peer) = peer else { return core.submit(now, spec) };
        // However little a request lacks that runs elsewhere: here it would be computed in the middle of its stream.
        let least = if takes.is_some() { 1 } else { LEAST_PAGES * self.layout.page_tokens };
        let id = (spec.id, spec.attempt);
        let kept = Box::new(spec.clone());
        // Pages for what is computed elsewhere are taken when that begins. What moves is not to wait for them afterwards.
        if takes.is_some() {
            core.submit_received(now, spec, least)?;
        } else {
            core.submit_expected(now, spec, least)?;
        }
        self.waits(id, kept, peer, takes);
        Ok(())
    }

    /// Another worker computes a prompt that waits here and has its pages.
    pub(super) fn leaves(&mut self, spec: RequestSpec, peer: WorkerId) {
        self.waits((spec.id, spec.attempt), Box::new(spec), peer, None);
    }

    /// `peer` is asked for the content of a request's pages when it has them.
    pub(super) fn waits(&mut self, id: Id, spec: Box<RequestSpec>, peer: WorkerId, takes: Option<Attempt>) {
        self.entries.insert(id, Entry::Waiting { spec, peer, takes });
    }

    pub(super) const fn page_tokens(&self) -> u32 {
        self.layout.page_tokens
    }

    /// A step has ended.
    pub(super) fn stepped(&mut self, tokens: usize, took: Span) {
        if tokens >= TELLING_TOKENS {
            self.chunking.computed(tokens as u32, took);
        }
    }

    /// Carries out what the scheduler's core has to say about transfers; false where that is nothing.
    pub(super) fn news(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
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
            KvWork::Expected { request, attempt, tokens } => {
                self.ask((request, attempt), None, tokens, side)?;
            }
            KvWork::Reserved { request, attempt, pages, cached, tokens } => {
                let id = (request, attempt);
                let page = self.layout.page_tokens;
                if side.fetches.has(id) && cached / page >= tokens / page {
                    // Every full page is here.
                    self.entries.remove(&id);
                    side.end_fetch(id, cached, Ok(()));
                    return Ok(());
                }
                let cached = cached / page;
                if matches!(self.entries.get(&id), Some(Entry::Receiving(_))) {
                    self.at(id, side, |end, side| match end {
                        Entry::Receiving(end) => end.reserved(pages, cached, side),
                        _ => Ok(false),
                    })?;
                } else {
                    self.ask(id, Some((pages, cached)), tokens, side)?;
                }
            }
            KvWork::NotNeeded { request, attempt } => {
                self.at((request, attempt), side, |end, side| match end {
                    Entry::Receiving(end) => end.dropped(side).map(|()| true),
                    _ => Ok(true),
                })?;
            }
            KvWork::Begun { request, attempt } => {
                self.at((request, attempt), side, |end, side| match end {
                    Entry::Sending(end) => end.begun(side),
                    _ => Ok(false),
                })?;
            }
            KvWork::Computed { request, attempt, first, pages } => {
                self.at((request, attempt), side, |end, side| match end {
                    Entry::Sending(end) => end.computed(first, &pages, ends, side),
                    _ => Ok(false),
                })?;
            }
            KvWork::Prefilled { request, attempt, computed, cached, tail, drawn, ends } => {
                let prefilled = Prefilled { tokens: computed, cached, drawn };
                self.at((request, attempt), side, |end, side| match end {
                    Entry::Sending(end) => end.prefilled(prefilled, tail, ends, side),
                    _ => Ok(false),
                })?;
            }
            KvWork::Dropped { request, attempt, reason } => {
                let why = reason.clone().unwrap_or_else(|| "it was called off".to_owned());
                side.fetches.end((request, attempt), Err(why));
                side.offloads.end(side.now, (request, attempt), End::Withdrawn);
                self.at((request, attempt), side, |end, side| match end {
                    Entry::Waiting { .. } => Ok(true),
                    Entry::Receiving(end) => end.dropped(side).map(|()| true),
                    Entry::Sending(end) => end.dropped(reason.is_some(), side).map(|()| true),
                })?;
            }
        }
        Ok(())
    }

    /// Asks for a prompt: of a request that has its pages, with so many that are cached, or gets them later.
    fn ask(
        &mut self,
        id: Id,
        reserved: Option<(Vec<PageId>, u32)>,
        tokens: u32,
        side: &mut Side<'_>,
    ) -> Result<(), Broken> {
        let Some(Entry::Waiting { spec, peer, takes }) = self.entries.remove(&id) else {
            side.core.compute_here(side.now, id.0, id.1, 0);
            return Ok(());
        };
        self.last += 1;
        let key = TransferKey { transfer: self.last, generation: side.me.incarnation };
        // What ends with its first token in any case needs no pages.
        let done = spec.resumed.iter().map(|choice| choice.tokens.len()).max().unwrap_or(0);
        let wanted = Wanted {
            tokens,
            page_tokens: self.layout.page_tokens,
            cached_pages: reserved.as_ref().map_or(0, |(_, cached)| *cached),
            pages: spec.max_tokens as usize > done + 1,
        };
        let pages = reserved.map(|(pages, _)| pages);
        let mut end = Receiving::new(self.limits, self.layout, (key, takes), wanted, spec, peer, pages);
        end.start(side)?;
        self.entries.insert(id, Entry::Receiving(Box::new(end)));
        Ok(())
    }

    /// A message came from the other end of a transfer.
    pub(super) fn mail(&mut self, mail: KvMail, side: &mut Side<'_>) -> Result<(), Broken> {
        let KvMail { id, key, from, message, .. } = mail;
        if let KvMessage::Ask { asked, spec, takes } = message {
            // One that is here already in another part (a placement never does that) is not computed twice.
            if self.entries.contains_key(&id) {
                side.send(&from, id, key, KvMessage::Cancel);
                return Ok(());
            }
            let mut end = Sending::new(self.limits, (key, takes), asked, spec, from);
            if !end.start(&self.chunking, side)? {
                self.entries.insert(id, Entry::Sending(Box::new(end)));
            }
            return Ok(());
        }
        if let KvMessage::Sent { first, count, took } = message {
            if count > 0 {
                self.chunking.sent(u64::from(count) * self.layout.page_bytes() as u64, took);
            }
            return self.at(id, side, |end, side| match end {
                Entry::Sending(end) => end.sent(key, first, count, side),
                _ => Ok(false),
            });
        }
        self.at(id, side, |end, side| match end {
            Entry::Waiting { .. } => Ok(false),
            Entry::Receiving(end) => end.hear(key, message, side),
            Entry::Sending(end) => end.hear(key, &message, side),
        })
    }

    /// Time to look at the limits of a transfer.
    pub(super) fn timer(&mut self, id: Id, side: &mut Side<'_>) -> Result<(), Broken> {
        self.at(id, side, |end, side| match end {
            Entry::Waiting { .. } => Ok(false),
            Entry::Receiving(end) => end.tick(side),
            Entry::Sending(end) => end.tick(side),
        })
    }

    /// The link to a node is broken.
    pub(super) fn lost(&mut self, peer: &NodeId, side: &mut Side<'_>) -> Result<(), Broken> {
        let theirs: Vec<Id> =
            self.entries.iter().filter(|(_, entry)| entry.is_with(peer)).map(|(id, _)| *id).collect();
        for id in theirs {
            self.at(id, side, |end, side| match end {
                // It asks when it has its pages, and hears then.
                Entry::Waiting { .. } => Ok(false),
                Entry::Receiving(end) => end.link_lost(side),
                Entry::Sending(end) => end.link_lost(side),
            })?;
        }
        Ok(())
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

    /// Whether a request is here for another worker, so that its gateway knows nothing of it.
    pub(super) fn is_for_another(&self, effect: &BatchEffect) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        let id = match effect {
            BatchEffect::Token(event) => (event.seq.request, event.seq.attempt),
            BatchEffect::Preempted { seq, .. } => (seq.request, seq.attempt),
            BatchEffect::PromptLogprobs { request, attempt, .. }
            | BatchEffect::Done { request, attempt, .. }
            | BatchEffect::Failed { request, attempt, .. }
            | BatchEffect::Late { request, attempt, .. }
            | BatchEffect::TakenOver { request, attempt } => (*request, *attempt),
        };
        self.sends(id)
    }

    pub(super) fn has(&self, id: Id) -> bool {
        self.entries.contains_key(&id)
    }

    /// Whether a request is computed here for another worker.
    pub(super) fn sends(&self, id: Id) -> bool {
        matches!(self.entries.get(&id), Some(Entry::Sending(_)))
    }

    /// The requests whose prompts another worker computes, or is to, and those that another one is taking over.
    pub(super) fn awaited(&self) -> impl Iterator<Item = Id> {
        self.entries.iter().filter_map(|(id, entry)| match entry {
            Entry::Sending(end) => end.takes().map(|attempt| (id.0, attempt)),
            Entry::Waiting { .. } | Entry::Receiving(_) => Some(*id),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Entry {
    fn is_with(&self, node: &NodeId) -> bool {
        match self {
            Self::Waiting { .. } => false,
            Self::Receiving(end) => end.peer().node == *node,
            Self::Sending(end) => end.peer().node == *node,
        }
    }
}
