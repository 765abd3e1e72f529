//! Bulk transfers that share bandwidth.
//!
//! Each node can send and receive so many bytes a second. The transfers of the moment share that max-min fairly (Bertsekas
//! and Gallager, *Data Networks*, 6.5.2: progressive filling): the most crowded end gives each of its transfers the same
//! share; what those cannot use elsewhere is shared by the others. A transfer that begins or ends changes the shares of
//! all, and what is left of each is then due at another time. Exact in integers: what is left counts in 10⁻⁹ bytes, since
//! a rate in bytes a second moves as many of those in a nanosecond.

use std::collections::BTreeMap;

use policies::time::{Span, Time};

use super::Addr;
use super::links::Links;
use crate::event::Event;
use crate::queue::Queue;

/// Units of what is left, a byte.
const UNITS: u128 = 1_000_000_000;

/// The rate of a transfer between nodes that both have no limit.
const UNLIMITED: u64 = u64::MAX;

/// The transfers under way.
#[derive(Debug)]
pub struct Flows {
    /// Bytes a second that each worker sends, and receives, at most; 0: without limit.
    workers: Vec<u64>,
    /// The same of each pool.
    pools: Vec<u64>,
    /// The same of all other nodes.
    others: u64,
    flows: Vec<Flow>,
    /// When `left` was true.
    as_of: Time,
    /// Counts changes: what was due after another number of them is not.
    generation: u64,
    /// The change that something in the queue is due after.
    scheduled: Option<u64>,
}

#[derive(Debug)]
struct Flow {
    from: Addr,
    to: Addr,
    left: u128,
    rate: u64,
    event: Event,
}

/// One end of a node's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Sends(Addr),
    Receives(Addr),
}

impl Flows {
    /// None yet, between workers and pools of these bandwidths and other nodes. A bandwidth of 0 is without limit.
    #[must_use]
    pub const fn new(workers: Vec<u64>, pools: Vec<u64>, others: u64) -> Self {
        Self { workers, pools, others, flows: Vec::new(), as_of: Time::ZERO, generation: 0, scheduled: None }
    }

    /// Whether there are any.
    #[must_use]
    pub const fn are_any(&self) -> bool {
        !self.flows.is_empty()
    }

    /// A transfer begins; `event` leaves the sender when its last byte has.
    pub fn add(&mut self, now: Time, from: Addr, to: Addr, bytes: u64, event: Event, links: Option<&Links>) {
        self.advance(now);
        let left = u128::from(bytes) * UNITS;
        self.flows.push(Flow { from, to, left, rate: 0, event });
        self.share(links);
    }

    /// Links have changed: transfers over closed ones are lost (how many), those over cut ones wait.
    pub fn links_changed(&mut self, now: Time, links: Option<&Links>) -> u64 {
        self.advance(now);
        let before = self.flows.len();
        self.flows.retain(|f| links.is_none_or(|links| links.epoch(f.from, f.to).is_some()));
        self.share(links);
        (before - self.flows.len()) as u64
    }

    /// Puts the time of the next end into the queue, unless it is there.
    pub fn schedule(&mut self, now: Time, queue: &mut Queue) {
        if self.scheduled == Some(self.generation) {
            return;
        }
        let next = self.flows.iter().filter_map(Flow::takes).min();
        if let Some(next) = next {
            self.scheduled = Some(self.generation);
            queue.push(now + next, Event::Flow(self.generation));
        }
    }

    /// A transfer was to end now, after this change: those that do, in the order in which they began.
    pub fn due(&mut self, now: Time, generation: u64, links: Option<&Links>) -> Vec<(Addr, Addr, Event)> {
        if generation != self.generation {
            return Vec::new();
        }
        self.advance(now);
        let is_over = |f: &mut Flow| f.left == 0 || f.rate == UNLIMITED;
        let over: Vec<_> = self.flows.extract_if(.., is_over).map(|f| (f.from, f.to, f.event)).collect();
        self.share(links);
        over
    }

    fn advance(&mut self, now: Time) {
        let passed = u128::from(now.since(self.as_of).0);
        for flow in &mut self.flows {
            flow.left = flow.left.saturating_sub(u128::from(flow.rate) * passed);
        }
        self.as_of = now;
    }

    fn bandwidth(&self, node: Addr) -> u64 {
        match node {
            Addr::Worker(n) => self.workers.get(n as usize).copied().unwrap_or(self.others),
            Addr::Pool(n) => self.pools.get(n as usize).copied().unwrap_or(self.others),
            Addr::Gateway | Addr::Controller => self.others,
        }
    }

    /// Gives each transfer its rate.
    fn share(&mut self, links: Option<&Links>) {
        self.generation += 1;
        let goes = |f: &Flow| links.is_none_or(|links| links.flows(f.from, f.to));
        let mut open: Vec<usize> = Vec::new();
        for (n, flow) in self.flows.iter_mut().enumerate() {
            flow.rate = 0;
            if goes(flow) {
                open.push(n);
            }
        }
        // What is left of each limited end's bandwidth, and transfers without a rate there.
        let mut ends: BTreeMap<End, (u64, u64)> = BTreeMap::new();
        for n in &open {
            let mut limited = false;
            for (end, node) in self.flows[*n].ends() {
                let bandwidth = self.bandwidth(node);
                if bandwidth > 0 {
                    let narrowed = links.map_or(1000, |links| links.narrowed(node));
                    let whole = u128::from(bandwidth) * 1000 / u128::from(narrowed);
                    ends.entry(end).or_insert((u64::try_from(whole).unwrap_or(u64::MAX), 0)).1 += 1;
                    limited = true;
                }
            }
            if !limited {
                self.flows[*n].rate = UNLIMITED;
            }
        }
        open.retain(|n| self.flows[*n].rate == 0);
        while let Some((_, (left, count))) =
            ends.iter().filter(|(_, (_, count))| *count > 0).min_by_key(|(_, (left, count))| left / count)
        {
            // Never quite nothing: a transfer that has begun also ends.
            let share = (left / count).max(1);
            let crowded: Vec<End> =
                ends.iter().filter(|(_, (l, c))| *c > 0 && l / c <= share).map(|(end, _)| *end).collect();
            open.retain(|n| {
                let flow = &mut self.flows[*n];
                let fixed = flow.ends().iter().any(|(end, _)| crowded.contains(end));
                if fixed {
                    flow.rate = share;
                    for (end, _) in flow.ends() {
                        if let Some((left, count)) = ends.get_mut(&end) {
                            (*left, *count) = (left.saturating_sub(share), *count - 1);
                        }
                    }
                }
                !fixed
            });
        }
    }
}

impl Flow {
    const fn ends(&self) -> [(End, Addr); 2] {
        [(End::Sends(self.from), self.from), (End::Receives(self.to), self.to)]
    }

    /// How long it takes at its rate; none while it waits.
    fn takes(&self) -> Option<Span> {
        let nanoseconds = match self.rate {
            0 => return None,
            UNLIMITED => 0,
            rate => self.left.div_ceil(rate.into()),
        };
        Some(Span(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Addr = Addr::Worker(0);
    const B: Addr = Addr::Worker(1);
    const C: Addr = Addr::Worker(2);

    /// Which transfer ends when, of those that begin at these times: from, to, bytes.
    fn ends(bandwidth: u64, flows: &[(u64, Addr, Addr, u64)]) -> Vec<(u32, u64)> {
        ends_of(Flows::new(Vec::new(), Vec::new(), bandwidth), flows)
    }

    fn ends_of(mut all: Flows, flows: &[(u64, Addr, Addr, u64)]) -> Vec<(u32, u64)> {
        let mut queue = Queue::default();
        for (n, (at, ..)) in flows.iter().enumerate() {
            queue.push(Time(*at), Event::Fault(n as u32));
        }
        let mut ended = Vec::new();
        while let Some((now, event)) = queue.pop() {
            match event {
                Event::Fault(n) => {
                    let (_, from, to, bytes) = flows[n as usize];
                    all.add(now, from, to, bytes, Event::FaultOver(n), None);
                }
                Event::Flow(generation) => {
                    for (.., event) in all.due(now, generation, None) {
                        let Event::FaultOver(n) = event else { panic!("{event:?}") };
                        ended.push((n, now.0));
                    }
                }
                other => panic!("{other:?}"),
            }
            all.schedule(now, &mut queue);
        }
        assert!(!all.are_any());
        ended
    }

    const S: u64 = 1_000_000_000;

    #[test]
    fn one_alone_has_all_of_it() {
        assert_eq!(ends(100, &[(0, A, B, 200)]), [(0, 2 * S)]);
        assert_eq!(ends(3, &[(7, A, B, 1)]), [(0, 7 + 333_333_334)]);
        assert_eq!(ends(0, &[(7, A, B, 1 << 40)]), [(0, 7)], "without limit");
        assert_eq!(ends(100, &[(7, A, B, 0)]), [(0, 7)], "nothing to send");
    }

    #[test]
    fn two_share_the_end_that_they_have_in_common() {
        // Both leave A: half each, and the longer one has all when the shorter one is over.
        assert_eq!(ends(100, &[(0, A, B, 100), (0, A, C, 200)]), [(0, 2 * S), (1, 3 * S)]);
        // Both arrive at C.
        assert_eq!(ends(100, &[(0, A, C, 100), (0, B, C, 100)]), [(0, 2 * S), (1, 2 * S)]);
        // Sending and receiving are apart.
        assert_eq!(ends(100, &[(0, A, B, 100), (0, B, A, 100)]), [(0, S), (1, S)]);
    }

    #[test]
    fn a_late_one_takes_its_share_from_then_on() {
        // 100 bytes in the first second, 50 in the next two.
        assert_eq!(ends(100, &[(0, A, B, 200), (S, A, C, 100)]), [(0, 3 * S), (1, 3 * S)]);
    }

    #[test]
    fn the_slower_end_of_two_machines_counts() {
        let flows = |workers: &[u64]| Flows::new(workers.to_vec(), Vec::new(), 0);
        assert_eq!(ends_of(flows(&[100, 50]), &[(0, A, B, 100)]), [(0, 2 * S)]);
        assert_eq!(ends_of(flows(&[50, 100]), &[(0, A, B, 100)]), [(0, 2 * S)]);
        assert_eq!(ends_of(flows(&[100, 0]), &[(0, A, B, 100)]), [(0, S)], "the other end has no limit");
        assert_eq!(ends_of(flows(&[100]), &[(7, B, C, 100), (7, A, C, 100)]), [(0, 7), (1, 7 + S)]);
        // What B is too slow for, C has.
        assert_eq!(ends_of(flows(&[100, 20, 100]), &[(0, A, B, 20), (0, A, C, 80)]), [(0, S), (1, S)]);
    }

    #[test]
    fn what_one_cannot_use_is_for_the_others() {
        // Three arrive at C with a third each; the fourth, from A as one of those, has what that leaves.
        let d = Addr::Worker(3);
        let flows = [(0, A, C, 100), (0, B, C, 100), (0, Addr::Gateway, C, 100), (0, A, d, 200)];
        assert_eq!(ends(300, &flows), [(0, S), (1, S), (2, S), (3, S)]);
    }
}
