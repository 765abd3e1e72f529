//! Pages that the pool fetches from a worker, to store them.

use std::collections::VecDeque;

use cluster::kv::PageBuf;
use config::ids::WorkerId;
use policies::kv::handoff::{TransferKey, Wanted};
use policies::kv::{Fingerprint, PageLayout};
use policies::pool::{Begun, PutEnd, PutId, PutRefusal, Run};
use policies::request::RequestSpec;
use policies::time::Time;
use ractor::{ActorRef, SpawnErr};
use tracing::{debug, error};

use super::super::pages::Writer;
use super::super::{PoolMsg, PoolState};
use super::{TAKEN_AT_ONCE, WISHES};
use crate::clock;
use crate::worker::pages::{Keeper, PageSetMsg, ReceiveArgs};

/// Somebody wants pages to be stored.
#[derive(Debug)]
pub struct Wish {
    /// Who holds them.
    pub from: WorkerId,
    /// Where that worker takes questions.
    pub address: String,
    /// Identity of its pages.
    pub fingerprint: Fingerprint,
    /// Their shape.
    pub layout: PageLayout,
    /// The prompt that they are the start of.
    pub spec: Box<RequestSpec>,
}

/// A page set that fetches pages.
#[derive(Debug)]
pub(super) struct Taking {
    set: ActorRef<PageSetMsg>,
    /// Until it has ended.
    put: Option<PutId>,
    /// Pages of the run that were here when it began.
    first: usize,
    /// Pages of the run.
    pages: usize,
    /// Pages of the run that are here.
    stored: usize,
    /// What has come and is not all stored: first page and number.
    pieces: VecDeque<(u32, u32)>,
}

impl Taking {
    /// What has come and is not stored will not be.
    fn fail(&mut self) {
        for (first, count) in self.pieces.drain(..) {
            // One that has ended does not care.
            let _ = self.set.cast(PageSetMsg::Imported { first, count, done: false });
        }
    }
}

/// How it went with a wish.
fn count(outcome: &'static str) {
    metrics::counter!(crate::metrics::POOL_STORES, "outcome" => outcome).increment(1);
}

fn outcome_of(refusal: PutRefusal) -> &'static str {
    match refusal {
        PutRefusal::Known => "known",
        PutRefusal::UnderWay => "under_way",
        PutRefusal::TooLarge { .. } => "too_large",
        PutRefusal::NoParent | PutRefusal::Mismatch | PutRefusal::NoBytes | PutRefusal::Closing => "refused",
    }
}

impl super::Transfers {
    /// Pages are wanted here.
    pub(in crate::pool) fn wish(&mut self, wish: Wish) {
        if self.side.is_none() {
            return count("refused");
        }
        if self.wishes.len() >= WISHES {
            self.wishes.pop_front();
            count("dropped");
        }
        self.wishes.push_back(wish);
    }

    /// What a worker wished to be stored from there is not there any more.
    pub(in crate::pool) fn forget(&mut self, owner: &WorkerId) {
        let before = self.wishes.len();
        self.wishes.retain(|wish| wish.from.node != owner.node || wish.from.incarnation > owner.incarnation);
        for _ in self.wishes.len()..before {
            count("dropped");
        }
    }

    /// A page is stored.
    pub(in crate::pool) fn stored(&mut self, set: u64, index: usize) {
        let Some(taking) = self.taking.get_mut(&set) else { return };
        taking.stored = index + 1;
        while let Some(&(first, count)) = taking.pieces.front() {
            if (first + count) as usize > taking.stored {
                return;
            }
            taking.pieces.pop_front();
            // As above.
            let _ = taking.set.cast(PageSetMsg::Imported { first, count, done: true });
        }
    }

    /// Nothing more is stored.
    pub(in crate::pool) fn put_ended(&mut self, set: u64, why: PutEnd) {
        let Some(taking) = self.taking.get_mut(&set) else { return };
        taking.put = None;
        if why != PutEnd::Complete {
            debug!(
                ?why,
                stored = taking.stored,
                wanted = taking.pages,
                "the pool does not store the rest of a prompt"
            );
            taking.fail();
            // As above.
            let _ = taking.set.cast(PageSetMsg::Dropped(None));
        }
    }
}

impl PoolState {
    /// What the next page set that fetches pages is started with, and what it fetches for.
    pub(super) fn next_taking(&mut self, pool: &ActorRef<PoolMsg>) -> Option<((PutId, Taken), ReceiveArgs)> {
        while self.transfers.taking.len() < TAKEN_AT_ONCE {
            let (Some(side), Some(port)) = (self.transfers.side.clone(), self.transfers.port.clone()) else {
                return None;
            };
            let Wish { from, address, fingerprint, layout, spec } = self.transfers.wishes.pop_front()?;
            let now = clock::now();
            let page = layout.page_tokens.max(1);
            let named = u32::try_from(spec.hashes.len()).unwrap_or(u32::MAX).saturating_mul(page);
            let whole = spec.held_prefix(named, page);
            let pages = whole.hashes.len();
            let run = Run {
                fingerprint,
                parent: None,
                pages: whole.hashes.to_vec(),
                page_bytes: layout.page_bytes() as u64,
            };
            let Begun { put, first } = match self.store.begin(now, &from, run) {
                Ok(begun) => begun,
                Err(refusal) => {
                    debug!(worker = %from, pages, %refusal, "nothing of a prompt is fetched");
                    count(outcome_of(refusal));
                    continue;
                }
            };
            debug!(worker = %from, pages, first, "a prompt's pages are fetched");
            let (transfer, id) = self.transfers.new_id();
            let tokens = |pages: usize| (pages as u32).saturating_mul(page);
            let wanted = Wanted::of(&whole, whole.attempt, tokens(pages), tokens(first), page);
            // Nobody waits for it: it ends by the limits of a transfer.
            let spec = Box::new(RequestSpec { id, deadline: Time::NEVER, ..whole });
            let args = ReceiveArgs {
                key: TransferKey { transfer, generation: self.transfers.me.incarnation },
                wanted,
                takes: None,
                prefix: None,
                reserved: true,
                limits: side.limits,
                spec,
                address,
                fingerprint,
                layout,
                port,
                keeper: Keeper::Pool(pool.clone()),
            };
            return Some(((put, Taken { first, pages }), args));
        }
        None
    }

    /// A page set was started, or not.
    pub(super) fn taking_started(
        &mut self,
        (put, Taken { first, pages }): (PutId, Taken),
        started: Result<ActorRef<PageSetMsg>, SpawnErr>,
    ) {
        match started {
            Ok(set) => {
                let number = set.get_id().pid();
                self.writers.insert(put, Writer::Set(number));
                let (put, pieces) = (Some(put), VecDeque::new());
                self.transfers
                    .taking
                    .insert(number, Taking { set, put, first, pages, stored: first, pieces });
            }
            Err(e) => {
                error!(error = %e, "a page set of the pool does not start");
                count("failed");
                let now = clock::now();
                self.does(|store, fx| store.abort(now, put, fx));
            }
        }
    }

    /// Pages have come. The page set hears of them when all are stored: until then the worker sends no more than its credit.
    pub(super) fn import(&mut self, first: u32, pages: Vec<PageBuf>, set: &ActorRef<PageSetMsg>) {
        let (number, count) = (set.get_id().pid(), pages.len() as u32);
        let taking = self.transfers.taking.get_mut(&number);
        let Some((put, taking)) = taking.and_then(|taking| Some((taking.put?, taking))) else {
            // As above.
            let _ = set.cast(PageSetMsg::Imported { first, count, done: false });
            return;
        };
        taking.pieces.push_back((first, count));
        let now = clock::now();
        for (index, page) in (first as usize..).zip(pages) {
            // One that does not fit has ended the put.
            if self.transfers.taking.get(&number).is_none_or(|taking| taking.put.is_none()) {
                return;
            }
            self.arrived(now, put, index, page);
        }
    }

    /// Nothing more comes: what is complete stays.
    pub(super) fn end_taking(&mut self, set: u64, in_order: bool) {
        let Some(put) = self.transfers.taking.get(&set).map(|taking| taking.put) else { return };
        let now = clock::now();
        match put {
            Some(put) if in_order => self.commit(put),
            Some(put) => self.does(|store, fx| store.abort(now, put, fx)),
            None => {}
        }
        let Some(taking) = self.transfers.taking.remove(&set) else { return };
        count(if taking.stored >= taking.pages {
            "complete"
        } else if taking.stored > taking.first {
            "part"
        } else {
            "failed"
        });
    }
}

/// Of a run that is fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    first: usize,
    pages: usize,
}
