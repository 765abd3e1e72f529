//! Pool role: keeps KV pages in RAM and on disk for workers to share. It loads no model and looks into no page; what it keeps,
//! and for whom, [`policies::pool`] decides.
//!
//! The pool owns the thread of its files ([`thread`]), which ends with it. Whoever puts or reads page by page (a page set at
//! the pool) hands in a sink and is told; nobody waits for the disk inside the actor.

use std::path::PathBuf;

use cluster::kv::PageBuf;
use cluster::wire::ToPool;
use config::PoolConfig;
use config::ids::{NodeId, WorkerId};
use policies::kv::{Fingerprint, PageHash};
use policies::pool::{
    Begun, DiskLimits, Hit, PoolLimits, PoolStats, PutEnd, PutId, PutRefusal, ReaderId, Run,
};
use policies::time::Span;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tracing::info;

use crate::clock;

pub mod disk;
pub mod news;
pub mod thread;

mod figures;
mod pages;

use disk::Create;
use news::{NewsSink, PutSink, ReadSink};
use pages::{Reader, Writer};
use thread::{DiskThread, Report};

pub use pages::PoolState;

#[cfg(test)]
mod tests;

const MIB: u64 = 1 << 20;
/// Bytes that are written at a time, and that may wait for room meanwhile: a disk of 1 GB/s has work for 64 ms.
const WINDOW: u64 = 64 * MIB;
/// The disk is left alone for so long when it is full: long against what a page takes, short against what an operator needs.
const BACK_OFF: Span = Span::from_secs(10);
/// As that of a hand-off, which is how pages come and go.
const LEASE: Span = Span::from_secs(30);

/// The pool of a node.
#[derive(Debug)]
pub struct Pool;

/// What a pool is started with.
#[derive(Clone, Debug)]
pub struct PoolArgs {
    /// How much it keeps.
    pub limits: PoolLimits,
    /// Where its files are; [`PoolLimits::disk`] is for these.
    pub folder: Option<PathBuf>,
    /// Who uses the folder, for others that want it.
    pub holder: String,
    /// Makes the files.
    pub create: Create,
}

impl PoolArgs {
    /// As configured.
    #[must_use]
    pub fn of(pool: &PoolConfig, node: &NodeId) -> Self {
        let ram = pool.ram.bytes();
        // Validation has them together.
        let both = pool.disk.clone().zip(pool.disk_size);
        let disk = both.as_ref().map(|(_, size)| DiskLimits {
            capacity: size.bytes(),
            overhead: disk::OVERHEAD,
            write_window: WINDOW,
            // Half of RAM stays free of what would have to be written first.
            write_above: ram / 2,
            min_uses: 1,
            back_off: BACK_OFF,
        });
        Self {
            limits: PoolLimits { ram, incoming: WINDOW, lease: LEASE, disk },
            folder: both.map(|(folder, _)| folder),
            holder: format!("node {node}"),
            create: Create::default(),
        }
    }
}

/// What a pool's door takes.
#[derive(Debug, ractor_cluster::RactorMessage)]
pub enum PoolMsg {
    /// Keep these pages.
    Put {
        /// Whose they are: its death ends the put.
        owner: WorkerId,
        /// Their names.
        run: Run,
        /// Their contents, one a page of the run, in the canonical layout.
        pages: Vec<PageBuf>,
        /// How it ended, with how many pages of the run are here; or why it did not begin.
        reply: RpcReplyPort<Result<(usize, PutEnd), PutRefusal>>,
    },
    /// The longest run of these pages, from the first, that is here.
    Get {
        /// Who asks: its death ends the read.
        owner: WorkerId,
        /// Whose pages.
        fingerprint: Fingerprint,
        /// Their names, from the start of a prompt.
        pages: Vec<PageHash>,
        /// Where to.
        reply: RpcReplyPort<Vec<PageBuf>>,
    },
    /// Somebody puts page by page.
    Begin {
        /// Whose they are.
        owner: WorkerId,
        /// Their names.
        run: Run,
        /// Is told.
        sink: PutSink,
        /// Whether it may, and from which page on.
        reply: RpcReplyPort<Result<Begun, PutRefusal>>,
    },
    /// A page has come, its checksum right.
    Page {
        /// Of which put.
        put: PutId,
        /// Its index in the run; in order.
        index: usize,
        /// Its content.
        page: PageBuf,
    },
    /// All has come that will.
    Commit(PutId),
    /// The writer gives up.
    Abort(PutId),
    /// Somebody reads page by page.
    LookUp {
        /// Who.
        owner: WorkerId,
        /// Whose pages.
        fingerprint: Fingerprint,
        /// Their names, from the start of a prompt.
        pages: Vec<PageHash>,
        /// The first one that is wanted.
        from: usize,
        /// Is told.
        sink: ReadSink,
        /// What is here; it stays until the reader is released.
        reply: RpcReplyPort<Hit>,
    },
    /// The reader takes so many pages more.
    Grant {
        /// Which.
        reader: ReaderId,
        /// How many.
        pages: usize,
    },
    /// The reader needs nothing more.
    Release(ReaderId),
    /// From a gateway or a controller, here or elsewhere.
    Wire(ToPool),
    /// This node was cut off from all others, who have given it up: it goes on as a new one.
    Renew,
    /// A node is gone, or lives another life.
    OwnerLost(WorkerId),
    /// Somebody wants to know what is here, instead of who did before.
    Listen(NewsSink),
    /// Take nothing new and write to disk what is in RAM only.
    Close,
    /// Whether that is done.
    IsFlushed(RpcReplyPort<bool>),
    /// Asks for figures.
    Observe(RpcReplyPort<PoolStats>),
    /// The disk has done something.
    Disk(Report),
    /// Time has passed.
    Tick,
}

impl Actor for Pool {
    type Msg = PoolMsg;
    type State = PoolState;
    type Arguments = PoolArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<PoolMsg>,
        args: PoolArgs,
    ) -> Result<PoolState, ActorProcessingErr> {
        let mut state = PoolState::new(args.limits);
        if let Some(folder) = args.folder {
            let shown = folder.display().to_string();
            let report = move |report| {
                // After the pool's end nobody wants to know.
                let _ = myself.cast(PoolMsg::Disk(report));
            };
            let (disk, found) = DiskThread::start(folder, args.holder, args.create, report).await?;
            state.disk = Some(disk);
            let files = found.len();
            state.does(|store, fx| store.restart(clock::now(), found, fx));
            let stats = state.store.stats();
            info!(folder = %shown, files, pages = stats.pages, bytes = stats.disk.bytes, "the pool's pages on disk are found");
        }
        state.tell_changes();
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<PoolMsg>,
        message: PoolMsg,
        state: &mut PoolState,
    ) -> Result<(), ActorProcessingErr> {
        if let PoolMsg::Disk(Report::Ended) = message {
            return Err("the thread for pool.disk has ended".into());
        }
        state.take(message);
        state.tell_changes();
        state.schedule(&myself);
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<PoolMsg>, state: &mut PoolState) -> Result<(), ActorProcessingErr> {
        if let Some(disk) = state.disk.take() {
            // It waits for the thread.
            tokio::task::spawn_blocking(move || drop(disk)).await?;
        }
        Ok(())
    }
}

impl PoolState {
    fn take(&mut self, message: PoolMsg) {
        let now = clock::now();
        match message {
            PoolMsg::Put { owner, run, pages, reply } => match self.store.begin(now, &owner, run) {
                Ok(Begun { put, first }) => {
                    self.writers.insert(put, Writer::Waits(reply));
                    for (index, page) in pages.into_iter().enumerate().skip(first) {
                        self.arrived(now, put, index, page);
                    }
                    self.commit(put);
                }
                Err(refusal) => {
                    // Whoever asked may have given up.
                    let _ = reply.send(Err(refusal));
                }
            },
            PoolMsg::Get { owner, fingerprint, pages, reply } => {
                let hit = self.store.look_up(now, &owner, &fingerprint, &pages, 0);
                self.reads(now, hit, 0, reply);
            }
            PoolMsg::Begin { owner, run, sink, reply } => {
                let begun = self.store.begin(now, &owner, run);
                if let Ok(begun) = begun {
                    self.writers.insert(begun.put, Writer::Told(sink));
                }
                if let (Err(_), Ok(begun)) = (reply.send(begun), begun) {
                    self.does(|store, fx| store.abort(now, begun.put, fx));
                }
            }
            PoolMsg::Page { put, index, page } => self.arrived(now, put, index, page),
            PoolMsg::Commit(put) => self.commit(put),
            PoolMsg::Abort(put) => self.does(|store, fx| store.abort(now, put, fx)),
            PoolMsg::LookUp { owner, fingerprint, pages, from, sink, reply } => {
                let hit = self.store.look_up(now, &owner, &fingerprint, &pages, from);
                if let Some(reader) = hit.reader {
                    self.readers.insert(reader, Reader::Told(sink));
                }
                if let (Err(_), Some(reader)) = (reply.send(hit), hit.reader) {
                    self.release(reader);
                }
            }
            PoolMsg::Grant { reader, pages } => self.does(|store, fx| store.grant(now, reader, pages, fx)),
            PoolMsg::Release(reader) => self.release(reader),
            PoolMsg::Wire(_) | PoolMsg::Renew => {}
            PoolMsg::OwnerLost(owner) => self.does(|store, fx| store.owner_lost(now, &owner, fx)),
            PoolMsg::Listen(sink) => self.announce(sink),
            PoolMsg::Close => self.does(|store, fx| store.close(now, fx)),
            PoolMsg::IsFlushed(reply) => {
                let _ = reply.send(self.store.is_flushed(now));
            }
            PoolMsg::Observe(reply) => {
                let _ = reply.send(self.store.stats());
            }
            PoolMsg::Disk(report) => self.reported(now, report),
            PoolMsg::Tick => {
                self.timer = None;
                self.does(|store, fx| store.tick(now, fx));
            }
        }
    }

    fn commit(&mut self, put: PutId) {
        // One that has ended with its last page is nothing to the core.
        if self.writers.contains_key(&put) {
            let now = clock::now();
            self.does(|store, fx| store.commit(now, put, fx));
        }
    }

    fn release(&mut self, reader: ReaderId) {
        self.readers.remove(&reader);
        let now = clock::now();
        self.does(|store, fx| store.release(now, reader, fx));
    }

    /// Has the core called when it wants to be.
    fn schedule(&mut self, myself: &ActorRef<PoolMsg>) {
        let Some(due) = self.store.next_deadline() else { return };
        if self.timer.as_ref().is_some_and(|(at, _)| *at <= due) {
            return;
        }
        let timer = myself.send_after(due.since(clock::now()).to_duration(), || PoolMsg::Tick);
        if let Some((_, former)) = self.timer.replace((due, timer.abort_handle())) {
            former.abort();
        }
    }
}
