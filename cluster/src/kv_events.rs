//! KV events for other routers: which pages can be found at a worker, told over ZeroMQ in the shape of vLLM's events, so
//! that routers made for vLLM or SGLang can place by them.
//!
//! # On the wire
//! A PUB socket sends `[topic, number, payload]`: the number is 8 bytes, big-endian, from 0 on in every life of the process; the
//! payload is MessagePack ([`encode()`]). A ROUTER socket takes `[number]` after an empty frame (as REQ sends it) and
//! answers with one `[number, payload]` a batch from there on, and at last `[-1, ""]`.
//!
//! # Never silently wrong
//! A *whole* batch begins with `AllBlocksCleared` and goes on with everything that is cached, so that it can be applied
//! to any state, also to a wrong one. Whole batches are published
//! - as the first of a worker's life, and whenever its engine is lost or loaded again;
//! - after batches had to be dropped because too many waited;
//! - a moment after a subscriber has connected, for those that cannot ask for a replay;
//! - when a replay is asked for that the kept batches do not reach back to.
//!
//! What came before a whole batch is of no use any more and is forgotten, also for replay. A subscriber that sees a
//! number other than the next one asks for a replay from the next one on, or waits for a whole batch.
//!
//! [`Feed`] is the scheduler's end and never blocks; [`Publisher`] owns the sockets and runs as a task.

use std::io;

mod encode;
mod feed;
mod publisher;
mod replay;

pub use encode::{block_hash, encode};
pub use feed::{Feed, Figures};
pub use publisher::Publisher;

/// A socket that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "{key} = \"{endpoint}\" cannot be bound: {source}; use an address of this machine and a port that is free (0: any)"
)]
pub struct BindError {
    /// The key of the configuration.
    pub key: &'static str,
    /// Its value.
    pub endpoint: String,
    /// What the system said.
    pub source: io::Error,
}

#[cfg(test)]
mod tests;
