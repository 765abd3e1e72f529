//! The bytes of a pool's pages, and carrying out what its core decides.

use std::collections::BTreeMap;

use cluster::kv::{PageBuf, PagePool};
use policies::pool::{
    DiskError, DiskJob, Hit, PageKey, PoolEffect, PoolLimits, PutEnd, PutId, PutRefusal, ReaderId, Store,
};
use policies::time::Time;
use ractor::RpcReplyPort;
use tokio::task::AbortHandle;
use tracing::warn;

use super::figures::Figures;
use super::news::News;
use super::offer::Offer;
use super::thread::{DiskThread, Order, Report};
use super::transfers::Transfers;

/// Buffers of a size that are kept for the next read.
const KEEP: usize = 16;

/// Who puts.
#[derive(Debug)]
pub(super) enum Writer {
    /// A page set, page by page.
    Set(u64),
    /// All at once.
    Waits(RpcReplyPort<Result<(usize, PutEnd), PutRefusal>>),
}

/// Who reads.
#[derive(Debug)]
pub(super) enum Reader {
    /// A page set, page by page.
    Set(u64),
    /// All at once.
    Waits { pages: Vec<PageBuf>, wanted: usize, reply: RpcReplyPort<Vec<PageBuf>> },
}

/// The pool's mutable state.
#[derive(Debug)]
pub struct PoolState {
    pub(super) store: Store,
    pub(super) disk: Option<DiskThread>,
    ram: BTreeMap<PageKey, PageBuf>,
    /// Pages that came and wait for room.
    held: BTreeMap<(PutId, usize), PageBuf>,
    pub(super) writers: BTreeMap<PutId, Writer>,
    pub(super) readers: BTreeMap<ReaderId, Reader>,
    /// Buffers to read into, by their bytes.
    buffers: BTreeMap<usize, PagePool>,
    pub(super) news: News,
    pub(super) offer: Offer,
    pub(super) transfers: Transfers,
    pub(super) timer: Option<(Time, AbortHandle)>,
    figures: Figures,
}

impl PoolState {
    pub(super) fn new(limits: PoolLimits, news: News, offer: Offer, transfers: Transfers) -> Self {
        Self {
            store: Store::new(limits),
            disk: None,
            ram: BTreeMap::new(),
            held: BTreeMap::new(),
            writers: BTreeMap::new(),
            readers: BTreeMap::new(),
            buffers: BTreeMap::new(),
            news,
            offer,
            transfers,
            timer: None,
            figures: Figures::default(),
        }
    }

    /// A page has come.
    pub(super) fn arrived(&mut self, now: Time, put: PutId, index: usize, page: PageBuf) {
        let bytes = page.len() as u64;
        self.held.insert((put, index), page);
        self.does(|store, fx| store.arrived(now, put, index, bytes, fx));
    }

    /// Somebody reads from now on, or is told that there is nothing.
    pub(super) fn reads(&mut self, now: Time, hit: Hit, from: usize, reply: RpcReplyPort<Vec<PageBuf>>) {
        let Some(reader) = hit.reader else {
            // Whoever asked may have given up.
            let _ = reply.send(Vec::new());
            return;
        };
        let wanted = hit.pages - from;
        self.readers.insert(reader, Reader::Waits { pages: Vec::new(), wanted, reply });
        self.does(|store, fx| store.grant(now, reader, wanted, fx));
    }

    /// Has the core do something and carries out what it wants.
    pub(super) fn does(&mut self, act: impl FnOnce(&mut Store, &mut Vec<PoolEffect>)) {
        let mut fx = Vec::new();
        act(&mut self.store, &mut fx);
        self.carry_out(fx, None);
    }

    /// The disk has done something.
    pub(super) fn reported(&mut self, now: Time, report: Report) {
        let mut fx = Vec::new();
        let mut read = None;
        match report {
            Report::Wrote(op, result) => self.store.wrote(now, op, result, &mut fx),
            Report::Read(op, result) => {
                let (page, result) = match result {
                    Ok(page) => (Some(page), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                self.store.read(now, op, result, &mut fx);
                read = page;
            }
            Report::Deleted(key, bytes, result) => self.store.deleted(now, key, bytes, result, &mut fx),
            Report::Ended => {}
        }
        if let Some(disk) = &mut self.disk {
            disk.reported();
        }
        self.carry_out(fx, read.as_ref());
    }

    /// Tells controllers what has changed, and figures.
    pub(super) fn tell_changes(&mut self) {
        self.tell_pages();
        self.figures.tell(self.store.stats());
        crate::metrics::enforce("pool", self.store.check_bounds());
    }

    /// In order; `read` is the page that was just read, which effects may be about.
    fn carry_out(&mut self, fx: Vec<PoolEffect>, read: Option<&PageBuf>) {
        let mut done = Vec::new();
        for effect in fx {
            match effect {
                PoolEffect::Store { put, index, key } => {
                    if let Some(page) = self.held.remove(&(put, index)) {
                        self.ram.insert(key, page);
                    }
                    if let Some(Writer::Set(set)) = self.writers.get(&put) {
                        self.transfers.stored(*set, index);
                    }
                }
                PoolEffect::Discard { put, index } => {
                    self.held.remove(&(put, index));
                }
                PoolEffect::EndPut { put, pages, why } => self.put_ended(put, pages, why),
                PoolEffect::DropRam { key } => {
                    self.ram.remove(&key);
                }
                PoolEffect::WriteDisk { op, key, parent, bytes: _ } => {
                    if let (Some(disk), Some(page)) = (&mut self.disk, self.ram.get(&key)) {
                        disk.order(Order::Write { op, key, parent, page: page.clone() });
                    }
                }
                PoolEffect::ReadDisk { op, key, bytes } => {
                    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                    let into = self.buffers.entry(bytes);
                    let into = into.or_insert_with(|| PagePool::new(bytes, usize::MAX, KEEP)).clone();
                    if let Some(disk) = &mut self.disk {
                        disk.order(Order::Read { op, key, into });
                    }
                }
                PoolEffect::DeleteDisk { key, bytes } => {
                    if let Some(disk) = &mut self.disk {
                        disk.order(Order::Delete { key, bytes });
                    }
                }
                PoolEffect::Keep { key } => {
                    if let Some(page) = read {
                        self.ram.insert(key, page.clone());
                    }
                }
                PoolEffect::Give { reader, index: _, key } => {
                    if let Some(page) = self.ram.get(&key).or(read).cloned() {
                        done.extend(self.give(reader, page));
                    }
                }
                PoolEffect::CutRead { reader, pages } => done.extend(self.cut(reader, pages)),
                PoolEffect::EndRead { reader } => self.read_ended(reader),
                PoolEffect::Report { job, error } => warn_of(job, error),
            }
        }
        let now = crate::clock::now();
        for reader in done {
            self.read_ended(reader);
            self.does(|store, fx| store.release(now, reader, fx));
        }
    }

    fn put_ended(&mut self, put: PutId, pages: usize, why: PutEnd) {
        self.held.retain(|(held, _), _| *held != put);
        match self.writers.remove(&put) {
            Some(Writer::Set(set)) => self.transfers.put_ended(set, why),
            Some(Writer::Waits(reply)) => {
                // Whoever asked may have given up.
                let _ = reply.send(Ok((pages, why)));
            }
            None => {}
        }
    }

    /// Gives a page; the reader, where that was all.
    fn give(&mut self, id: ReaderId, page: PageBuf) -> Option<ReaderId> {
        match self.readers.get_mut(&id)? {
            Reader::Set(set) => {
                let bytes = self.transfers.gives(*set, page);
                self.offer.pace().sends(crate::clock::now(), bytes);
            }
            Reader::Waits { pages, wanted, .. } => {
                pages.push(page);
                return (pages.len() >= *wanted).then_some(id);
            }
        }
        None
    }

    fn cut(&mut self, id: ReaderId, to: usize) -> Option<ReaderId> {
        match self.readers.get_mut(&id)? {
            Reader::Set(set) => self.transfers.cut(*set, to),
            Reader::Waits { pages, wanted, .. } => {
                *wanted = (*wanted).min(to);
                return (pages.len() >= *wanted).then_some(id);
            }
        }
        None
    }

    fn read_ended(&mut self, id: ReaderId) {
        match self.readers.remove(&id) {
            Some(Reader::Set(set)) => self.transfers.read_ended(set),
            Some(Reader::Waits { pages, reply, .. }) => {
                // Whoever asked may have given up.
                let _ = reply.send(pages);
            }
            None => {}
        }
    }
}

fn warn_of(job: DiskJob, error: DiskError) {
    let job = match job {
        DiskJob::Write => "write",
        DiskJob::Read => "read",
        DiskJob::Delete => "delete",
    };
    let error = match error {
        DiskError::NoSpace => "the disk is full",
        DiskError::Missing => "the file or its folder is missing",
        DiskError::Permission => "this process may not",
        DiskError::Other => "input or output failed; the log level debug says how",
    };
    warn!(job, error, "pool.disk cannot be used as it should; the pool goes on without what failed");
}
