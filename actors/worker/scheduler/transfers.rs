//! Transfers of KV pages, as the scheduler carries them out: which page sets there are, and what they get done to pages.
//!
//! Imports and exports go to the engine from here, in one order with the steps, so that a page is never written for one
//! sequence after it was planned for another. Pages that a step has filled leave the engine before the next step begins:
//! later they would wait for all of it.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::kv::PagePool;
use config::ids::{Attempt, PageId, RequestId, WorkerId};
use engine::KvInfo;
use engine::host::EngineHost;
use policies::batch::{Batch, KvWork, Refusal};
use policies::kv::Fingerprint;
use policies::kv::handoff::HandoffConfig;
use policies::kv::handoff::chunking::{ChunkLimits, Chunking, Rates};
use policies::order::offload::End;
use policies::placement::KvPeer;
use policies::request::RequestSpec;
use policies::time::{Span, Time};
use ractor::{ActorCell, ActorId, ActorRef};
use tracing::debug;

use super::SchedulerMsg;
use crate::kv::KvPortMsg;
use crate::worker::pages::{HeldAt, Keeper, KvMsg, Pace, PageSetMsg, Prefilled, Provider, ReceiveArgs};
use asking::Source;
use fetches::Fetches;
use held::Holder;
use offloads::Offloads;

mod asking;
mod copies;
mod fetches;
mod held;
mod offloads;

/// Pages of a stream that goes on that are read between two of its steps.
const BESIDE_STEPS: u32 = 4;

/// Steps with fewer tokens say nothing about the speed of prefill.
const TELLING_TOKENS: usize = 32;

type Id = (RequestId, Attempt);

/// Pages by their number in the sequence.
type Numbered = Vec<(u32, PageId)>;

/// The worker's part of the cluster's KV links.
#[derive(Clone, Debug)]
pub struct KvSide {
    /// Makes links.
    pub port: ActorRef<KvPortMsg>,
    /// Whose page sets are under.
    pub supervisor: ActorCell,
    /// Limits of both ends.
    pub limits: HandoffConfig,
    /// What is assumed of this machine until it is measured.
    pub rates: Rates,
    /// Buffers for pages on their way out.
    pub buffers: usize,
}

/// The transfers of one scheduler.
#[derive(Debug)]
pub(super) struct Transfers {
    side: Option<KvSide>,
    scheduler: ActorRef<SchedulerMsg>,
    kv: KvInfo,
    fingerprint: Fingerprint,
    /// No more than this many buffers are used for pages that nobody has asked for yet.
    ahead: usize,
    pool: PagePool,
    entries: BTreeMap<Id, Entry>,
    chunking: Chunking,
    last: u64,
    fetches: Fetches,
    offloads: Offloads,
    /// What other workers hold of prompts that are computed here and have no pages yet.
    held: BTreeMap<Id, Holder>,
    /// Page sets to start.
    starting: Vec<(Id, ReceiveArgs)>,
}

#[derive(Debug)]
enum Entry {
    /// The other worker was not asked yet.
    Waiting { spec: Box<RequestSpec>, source: Source },
    /// It was asked for the content of the request's pages, which are in the table when there are some.
    Receiving { set: Option<ActorRef<PageSetMsg>>, table: Vec<PageId> },
    /// It is computed for another worker.
    Sending {
        set: ActorRef<PageSetMsg>,
        table: Vec<PageId>,
        /// The next page that the page set is given; none where no page is wanted.
        next: Option<u32>,
    },
}

impl Entry {
    const fn set(&self) -> Option<&ActorRef<PageSetMsg>> {
        match self {
            Self::Waiting { .. } => None,
            Self::Receiving { set, .. } => set.as_ref(),
            Self::Sending { set, .. } => Some(set),
        }
    }
}

impl Transfers {
    pub(super) fn new(
        side: Option<KvSide>,
        scheduler: ActorRef<SchedulerMsg>,
        kv: KvInfo,
        fingerprint: Fingerprint,
        budget_tokens: u32,
    ) -> Self {
        let page_bytes = kv.layout.page_bytes();
        let buffers = side.as_ref().map_or(0, |side| side.buffers);
        let limits = ChunkLimits {
            page_tokens: kv.layout.page_tokens,
            page_bytes: page_bytes as u64,
            budget_tokens,
            message_pages: side.as_ref().map_or(1, |side| side.limits.pages_per_message),
        };
        let rates = side.as_ref().map_or(Rates { compute: 1.0, link: 1.0 }, |side| side.rates);
        Self {
            side,
            scheduler,
            kv,
            fingerprint,
            ahead: buffers / 2,
            pool: PagePool::new(page_bytes, buffers, buffers),
            entries: BTreeMap::new(),
            chunking: Chunking::new(limits, rates),
            last: 0,
            fetches: Fetches::default(),
            offloads: Offloads::default(),
            held: BTreeMap::new(),
            starting: Vec::new(),
        }
    }

    /// Another port makes the links from now on.
    pub(super) fn set_port(&mut self, port: ActorRef<KvPortMsg>) {
        if let Some(side) = &mut self.side {
            side.port = port;
        }
        self.serve();
    }

    /// Answers other workers from now on.
    pub(super) fn serve(&self) {
        let Some(side) = &self.side else { return };
        let provider = Provider {
            keeper: Keeper::Scheduler(self.scheduler.clone()),
            supervisor: side.supervisor.clone(),
            fingerprint: Some(self.fingerprint),
            limits: side.limits,
        };
        // A port that has failed is started again, and then told.
        let _ = side.port.cast(KvPortMsg::Serve(Some(provider)));
    }

    /// Submits a request, whose prompt the worker at `peer` is to compute, or which runs there as attempt `takes` and goes on
    /// here. Whoever computes the prompt asks for what is held of it at `prefix`.
    pub(super) fn submit(
        &mut self,
        core: &mut Batch,
        now: Time,
        spec: RequestSpec,
        (peer, takes): (Option<KvPeer>, Option<Attempt>),
        prefix: Option<HeldAt>,
    ) -> Result<(), Refusal> {
        let Some(peer) = peer.filter(|_| self.side.is_some()) else {
            return self.submit_held(core, now, spec, prefix);
        };
        let id = (spec.id, spec.attempt);
        let kept = Box::new(spec.clone());
        core.submit_elsewhere(now, spec, takes.is_some())?;
        let source = Source { peer, takes, prefix };
        self.entries.insert(id, Entry::Waiting { spec: kept, source });
        Ok(())
    }

    /// A step has ended.
    pub(super) fn stepped(&mut self, tokens: usize, took: Span) {
        if tokens >= TELLING_TOKENS {
            self.chunking.computed(u32::try_from(tokens).unwrap_or(u32::MAX), took);
        }
    }

    /// Carries out what the scheduler's core has to say about transfers.
    pub(super) fn news(&mut self, core: &mut Batch, host: &EngineHost, now: Time, worker: &WorkerId) {
        let mut work = Vec::new();
        loop {
            core.take_kv_work(&mut work);
            if work.is_empty() {
                return;
            }
            let mut news = work.drain(..).peekable();
            while let Some(item) = news.next() {
                // What the last step of a prompt has filled goes with the end of it.
                match (&item, news.peek()) {
                    (
                        KvWork::Computed { request, attempt, first, pages },
                        Some(KvWork::Prefilled { request: then, attempt: also, .. }),
                    ) if (request, attempt) == (then, also) => {
                        self.add((*request, *attempt), *first, pages);
                    }
                    _ => self.hear(item, core, host, now, worker),
                }
            }
        }
    }

    fn hear(&mut self, news: KvWork, core: &mut Batch, host: &EngineHost, now: Time, worker: &WorkerId) {
        match news {
            KvWork::Expected { request, attempt, tokens } => {
                let id = (request, attempt);
                if let Some(Entry::Waiting { spec, source }) = self.entries.remove(&id) {
                    self.entries.insert(id, Entry::Receiving { set: None, table: Vec::new() });
                    self.ask(id, spec, source, (None, tokens), worker);
                } else {
                    core.compute_here(now, request, attempt, 0);
                }
            }
            KvWork::Reserved { request, attempt, pages, cached, tokens } => {
                let id = (request, attempt);
                if let Some(holder) = self.held.remove(&id) {
                    return self.ask_holder(id, holder, pages, (cached, tokens), worker);
                }
                if let Some(Entry::Receiving { set: Some(set), table }) = self.entries.get_mut(&id) {
                    *table = pages;
                    // One that has ended is about to say so.
                    let _ = set.cast(PageSetMsg::Reserved { cached: cached / self.kv.layout.page_tokens });
                    return;
                }
                let Some(Entry::Waiting { spec, source }) = self.entries.remove(&id) else {
                    core.compute_here(now, request, attempt, 0);
                    return;
                };
                let page_tokens = self.kv.layout.page_tokens;
                if self.fetches.has(id) && cached / page_tokens >= tokens / page_tokens {
                    // Every full page is here.
                    self.end_fetch(core, now, id, cached, Ok(()));
                    return;
                }
                self.entries.insert(id, Entry::Receiving { set: None, table: pages });
                self.ask(id, spec, source, (Some(cached), tokens), worker);
            }
            KvWork::NotNeeded { request, attempt } => {
                self.held.remove(&(request, attempt));
                if let Some(set) = self.entries.remove(&(request, attempt)).as_ref().and_then(Entry::set) {
                    let _ = set.cast(PageSetMsg::Dropped(None));
                }
            }
            KvWork::Begun { request, attempt } => {
                if let Some(Entry::Sending { set, .. }) = self.entries.get(&(request, attempt)) {
                    let _ = set.cast(PageSetMsg::Begun);
                }
            }
            KvWork::Computed { request, attempt, first, pages } => {
                self.computed((request, attempt), first, &pages, host);
            }
            KvWork::Prefilled { request, attempt, computed, cached, tail, drawn, ends } => {
                let prefilled = Prefilled { tokens: computed, cached, ends, drawn, pages: Vec::new() };
                self.prefilled((request, attempt), prefilled, tail.filter(|_| !ends), host);
            }
            KvWork::Dropped { request, attempt, reason } => {
                let why = reason.clone().unwrap_or_else(|| "it was called off".to_owned());
                self.fetches.end((request, attempt), Err(why));
                self.offloads.end(now, (request, attempt), End::Withdrawn);
                self.drop_holder((request, attempt));
                if let Some(set) = self.entries.remove(&(request, attempt)).as_ref().and_then(Entry::set) {
                    // One that has ended has dropped it itself.
                    let _ = set.cast(PageSetMsg::Dropped(reason));
                }
            }
        }
    }

    /// Adds pages to a block table.
    fn add(&mut self, id: Id, first: u32, pages: &[PageId]) {
        if let Some(Entry::Sending { table, .. }) = self.entries.get_mut(&id) {
            table.truncate(first as usize);
            table.extend(pages);
        }
    }

    fn computed(&mut self, id: Id, first: u32, pages: &[PageId], host: &EngineHost) {
        self.add(id, first, pages);
        let Some((set, numbered)) = self.unsent(id) else { return };
        let full = first + pages.len() as u32;
        let there = move |pages| {
            // A page set that has ended needs no pages.
            let _ = set.cast(PageSetMsg::Computed { full, pages });
        };
        self.export_ahead(numbered, host, there);
    }

    fn prefilled(&mut self, id: Id, mut prefilled: Prefilled, tail: Option<PageId>, host: &EngineHost) {
        if let Some(Entry::Sending { table, .. }) = self.entries.get_mut(&id) {
            table.extend(tail);
        }
        let Some((set, mut numbered)) = self.unsent(id) else { return };
        if prefilled.ends {
            numbered.clear();
        }
        let there = move |pages| {
            prefilled.pages = pages;
            // As above.
            let _ = set.cast(PageSetMsg::Prefilled(Box::new(prefilled)));
        };
        self.export_ahead(numbered, host, there);
    }

    /// The page set of a prompt for another worker, and the pages that it has not been given yet.
    fn unsent(&mut self, id: Id) -> Option<(ActorRef<PageSetMsg>, Numbered)> {
        let Some(Entry::Sending { set, table, next }) = self.entries.get_mut(&id) else { return None };
        let Some(next) = next else { return Some((set.clone(), Vec::new())) };
        let first = std::mem::replace(next, (*next).max(table.len() as u32));
        let pages = table.get(first as usize..).unwrap_or_default();
        Some((set.clone(), (first..).zip(pages.iter().copied()).collect()))
    }

    /// Does what a page set asks for.
    pub(super) fn handle(&mut self, message: KvMsg, core: &mut Batch, host: &EngineHost, now: Time) {
        match message {
            KvMsg::Prefill { spec, first_page, reserved, takes, prefix, set } => {
                let id = (spec.id, spec.attempt);
                let tokens = u32::try_from(spec.prompt.len()).unwrap_or(u32::MAX);
                core.set_transfer_chunk(self.chunking.next_tokens(tokens));
                // What does not run here (any more), or not as it was told, is computed like a prompt.
                let lent = takes.is_some_and(|from| core.lend(now, &spec, from));
                // Its stream goes on, so that the engine is not to be busy with all its pages at once.
                let under_way = !lent && spec.resumed.iter().any(|choice| !choice.tokens.is_empty());
                let taken = if lent {
                    Ok(())
                } else {
                    let (prefix, held) = self.holder(&spec, prefix);
                    let taken = core.submit_prefill(now, *spec, reserved, held);
                    self.expect_held(id, prefix, core);
                    taken
                };
                let most = self.chunking.message_pages(tokens);
                let result = taken.map(|()| Pace {
                    least: self.chunking.flush_pages(),
                    most: if under_way { most.min(BESIDE_STEPS) } else { most },
                });
                if result.is_ok() {
                    let next = first_page.filter(|_| !under_way);
                    let entry = Entry::Sending { set: set.clone(), table: Vec::new(), next };
                    self.entries.insert(id, entry);
                }
                // A page set that has ended meanwhile has asked for the release too.
                let _ = set.cast(PageSetMsg::Submitted(result));
            }
            KvMsg::Hold { spec, asker: _, set } => self.hold(core, now, *spec, &set),
            KvMsg::Reserve(id) => {
                // One that is gone has been dropped, which its page set hears next.
                core.begun(now, id.0, id.1);
            }
            KvMsg::Opened { id, first_page } => {
                core.open(id.0, id.1);
                if let Some(Entry::Sending { table, next, .. }) = self.entries.get_mut(&id) {
                    // The page set asks for what is computed by now, and is given the rest.
                    *next = first_page.map(|first| first.max(table.len() as u32));
                }
            }
            KvMsg::Export { id, first, count, set } => self.export(id, first, count, &set, host),
            KvMsg::Import { id, first, pages, set } => {
                self.make_room(core, id, first + pages.len() as u32);
                self.import(id, first, pages, &set, host);
            }
            KvMsg::Commit { id, tokens, pages, .. } if self.fetches.has(id) => {
                let result = if pages { Ok(()) } else { Err("the request is about to end".to_owned()) };
                self.end_fetch(core, now, id, if pages { tokens } else { 0 }, result);
            }
            KvMsg::Commit { id, tokens, .. } if id.1.fetched_for().is_some() => {
                self.end_holder(core, now, id, tokens);
            }
            KvMsg::Commit { id, tokens, pages, cached, drawn } => {
                self.entries.remove(&id);
                let taken = core.received(now, id.0, id.1, pages, cached, &drawn);
                self.offloads.end(now, id, if taken { End::Computed } else { End::Failed });
                if !taken {
                    core.compute_here(now, id.0, id.1, if pages { tokens } else { 0 });
                }
            }
            KvMsg::ComputeHere { id, tokens, why } => self.compute_here(core, now, id, tokens, why),
            KvMsg::Release { id, taken } => self.release(core, now, id, taken),
            KvMsg::Sent { bytes, took } => self.sent(bytes, took),
            KvMsg::SetGone(actor) => self.set_gone(actor, core, now),
        }
    }

    fn sent(&mut self, bytes: u64, took: Duration) {
        if bytes > 0 {
            self.chunking.sent(bytes, took.into());
        }
    }

    /// A page set has ended without having said what becomes of its request.
    fn set_gone(&mut self, actor: ActorId, core: &mut Batch, now: Time) {
        let is = |entry: &Entry| entry.set().is_some_and(|set| set.get_id() == actor);
        let Some(id) = self.entries.iter().find(|(_, entry)| is(entry)).map(|(id, _)| *id) else { return };
        match self.entries.get(&id) {
            Some(Entry::Sending { .. }) => self.release(core, now, id, false),
            _ => self.compute_here(core, now, id, 0, "its page set failed"),
        }
    }

    /// What was computed here for another worker is not needed here any more; what runs here goes on, unless it was taken
    /// over.
    fn release(&mut self, core: &mut Batch, now: Time, id: Id, taken: bool) {
        self.entries.remove(&id);
        if !core.end_lending(now, id.0, id.1, taken) {
            core.cancel(now, id.0, id.1);
        }
    }

    /// Nothing more comes for a request: it is computed here, unless its pages were all that was wanted.
    fn compute_here(&mut self, core: &mut Batch, now: Time, id: Id, tokens: u32, why: &str) {
        if id.1.fetched_for().is_some() {
            debug!(request = %id.0, tokens, why, "no more comes of what another worker holds");
            return self.end_holder(core, now, id, tokens);
        }
        if self.fetches.has(id) {
            return self.end_fetch(core, now, id, tokens, Err(why.to_owned()));
        }
        self.entries.remove(&id);
        self.offloads.failed(now, id, why);
        core.compute_here(now, id.0, id.1, tokens);
    }
}

/// The requests are gone with the scheduler.
impl Drop for Transfers {
    fn drop(&mut self) {
        for set in self.entries.values().filter_map(Entry::set) {
            // One that has ended knows.
            let _ = set.cast(PageSetMsg::Dropped(None));
        }
    }
}
