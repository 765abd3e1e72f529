//! What a node says about itself beyond its membership.

use config::ids::ModelId;
use policies::batch::BatchLoad;
use policies::membership::{Member, Peer};
use policies::placement::{PoolInfo, WorkerInfo};

/// A node's heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Beat {
    /// The node.
    pub member: Member,
    /// Its worker, where it has one that serves.
    pub worker: Option<WorkerAd>,
    /// Its pool, where it has one that takes pages.
    pub pool: Option<PoolAd>,
    /// The nodes that it is linked to.
    pub peers: Vec<Peer>,
    /// Client sessions that live on it.
    pub sessions: u32,
}

/// What a worker offers, and how busy it is.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerAd {
    /// What the controller places by.
    pub info: WorkerInfo,
    /// It takes no new requests.
    pub draining: bool,
    /// Its figures when the beat was written.
    pub load: BatchLoad,
    /// The models it serves.
    pub models: Vec<ModelAd>,
}

/// A pool, and how full it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolAd {
    /// What the controller places by.
    pub info: PoolInfo,
    /// Its figures when they were told last.
    pub load: PoolLoad,
}

/// How full a pool is; sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLoad {
    /// Pages that can be found.
    pub pages: u64,
    /// In RAM.
    pub ram: u64,
    /// What may be there.
    pub ram_capacity: u64,
    /// On disk.
    pub disk: u64,
    /// What may be there; 0: it has no disk.
    pub disk_capacity: u64,
}

/// A model of a worker, by its descriptor: what a gateway needs to speak to the model (tokenizer, chat template, limits),
/// fetched once in parts with [`ToWorker::DescribeModel`](super::ToWorker::DescribeModel).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelAd {
    /// The name that clients use.
    pub name: ModelId,
    /// BLAKE3 hash of the descriptor's bytes.
    pub descriptor: [u8; 32],
    /// The descriptor's length in bytes.
    pub bytes: u64,
}
