//! One node's view of its cluster: who is linked, who is lost, whom to dial.
//!
//! Every node links to every other one. It learns addresses from its seeds and from what its peers gossip, and it
//! believes only its own links: nobody is declared lost because somebody else says so, and nothing is missed while a
//! link is down, for each beat carries everything that its sender knows. A node is a name and an *incarnation*, a number
//! that grows with each start: [`MembershipEffect::Up`] and [`MembershipEffect::Down`] alternate for each pair of them.
//!
//! The driver owns the sockets. It dials and closes when told so, asks [`Membership::judge`] during a handshake, reports
//! what came of it, and sends [`Membership::me`] with [`Membership::peers`] over **all** of [`Membership::links`] each
//! heartbeat: the silence of each link is watched for itself.
//!
//! Nothing here elects a leader by votes. [`Membership::leader`] names the oldest controller in view; two halves of a
//! cut cluster have one each, which costs balance and not correctness, because workers accept work from both.

use config::RoleSet;
use config::ids::NodeId;

use crate::time::{Span, Time};

/// Times of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipConfig {
    /// A beat is sent over each link this often.
    pub heartbeat: Span,
    /// A member is lost after this long without a beat, at the latest; the limit that the core works to is 0.9 of it.
    pub suspect_after: Span,
    /// A lost member is dialled and shown for this long.
    pub forget_after: Span,
    /// Wait after the first failure to reach an address, ± 20 %. It doubles with each further one.
    pub dial_first: Span,
    /// Longest wait between two tries, ± 20 %.
    pub dial_longest: Span,
    /// Seed of the jitter.
    pub seed: u64,
}

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

/// Answer to a node whose handshake is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let it in.
    Accept,
    /// There is a working link to it.
    AlreadyLinked,
    /// It is this process.
    Itself,
    /// Another process of that name is alive.
    NameInUse {
        /// Where that one is.
        address: String,
    },
    /// Another process of that name is linked and may be dead: ask again then, in the same handshake.
    Wait {
        /// When.
        until: Time,
    },
}

/// Why a link could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialError {
    /// Nobody answers there, or nobody of ours. May change.
    Unreachable(String),
    /// Turned away for a reason that may pass.
    Refused(String),
    /// Turned away for good: wrong cookie, name in use, wire version, page layout.
    Final(String),
    /// It is this member, and there is a link to it.
    AlreadyLinked(NodeId),
    /// It is this process.
    Itself,
}

/// Why a member was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Its last connection ended.
    Closed,
    /// No beat for too long.
    Silent,
    /// A newer life of it took its place.
    Replaced,
    /// It left on purpose.
    Goodbye,
}

impl Loss {
    /// Name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Silent => "silent",
            Self::Replaced => "replaced",
            Self::Goodbye => "goodbye",
        }
    }
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipEffect {
    /// Make a connection; report [`Membership::linked`] with this address, or [`Membership::dial_failed`].
    Dial {
        /// `HOST:PORT`.
        address: String,
    },
    /// End a connection. The core knows it no more; reporting [`Membership::unlinked`] is harmless.
    Close {
        /// Which.
        link: LinkId,
        /// For the log.
        why: &'static str,
    },
    /// This life of a node is reachable now.
    Up(Member),
    /// What a member says of itself changed, or a suspect one is given up (`Left`). Not sent along with `Up` or `Down`.
    Changed {
        /// As it is now.
        member: Member,
        /// As it is now.
        state: MemberState,
    },
    /// No link to this life of a node any more: whatever it did for us is lost.
    Down {
        /// Its name.
        id: NodeId,
        /// Its life.
        incarnation: u64,
        /// Why.
        why: Loss,
    },
    /// The last link is gone: the node is alone. It should take a new incarnation ([`Membership::set_me`]) before it joins
    /// again, for the others have given up what it did for them.
    Isolated,
    /// Cannot join: the driver ends the process with this reason. Sent at most once, and only before the first link ever.
    Fatal(String),
    /// Send beats at once instead of at the next heartbeat.
    BeatNow,
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

type Fx = Vec<MembershipEffect>;

/// The membership's state machine.
#[derive(Debug)]
pub struct Membership {
    me: Member,
}

#[expect(
    missing_docs,
    unused_variables,
    clippy::needless_pass_by_value,
    reason = "signatures first, bodies follow"
)]
impl Membership {
    #[must_use]
    pub fn new(config: MembershipConfig, me: Member, seeds: Vec<String>) -> Self {
        Self { me }
    }
    pub fn start(&mut self, now: Time, fx: &mut Fx) {}
    #[must_use]
    pub fn me(&self) -> &Member {
        &self.me
    }
    pub fn set_me(&mut self, now: Time, me: Member, fx: &mut Fx) {
        self.me = me;
    }
    pub fn judge(&mut self, now: Time, newcomer: &Member) -> Verdict {
        Verdict::Accept
    }
    pub fn linked(&mut self, now: Time, link: LinkId, member: Member, outbound: Option<&str>, fx: &mut Fx) {}
    pub fn unlinked(&mut self, now: Time, link: LinkId, fx: &mut Fx) {}
    pub fn beat(&mut self, now: Time, link: LinkId, member: Member, peers: &[Peer], fx: &mut Fx) {}
    pub fn goodbye(&mut self, now: Time, link: LinkId, fx: &mut Fx) {}
    /// True where this is news (worth a log line): another error than the last one of this address.
    pub fn dial_failed(&mut self, now: Time, address: &str, error: DialError, fx: &mut Fx) -> bool {
        true
    }
    pub fn tick(&mut self, now: Time, fx: &mut Fx) {}
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        None
    }
    /// This node first, then the others by name.
    #[must_use]
    pub fn members(&self) -> Vec<MemberView> {
        Vec::new()
    }
    /// Linked members, to gossip.
    #[must_use]
    pub fn peers(&self) -> Vec<Peer> {
        Vec::new()
    }
    /// Every live link (beats go over all of them) with its member's name and incarnation.
    #[must_use]
    pub fn links(&self) -> Vec<(LinkId, NodeId, u64)> {
        Vec::new()
    }
    /// The link to use for a member.
    #[must_use]
    pub fn link_of(&self, id: &NodeId) -> Option<LinkId> {
        None
    }
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        None
    }
    #[must_use]
    pub fn is_joined(&self) -> bool {
        false
    }
    #[must_use]
    pub fn was_joined(&self) -> bool {
        false
    }
    pub fn check(&self) -> Result<(), crate::invariant::Broken> {
        Ok(())
    }
}
