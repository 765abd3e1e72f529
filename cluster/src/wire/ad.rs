//! What a node says about itself beyond its membership.

use config::ids::ModelId;
use policies::batch::BatchLoad;
use policies::membership::{Member, Peer};
use policies::placement::WorkerInfo;

/// A node's heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Beat {
    /// The node.
    pub member: Member,
    /// Its worker, where it has one that serves.
    pub worker: Option<WorkerAd>,
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
