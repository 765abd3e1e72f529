//! The messages between nodes, as bytes.
//!
//! What travels is made of the types that the cores decide with. Those know nothing of bytes: how each is written is said
//! here (`form`), field by field, so that a change of a core type that would change the wire does not compile until
//! somebody has looked at it. [`seal`] and [`open`] are the whole interface.

pub mod ad;
pub(crate) mod codec;
mod envelope;
mod error;
mod form;
pub(crate) mod handoff;
mod message;
pub mod version;

pub use ad::{Beat, ModelAd, PoolAd, PoolLoad, WorkerAd};
pub use codec::MAX_BYTES;
pub use envelope::{Envelope, TraceContext, open, seal};
pub use error::WireError;
pub use message::{Door, KV_SNAPSHOT_PAGES, Message, ToController, ToGateway, ToNode, ToPool, ToWorker};
pub use version::{MIN_WIRE_VERSION, WIRE_VERSION, agree};

#[cfg(test)]
mod tests;
