//! What happens to pools. In boxes, since there are few: the events that there are many of are not to be larger for them.

use config::ids::WorkerId;
use policies::kv::PageHash;
use policies::kv::events::KvEvent;
use policies::placement::PoolInfo;
use policies::request::RequestSpec;

use super::{Event, KvMail};
use crate::network::{Addr, index_of};

/// Something that happens to a pool.
#[derive(Clone, Debug)]
pub enum PoolEvent {
    /// It starts.
    Start(u32),
    /// A message reaches its node; it may have ended since that was sent.
    Message(WorkerId, PoolMsg),
    /// It asked to be called.
    Timer(WorkerId),
    /// Its disk has done what it was at.
    DiskDone(WorkerId),
}

/// Messages to a pool.
#[derive(Clone, Debug)]
pub enum PoolMsg {
    /// Keep the pages of this prompt, which that worker has computed.
    Store(WorkerId, Box<RequestSpec>),
    /// Tell the controller all pages.
    Resync,
    /// From the other end of a transfer of pages.
    Kv(Box<KvMail>),
    /// The link to a worker is gone.
    PeerLost(WorkerId),
}

/// What the controller is told of pools.
#[derive(Clone, Debug)]
pub enum PoolNews {
    /// A pool is ready.
    Joined(PoolInfo),
    /// A pool was seen to be gone.
    Left(WorkerId),
    /// What has changed of a pool's pages: message number, changes.
    Events(WorkerId, u64, Vec<KvEvent>),
    /// All pages of a pool, after the message of this number.
    Snapshot(WorkerId, u64, Vec<PageHash>),
}

impl PoolEvent {
    /// As [`Event::class`].
    #[must_use]
    pub const fn class(&self) -> u8 {
        match self {
            Self::Start(_) => 0,
            Self::Message(..) => Event::MESSAGE,
            Self::DiskDone(_) => 2,
            Self::Timer(_) => 4,
        }
    }

    /// The pool at which it happens; none for what happens to it from outside.
    #[must_use]
    pub fn place(&self) -> Option<Addr> {
        match self {
            Self::Start(_) => None,
            Self::Message(id, _) | Self::Timer(id) | Self::DiskDone(id) => Some(Addr::Pool(index_of(id))),
        }
    }
}
