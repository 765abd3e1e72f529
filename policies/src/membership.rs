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

use std::collections::BTreeMap;

use config::ids::NodeId;

use crate::rng::Rng;
use crate::time::{Span, Time};

mod dial;
mod judge;
mod loss;
mod member;
mod view;

#[cfg(test)]
mod tests;

pub use member::{LinkId, Member, MemberState, MemberView, Peer};

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

/// The membership's state machine.
#[derive(Debug)]
pub struct Membership {
    config: MembershipConfig,
    rng: Rng,
    me: Member,
    /// The others, lost ones included until they are forgotten.
    rows: BTreeMap<NodeId, Row>,
    /// Addresses to dial when there is no link to whom they lead to.
    targets: BTreeMap<String, dial::Target>,
    /// When the last event came, to notice that this process stood still.
    last: Time,
    /// Nobody is lost before, because beats may wait unread.
    grace: Time,
    /// There is a link.
    connected: bool,
    /// There was one.
    was_joined: bool,
    /// Joining was refused for good.
    fatal: bool,
}

/// What is known of one other node.
#[derive(Debug)]
struct Row {
    member: Member,
    /// Live links of this life and when each was heard last.
    links: BTreeMap<LinkId, Time>,
    heard: Time,
    since: Time,
    /// Why there is no link; none while there is one.
    loss: Option<Loss>,
    /// The life that said goodbye.
    goodbye: Option<u64>,
    /// Another life or process asks for this name.
    challenge: Option<judge::Challenge>,
}

impl Row {
    fn new(now: Time, member: Member) -> Self {
        let (links, loss, goodbye, challenge) = (BTreeMap::new(), None, None, None);
        Self { member, links, heard: now, since: now, loss, goodbye, challenge }
    }

    const fn state(&self) -> MemberState {
        match (self.loss, self.member.ready) {
            (None, false) => MemberState::Joined,
            (None, true) => MemberState::Ready,
            (Some(Loss::Goodbye), _) => MemberState::Left,
            (Some(_), _) => MemberState::Suspect,
        }
    }
}

impl Membership {
    /// A node that knows nobody yet; `seeds` are addresses (`HOST:PORT`) where others may be.
    #[must_use]
    pub fn new(config: MembershipConfig, me: Member, seeds: Vec<String>) -> Self {
        let targets = seeds.into_iter().map(|s| (s, dial::Target::seed())).collect();
        Self {
            rng: Rng::new(config.seed),
            config,
            me,
            rows: BTreeMap::new(),
            targets,
            last: Time::ZERO,
            grace: Time::ZERO,
            connected: false,
            was_joined: false,
            fatal: false,
        }
    }

    /// Begins to dial the seeds.
    pub fn start(&mut self, now: Time, fx: &mut Vec<MembershipEffect>) {
        self.last = now;
        self.pump(now, fx);
    }

    /// What this node says of itself.
    #[must_use]
    pub const fn me(&self) -> &Member {
        &self.me
    }

    /// This node changed: readiness, draining, or a new incarnation after [`MembershipEffect::Isolated`]. Its name stays.
    pub fn set_me(&mut self, now: Time, me: Member, fx: &mut Vec<MembershipEffect>) {
        self.enter(now);
        let me = Member { id: self.me.id.clone(), ..me };
        if me == self.me {
            return;
        }
        self.me = me;
        if self.connected {
            fx.push(MembershipEffect::BeatNow);
        }
    }

    /// A handshake succeeded: there is a new link. `outbound` is the address of the `Dial` that it comes from; none for
    /// one that the other end dialled. May come for a node that is linked already (both ends dialled at once): the
    /// driver's transport ends one of the two.
    pub fn linked(
        &mut self,
        now: Time,
        link: LinkId,
        member: Member,
        outbound: Option<&str>,
        fx: &mut Vec<MembershipEffect>,
    ) {
        self.enter(now);
        let itself = member.id == self.me.id;
        if let Some(address) = outbound {
            self.dialled(now, address, &member.id, itself);
        }
        let known = self.rows.get(&member.id).filter(|row| row.loss.is_none());
        let older = known.is_some_and(|row| row.member.incarnation > member.incarnation);
        if itself || older {
            let why = if itself { "it has this node's name" } else { "a newer life of it is linked" };
            fx.push(MembershipEffect::Close { link, why });
        } else {
            match known {
                Some(row) if row.member.incarnation != member.incarnation => {
                    self.lose(now, &member.id, Loss::Replaced, fx);
                }
                // A node dials again only if it has lost the link that we still have: what it did for us is gone too.
                Some(row) if self.is_quiet(now, row) => self.lose(now, &member.id, Loss::Silent, fx),
                _ => {}
            }
            self.add_link(now, link, member, fx);
        }
        self.settle(now, fx);
    }

    /// A link ended. Unknown ones (the core asked to close it) are nothing.
    pub fn unlinked(&mut self, now: Time, link: LinkId, fx: &mut Vec<MembershipEffect>) {
        self.enter(now);
        if let Some(id) = self.drop_link(link) {
            self.lose_if_unlinked(now, &id, fx);
        }
        self.settle(now, fx);
    }

    /// A beat came: who sends it and whom that one is linked to. Beats of unknown links are dropped.
    pub fn beat(
        &mut self,
        now: Time,
        link: LinkId,
        member: Member,
        peers: &[Peer],
        fx: &mut Vec<MembershipEffect>,
    ) {
        self.enter(now);
        if let Some(id) = self.owner(link) {
            if id == member.id {
                self.heard(now, link, member, fx);
            } else {
                self.drop_link(link);
                fx.push(MembershipEffect::Close { link, why: "its beats name another node" });
                self.lose_if_unlinked(now, &id, fx);
            }
            self.hear_of(now, peers);
        }
        self.settle(now, fx);
    }

    /// The other end leaves on purpose: it is not dialled again, except as a seed, where a successor may appear.
    pub fn goodbye(&mut self, now: Time, link: LinkId, fx: &mut Vec<MembershipEffect>) {
        self.enter(now);
        if let Some(id) = self.owner(link) {
            if let Some(row) = self.rows.get_mut(&id) {
                row.goodbye = Some(row.member.incarnation);
            }
            self.lose(now, &id, Loss::Goodbye, fx);
        }
        self.settle(now, fx);
    }

    /// A `Dial` came to nothing. True where that is news, worth a log line: it ends otherwise than the try before.
    pub fn dial_failed(
        &mut self,
        now: Time,
        address: &str,
        error: DialError,
        fx: &mut Vec<MembershipEffect>,
    ) -> bool {
        self.enter(now);
        let news = self.failed(now, address, error, fx);
        self.settle(now, fx);
        news
    }

    /// Declares silent members lost, forgets those lost long ago, and dials.
    pub fn tick(&mut self, now: Time, fx: &mut Vec<MembershipEffect>) {
        self.enter(now);
        self.lose_silent(now, fx);
        self.forget(now, fx);
        self.settle(now, fx);
    }

    /// When [`Membership::tick`] has to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let of_row = |row: &Row| match row.links.values().min() {
            Some(heard) => self.silent_at(*heard),
            None => row.since + self.config.forget_after,
        };
        self.rows.values().map(of_row).chain(self.next_dial()).min()
    }

    /// Every event begins here. One that comes long after it was due, and long after the one before, means that this
    /// process stood still (stopped, swapped out): beats may wait unread, so that nobody's silence counts for a while.
    fn enter(&mut self, now: Time) {
        let gap = now.since(self.last);
        let long = gap.0 > self.config.suspect_after.0 / 2;
        let late = |due| now.since(due).0 > self.config.heartbeat.0 / 4;
        if self.connected
            && (gap > self.config.suspect_after || (long && self.next_deadline().is_some_and(late)))
        {
            self.grace = now + self.two_beats();
            for row in self.rows.values_mut() {
                row.challenge = None;
            }
        }
        self.last = self.last.max(now);
    }

    /// Every event ends here: notices that the node is alone, and dials what is due.
    fn settle(&mut self, now: Time, fx: &mut Vec<MembershipEffect>) {
        let alone = self.rows.values().all(|row| row.loss.is_some());
        if alone && self.connected {
            self.connected = false;
            fx.push(MembershipEffect::Isolated);
            self.hasten(now);
        }
        self.pump(now, fx);
    }

    const fn two_beats(&self) -> Span {
        Span(self.config.heartbeat.0.saturating_mul(2))
    }

    /// No beat of this member for two heartbeats, although there was time to read them.
    fn is_quiet(&self, now: Time, row: &Row) -> bool {
        now > row.heard + self.two_beats() && now >= self.grace
    }
}
