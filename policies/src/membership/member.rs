//! Who a node is, and how it stands.

use config::RoleSet;
use config::ids::NodeId;

use crate::time::Time;

/// What a node says about itself, in the handshake and in each beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub id: NodeId,
    /// This life of it; grows with each start.
    pub incarnation: u64,
    /// `HOST:PORT` where others can dial it.
    pub address: String,
    /// What it does.
    pub roles: RoleSet,
    /// It serves: its model is loaded and the like.
    pub ready: bool,
    /// It takes nothing new and will leave.
    pub draining: bool,
    /// `HOST:PORT` of its HTTP listener, where it has one.
    pub http: Option<String>,
}

impl Member {
    /// Name, incarnation and address: what is gossiped.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer { id: self.id.clone(), incarnation: self.incarnation, address: self.address.clone() }
    }
}

/// Gossip: a node that the sender of a beat has a link to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub id: NodeId,
    /// Its life.
    pub incarnation: u64,
    /// `HOST:PORT` where it can be dialled.
    pub address: String,
}

/// One connection. The driver numbers them and never uses a number twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// How a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberState {
    /// Linked, and does not serve yet.
    Joined,
    /// Linked and serving.
    Ready,
    /// No link; it is dialled.
    Suspect,
    /// It said goodbye, or was suspect for too long.
    Left,
}

impl MemberState {
    /// Name in status output and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Ready => "ready",
            Self::Suspect => "suspect",
            Self::Left => "left",
        }
    }

    /// There is a link.
    #[must_use]
    pub const fn is_linked(self) -> bool {
        matches!(self, Self::Joined | Self::Ready)
    }
}

/// A member for status output and for routing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// What it said last.
    pub member: Member,
    /// How it stands.
    pub state: MemberState,
    /// It is this node.
    pub itself: bool,
    /// The link to use for it; none for this node and for those that are lost.
    pub link: Option<LinkId>,
    /// When its last beat (or its link) came.
    pub heard: Time,
    /// Since when it is up, or lost.
    pub since: Time,
}
