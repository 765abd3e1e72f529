//! The network and its nodes: what is on its way, and what a node does with it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use proptest::prelude::*;

use super::super::*;

mod faults;

pub(super) use faults::{Fault, fault};

/// One process: which node, and which start of it.
type Process = (usize, u64);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick(Process),
    Heartbeat(Process),
    /// A dial meets whoever has the address, and goes on when the verdict said so.
    Shake {
        from: Process,
        address: String,
        begun: Time,
    },
    DialFailed {
        to: Process,
        address: String,
        error: u8,
        of: usize,
    },
    Linked {
        to: Process,
        link: u64,
        outbound: Option<String>,
        incarnation: u64,
        peer: Process,
        address: String,
    },
    Unlinked {
        to: Process,
        link: u64,
    },
    Beat {
        to: Process,
        link: u64,
        from: Process,
        incarnation: u64,
        address: String,
        peers: Vec<(String, u64, String)>,
    },
    Goodbye {
        to: Process,
        link: u64,
    },
}

impl Event {
    const fn process(&self) -> Process {
        match self {
            Self::Tick(to) | Self::Heartbeat(to) => *to,
            Self::Shake { from, .. } => *from,
            Self::DialFailed { to, .. }
            | Self::Linked { to, .. }
            | Self::Unlinked { to, .. }
            | Self::Beat { to, .. }
            | Self::Goodbye { to, .. } => *to,
        }
    }
}

pub(super) struct Host {
    pub(super) core: Option<Membership>,
    pub(super) start: u64,
    pub(super) address: String,
    pub(super) frozen_until: Time,
    pub(super) dialling: BTreeSet<String>,
    /// Lives that are up in this process's view.
    pub(super) up: BTreeMap<NodeId, u64>,
    pub(super) tick: Time,
}

struct Wire {
    ends: [Process; 2],
    open: bool,
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) hosts: Vec<Host>,
    wires: BTreeMap<u64, Wire>,
    pub(super) cuts: BTreeSet<(usize, usize)>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    pub(super) count: u64,
    pub(super) incarnation: u64,
    pub(super) elect: bool,
    pub(super) config: MembershipConfig,
}

const HOP: Span = Span::from_millis(1);

pub(super) fn name(node: usize) -> String {
    format!("n{node}")
}

pub(super) fn host_member(node: usize, incarnation: u64, address: &str) -> Member {
    Member { address: address.to_owned(), ..member(&name(node), incarnation) }
}

impl World {
    pub(super) fn new(nodes: usize, elect: bool, config: MembershipConfig) -> Self {
        crate::invariant::panic_on_broken();
        let host = |node| Host {
            core: None,
            start: 0,
            address: format!("n{node}:1"),
            frozen_until: Time::ZERO,
            dialling: BTreeSet::new(),
            up: BTreeMap::new(),
            tick: Time::NEVER,
        };
        let mut world = Self {
            now: Time::ZERO,
            hosts: (0..nodes).map(host).collect(),
            wires: BTreeMap::new(),
            cuts: BTreeSet::new(),
            events: BinaryHeap::new(),
            count: 0,
            incarnation: 0,
            elect,
            config,
        };
        for node in 0..nodes {
            world.boot(node);
        }
        world
    }

    fn push(&mut self, at: Time, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn soon(&mut self, event: Event) {
        self.push(self.now + HOP, event);
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cuts.contains(&(a.min(b), a.max(b)))
    }

    fn is_live(&self, (node, start): Process) -> bool {
        self.hosts[node].core.is_some() && self.hosts[node].start == start
    }

    pub(super) fn boot(&mut self, node: usize) {
        self.incarnation += 1;
        let incarnation = self.incarnation;
        let host = &mut self.hosts[node];
        host.start += 1;
        host.dialling.clear();
        host.up.clear();
        host.tick = Time::NEVER;
        host.frozen_until = Time::ZERO;
        let me = host_member(node, incarnation, &host.address);
        let seeds = vec!["n0:1".to_owned(), "n1:1".to_owned()];
        host.core =
            Some(Membership::new(MembershipConfig { seed: incarnation, ..self.config.clone() }, me, seeds));
        let process = (node, host.start);
        self.act(process, Membership::start);
        self.soon(Event::Heartbeat(process));
    }

    pub(super) fn kill(&mut self, node: usize, polite: bool) {
        let Some(core) = self.hosts[node].core.take() else { return };
        for (link, ..) in core.links() {
            if polite && self.wires[&link.0].open {
                let peer = self.far_end(link.0, node);
                if !self.is_cut(node, peer.0) {
                    self.soon(Event::Goodbye { to: peer, link: link.0 });
                }
            }
        }
        let process = (node, self.hosts[node].start);
        let mine: Vec<u64> =
            self.wires.iter().filter(|(_, w)| w.open && w.ends.contains(&process)).map(|(l, _)| *l).collect();
        for link in mine {
            self.end(link, node);
        }
    }

    fn far_end(&self, link: u64, node: usize) -> Process {
        let ends = &self.wires[&link].ends;
        if ends[0].0 == node { ends[1] } else { ends[0] }
    }

    /// `node` ends a connection; the other end learns of it if anything passes.
    fn end(&mut self, link: u64, node: usize) {
        let peer = self.far_end(link, node);
        let Some(wire) = self.wires.get_mut(&link) else { return };
        if wire.open {
            wire.open = false;
            if !self.is_cut(node, peer.0) {
                self.soon(Event::Unlinked { to: peer, link });
            }
        }
    }

    /// Lets a core act and carries out what it says.
    fn act(
        &mut self,
        process: Process,
        event: impl FnOnce(&mut Membership, Time, &mut Vec<MembershipEffect>),
    ) {
        let (node, now) = (process.0, self.now);
        let mut fx = Vec::new();
        let Some(core) = self.hosts[node].core.as_mut() else { return };
        event(core, now, &mut fx);
        enforce(core.check());
        for effect in fx {
            self.carry_out(process, effect);
        }
        let host = &mut self.hosts[node];
        if let Some(due) = host.core.as_ref().and_then(Membership::next_deadline) {
            let due = due.max(now + Span(1));
            if due < host.tick || host.tick <= now {
                host.tick = due;
                self.push(due, Event::Tick(process));
            }
        }
    }

    fn carry_out(&mut self, process: Process, effect: MembershipEffect) {
        let node = process.0;
        let host = &mut self.hosts[node];
        match effect {
            MembershipEffect::Dial { address } => {
                assert!(host.dialling.insert(address.clone()), "{address} is being dialled by {node}");
                self.soon(Event::Shake { from: process, address, begun: self.now });
            }
            MembershipEffect::Close { link, .. } => self.end(link.0, node),
            MembershipEffect::Up(m) => {
                let before = host.up.insert(m.id.clone(), m.incarnation);
                assert_eq!(before, None, "{node} had a life of {} up", m.id);
            }
            MembershipEffect::Down { id, incarnation, .. } => {
                assert_eq!(host.up.remove(&id), Some(incarnation), "{node} loses what was not up");
            }
            MembershipEffect::Isolated => {
                assert!(host.up.is_empty());
                self.incarnation += 1;
                let incarnation = self.incarnation;
                self.act(process, |c, now, fx| {
                    c.set_me(now, Member { incarnation, ..c.me().clone() }, fx);
                });
            }
            MembershipEffect::Changed { .. } | MembershipEffect::BeatNow => {}
            MembershipEffect::Fatal(why) => panic!("{node} gives up: {why}"),
        }
    }

    pub(super) fn run(&mut self, until: Time) {
        while let Some(Reverse((at, ..))) = self.events.peek() {
            if *at > until {
                break;
            }
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = self.now.max(at);
            let process = event.process();
            let thaw = self.hosts[process.0].frozen_until;
            if !self.is_live(process) {
                self.lost_in_death(&event);
            } else if thaw > self.now {
                self.push(thaw, event);
            } else {
                self.handle(event);
            }
        }
        self.now = until;
    }

    /// A connection whose end died while it was being made.
    fn lost_in_death(&mut self, event: &Event) {
        if let Event::Linked { to, link, .. } = event {
            self.end(*link, to.0);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick(process) => self.act(process, Membership::tick),
            Event::Heartbeat(process) => self.heartbeat(process),
            Event::Shake { from, address, begun } => self.shake(from, address, begun),
            Event::DialFailed { to, address, error, of } => {
                self.hosts[to.0].dialling.remove(&address);
                let error = match error {
                    0 => unreachable(),
                    1 => DialError::Final("name in use".to_owned()),
                    2 => DialError::AlreadyLinked(name(of).into()),
                    _ => DialError::Itself,
                };
                self.act(to, |c, now, fx| _ = c.dial_failed(now, &address, error, fx));
            }
            Event::Linked { to, link, outbound, incarnation, peer, address } => {
                if let Some(address) = &outbound {
                    self.hosts[to.0].dialling.remove(address);
                }
                let m = host_member(peer.0, incarnation, &address);
                self.act(to, |c, now, fx| c.linked(now, LinkId(link), m, outbound.as_deref(), fx));
            }
            Event::Unlinked { to, link } => self.act(to, |c, now, fx| c.unlinked(now, LinkId(link), fx)),
            Event::Goodbye { to, link } => self.act(to, |c, now, fx| c.goodbye(now, LinkId(link), fx)),
            Event::Beat { to, link, from, incarnation, address, peers } => {
                let m = host_member(from.0, incarnation, &address);
                let of = |(id, incarnation, address): (String, u64, String)| Peer {
                    id: id.into(),
                    incarnation,
                    address,
                };
                let peers: Vec<Peer> = peers.into_iter().map(of).collect();
                self.act(to, |c, now, fx| c.beat(now, LinkId(link), m, &peers, fx));
            }
        }
    }

    fn heartbeat(&mut self, from: Process) {
        let Some(core) = &self.hosts[from.0].core else { return };
        let (incarnation, address) = (core.me().incarnation, core.me().address.clone());
        let peer = |p: Peer| (p.id.to_string(), p.incarnation, p.address);
        let peers: Vec<_> = core.peers().into_iter().map(peer).collect();
        for (link, ..) in core.links() {
            let to = self.far_end(link.0, from.0);
            if self.is_cut(from.0, to.0) {
                continue;
            }
            if self.wires[&link.0].open {
                let (link, address, peers) = (link.0, address.clone(), peers.clone());
                self.soon(Event::Beat { to, link, from, incarnation, address, peers });
            } else {
                self.soon(Event::Unlinked { to: from, link: link.0 });
            }
        }
        self.push(self.now + self.config.heartbeat, Event::Heartbeat(from));
    }
}
