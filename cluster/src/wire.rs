//! The messages between nodes, as bytes.

pub(crate) mod codec;
mod error;

pub use codec::MAX_BYTES;
pub use error::WireError;
