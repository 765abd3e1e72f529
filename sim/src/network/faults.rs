//! What happens to nodes and links, and who notices it.

use policies::time::Time;

use super::{Addr, Network, Silence, links};
use crate::event::Event;
use crate::queue::Queue;

impl Network {
    /// A node dies: its links say nothing from now on, and what waits for it is lost.
    pub fn crash(&mut self, now: Time, node: Addr, queue: &mut Queue) {
        for (other, epoch) in self.close(node) {
            self.notice(now, other, node, Silence::Dead(epoch), queue);
        }
        self.flows_changed(now, queue);
    }

    /// A node says goodbye, and is gone.
    pub fn leave(&mut self, now: Time, node: Addr, queue: &mut Queue) {
        for (other, epoch) in self.close(node) {
            let why = Silence::Dead(epoch);
            queue.push(now + self.latency, Event::Notice { who: other, whom: node, why });
        }
        self.flows_changed(now, queue);
    }

    /// A node is no more; those that had links to it, with the numbers of these.
    fn close(&mut self, node: Addr) -> Vec<(Addr, u32)> {
        let Some(links) = &mut self.links else { return Vec::new() };
        links.crash(node);
        let mut silent = Vec::new();
        for other in links.others(node) {
            silent.push((other, links.close(node, other)));
            self.lost += links.drop_held(node, other);
        }
        silent
    }

    /// A node starts, as a new process that knows nobody: the pairs that are linked now, of those that could be.
    pub fn start(&mut self, node: Addr) -> Vec<links::Linked> {
        let Some(links) = &mut self.links else { return Vec::new() };
        links.start(node);
        let others = links.others(node);
        others.into_iter().filter_map(|other| links.connect(node, other)).collect()
    }

    /// A node stands still from now on, until every fault that does this is over.
    pub fn freeze(&mut self, now: Time, node: Addr, fault: u32, queue: &mut Queue) {
        let Some(links) = &mut self.links else { return };
        let Some(stamp) = links.freeze(node, fault) else { return };
        for other in links.others(node) {
            self.notice(now, other, node, Silence::Frozen(stamp), queue);
        }
        self.flows_changed(now, queue);
    }

    /// A fault that made a node stand still is over.
    pub fn thaw(&mut self, now: Time, node: Addr, fault: u32, queue: &mut Queue) {
        let Some(links) = &mut self.links else { return };
        let Some(waiting) = links.thaw(node, fault) else { return };
        waiting.into_iter().for_each(|event| queue.push(now, event));
        for other in links.others(node) {
            if let Some(epoch) = links.closed(node, other) {
                queue.push(now, Event::Notice { who: node, whom: other, why: Silence::Closed(epoch) });
                queue.push(now + self.relink, Event::Relink(node, other));
            }
        }
        self.flows_changed(now, queue);
    }

    /// Nothing passes between these nodes and all others from now on.
    pub fn cut(&mut self, now: Time, side: &[Addr], queue: &mut Queue) {
        for (a, b) in self.between(side) {
            let Some(stamp) = self.links.as_mut().and_then(|links| links.cut(a, b)) else { continue };
            self.notice(now, a, b, Silence::Cut(stamp), queue);
            self.notice(now, b, a, Silence::Cut(stamp), queue);
        }
        self.flows_changed(now, queue);
    }

    /// What was cut is whole again: links that nobody has given up go on, others are made again.
    pub fn heal(&mut self, now: Time, side: &[Addr], queue: &mut Queue) {
        for (a, b) in self.between(side) {
            let Some(links) = &mut self.links else { return };
            let Some((up, held)) = links.heal(a, b) else { continue };
            for wire in held {
                let last = self.last.entry((wire.from, wire.to)).or_default();
                *last = (*last).max(now + self.latency);
                queue.push(*last, Event::Wire(Box::new(wire)));
            }
            if !up {
                queue.push(now + self.relink, Event::Relink(a, b));
            }
        }
        self.flows_changed(now, queue);
    }

    /// The links between these nodes and all others break now.
    pub fn reset(&mut self, now: Time, side: &[Addr], queue: &mut Queue) {
        for (a, b) in self.between(side) {
            let Some(links) = &mut self.links else { return };
            let epoch = links.close(a, b);
            self.lost += links.drop_held(a, b);
            for (who, whom) in [(a, b), (b, a)] {
                queue.push(now, Event::Notice { who, whom, why: Silence::Closed(epoch) });
            }
            queue.push(now + self.relink, Event::Relink(a, b));
        }
        self.flows_changed(now, queue);
    }

    /// Two nodes try to make a link.
    pub fn relink(&mut self, now: Time, a: Addr, b: Addr, queue: &mut Queue) -> Option<links::Linked> {
        let linked = self.links.as_mut()?.connect(a, b);
        self.flows_changed(now, queue);
        linked
    }

    /// A node may notice that another one is silent; whether it is so, and news to it.
    pub fn notices(&mut self, now: Time, who: Addr, whom: Addr, why: Silence, queue: &mut Queue) -> bool {
        let Some(links) = &mut self.links else { return false };
        let (news, lost) = links.notices(who, whom, why);
        self.lost += lost;
        self.flows_changed(now, queue);
        news
    }

    /// Steps of a node take `permille` / 1000 of the time; messages from and to it `link` / 1000, and `added` more.
    pub fn slow(&mut self, now: Time, node: Addr, slow: links::Slow, begins: bool, queue: &mut Queue) {
        if let Some(links) = &mut self.links {
            links.slow(node, slow, begins);
        }
        self.flows_changed(now, queue);
    }

    fn notice(&mut self, now: Time, who: Addr, whom: Addr, why: Silence, queue: &mut Queue) {
        let at = self.noticed(now);
        queue.push(at, Event::Notice { who, whom, why });
    }

    /// The pairs between `side` and all other nodes.
    fn between(&self, side: &[Addr]) -> Vec<(Addr, Addr)> {
        let Some(links) = &self.links else { return Vec::new() };
        let (inner, outer): (Vec<_>, Vec<_>) = links.nodes().partition(|node| side.contains(node));
        inner.iter().flat_map(|a| outer.iter().map(|b| (*a, *b))).collect()
    }
}
