//! What the simulator says to nodes of their links, live nodes learn from [`policies::membership`] over heartbeats and
//! dials. Here a cluster of those cores goes through the same faults as the simulated network: they lose and find the same
//! nodes, and as late as the network says.

use std::collections::{BTreeMap, BTreeSet};

use config::RoleSet;
use config::ids::NodeId;
use policies::cost::Hardware;
use policies::invariant::Broken;
use policies::membership::{
    DialError, LinkId, Member, Membership, MembershipConfig, MembershipEffect, Peer, Verdict,
};
use policies::time::{Span, Time};
use sim::Scenario;
use sim::event::Event;
use sim::network::{Addr, Network};
use sim::queue::Queue;

const NODES: [Addr; 4] = [Addr::Gateway, Addr::Controller, Addr::Worker(0), Addr::Worker(1)];

const LATENCY: Span = Span::from_millis(1);
const HEARTBEAT: Span = Span::from_millis(500);
const SUSPECT: Span = Span::from_secs(3);
/// The cores' own limit is a little less, so that all is over when that has passed.
const LIMIT: Span = Span(SUSPECT.0 / 10 * 9);
const LONGEST_DIAL: Span = Span::from_secs(2);
/// As live.
const TICK: Span = Span::from_millis(50);

/// When the cluster is whole, and something happens; long after all is over.
const BEGINS: Time = Time(20_000_000_000);
const END: Time = Time(60_000_000_000);

/// What a node learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Learns {
    Lost(Addr),
    Found(Addr),
    /// It is linked to nobody.
    Alone,
}

/// Who learns what, and when.
type Heard = Vec<(Time, Addr, Learns)>;

/// What happens to a node.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Nothing gets through, from and to it.
    Cut,
    Heal,
    /// It stands still.
    Freeze,
    Thaw,
    /// Its links break.
    Reset,
    /// It dies, and its machine says nothing of that.
    Crash,
    /// As another life.
    Start,
    /// It says goodbye, and is gone.
    Leave,
}

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
fn cores(seed: u64, faults: &[(u64, Addr, Fault)]) -> Heard {
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

/// What the simulated network tells nodes of the same faults.
fn network(seed: u64, faults: &[(u64, Addr, Fault)]) -> Heard {
    let (detect, spread) = (LIMIT.0 - HEARTBEAT.0, HEARTBEAT.0 + TICK.0);
    let text = format!(
        "seed = {seed}\n[cluster]\nworkers = 2\nnetwork = \"{}ns\"\ndetect = \"{detect}ns\"\n[network]\n\
         detect-spread = \"{spread}ns\"\n",
        LATENCY.0
    );
    let scenario = Scenario::from_toml(&text, "test").expect("a scenario");
    let machine = Hardware::named("zero").expect("a machine");
    let mut network = Network::new(&scenario, &[machine; 2], true);
    let (mut queue, mut heard): (_, Heard) = (Queue::default(), Vec::new());
    // In the place of each fault an event with its number, for there are no others of that kind.
    for (number, (ms, ..)) in (0..).zip(faults) {
        queue.push(BEGINS + Span::from_millis(*ms), Event::Fault(number));
    }
    while let Some((now, event)) = queue.pop() {
        let Some(event) = network.arrive(event) else { continue };
        let mut linked = Vec::new();
        match event {
            Event::Fault(number) => {
                let (_, node, fault) = faults[number as usize];
                match fault {
                    Fault::Cut => network.cut(now, &[node], &mut queue),
                    Fault::Heal => network.heal(now, &[node], &mut queue),
                    Fault::Freeze => network.freeze(now, node, 0, &mut queue),
                    Fault::Thaw => network.thaw(now, node, 0, &mut queue),
                    Fault::Reset => network.reset(now, &[node], &mut queue),
                    Fault::Crash => network.crash(now, node, &mut queue),
                    Fault::Leave => network.leave(now, node, &mut queue),
                    Fault::Start => linked = network.start(node),
                }
            }
            Event::Notice { who, whom, why } if network.notices(now, who, whom, why, &mut queue) => {
                lost(&network, (now, who, whom), &mut heard);
            }
            Event::Relink(a, b) => linked.extend(network.relink(now, a, b, &mut queue)),
            _ => {}
        }
        for link in linked {
            let [a, b] = link.nodes;
            for ((who, whom), unaware) in [(a, b), (b, a)].into_iter().zip(link.unaware) {
                // A life that has just begun has nobody to lose.
                let new = faults.iter().any(|(ms, node, fault)| {
                    matches!(fault, Fault::Start) && *node == who && BEGINS + Span::from_millis(*ms) == now
                });
                if unaware && !new {
                    heard.push((now, who, Learns::Lost(whom)));
                }
                heard.push((now, who, Learns::Found(whom)));
            }
        }
    }
    heard
}

fn lost(network: &Network, (now, who, whom): (Time, Addr, Addr), heard: &mut Heard) {
    heard.push((now, who, Learns::Lost(whom)));
    if network.links().is_some_and(|links| links.is_alone(who)) {
        heard.push((now, who, Learns::Alone));
    }
}

/// Both learn the same, each as often, and about as late.
fn agree(faults: &[(u64, Addr, Fault)]) -> Heard {
    let mut last = Vec::new();
    for seed in 0..8 {
        let (core, net) = (cores(seed, faults), network(seed, faults));
        let sorted = |heard: &Heard| {
            let mut all: Vec<(Addr, Learns, Time)> =
                heard.iter().map(|(at, who, what)| (*who, *what, *at)).collect();
            all.sort();
            all
        };
        let (core, net) = (sorted(&core), sorted(&net));
        let what =
            |all: &[(Addr, Learns, Time)]| all.iter().map(|(who, what, _)| (*who, *what)).collect::<Vec<_>>();
        assert_eq!(what(&core), what(&net), "{faults:?}, seed {seed}\ncores: {core:#?}\nnetwork: {net:#?}");
        for ((who, learns, at), (.., then)) in core.iter().zip(&net) {
            let apart = at.since(*then).max(then.since(*at));
            let most = match learns {
                // Somewhere between a beat before the limit and a tick after it; or both at once.
                Learns::Lost(_) | Learns::Alone => HEARTBEAT + TICK + TICK,
                // Who was not there is dialled now and then.
                Learns::Found(_) => Span(LONGEST_DIAL.0 / 5 * 6) + HEARTBEAT + HEARTBEAT,
            };
            assert!(apart <= most, "{faults:?}, seed {seed}: {who:?} {learns:?}: at {at:?} and {then:?}");
        }
        last = net.into_iter().map(|(who, what, at)| (at, who, what)).collect();
    }
    last
}

const WORKER: Addr = Addr::Worker(0);

#[test]
fn a_node_that_is_cut_off_is_lost_by_all_and_loses_all() {
    for node in [WORKER, Addr::Controller, Addr::Gateway] {
        let heard = agree(&[(0, node, Fault::Cut), (6000, node, Fault::Heal)]);
        assert_eq!(heard.len(), 3 + 3 + 1 + 6, "{heard:?}");
    }
}

#[test]
fn a_cut_or_a_standstill_shorter_than_the_limit_is_nothing() {
    assert!(agree(&[(0, WORKER, Fault::Cut), (1500, WORKER, Fault::Heal)]).is_empty());
    assert!(agree(&[(0, WORKER, Fault::Freeze), (1500, WORKER, Fault::Thaw)]).is_empty());
}

#[test]
fn a_node_that_stands_still_hears_afterwards_that_it_was_given_up() {
    let heard = agree(&[(0, WORKER, Fault::Freeze), (6000, WORKER, Fault::Thaw)]);
    assert_eq!(heard.len(), 3 + 3 + 1 + 6, "{heard:?}");
}

#[test]
fn links_that_break_are_noticed_at_once_and_made_again() {
    let heard = agree(&[(0, WORKER, Fault::Reset)]);
    assert_eq!(heard.len(), 3 + 3 + 1 + 6, "{heard:?}");
}

#[test]
fn a_node_that_dies_is_lost_when_it_is_silent_and_found_when_it_starts() {
    let heard = agree(&[(0, WORKER, Fault::Crash), (6000, WORKER, Fault::Start)]);
    assert_eq!(heard.len(), 3 + 6, "{heard:?}");
    assert_eq!(agree(&[(0, WORKER, Fault::Crash)]).len(), 3);
}

#[test]
fn a_node_that_starts_before_it_is_missed_is_lost_and_found_at_once() {
    let heard = agree(&[(0, WORKER, Fault::Crash), (900, WORKER, Fault::Start)]);
    assert_eq!(heard.len(), 3 + 6, "{heard:?}");
}

#[test]
fn who_says_goodbye_is_lost_at_once() {
    let heard = agree(&[(0, WORKER, Fault::Leave)]);
    assert_eq!(heard.len(), 3, "{heard:?}");
    assert!(heard.iter().all(|(at, ..)| *at == BEGINS + LATENCY), "{heard:?}");
}

#[test]
fn several_faults_one_after_the_other() {
    agree(&[
        (0, Addr::Controller, Fault::Cut),
        (5000, Addr::Controller, Fault::Heal),
        (12_000, WORKER, Fault::Crash),
        (17_000, WORKER, Fault::Start),
        (20_000, Addr::Worker(1), Fault::Freeze),
        (25_500, Addr::Worker(1), Fault::Thaw),
        (30_000, Addr::Gateway, Fault::Reset),
    ]);
}
