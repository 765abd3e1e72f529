//! What is between the nodes: when a message arrives, and whether it does.
//!
//! Links are as live ones, TCP connections between each pair of nodes: messages stay in order, none is lost by itself,
//! and a link that breaks loses what was under way. Without faults a message just arrives after the latency; only where
//! the scenario has faults is the state of links kept ([`links`]), and each message then travels as an [`Event::Wire`].
//! Bulk transfers share the nodes' bandwidth ([`flows`]). All of it is integer arithmetic.

use std::collections::{BTreeMap, VecDeque};

use config::ids::WorkerId;
use policies::cost::Hardware;
use policies::rng;
use policies::time::{Span, Time};

use crate::event::{Event, GatewayMsg, KvMail, KvMessage, Outbox, PoolEvent, PoolMsg, WorkerMsg};
use crate::queue::Queue;
use crate::scenario::Scenario;

pub mod flows;
pub mod links;

mod faults;

use flows::Flows;
use links::Links;

/// Streams of random numbers: how late messages are, and when silence is noticed.
const LATE: u64 = 10;
const NOTICED: u64 = 11;

/// What the names of pools begin with.
pub(crate) const POOL: char = 'p';

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addr {
    /// The gateway.
    Gateway,
    /// The controller.
    Controller,
    /// The worker of this number, whichever life of it.
    Worker(u32),
    /// The pool of this number, whichever life of it.
    Pool(u32),
}

/// How an event gets to where it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over the link to another node.
    Link,
    /// Over the bulk link to a worker or a pool, with so many bytes.
    Bulk(Addr, u64),
    /// By waiting, where it comes from.
    After(Span),
}

/// A message on its way over a link that may break.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Who sent it.
    pub from: Addr,
    /// Whom it is for.
    pub to: Addr,
    /// On which connection of the two.
    pub epoch: u32,
    /// What arrives.
    pub event: Event,
}

/// Why a node notices that there is no link (any more) to another one. Each names what it was seen of, so that what has
/// passed meanwhile is not noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Nothing gets through: this cut.
    Cut(u32),
    /// The other one stands still: this time.
    Frozen(u32),
    /// The other one died during this connection.
    Dead(u32),
    /// The other end has closed this connection.
    Closed(u32),
}

/// The node at which an event happens; none for what happens to a node from outside.
#[must_use]
pub fn place(event: &Event) -> Option<Addr> {
    match event {
        Event::Gateway(_)
        | Event::Arrive(..)
        | Event::Leave(_)
        | Event::Read(_)
        | Event::Timer(_)
        | Event::StandIn(_)
        | Event::StandInTick
        | Event::Move(_) => Some(Addr::Gateway),
        Event::Controller(_) | Event::ControllerTick => Some(Addr::Controller),
        Event::Worker(id, _) | Event::StepDone(id, _) | Event::KvTimer(id, ..) | Event::Drained(id) => {
            Some(Addr::Worker(index_of(id)))
        }
        Event::Pool(event) => event.place(),
        Event::Notice { who, .. } => Some(*who),
        Event::Wire(wire) => Some(wire.to),
        Event::Crash(_)
        | Event::Start(_)
        | Event::FalseAlarm(_)
        | Event::Rejoin(_)
        | Event::Fault(_)
        | Event::FaultOver(_)
        | Event::Relink(..)
        | Event::Flow(_) => None,
    }
}

/// The node of a worker or of a pool.
#[must_use]
pub fn addr_of(id: &WorkerId) -> Addr {
    let pool = id.node.as_str().starts_with(POOL);
    if pool { Addr::Pool(index_of(id)) } else { Addr::Worker(index_of(id)) }
}

/// The number of a worker, or of a pool: the digits at the end of its node's name.
#[must_use]
pub fn index_of(worker: &WorkerId) -> u32 {
    let name = worker.node.as_str().as_bytes();
    // As the simulator names them, and each event asks several times.
    if let &[b'w', a, b, c, d, e] = name {
        let digits = [a, b, c, d, e].map(|byte| u32::from(byte.wrapping_sub(b'0')));
        if digits.iter().all(|digit| *digit < 10) {
            return digits.iter().fold(0, |number, digit| number * 10 + digit);
        }
    }
    let digits = name.iter().rev().map(|byte| u32::from(byte.wrapping_sub(b'0')));
    let (mut number, mut unit) = (0_u32, 1_u32);
    for digit in digits.take_while(|digit| *digit < 10) {
        number = number.wrapping_add(digit.wrapping_mul(unit));
        unit = unit.wrapping_mul(10);
    }
    number
}

/// The network of a run.
#[derive(Debug)]
pub struct Network {
    seed: u64,
    latency: Span,
    jitter: Span,
    /// Of 2⁵³ messages so many get lost.
    loss: u64,
    retransmit: Span,
    detect: Span,
    detect_spread: Span,
    relink: Span,
    /// Random numbers drawn.
    draws: u64,
    /// When the last message of each direction arrives, where not all take equally long.
    last: BTreeMap<(Addr, Addr), Time>,
    links: Option<Links>,
    flows: Flows,
    /// What the machine of each worker, and of each pool, takes longer for a message in bulk.
    bulk_latencies: [Vec<Span>; 2],
    /// Messages that broken links lost.
    lost: u64,
}

impl Network {
    /// The network of a scenario with the machines of its workers and pools, in which something goes wrong or not.
    #[must_use]
    pub fn new(scenario: &Scenario, workers: &[Hardware], pools: &[Hardware], faulty: bool) -> Self {
        let (n, c) = (&scenario.network, &scenario.cluster);
        let span = |dur: config::Dur| Span(dur.as_nanos());
        let bandwidth = n.bandwidth.map(|size| size.bytes());
        let links = |machines: &[Hardware]| {
            machines.iter().map(|machine| bandwidth.unwrap_or(machine.link)).collect::<Vec<_>>()
        };
        let latencies = |machines: &[Hardware]| machines.iter().map(|machine| machine.link_latency).collect();
        Self {
            seed: scenario.seed,
            latency: span(n.latency.unwrap_or(c.network)),
            jitter: span(n.jitter),
            loss: (n.loss * (1_u64 << 53) as f64) as u64,
            retransmit: span(n.retransmit),
            detect: span(c.detect),
            detect_spread: span(n.detect_spread),
            relink: span(n.relink),
            draws: 0,
            last: BTreeMap::new(),
            links: faulty.then(|| Links::new(workers.len() as u32, pools.len() as u32)),
            flows: Flows::new(links(workers), links(pools), bandwidth.unwrap_or(0)),
            bulk_latencies: [workers, pools].map(latencies),
            lost: 0,
        }
    }

    /// The state of links, where faults are possible.
    #[must_use]
    pub const fn links(&self) -> Option<&Links> {
        self.links.as_ref()
    }

    /// Messages that were lost with their links.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Puts what a driver wants into the queue.
    pub fn take(&mut self, now: Time, out: &mut Outbox, queue: &mut Queue) {
        for (from, way, mut event) in out.sent.drain(..) {
            match way {
                Way::After(mut span) => {
                    match (&mut event, &self.links) {
                        (Event::StepDone(_, outcome), Some(links)) => {
                            outcome.took = links.slowed(from, outcome.took);
                            span = links.slowed(from, span);
                        }
                        (Event::Pool(event), Some(links)) if matches!(**event, PoolEvent::DiskDone(_)) => {
                            span = links.slowed(from, span);
                        }
                        _ => {}
                    }
                    queue.push(now + span, event);
                }
                Way::Link => self.send(now, from, event, Span::ZERO, queue),
                Way::Bulk(to, bytes) => {
                    if let Some(links) = &self.links {
                        let sees = links.sees(from, to);
                        // Who sees a link that the other end has closed learns of that later.
                        if !sees || links.epoch(from, to).is_none() {
                            self.lost += 1;
                            if !sees {
                                no_link(now, from, event, queue);
                            }
                            continue;
                        }
                    }
                    self.flows.add(now, from, to, bytes, event, self.links.as_ref());
                    self.flows.schedule(now, queue);
                }
            }
        }
    }

    /// The state of flows was to change now.
    pub fn flow(&mut self, now: Time, generation: u64, queue: &mut Queue) {
        for (from, to, event) in self.flows.due(now, generation, self.links.as_ref()) {
            let longer = self.bulk_latency(from).max(self.bulk_latency(to));
            self.send(now, from, event, longer, queue);
        }
        self.flows.schedule(now, queue);
    }

    fn bulk_latency(&self, node: Addr) -> Span {
        let [workers, pools] = &self.bulk_latencies;
        match node {
            Addr::Worker(n) => workers.get(n as usize).copied().unwrap_or_default(),
            Addr::Pool(n) => pools.get(n as usize).copied().unwrap_or_default(),
            Addr::Gateway | Addr::Controller => Span::ZERO,
        }
    }

    /// Sends a message that takes so much `longer` than others.
    fn send(&mut self, now: Time, from: Addr, event: Event, longer: Span, queue: &mut Queue) {
        let Some(to) = place(&event).filter(|to| *to != from) else {
            return queue.push(now, event);
        };
        let latency = self.latency + longer;
        let mut at = now + latency;
        if let Some(links) = &self.links {
            at = now + links.delayed(from, to, latency);
            if !links.sees(from, to) {
                self.lost += 1;
                return no_link(now, from, event, queue);
            }
        }
        if self.jitter > Span::ZERO {
            at = at + Span(self.draw(LATE) % self.jitter.0.saturating_add(1));
        }
        if self.loss > 0 && self.draw(LATE) >> 11 < self.loss {
            at = at + self.retransmit;
        }
        if self.jitter > Span::ZERO || self.loss > 0 || self.links.is_some() {
            let last = self.last.entry((from, to)).or_default();
            at = at.max(*last);
            *last = at;
        }
        let event = match &mut self.links {
            None => event,
            Some(links) => match links.epoch(from, to) {
                Some(epoch) => Event::Wire(Box::new(Wire { from, to, epoch, event })),
                // The other end has closed it, and this one does not know yet.
                None => {
                    self.lost += 1;
                    return;
                }
            },
        };
        queue.push(at, event);
    }

    /// An event is due: what happens now, if anything does. What is for a node that stands still waits there, what is for
    /// a dead one is lost.
    pub fn arrive(&mut self, event: Event) -> Option<Event> {
        let Some(links) = &mut self.links else { return Some(event) };
        let event = match event {
            Event::Wire(wire) => match links.arrives(&wire) {
                links::Arrival::Now => wire.event,
                links::Arrival::Waits => {
                    links.hold(*wire);
                    return None;
                }
                links::Arrival::Never => {
                    self.lost += 1;
                    return None;
                }
            },
            event => event,
        };
        links.happen(event)
    }

    /// When a node notices a silence that begins now.
    fn noticed(&mut self, now: Time) -> Time {
        let spread = match self.detect_spread.0 {
            0 => 0,
            spread => self.draw(NOTICED) % spread.saturating_add(1),
        };
        now + self.detect + Span(spread)
    }

    fn draw(&mut self, stream: u64) -> u64 {
        self.draws += 1;
        rng::bits(self.seed, stream, self.draws)
    }

    /// Whether the node is dead.
    #[must_use]
    pub fn is_dead(&self, node: Addr) -> bool {
        self.links.as_ref().is_some_and(|links| links.is_dead(node))
    }

    /// Whether the node stands still.
    #[must_use]
    pub fn is_frozen(&self, node: Addr) -> bool {
        self.links.as_ref().is_some_and(|links| links.is_frozen(node))
    }

    fn flows_changed(&mut self, now: Time, queue: &mut Queue) {
        if self.flows.are_any() {
            self.lost += self.flows.links_changed(now, self.links.as_ref());
            self.flows.schedule(now, queue);
        }
    }
}

/// There is no link to send it over: who wants a request served, or pages moved, learns that at once; the rest is for
/// nobody.
fn no_link(now: Time, from: Addr, event: Event, queue: &mut Queue) {
    let (worker, message) = match event {
        Event::Worker(worker, message) => (worker, message),
        Event::Pool(event) => match *event {
            PoolEvent::Message(pool, PoolMsg::Kv(mail)) => (pool, WorkerMsg::Kv(mail)),
            _ => return,
        },
        _ => return,
    };
    match (from, message) {
        (
            Addr::Gateway,
            WorkerMsg::Submit(spec, ..) | WorkerMsg::Fetch(spec, _) | WorkerMsg::Take(spec, ..),
        ) => {
            queue.push(now, Event::Gateway(GatewayMsg::Unreachable(spec.id, worker)));
        }
        (_, WorkerMsg::Kv(mail)) => {
            if let Some(lost) = link_lost(now, *mail, worker) {
                queue.push(now, lost);
            }
        }
        _ => {}
    }
}

/// What the sender of a message hears of its link to `to`, which is gone; nothing where that comes from the link itself.
pub(crate) fn link_lost(now: Time, mail: KvMail, to: WorkerId) -> Option<Event> {
    if matches!(mail.message, KvMessage::LinkLost | KvMessage::Sent { .. }) {
        return None;
    }
    let lost = KvMail { id: mail.id, key: mail.key, from: to, at: now, message: KvMessage::LinkLost };
    Some(Event::mail(mail.from, lost))
}

/// Messages that wait for a link that is cut.
pub(crate) type Held = VecDeque<Wire>;
