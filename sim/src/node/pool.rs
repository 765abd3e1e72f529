//! A pool: [`policies::pool`] over a RAM and a disk that hold what the fake engine keeps in pages.
//!
//! What comes in is in `messages`, and `mail` where it is about transfers; `effects` carries out what the store wants. Each
//! end of a transfer drives a hand-off core: `take` where pages come to be kept, `give` where a worker fetches them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use config::ids::{Attempt, RequestId, WorkerId};
use policies::kv::PageLayout;
use policies::kv::handoff::HandoffConfig;
use policies::placement::PoolInfo;
use policies::pool::pace::Pace;
use policies::pool::{PageKey, PoolEffect, PoolLimits, PutId, ReaderId, Store};
use policies::time::Time;

use crate::watch::{Checks, Watch};

mod books;
mod disk;
mod effects;
mod give;
mod mail;
mod messages;
mod side;
mod take;
mod tell;

pub use books::{PoolTally, Shelves};
pub use disk::{Disk, DiskSpeed};

use give::Giving;
use side::Side;
use take::Taking;

/// The name of a transfer.
type Id = (RequestId, Attempt);

/// What the fake engine keeps in a page.
type Page = Arc<[u64]>;

/// What a pool is started with.
#[derive(Clone, Debug)]
pub struct PoolArgs {
    /// What it tells the controller.
    pub info: PoolInfo,
    /// How much it keeps.
    pub limits: PoolLimits,
    /// Shape of its pages.
    pub layout: PageLayout,
    /// Limits of its transfers.
    pub handoff: HandoffConfig,
    /// How fast its disk is.
    pub speed: DiskSpeed,
}

/// One life of a simulated pool.
#[derive(Debug)]
pub struct Pool {
    info: PoolInfo,
    /// Names that it had before, in this life of its process.
    former: Vec<WorkerId>,
    layout: PageLayout,
    limits: HandoffConfig,
    store: Store,
    /// What the store wants done, in order.
    work: VecDeque<PoolEffect>,
    ram: BTreeMap<PageKey, Page>,
    /// What the disk has just read.
    read: Option<(PageKey, Page)>,
    disk: Disk,
    takes: BTreeMap<Id, Taking>,
    gives: BTreeMap<Id, Giving>,
    puts: BTreeMap<PutId, Id>,
    readers: BTreeMap<ReaderId, Id>,
    /// Transfers that it has asked for.
    last: u64,
    /// Messages about pages so far.
    messages: u64,
    /// How fast it gives, what its link carries, and when the controller was told.
    pace: (Pace, u64, Time),
    /// When it is called.
    timer: Option<Time>,
    tally: PoolTally,
    watch: Watch,
}

impl Pool {
    /// A pool that starts with what is on its disk.
    #[must_use]
    pub fn start(now: Time, args: PoolArgs, disk: Disk) -> Self {
        let PoolArgs { info, limits, layout, handoff, speed: _ } = args;
        let mut store = Store::new(limits);
        let mut work = Vec::new();
        store.restart(now, disk.found(), &mut work);
        Self {
            pace: (Pace::default(), info.hardware.figures.link, now),
            info,
            former: Vec::new(),
            layout,
            limits: handoff,
            store,
            work: work.into(),
            ram: BTreeMap::new(),
            read: None,
            disk,
            takes: BTreeMap::new(),
            gives: BTreeMap::new(),
            puts: BTreeMap::new(),
            readers: BTreeMap::new(),
            last: 0,
            messages: 0,
            timer: None,
            tally: PoolTally::default(),
            watch: Watch::default(),
        }
    }

    /// From now on it is checked so often.
    #[must_use]
    pub fn checked(mut self, checks: Checks) -> Self {
        self.watch = Watch::new(checks);
        self
    }
}
