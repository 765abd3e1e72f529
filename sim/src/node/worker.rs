//! A worker: [`policies::batch`] over the fake engine's pages, a step at a time.
//!
//! What comes in is in `messages`, and `kv` where it is about pages of other workers. `driver` has the core say what there
//! is to do, and the `engine` do it. Transfers of pages have drivers of their own, `send` and `receive`, for each end.

use std::sync::Arc;

use config::ids::WorkerId;
use policies::batch::{Batch, BatchConfig};
use policies::cost::fake::FakeModel;
use policies::cost::{CostModel, Speed};
use policies::kv::PageLayout;
use policies::kv::handoff::HandoffConfig;
use policies::placement::WorkerInfo;

use crate::pages::page_hash;
use crate::watch::{Checks, Watch};

mod beats;
mod books;
mod directory;
mod drain;
mod driver;
mod engine;
mod fetches;
mod kv;
mod messages;
mod names;
mod offloads;
mod orderer;
mod receive;
mod requests;
mod roles;
mod send;
mod transfers;

pub use beats::{Beats, WorkerAd};
pub use offloads::Offloaded;
pub use orderer::Orders;
pub use transfers::Handoffs;

use beats::Heart;
use engine::Engine;
use fetches::Fetches;
use offloads::Offloads;
use orderer::Orderer;
use transfers::Transfers;

/// What a worker is started with.
#[derive(Clone, Debug)]
pub struct WorkerArgs {
    /// What it tells the controller.
    pub info: WorkerInfo,
    /// Limits of its scheduler.
    pub batch: BatchConfig,
    /// What it computes.
    pub model: FakeModel,
    /// How long that takes.
    pub cost: CostModel,
    /// How fast its machine is when; always as fast as that says where this is none.
    pub speed: Option<Arc<Speed>>,
    /// Shape of its pages.
    pub layout: PageLayout,
    /// Limits of its transfers.
    pub handoff: HandoffConfig,
    /// Who runs next, what is kept, and what others compute.
    pub orders: Orders,
    /// What it tells other workers of itself.
    pub beats: Beats,
}

/// One life of a simulated worker.
#[derive(Debug)]
pub struct Worker {
    info: WorkerInfo,
    core: Batch,
    engine: Engine,
    /// Messages about pages so far.
    kv_messages: u64,
    transfers: Transfers,
    orderer: Orderer,
    offloads: Offloads,
    fetches: Fetches,
    heart: Heart,
    /// It takes nothing new; and whether it has said that nothing is left.
    draining: Option<bool>,
    watch: Watch,
    /// Names that it had before, in this life of its process.
    former: Vec<WorkerId>,
}

impl Worker {
    /// A worker with nothing in its pages.
    #[must_use]
    pub fn new(args: WorkerArgs) -> Self {
        let WorkerArgs { info, batch, model, cost, speed, layout, handoff, orders, beats } = args;
        let (budget, link) = (batch.max_batch_tokens, info.hardware.figures.link);
        let engine = Engine::new(model, (cost, speed), &batch);
        let mut core = Batch::with_hasher(batch, page_hash);
        Self {
            info,
            orderer: Orderer::new(&orders, &mut core),
            core,
            engine,
            kv_messages: 0,
            transfers: Transfers::new(handoff, layout, budget, link),
            offloads: Offloads::new(orders.offloading(budget)),
            fetches: Fetches::default(),
            heart: Heart::new(beats),
            draining: None,
            watch: Watch::default(),
            former: Vec::new(),
        }
    }

    /// From now on it is checked so often.
    #[must_use]
    pub fn checked(mut self, checks: Checks) -> Self {
        self.watch = Watch::new(checks);
        self
    }
}

#[cfg(test)]
mod tests;
