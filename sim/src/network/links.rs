//! The state of each link, and what each end knows of it.
//!
//! A link is one connection at a time, with a number. While nothing gets through, what is sent waits, as in the buffers of
//! TCP; once one end gives the connection up, it is lost, and the other end notices in its own time, or when the next
//! connection is made. This is what [`policies::membership`] does over heartbeats and dials, without an event for each.

use std::collections::{BTreeMap, BTreeSet};

use policies::time::Span;

use super::{Addr, Held, Silence, Wire, place};
use crate::event::Event;

/// All links of a cluster in which something goes wrong.
#[derive(Debug)]
pub struct Links {
    workers: u32,
    pools: u32,
    /// Those to which something has happened; all others are up, and both ends know it.
    pairs: BTreeMap<(Addr, Addr), Pair>,
    nodes: BTreeMap<Addr, Node>,
}

#[derive(Debug)]
struct Pair {
    /// The number of the connection.
    epoch: u32,
    /// Neither end has closed it.
    up: bool,
    /// Cuts that nothing gets through.
    cuts: u32,
    /// Counts cuts.
    stamp: u32,
    /// Whether the first, and the second, takes the other for linked.
    sees: [bool; 2],
    held: Held,
}

#[derive(Debug, Default)]
struct Node {
    dead: bool,
    /// Faults that make it stand still.
    frozen: BTreeSet<u32>,
    /// Counts times that it stood still.
    stamp: u32,
    /// What happens when it goes on.
    waiting: Vec<Event>,
    slow: Vec<Slow>,
}

/// How slow a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Of which fault.
    pub fault: u32,
    /// Its steps take so many thousandths of the time.
    pub steps: u64,
    /// Its messages take so many thousandths of the time.
    pub link: u64,
    /// And so much more.
    pub added: Span,
}

/// Whether a message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It does.
    Now,
    /// When the cut is over, if the link still is.
    Waits,
    /// Its link broke.
    Never,
}

/// Two nodes have a new link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linked {
    /// The two.
    pub nodes: [Addr; 2],
    /// Which of them had not noticed yet that the former one was gone.
    pub unaware: [bool; 2],
}

impl Pair {
    const NEW: Self = Self { epoch: 0, up: true, cuts: 0, stamp: 0, sees: [true; 2], held: Held::new() };
}

impl Links {
    /// Of a gateway, a controller and so many workers and pools; all are up.
    #[must_use]
    pub const fn new(workers: u32, pools: u32) -> Self {
        Self { workers, pools, pairs: BTreeMap::new(), nodes: BTreeMap::new() }
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = Addr> + use<> {
        let workers = (0..self.workers).map(Addr::Worker);
        let pools = (0..self.pools).map(Addr::Pool);
        [Addr::Gateway, Addr::Controller].into_iter().chain(workers).chain(pools)
    }

    /// All nodes but one.
    #[must_use]
    pub fn others(&self, node: Addr) -> Vec<Addr> {
        self.nodes().filter(|other| *other != node).collect()
    }

    /// Whether `who` takes `whom` for linked.
    #[must_use]
    pub fn sees(&self, who: Addr, whom: Addr) -> bool {
        let (key, side) = key(who, whom);
        self.pairs.get(&key).is_none_or(|pair| pair.sees[side])
    }

    /// Whether a node takes no other one for linked.
    #[must_use]
    pub fn is_alone(&self, node: Addr) -> bool {
        self.nodes().filter(|other| *other != node).all(|other| !self.sees(node, other))
    }

    /// Whether something gets through between the two at this moment.
    #[must_use]
    pub fn flows(&self, a: Addr, b: Addr) -> bool {
        let idle = |node| self.nodes.get(&node).is_some_and(|n: &Node| n.dead || !n.frozen.is_empty());
        self.pairs.get(&key(a, b).0).is_none_or(|pair| pair.up && pair.cuts == 0) && !idle(a) && !idle(b)
    }

    /// The number of the connection; none where it is closed.
    #[must_use]
    pub fn epoch(&self, a: Addr, b: Addr) -> Option<u32> {
        self.pairs.get(&key(a, b).0).map_or(Some(0), |pair| pair.up.then_some(pair.epoch))
    }

    /// Whether a message arrives that is due now.
    #[must_use]
    pub fn arrives(&self, wire: &Wire) -> Arrival {
        if self.is_dead(wire.to) {
            return Arrival::Never;
        }
        let (nodes, side) = key(wire.to, wire.from);
        let Some(pair) = self.pairs.get(&nodes) else { return Arrival::Now };
        // What a node has sent before it died arrives, until the other one has noticed.
        let last_words = self.is_dead(wire.from) && pair.sees[side];
        let connected = pair.epoch == wire.epoch && (pair.up || last_words);
        match (connected, pair.cuts) {
            (false, _) => Arrival::Never,
            (true, 0) => Arrival::Now,
            (true, _) => Arrival::Waits,
        }
    }

    /// Keeps a message until the cut is over.
    pub fn hold(&mut self, wire: Wire) {
        self.pair(wire.from, wire.to).held.push_back(wire);
    }

    /// Gives back what happens now: nothing at a node that is dead, nothing yet at one that stands still.
    pub fn happen(&mut self, event: Event) -> Option<Event> {
        let at = match &event {
            // The gateway's clients are not at its node.
            Event::Arrive(..) if self.is_dead(Addr::Gateway) => return Some(event),
            event => place(event),
        };
        let Some(node) = at.and_then(|at| self.nodes.get_mut(&at)) else { return Some(event) };
        if node.dead {
            return None;
        }
        if node.frozen.is_empty() {
            return Some(event);
        }
        node.waiting.push(event);
        None
    }

    /// Whether the node is dead.
    #[must_use]
    pub fn is_dead(&self, node: Addr) -> bool {
        self.nodes.get(&node).is_some_and(|n| n.dead)
    }

    /// Whether the node stands still.
    #[must_use]
    pub fn is_frozen(&self, node: Addr) -> bool {
        self.nodes.get(&node).is_some_and(|n| !n.frozen.is_empty())
    }

    /// A node dies.
    pub fn crash(&mut self, node: Addr) {
        let state = self.nodes.entry(node).or_default();
        state.dead = true;
        state.frozen.clear();
        state.waiting.clear();
    }

    /// A dead node starts again, and knows nobody.
    pub fn start(&mut self, node: Addr) {
        self.nodes.entry(node).or_default().dead = false;
        for other in self.others(node) {
            let side = key(node, other).1;
            let pair = self.pair(node, other);
            pair.sees[side] = false;
            pair.up = false;
        }
    }

    /// A node stands still. Gives back the number of this time; none where it did already, or is dead.
    pub fn freeze(&mut self, node: Addr, fault: u32) -> Option<u32> {
        let state = self.nodes.entry(node).or_default();
        if state.dead {
            return None;
        }
        let first = state.frozen.is_empty();
        state.frozen.insert(fault);
        state.stamp += u32::from(first);
        first.then_some(state.stamp)
    }

    /// A fault is over. Gives back what waits to happen where the node goes on.
    pub fn thaw(&mut self, node: Addr, fault: u32) -> Option<Vec<Event>> {
        let state = self.nodes.get_mut(&node)?;
        let goes_on = state.frozen.remove(&fault) && state.frozen.is_empty();
        goes_on.then(|| std::mem::take(&mut state.waiting))
    }

    /// Nothing gets through between two nodes. Gives back the number of the cut; none where there is one already.
    pub fn cut(&mut self, a: Addr, b: Addr) -> Option<u32> {
        let pair = self.pair(a, b);
        pair.cuts += 1;
        if pair.cuts > 1 {
            return None;
        }
        pair.stamp += 1;
        Some(pair.stamp)
    }

    /// A cut is over. Where it was the last: whether the connection still is, and what has waited on it.
    pub fn heal(&mut self, a: Addr, b: Addr) -> Option<(bool, Held)> {
        let pair = self.pair(a, b);
        pair.cuts = pair.cuts.saturating_sub(1);
        (pair.cuts == 0).then(|| (pair.up, std::mem::take(&mut pair.held)))
    }

    /// Closes the connection, without a word to either end. Gives back its number.
    pub fn close(&mut self, a: Addr, b: Addr) -> u32 {
        let pair = self.pair(a, b);
        pair.up = false;
        pair.epoch
    }

    /// The number of the connection where it is closed.
    #[must_use]
    pub fn closed(&self, a: Addr, b: Addr) -> Option<u32> {
        self.pairs.get(&key(a, b).0).filter(|pair| !pair.up).map(|pair| pair.epoch)
    }

    /// Loses what waits on a link; how many messages.
    pub fn drop_held(&mut self, a: Addr, b: Addr) -> u64 {
        let pair = self.pair(a, b);
        std::mem::take(&mut pair.held).len() as u64
    }

    /// `who` looks for `whom`: whether it finds out now that there is no link, and how many messages are lost with it.
    pub fn notices(&mut self, who: Addr, whom: Addr, why: Silence) -> (bool, u64) {
        let frozen = self.nodes.get(&whom).filter(|n| !n.frozen.is_empty()).map(|n| n.stamp);
        let side = key(who, whom).1;
        let pair = self.pair(who, whom);
        let so = match why {
            Silence::Cut(stamp) => pair.cuts > 0 && pair.stamp == stamp,
            Silence::Frozen(stamp) => frozen == Some(stamp),
            Silence::Dead(epoch) | Silence::Closed(epoch) => !pair.up && pair.epoch == epoch,
        };
        if !so {
            return (false, 0);
        }
        pair.up = false;
        let lost = std::mem::take(&mut pair.held).len() as u64;
        (std::mem::replace(&mut pair.sees[side], false), lost)
    }

    /// Makes a link where there is none and one can be made.
    pub fn connect(&mut self, a: Addr, b: Addr) -> Option<Linked> {
        if [a, b].iter().any(|node| self.is_dead(*node) || self.is_frozen(*node)) {
            return None;
        }
        let nodes = key(a, b).0;
        let pair = self.pair(a, b);
        if pair.up || pair.cuts > 0 {
            return None;
        }
        pair.epoch += 1;
        pair.up = true;
        pair.held.clear();
        let unaware = std::mem::replace(&mut pair.sees, [true; 2]);
        Some(Linked { nodes: [nodes.0, nodes.1], unaware })
    }

    /// A fault makes a node slow, or is over.
    pub fn slow(&mut self, node: Addr, slow: Slow, begins: bool) {
        let known = &mut self.nodes.entry(node).or_default().slow;
        known.retain(|s| s.fault != slow.fault);
        if begins {
            known.push(slow);
        }
    }

    /// How long a step of this node takes that would take `span`.
    #[must_use]
    pub fn slowed(&self, node: Addr, span: Span) -> Span {
        self.slows(node).fold(span, |span, slow| times(span, slow.steps))
    }

    /// How long a message between the two takes that would take `span`.
    #[must_use]
    pub fn delayed(&self, a: Addr, b: Addr, span: Span) -> Span {
        self.slows(a).chain(self.slows(b)).fold(span, |span, slow| times(span, slow.link) + slow.added)
    }

    /// How many thousandths of its time a transfer from or to this node takes.
    #[must_use]
    pub fn narrowed(&self, node: Addr) -> u64 {
        self.slows(node).fold(1000, |all: u64, slow| all.saturating_mul(slow.link) / 1000).max(1)
    }

    fn slows(&self, node: Addr) -> impl Iterator<Item = &Slow> {
        self.nodes.get(&node).into_iter().flat_map(|n| &n.slow)
    }

    fn pair(&mut self, a: Addr, b: Addr) -> &mut Pair {
        self.pairs.entry(key(a, b).0).or_insert(Pair::NEW)
    }
}

/// The pair of two nodes, and which of them `who` is.
fn key(who: Addr, whom: Addr) -> ((Addr, Addr), usize) {
    if who < whom { ((who, whom), 0) } else { ((whom, who), 1) }
}

fn times(span: Span, permille: u64) -> Span {
    let scaled = u128::from(span.0) * u128::from(permille) / 1000;
    Span(u64::try_from(scaled).unwrap_or(u64::MAX))
}
