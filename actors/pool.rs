//! Pool role: keeps KV pages in RAM and on disk for workers to share. It loads no model and looks into no page; what it keeps,
//! and for whom, [`policies::pool`] decides.
//!
//! ```text
//!   Pool ─┬─ KvPort            links of workers of any model, and to them
//!         ├─ page set × n      one for each prompt that a worker gets, or that is fetched from one ([`transfers`])
//!         └─ thread of files   ([`thread`]); it ends with the pool
//! ```
//!
//! Nobody waits for the disk inside the actor.

use std::path::PathBuf;
use std::sync::Arc;

use cluster::kv::PageBuf;
use cluster::wire::ToPool;
use config::Config;
use config::ids::WorkerId;
use policies::cost::HardwareProfile;
use policies::kv::handoff::HandoffConfig;
use policies::kv::{Fingerprint, PageHash};
use policies::pool::{Begun, DiskLimits, PoolLimits, PoolStats, PutEnd, PutId, PutRefusal, ReaderId, Run};
use policies::time::Span;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tracing::info;

use crate::clock;
use crate::doors::Doors;
use crate::kv::KvEntry;
use crate::worker::pages::KvMsg;

pub mod disk;
pub mod thread;

mod figures;
mod news;
mod offer;
mod pages;
mod transfers;

use disk::Create;
use news::News;
use offer::Offer;
use pages::Writer;
use thread::{DiskThread, Report};
use transfers::Transfers;

pub use pages::PoolState;
pub use transfers::{PoolSide, Wish};

#[cfg(test)]
mod tests;

const MIB: u64 = 1 << 20;
/// Bytes that are written at a time, and that may wait for room meanwhile: a disk of 1 GB/s has work for 64 ms.
const WINDOW: u64 = 64 * MIB;
/// The disk is left alone for so long when it is full: long against what a page takes, short against what an operator needs.
const BACK_OFF: Span = Span::from_secs(10);

/// The pool of a node.
#[derive(Debug)]
pub struct Pool;

/// What a pool is started with.
#[derive(Clone, Debug)]
pub struct PoolArgs {
    /// The pool in this life.
    pub id: WorkerId,
    /// The node's doors.
    pub doors: Doors,
    /// Its part of the cluster's KV links; none for a node alone.
    pub side: Option<PoolSide>,
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
    /// As configured, for the pool `id`, reached at `entry`.
    #[must_use]
    pub fn of(config: &Config, id: WorkerId, doors: Doors, entry: Option<Arc<KvEntry>>) -> Self {
        let pool = &config.pool;
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
        let limits = HandoffConfig::from(&config.policy.disaggregate);
        // A transfer ends by its own limits; this one is behind them.
        let lease = Span(limits.lease.0.saturating_mul(2));
        Self {
            holder: format!("node {}", id.node),
            id,
            doors,
            side: entry.map(|entry| PoolSide {
                entry,
                limits,
                hardware: HardwareProfile::from(&config.cluster.hardware),
            }),
            limits: PoolLimits { ram, incoming: WINDOW, lease, disk },
            folder: both.map(|(folder, _)| folder),
            create: Create::default(),
        }
    }
}

/// What a pool takes.
#[derive(Debug, ractor_cluster::RactorMessage)]
pub enum PoolMsg {
    /// From a page set.
    Kv {
        /// Which.
        set: ActorId,
        /// What it wants.
        message: Box<KvMsg>,
    },
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
    /// From a gateway or a controller, here or elsewhere.
    Wire(ToPool),
    /// Keep pages that a worker holds.
    Store(Box<Wish>),
    /// This node was cut off from all others, who have given it up: it goes on as a new one.
    Renew,
    /// Say to the membership what this pool is, and how full.
    Announce,
    /// A node is gone, or lives another life.
    OwnerLost(WorkerId),
    /// Take nothing new and write to disk what is in RAM only.
    Close,
    /// Whether that is done.
    IsFlushed(RpcReplyPort<bool>),
    /// Asks for figures.
    Observe(RpcReplyPort<PoolStats>),
    /// The disk has done something.
    Disk(Report),
    /// Start the KV port again that has failed.
    RestartPort,
    /// Time has passed.
    Tick,
    /// How many page sets give pages, how many fetch some, and how many wishes wait?
    #[cfg(test)]
    Transfers(RpcReplyPort<[usize; 3]>),
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
        args.doors.set_pool(args.id.node.clone(), myself.clone());
        let news = News::new(args.doors.clone(), args.id.clone());
        let offer = Offer::new(args.doors, args.id.clone(), args.side.as_ref());
        let mut state = PoolState::new(args.limits, news, offer, Transfers::new(args.id, args.side));
        let pool = myself.clone();
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
        state.transfers.start_port(args.limits.ram, &pool).await?;
        state.tell_changes();
        state.offer.announce(&state.store.stats());
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
        match message {
            PoolMsg::RestartPort => state.restart_port(&myself).await,
            message => state.take(message),
        }
        state.start_taking(&myself).await;
        state.tell_changes();
        state.offer.changed(&state.store.stats(), &myself);
        state.schedule(&myself);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<PoolMsg>,
        event: SupervisionEvent,
        state: &mut PoolState,
    ) -> Result<(), ActorProcessingErr> {
        let (who, why) = match event {
            SupervisionEvent::ActorFailed(who, why) => (who.get_id(), why.to_string()),
            SupervisionEvent::ActorTerminated(who, _, why) => (who.get_id(), why.unwrap_or_default()),
            _ => return Ok(()),
        };
        if !state.transfers.port_lost(who, &why, &myself) {
            // A page set. What it has said before it ended comes first.
            let message = Box::new(KvMsg::SetGone(who));
            let _ = myself.cast(PoolMsg::Kv { set: who, message });
        }
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
            PoolMsg::Wire(ToPool::Store { from, spec, .. }) => {
                if let Some(wish) = self.offer.wish(from, spec) {
                    self.transfers.wish(wish);
                }
            }
            PoolMsg::Wire(ToPool::KvResync { controller }) => self.resync(&controller),
            PoolMsg::Store(wish) => self.transfers.wish(*wish),
            PoolMsg::Renew => self.renew(),
            PoolMsg::Announce => self.offer.announce(&self.store.stats()),
            PoolMsg::Kv { set, message } => self.kv(set, *message),
            PoolMsg::OwnerLost(owner) => {
                self.transfers.forget(&owner);
                self.does(|store, fx| store.owner_lost(now, &owner, fx));
            }
            PoolMsg::Close => {
                self.offer.close();
                self.does(|store, fx| store.close(now, fx));
            }
            PoolMsg::IsFlushed(reply) => {
                let _ = reply.send(self.store.is_flushed(now));
            }
            PoolMsg::Observe(reply) => {
                let _ = reply.send(self.store.stats());
            }
            PoolMsg::Disk(report) => self.reported(now, report),
            // It takes a supervisor's hand.
            PoolMsg::RestartPort => {}
            PoolMsg::Tick => {
                self.timer = None;
                self.does(|store, fx| store.tick(now, fx));
            }
            #[cfg(test)]
            PoolMsg::Transfers(reply) => {
                let _ = reply.send(self.transfers.figures());
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
