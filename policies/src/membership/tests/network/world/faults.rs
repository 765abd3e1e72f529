//! Meeting over this network, and what can go wrong in it.

use super::*;

#[derive(Clone, Debug)]
pub(in super::super) enum Fault {
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

impl World {
    pub(super) fn shake(&mut self, from: Process, address: String, begun: Time) {
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

    pub(in super::super) fn me(&self, process: Process) -> Option<Member> {
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

    pub(in super::super) fn inflict(&mut self, fault: &Fault) {
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
    pub(in super::super) fn assert_whole(&self) {
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

    pub(in super::super) fn heal(&mut self) {
        self.cuts.clear();
        for node in 0..self.hosts.len() {
            self.hosts[node].frozen_until = self.now.min(self.hosts[node].frozen_until);
            if self.hosts[node].core.is_none() {
                self.boot(node);
            }
        }
    }
}

pub(in super::super) fn fault() -> impl Strategy<Value = Fault> {
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
