//! Several cores against each other, over a network that cuts, resets and heals, of nodes that die, freeze, leave and
//! come back.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use proptest::prelude::*;

use super::*;

/// One process: which node, and which start of it.
type Process = (usize, u64);

#[derive(Clone, Debug)]
enum Fault {
    /// Nothing passes between two nodes; `reset`: their connections end.
    Cut {
        a: usize,
        b: usize,
        reset: bool,
    },
    Heal,
    Freeze {
        node: usize,
        ms: u64,
    },
    Kill {
        node: usize,
    },
    Leave {
        node: usize,
    },
    /// At its address, or at a new one.
    Restart {
        node: usize,
        moved: bool,
    },
}

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

struct Host {
    core: Option<Membership>,
    start: u64,
    address: String,
    frozen_until: Time,
    dialling: BTreeSet<String>,
    /// Lives that are up in this process's view.
    up: BTreeMap<NodeId, u64>,
    tick: Time,
}

struct Wire {
    ends: [Process; 2],
    open: bool,
}

struct World {
    now: Time,
    hosts: Vec<Host>,
    wires: BTreeMap<u64, Wire>,
    cuts: BTreeSet<(usize, usize)>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    count: u64,
    incarnation: u64,
    elect: bool,
    config: MembershipConfig,
}

const HOP: Span = Span::from_millis(1);

fn name(node: usize) -> String {
    format!("n{node}")
}

fn host_member(node: usize, incarnation: u64, address: &str) -> Member {
    Member { address: address.to_owned(), ..member(&name(node), incarnation) }
}

impl World {
    fn new(nodes: usize, elect: bool, config: MembershipConfig) -> Self {
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

    fn boot(&mut self, node: usize) {
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

    fn kill(&mut self, node: usize, polite: bool) {
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

    fn run(&mut self, until: Time) {
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

    fn shake(&mut self, from: Process, address: String, begun: Time) {
        let limit = Span::from_secs(3);
        let fail = |world: &mut Self, error, of| {
            world.soon(Event::DialFailed { to: from, address: address.clone(), error, of });
        };
        let met = self.hosts.iter().position(|h| h.core.is_some() && h.address == address);
        let Some(node) = met else { return fail(self, 0, 0) };
        if self.is_cut(node, from.0) {
            // Sent again every second, until the dialler gives up.
            if begun + limit <= self.now {
                return fail(self, 0, 0);
            }
            return self.push(self.now + Span::from_secs(1), Event::Shake { from, address, begun });
        }
        let to = (node, self.hosts[node].start);
        let thaw = self.hosts[node].frozen_until;
        if thaw > self.now {
            if begun + limit <= self.now {
                return fail(self, 0, 0);
            }
            let at = thaw.min(begun + limit);
            return self.push(at, Event::Shake { from, address, begun });
        }
        let (Some(mine), Some(theirs)) = (self.me(from), self.me(to)) else { return };
        let verdicts = [self.judge(to, &mine), self.judge(from, &theirs)];
        let wait = verdicts.iter().find_map(|v| match v {
            Verdict::Wait { until } => Some(*until),
            _ => None,
        });
        let other = verdicts.iter().find(|v| !matches!(v, Verdict::Accept | Verdict::Wait { .. }));
        match (other, wait) {
            (Some(Verdict::NameInUse { .. }), _) => fail(self, 1, node),
            (Some(Verdict::AlreadyLinked), _) => fail(self, 2, node),
            (Some(_), _) => fail(self, 3, node),
            (None, Some(until)) => self.push(until, Event::Shake { from, address, begun }),
            (None, None) => self.connect(from, to, &mine, &theirs, address),
        }
    }

    fn me(&self, process: Process) -> Option<Member> {
        self.hosts[process.0].core.as_ref().map(|c| c.me().clone())
    }

    fn judge(&mut self, by: Process, newcomer: &Member) -> Verdict {
        let now = self.now;
        let core = self.hosts[by.0].core.as_mut().unwrap();
        let verdict = core.judge(now, newcomer);
        enforce(core.check());
        verdict
    }

    fn connect(&mut self, from: Process, to: Process, mine: &Member, theirs: &Member, address: String) {
        self.count += 1;
        let link = self.count;
        let twin = self.wires.values().any(|w| w.open && w.ends.contains(&from) && w.ends.contains(&to));
        self.wires.insert(link, Wire { ends: [from, to], open: true });
        let at = |to, outbound, peer: Process, m: &Member| Event::Linked {
            to,
            link,
            outbound,
            incarnation: m.incarnation,
            peer,
            address: m.address.clone(),
        };
        self.soon(at(to, None, from, mine));
        self.soon(at(from, Some(address), to, theirs));
        if twin && self.elect {
            // The transport keeps one connection of a pair.
            if let Some(wire) = self.wires.get_mut(&link) {
                wire.open = false;
            }
            self.soon(Event::Unlinked { to: from, link });
            self.soon(Event::Unlinked { to, link });
        }
    }

    fn inflict(&mut self, fault: &Fault) {
        let n = self.hosts.len();
        match *fault {
            Fault::Cut { a, b, reset } => {
                let (a, b) = (a % n, b % n);
                let between: Vec<u64> = self
                    .wires
                    .iter()
                    .filter(|(_, w)| w.open && w.ends.iter().all(|e| e.0 == a || e.0 == b))
                    .map(|(l, _)| *l)
                    .collect();
                for link in between.into_iter().filter(|_| reset) {
                    self.end(link, a);
                    self.end_here(link, a);
                }
                if a != b {
                    self.cuts.insert((a.min(b), a.max(b)));
                }
            }
            Fault::Heal => self.cuts.clear(),
            Fault::Freeze { node, ms } => {
                self.hosts[node % n].frozen_until = self.now + Span::from_millis(ms);
            }
            Fault::Kill { node } => self.kill(node % n, false),
            Fault::Leave { node } => self.kill(node % n, true),
            Fault::Restart { node, moved } => {
                let node = node % n;
                self.kill(node, false);
                if moved && node > 1 {
                    self.count += 1;
                    self.hosts[node].address = format!("n{node}:{}", self.count);
                }
                self.boot(node);
            }
        }
    }

    fn end_here(&mut self, link: u64, node: usize) {
        let to = self.wires[&link].ends.iter().copied().find(|e| e.0 == node);
        if let Some(to) = to {
            self.soon(Event::Unlinked { to, link });
        }
    }

    /// Everybody is linked to everybody's present life, and all agree on who leads.
    fn assert_whole(&self) {
        let lives: BTreeMap<NodeId, u64> = self
            .hosts
            .iter()
            .filter_map(|h| h.core.as_ref())
            .map(|c| (c.me().id.clone(), c.me().incarnation))
            .collect();
        let oldest = lives.iter().min_by_key(|(id, life)| (**life, *id)).map(|(id, _)| id.clone());
        for host in &self.hosts {
            let core = host.core.as_ref().unwrap();
            let mut others = lives.clone();
            others.remove(&core.me().id);
            assert_eq!(host.up, others, "in the view of {}", core.me().id);
            assert_eq!(core.leader(), oldest, "in the view of {}", core.me().id);
            let linked: BTreeSet<LinkId> = core.links().into_iter().map(|(l, ..)| l).collect();
            assert!(linked.iter().all(|l| self.wires[&l.0].open), "{} has a dead link", core.me().id);
            assert!(core.is_joined());
            assert!(host.dialling.is_empty(), "{} still dials {:?}", core.me().id, host.dialling);
        }
    }

    fn heal(&mut self) {
        self.cuts.clear();
        for node in 0..self.hosts.len() {
            self.hosts[node].frozen_until = self.now.min(self.hosts[node].frozen_until);
            if self.hosts[node].core.is_none() {
                self.boot(node);
            }
        }
    }
}

fn fault() -> impl Strategy<Value = Fault> {
    let node = || 0..5_usize;
    prop_oneof![
        3 => (node(), node(), any::<bool>()).prop_map(|(a, b, reset)| Fault::Cut { a, b, reset }),
        2 => Just(Fault::Heal),
        2 => (node(), 100..12_000_u64).prop_map(|(node, ms)| Fault::Freeze { node, ms }),
        1 => node().prop_map(|node| Fault::Kill { node }),
        1 => node().prop_map(|node| Fault::Leave { node }),
        3 => (node(), any::<bool>()).prop_map(|(node, moved)| Fault::Restart { node, moved }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// B36, B54, B81, B83, B84, B85.
    #[test]
    fn a_cluster_becomes_whole_again(
        nodes in 3..=5_usize,
        elect in any::<bool>(),
        forget in prop_oneof![Just(4_u64), Just(60)],
        faults in prop::collection::vec((0..6_000_u64, fault()), 0..25),
    ) {
        let mut world = World::new(nodes, elect, MembershipConfig { forget_after: Span::from_secs(forget), ..config() });
        for (wait, fault) in &faults {
            world.run(world.now + Span::from_millis(*wait));
            world.inflict(fault);
        }
        world.heal();
        world.run(world.now + Span::from_secs(40));
        world.assert_whole();
    }
}

/// From cold, every node links to every other one soon, whoever starts first.
#[test]
fn a_new_cluster_is_whole_within_seconds() {
    for nodes in 2..=5 {
        let mut world = World::new(nodes, true, config());
        world.run(ms(4_000));
        world.assert_whole();
    }
}

/// B85: all seeds restart at once while the others live.
#[test]
fn a_cluster_survives_all_its_seeds() {
    let mut world = World::new(5, true, config());
    world.run(ms(5_000));
    for node in [0, 1] {
        world.kill(node, false);
    }
    world.run(ms(15_000));
    for node in 2..5 {
        assert_eq!(world.hosts[node].up.len(), 2, "the others keep their links");
    }
    for node in [0, 1] {
        world.boot(node);
    }
    world.run(ms(18_000));
    world.assert_whole();
}

/// B81, B83: stopped for three, thirty and three hundred seconds.
#[test]
fn a_frozen_node_comes_back_as_another_life() {
    for seconds in [3, 30, 300] {
        let mut world = World::new(3, true, config());
        world.run(ms(5_000));
        let before = world.me((2, 1)).unwrap().incarnation;
        world.inflict(&Fault::Freeze { node: 2, ms: seconds * 1_000 });
        world.run(ms(7_900));
        assert_eq!(world.hosts[0].up.len(), 1, "lost within suspect-after");
        world.run(world.now + Span::from_secs(seconds + 6));
        world.assert_whole();
        assert!(world.me((2, 1)).unwrap().incarnation > before);
    }
}

/// B84: what happened behind a cut is known within two seconds after it heals.
#[test]
fn nothing_is_missed_behind_a_cut() {
    for seed in 0..20 {
        let config = MembershipConfig { dial_longest: Span::from_millis(1_500), ..config() };
        let mut world = World::new(4, true, config);
        world.incarnation += seed;
        world.run(ms(5_000));
        for (a, b) in [(0, 1), (0, 2), (0, 3)] {
            world.inflict(&Fault::Cut { a, b, reset: false });
        }
        world.run(ms(10_000 + seed * 131));
        assert!(world.hosts[0].up.is_empty());
        world.inflict(&Fault::Kill { node: 3 });
        world.inflict(&Fault::Restart { node: 2, moved: true });
        world.run(ms(20_000 + seed * 173));
        world.inflict(&Fault::Heal);
        world.run(world.now + Span::from_secs(2));
        let names: Vec<&str> = world.hosts[0].up.keys().map(NodeId::as_str).collect();
        assert_eq!(names, ["n1", "n2"], "{seed}");
        world.boot(3);
        world.run(world.now + Span::from_secs(3));
        world.assert_whole();
    }
}
