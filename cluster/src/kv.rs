//! KV links: connections of their own between workers, and between workers and pools, over which the pages of a prompt travel.
//!
//! Control never waits behind bulk: a transfer of hundreds of megabytes has its own connection, that two workers open when
//! the first transfer between them begins. Both ends prove that they know the cluster's cookie ([`proof`]) before either
//! says anything else; TLS is the cluster's.
//!
//! | part | what |
//! |---|---|
//! | [`KvHeader`] | what a message says, as rkyv archives that are checked once and read where they lie |
//! | [`page`] | buffers of pages: filled once, shared by reference, recycled |
//! | [`link`] | [`KvLink`]: what carries messages, in two halves |
//! | `shape` | what pages on a link look like: settled at both ends, or, at a pool, by the first question |
//! | [`tcp`], [`local`] | its two carriers: a connection; two ends in one process, where a page changes hands |
//! | [`queue`] | many senders before one half, bounded |
//! | [`proof`], [`listen`], [`dial()`] | how a connection becomes a link |
//!
//! On a connection a message is
//!
//! ```text
//! prefix (32 bytes) | header (rkyv archive) | body of the first page | body of the second | ...
//! ```
//!
//! and everything in it is little-endian. Bodies are written from the sender's buffers with vectored writes and read into
//! the receiver's buffers; no user-space copy is made in between. The prefix carries a checksum of itself and the header,
//! the header one of each page. Whatever is malformed, over a limit or of another layout ends the link with an error that
//! names the field.
//!
//! Who may send how many pages is decided by the cores at both ends (credits); a link itself holds back the sender when
//! the receiver does not read, and stores nothing.

pub mod dial;
pub mod error;
mod frame;
mod header;
pub mod link;
pub mod listen;
pub mod local;
pub mod page;
pub mod proof;
pub mod queue;
mod shape;
pub mod tcp;

pub use crate::wire::handoff::{decode_drawn, decode_spec, encode_drawn, encode_spec};
pub use dial::{KvDialError, dial};
pub use error::KvError;
pub use frame::{KV_VERSION, MAX_BODY_BYTES, MAX_HEADER_BYTES, MAX_PAGES, MAX_SPEC_BYTES, max_pages};
pub use header::{ArchivedKvHeader, CheckedHeader, Kind, KvHeader, RefusalCode, WireLayout, WirePrefix};
pub use link::{Closer, Inbound, KvLink, KvRecv, KvSend, Outbound};
pub use listen::{KvEvent, KvListenError, KvListener};
pub use local::LocalLink;
pub use page::{PageBuf, PageFill, PagePool};
pub use proof::{KvPeer, KvTerms};
pub use queue::{KvQueue, QueueError};
pub use tcp::TcpLink;

#[cfg(test)]
mod tests;
