//! The thread that a pool's files live on, and the orders for it that wait.
//!
//! Writes and deletes are carried out in the order in which the pool gave them; reads, which somebody waits for, come before
//! those that have not been handed over, but do not hold them up for ever. Every order is reported once.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use cluster::kv::{PageBuf, PagePool};
use policies::kv::PageHash;
use policies::pool::{DiskError, Found, OpId, PageKey};
use tokio::sync::oneshot;

use super::disk::{Create, DiskStore, OpenError};

/// Orders that are handed over at a time: enough that the thread is never idle for want of the next, few enough that a read
/// does not wait for long.
const DEPTH: usize = 4;
/// Reads between two other orders where there are always more: writes make room for what comes.
const READS: usize = 4;

/// What the disk is to do.
#[derive(Debug)]
pub(super) enum Order {
    Write {
        op: OpId,
        key: PageKey,
        parent: Option<PageHash>,
        page: PageBuf,
    },
    /// Into a buffer of the given ones.
    Read {
        op: OpId,
        key: PageKey,
        into: PagePool,
    },
    Delete {
        key: PageKey,
        bytes: u64,
    },
}

/// What came of it.
#[derive(Debug)]
pub enum Report {
    /// A page is written, or is not.
    Wrote(OpId, Result<(), DiskError>),
    /// A page is read.
    Read(OpId, Result<PageBuf, DiskError>),
    /// A page of so many bytes is deleted.
    Deleted(PageKey, u64, Result<(), DiskError>),
    /// The thread is gone. Nothing more comes.
    Ended,
}

/// Why there is no thread.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system has no thread left, or the new one has ended.
    #[error("the thread for pool.disk cannot be started: {0}")]
    Thread(String),
}

/// The thread. Dropping it waits for what was handed over.
#[derive(Debug)]
pub(super) struct DiskThread {
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<()>>,
    reads: VecDeque<Order>,
    /// Writes and deletes.
    changes: VecDeque<Order>,
    /// Reads handed over since the last of the others.
    reads_on_end: usize,
    /// Orders handed over and not reported.
    out: usize,
}

impl DiskThread {
    /// Starts the thread and opens the folder there; what was found in it. `report` is called there.
    pub(super) async fn start(
        folder: PathBuf,
        holder: String,
        create: Create,
        report: impl Fn(Report) + Send + 'static,
    ) -> Result<(Self, Vec<Found>), StartError> {
        let (orders, queue) = sync_channel(DEPTH);
        let (opened, result) = oneshot::channel();
        let work = move || {
            let mut store = match DiskStore::open(&folder, &holder, create) {
                Ok((store, found)) => {
                    // Whoever started it may have given up.
                    let _ = opened.send(Ok(found));
                    store
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                    return;
                }
            };
            let end = TellEnd(report);
            while let Ok(order) = queue.recv() {
                (end.0)(carry_out(&mut store, order));
            }
        };
        let thread = std::thread::Builder::new()
            .name("pool-disk".to_owned())
            .spawn(work)
            .map_err(|error| StartError::Thread(error.to_string()))?;
        let (reads, changes) = (VecDeque::new(), VecDeque::new());
        let (orders, thread) = (Some(orders), Some(thread));
        let this = Self { orders, thread, reads, changes, reads_on_end: 0, out: 0 };
        let found = result.await.map_err(|_| StartError::Thread("it panicked".to_owned()))??;
        Ok((this, found))
    }

    /// Hands an order over when it is its turn.
    pub(super) fn order(&mut self, order: Order) {
        match order {
            Order::Read { .. } => self.reads.push_back(order),
            Order::Write { .. } | Order::Delete { .. } => self.changes.push_back(order),
        }
        self.feed();
    }

    /// An order was reported.
    pub(super) fn reported(&mut self) {
        self.out = self.out.saturating_sub(1);
        self.feed();
    }

    fn feed(&mut self) {
        let Some(orders) = &self.orders else { return };
        while self.out < DEPTH {
            let turn = self.reads.is_empty() || self.reads_on_end >= READS;
            let change = if turn { self.changes.pop_front() } else { None };
            self.reads_on_end = if change.is_some() { 0 } else { self.reads_on_end + 1 };
            let Some(next) = change.or_else(|| self.reads.pop_front()) else { return };
            // There is room for what is out. A thread that is gone has said so.
            if orders.try_send(next).is_err() {
                return;
            }
            self.out += 1;
        }
    }
}

impl Drop for DiskThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was reported.
            let _ = thread.join();
        }
    }
}

/// Tells that the thread is gone, for whatever reason.
struct TellEnd<F: Fn(Report)>(F);

impl<F: Fn(Report)> Drop for TellEnd<F> {
    fn drop(&mut self) {
        (self.0)(Report::Ended);
    }
}

fn carry_out(store: &mut DiskStore, order: Order) -> Report {
    match order {
        Order::Write { op, key, parent, page } => Report::Wrote(op, store.write(&key, parent, &page)),
        Order::Read { op, key, into } => {
            let result = into.try_take().ok_or(DiskError::Other).and_then(|mut page| {
                store.read(&key, &mut page)?;
                Ok(page.freeze())
            });
            Report::Read(op, result)
        }
        Order::Delete { key, bytes } => Report::Deleted(key, bytes, store.delete(&key)),
    }
}
