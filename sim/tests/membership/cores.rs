//! A cluster of cores of [`policies::membership`], in virtual time.

use std::collections::{BTreeMap, BTreeSet};

use config::RoleSet;
use config::ids::NodeId;
use policies::invariant::Broken;
use policies::membership::{
    DialError, LinkId, Member, Membership, MembershipConfig, MembershipEffect, Peer, Verdict,
};
use policies::time::{Span, Time};
use sim::network::Addr;

use super::{BEGINS, END, Fault, HEARTBEAT, Heard, LATENCY, LONGEST_DIAL, Learns, NODES, SUSPECT, TICK};

/// What goes over a connection.
#[derive(Clone, Debug)]
enum Message {
    Beat(Member, Vec<Peer>),
    Goodbye,
    /// The other end has closed it.
    Closed,
}

#[derive(Clone, Debug)]
enum Happens {
    Tick(Addr),
    Beat(Addr),
    /// At this end of a connection.
    Arrives(u64, Addr, Message),
    /// From one, to another.
    Dial(Addr, Addr),
    Fault(Addr, Fault),
}

#[derive(Debug)]
struct Node {
    core: Membership,
    dead: bool,
    frozen: bool,
    /// What happens when it goes on.
    waiting: Vec<Happens>,
}

#[derive(Debug)]
struct Connection {
    ends: [Addr; 2],
    /// Which of them has closed it.
    closed: [bool; 2],
    /// What waits for a cut to be over.
    held: Vec<(Addr, Message)>,
}

/// A cluster of cores, in virtual time.
#[derive(Debug, Default)]
struct Cores {
    now: Time,
    to_come: BTreeMap<(Time, u64), Happens>,
    count: u64,
    nodes: BTreeMap<Addr, Node>,
    connections: BTreeMap<u64, Connection>,
    cut: BTreeSet<Addr>,
    heard: Heard,
}

fn name(node: Addr) -> NodeId {
    match node {
        Addr::Gateway => "g".into(),
        Addr::Controller => "c".into(),
        Addr::Worker(n) => format!("w{n}").into(),
        Addr::Pool(n) => format!("p{n}").into(),
    }
}

fn address(node: Addr) -> String {
    format!("{}:1", name(node))
}

fn named(id: &NodeId) -> Addr {
    NODES.into_iter().find(|node| name(*node) == *id).expect("a node of the test")
}

fn member(node: Addr, incarnation: u64) -> Member {
    let (roles, address) = (RoleSet::all(), address(node));
    Member { id: name(node), incarnation, address, roles, ready: true, draining: false, http: None }
}

impl Cores {
    /// A cluster that has just been started.
    fn new(seed: u64) -> Self {
        let mut cores = Self::default();
        for node in NODES {
            cores.start(node, 1, seed);
        }
        cores
    }

    fn start(&mut self, node: Addr, incarnation: u64, seed: u64) {
        let config = MembershipConfig {
            heartbeat: HEARTBEAT,
            suspect_after: SUSPECT,
            forget_after: Span::from_secs(600),
            dial_first: Span::from_millis(100),
            dial_longest: LONGEST_DIAL,
            seed: seed * 100 + NODES.iter().position(|n| *n == node).expect("a node of the test") as u64,
        };
        let seeds = NODES.into_iter().filter(|other| *other != node).map(address).collect();
        let core = Membership::new(config, member(node, incarnation), seeds);
        self.nodes.insert(node, Node { core, dead: false, frozen: false, waiting: Vec::new() });
        self.call(node, |core, now, fx| core.start(now, fx));
        let phase = Span(HEARTBEAT.0 / 7 * (1 + seed % 5));
        self.after(TICK, Happens::Tick(node));
        self.after(phase, Happens::Beat(node));
    }

    fn after(&mut self, span: Span, happens: Happens) {
        self.at(self.now + span, happens);
    }

    fn at(&mut self, at: Time, happens: Happens) {
        self.count += 1;
        self.to_come.insert((at, self.count), happens);
    }

    /// Runs until a time; what was learnt by then.
    fn run(&mut self, end: Time) -> Result<(), Broken> {
        while let Some(next) = self.to_come.first_entry().filter(|next| next.key().0 <= end) {
            self.now = next.key().0;
            let happens = next.remove();
            self.happen(happens);
            self.nodes.values().filter(|node| !node.dead).try_for_each(|node| node.core.check())?;
        }
        Ok(())
    }

    fn happen(&mut self, happens: Happens) {
        let at = match &happens {
            Happens::Tick(at) | Happens::Beat(at) | Happens::Arrives(_, at, _) | Happens::Dial(_, at) => *at,
            Happens::Fault(node, fault) => return self.fault(*node, *fault),
        };
        let node = self.node(at);
        if node.frozen {
            return node.waiting.push(happens);
        }
        match happens {
            Happens::Dial(from, to) => self.dial(from, to),
            _ if node.dead => {}
            Happens::Tick(at) => {
                self.call(at, |core, now, fx| core.tick(now, fx));
                self.after(TICK, Happens::Tick(at));
            }
            Happens::Beat(at) => {
                self.beat(at);
                self.after(HEARTBEAT, Happens::Beat(at));
            }
            Happens::Arrives(number, at, message) => self.arrives(number, at, message),
            Happens::Fault(..) => {}
        }
    }

    fn arrives(&mut self, number: u64, at: Addr, message: Message) {
        let is_cut = self.connections[&number].ends.iter().any(|end| self.cut.contains(end));
        let connection = self.connection(number);
        let end = connection.end(at);
        if is_cut {
            return connection.held.push((at, message));
        }
        if connection.closed[end] {
            return;
        }
        let link = LinkId(number);
        match message {
            Message::Beat(member, peers) => {
                self.call(at, |core, now, fx| core.beat(now, link, member, &peers, fx));
            }
            Message::Goodbye => self.call(at, |core, now, fx| core.goodbye(now, link, fx)),
            Message::Closed => {
                connection.closed[end] = true;
                self.call(at, |core, now, fx| core.unlinked(now, link, fx));
            }
        }
    }

    /// A dial has come to where it leads.
    fn dial(&mut self, from: Addr, to: Addr) {
        let gone = |node: Addr| self.nodes.get(&node).is_none_or(|node| node.dead);
        if gone(from) {
            return;
        }
        if gone(to) || self.cut.contains(&from) || self.cut.contains(&to) {
            let error = DialError::Unreachable("nobody answers".to_owned());
            return self.call(from, |core, now, fx| _ = core.dial_failed(now, &address(to), error, fx));
        }
        let of = |node: Addr| self.nodes[&node].core.me().clone();
        let (caller, called) = (of(from), of(to));
        let (now, mut verdict) = (self.now, Verdict::Accept);
        for (judge, newcomer) in [(to, &caller), (from, &called)] {
            if verdict == Verdict::Accept {
                verdict = self.node(judge).core.judge(now, newcomer);
            }
        }
        match verdict {
            Verdict::Accept => {
                let number = self.count;
                let connection = Connection { ends: [from, to], closed: [false; 2], held: Vec::new() };
                self.connections.insert(number, connection);
                self.count += 1;
                let (link, address) = (LinkId(number), address(to));
                self.call(to, |core, now, fx| core.linked(now, link, caller, None, fx));
                self.call(from, |core, now, fx| core.linked(now, link, called, Some(&address), fx));
            }
            Verdict::Wait { until } => self.at(until, Happens::Dial(from, to)),
            other => {
                let error = match other {
                    Verdict::AlreadyLinked => DialError::AlreadyLinked(name(to)),
                    other => DialError::Refused(format!("{other:?}")),
                };
                self.call(from, |core, now, fx| _ = core.dial_failed(now, &address(to), error, fx));
            }
        }
    }

    fn fault(&mut self, node: Addr, fault: Fault) {
        match fault {
            Fault::Cut => _ = self.cut.insert(node),
            Fault::Heal => {
                self.cut.remove(&node);
                let numbers: Vec<u64> = self.connections.keys().copied().collect();
                for number in numbers {
                    let held = std::mem::take(&mut self.connection(number).held);
                    held.into_iter()
                        .for_each(|(at, message)| self.happen(Happens::Arrives(number, at, message)));
                }
            }
            Fault::Freeze => self.node(node).frozen = true,
            Fault::Thaw => {
                let state = self.node(node);
                state.frozen = false;
                std::mem::take(&mut state.waiting).into_iter().for_each(|happens| self.happen(happens));
            }
            Fault::Reset => {
                for (number, ends) in self.open(node) {
                    ends.into_iter()
                        .for_each(|at| self.happen(Happens::Arrives(number, at, Message::Closed)));
                }
            }
            Fault::Crash => self.node(node).dead = true,
            Fault::Start => {
                let before = self.nodes[&node].core.me().incarnation;
                // What was to come is another life's: it finds nobody.
                self.to_come.retain(
                    |_, happens| !matches!(happens, Happens::Tick(at) | Happens::Beat(at) if *at == node),
                );
                self.open(node).into_iter().for_each(|(number, _)| {
                    let connection = self.connection(number);
                    let end = connection.end(node);
                    connection.closed[end] = true;
                });
                self.start(node, before + 1, self.now.0 % 97);
            }
            Fault::Leave => {
                for (number, _) in self.open(node) {
                    self.send(number, node, Message::Goodbye);
                }
                self.node(node).dead = true;
            }
        }
    }

    fn node(&mut self, at: Addr) -> &mut Node {
        self.nodes.get_mut(&at).expect("a node of the test")
    }

    fn connection(&mut self, number: u64) -> &mut Connection {
        self.connections.get_mut(&number).expect("a connection")
    }

    /// Connections of a node that it has not closed.
    fn open(&self, node: Addr) -> Vec<(u64, [Addr; 2])> {
        let its = self.connections.iter().filter(|(_, c)| c.ends.contains(&node) && !c.closed[c.end(node)]);
        its.map(|(number, c)| (*number, c.ends)).collect()
    }

    fn beat(&mut self, at: Addr) {
        let core = &self.nodes[&at].core;
        let (me, peers, links) = (core.me().clone(), core.peers(), core.links());
        for (link, ..) in links {
            self.send(link.0, at, Message::Beat(me.clone(), peers.clone()));
        }
    }

    /// Sends to the other end.
    fn send(&mut self, number: u64, from: Addr, message: Message) {
        let connection = &self.connections[&number];
        let to = connection.ends[1 - connection.end(from)];
        self.after(LATENCY, Happens::Arrives(number, to, message));
    }

    fn call(&mut self, at: Addr, call: impl FnOnce(&mut Membership, Time, &mut Vec<MembershipEffect>)) {
        let (now, mut fx) = (self.now, Vec::new());
        call(&mut self.node(at).core, now, &mut fx);
        self.carry_out(at, fx);
    }

    fn carry_out(&mut self, at: Addr, fx: Vec<MembershipEffect>) {
        for effect in fx {
            let learns = match effect {
                MembershipEffect::Dial { address: to } => {
                    let to = NODES.into_iter().find(|node| address(*node) == to).expect("an address");
                    self.after(LATENCY, Happens::Dial(at, to));
                    continue;
                }
                MembershipEffect::Close { link, .. } => {
                    let connection = self.connection(link.0);
                    let end = connection.end(at);
                    if !std::mem::replace(&mut connection.closed[end], true) {
                        self.send(link.0, at, Message::Closed);
                    }
                    continue;
                }
                MembershipEffect::BeatNow => {
                    self.beat(at);
                    continue;
                }
                MembershipEffect::Changed { .. } => continue,
                MembershipEffect::Fatal(why) => panic!("{at:?}: {why}"),
                MembershipEffect::Up(member) => Learns::Found(named(&member.id)),
                MembershipEffect::Down { id, .. } => Learns::Lost(named(&id)),
                MembershipEffect::Isolated => Learns::Alone,
            };
            self.heard.push((self.now, at, learns));
            if learns == Learns::Alone {
                let (now, mut more) = (self.now, Vec::new());
                let core = &mut self.node(at).core;
                let me = core.me().clone();
                core.set_me(now, Member { incarnation: me.incarnation + 1, ..me }, &mut more);
                self.carry_out(at, more);
            }
        }
    }
}

impl Connection {
    fn end(&self, node: Addr) -> usize {
        usize::from(self.ends[1] == node)
    }
}

/// What cores learn of faults, from when the first happens.
pub(crate) fn cores(seed: u64, faults: &[(u64, Addr, Fault)]) -> Heard {
    let mut cores = Cores::new(seed);
    cores.run(BEGINS).expect("no core is broken");
    let pairs = cores.nodes.values().map(|node| node.core.peers().len()).sum::<usize>();
    assert_eq!(pairs, 12, "the cluster is whole");
    cores.heard.clear();
    for (ms, node, fault) in faults {
        cores.at(BEGINS + Span::from_millis(*ms), Happens::Fault(*node, *fault));
    }
    cores.run(END).expect("no core is broken");
    cores.heard
}
