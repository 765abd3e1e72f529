//! What goes wrong, as data: faults with a time, and faults drawn from the seed.

use std::fmt;
use std::str::FromStr;

use config::Dur;
use policies::rng::{self, Rng};
use serde::{Deserialize, Serialize};

use super::{invalid, within};
use crate::SimError;
use crate::network::Addr;

/// Stands for "no worker is named".
const NOBODY: u32 = u32::MAX;

/// Stream of the random numbers that faults are drawn from.
const FAULTS: u64 = 9;

/// Something that happens to one node, or to several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Fault {
    /// When.
    pub at: Dur,
    /// To which worker, from 0.
    pub worker: u32,
    /// What; a crash where this is left out.
    pub kind: FaultKind,
    /// After how long it is over (a node that crashed starts again); never where this is left out.
    pub back_after: Option<Dur>,
    /// To which nodes: `controller`, `gateway`, `w0`, `w1`, …; only `worker` where this is left out.
    pub nodes: Vec<NodeName>,
    /// How many times slower, for `slow-node` and `slow-link`; at least 1.
    pub factor: f64,
    /// Time that each message takes more, for `slow-link`.
    pub added: Dur,
}

/// What happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The node dies, and is noticed after [`super::Cluster::detect`]. It comes back empty, as another life.
    #[default]
    Crash,
    /// The controller and the gateway take the worker for dead, and it lives: what runs there runs on until it is told to
    /// stop. It comes back as it is.
    FalseAlarm,
    /// The node neither computes nor answers; what comes meanwhile waits. After [`super::Cluster::detect`] the others give it up;
    /// it goes on where it stood.
    Freeze,
    /// Nothing passes between the nodes named and all others. After [`super::Cluster::detect`] both sides notice: their links
    /// break and lose what was under way. A cut that is shorter only delays.
    Partition,
    /// The links between the nodes named and all others break now, lose what was under way, and are made again after
    /// [`super::Network::relink`].
    Reset,
    /// Steps of the workers named take `factor` times as long.
    SlowNode,
    /// Messages from and to the nodes named take `factor` times as long and `added` more; bulk transfers have
    /// 1 / `factor` of the bandwidth.
    SlowLink,
    /// The disk of a pool is full. Refused: no pool serves requests yet.
    PoolDiskFull,
    /// The workers named take nothing new, do what they have, and leave; `back-after` counts from then.
    Drain,
}

/// A node, as a scenario names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct NodeName(pub Addr);

/// Faults drawn from the scenario's seed, besides those that it lists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Faults {
    /// How many of each.
    pub random: RandomFaults,
}

/// How many faults of each kind are drawn, when, and how long they last. Each is over some time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RandomFaults {
    /// Nodes that die and start again.
    pub crashes: u32,
    /// Nodes that stand still.
    pub freezes: u32,
    /// Cuts between a random half of the nodes, or a single one, and the others.
    pub partitions: u32,
    /// Links that break and are made again.
    pub resets: u32,
    /// Workers that are slow.
    pub slow_nodes: u32,
    /// Nodes with slow links.
    pub slow_links: u32,
    /// Workers that are drained and start again.
    pub drains: u32,
    /// The controller and the gateway crash and freeze too, not only workers. They can be cut off in any case.
    pub all_roles: bool,
    /// They begin within this time of the start, each moment as likely.
    pub within: Dur,
    /// How long one lasts on average; from nothing to twice that, each as likely.
    pub lasting: Dur,
}

impl Default for Fault {
    fn default() -> Self {
        Self {
            at: Dur::default(),
            worker: NOBODY,
            kind: FaultKind::Crash,
            back_after: None,
            nodes: Vec::new(),
            factor: 1.0,
            added: Dur::default(),
        }
    }
}

impl Default for RandomFaults {
    fn default() -> Self {
        Self {
            crashes: 0,
            freezes: 0,
            partitions: 0,
            resets: 0,
            slow_nodes: 0,
            slow_links: 0,
            drains: 0,
            all_roles: false,
            within: Dur::from_secs(10),
            lasting: Dur::from_secs(1),
        }
    }
}

impl Fault {
    /// The nodes that it happens to.
    #[must_use]
    pub fn targets(&self) -> Vec<Addr> {
        match self.nodes.is_empty() {
            true => vec![Addr::Worker(self.worker)],
            false => self.nodes.iter().map(|name| name.0).collect(),
        }
    }

    /// [`Fault::factor`] in thousandths.
    #[must_use]
    pub fn permille(&self) -> u64 {
        (self.factor * 1000.0).round() as u64
    }

    pub(super) fn validate(&self, workers: u32) -> Result<(), SimError> {
        let last = u64::from(workers) - 1;
        if self.kind == FaultKind::PoolDiskFull {
            let reason = "no pool serves requests yet, so its disk cannot be full; use another kind";
            return Err(invalid("fault.kind", &"pool-disk-full", reason.into()));
        }
        if self.nodes.is_empty() && self.worker == NOBODY {
            let reason = format!("say who it happens to: worker = 0 to {last}, or nodes = [\"controller\"]");
            return Err(invalid("fault.worker", &"missing", reason));
        }
        if self.nodes.is_empty() {
            within("fault.worker", self.worker.into(), 0, last)?;
        }
        for name in &self.nodes {
            let worker = match name.0 {
                Addr::Worker(worker) => worker,
                Addr::Controller | Addr::Gateway => 0,
            };
            within("fault.nodes", worker.into(), 0, last)?;
            let alarm = matches!(self.kind, FaultKind::FalseAlarm | FaultKind::SlowNode | FaultKind::Drain);
            if alarm && !matches!(name.0, Addr::Worker(_)) {
                return Err(invalid(
                    "fault.nodes",
                    name,
                    "only workers are slow, drained or falsely given up".into(),
                ));
            }
        }
        if !(1.0..=1000.0).contains(&self.factor) {
            return Err(invalid("fault.factor", &self.factor, "use 1 to 1000".into()));
        }
        Ok(())
    }
}

impl RandomFaults {
    /// Whether there are any.
    #[must_use]
    pub const fn are_any(&self) -> bool {
        let slow = self.slow_nodes | self.slow_links;
        self.crashes | self.freezes | self.partitions | self.resets | self.drains | slow > 0
    }

    /// The faults of this seed.
    #[must_use]
    pub fn draw(&self, seed: u64, workers: u32) -> Vec<Fault> {
        let counts = [
            (FaultKind::Crash, self.crashes),
            (FaultKind::Freeze, self.freezes),
            (FaultKind::Partition, self.partitions),
            (FaultKind::Reset, self.resets),
            (FaultKind::SlowNode, self.slow_nodes),
            (FaultKind::SlowLink, self.slow_links),
            (FaultKind::Drain, self.drains),
        ];
        let mut faults = Vec::new();
        for (kind, count) in counts {
            // A stream each, so that another number of one kind does not move the others.
            let mut rng = Rng::new(rng::bits(seed, FAULTS, kind as u64));
            faults.extend((0..count).map(|_| self.one(kind, workers, &mut rng)));
        }
        faults
    }

    fn one(&self, kind: FaultKind, workers: u32, rng: &mut Rng) -> Fault {
        let at = Dur::from_nanos(rng.below(self.within.as_nanos().saturating_add(1)));
        let lasting = rng.below(self.lasting.as_nanos().saturating_mul(2).saturating_add(1));
        let factor = 1.0 + rng.below(9) as f64;
        let half = rng.below(2) == 0;
        let any = |rng: &mut Rng| match rng.below(u64::from(workers) + 2) {
            0 => Addr::Controller,
            1 => Addr::Gateway,
            n => Addr::Worker(n as u32 - 2),
        };
        let worker = |rng: &mut Rng| Addr::Worker(rng.below(workers.into()) as u32);
        let targets = match kind {
            FaultKind::Partition if half => {
                let mut side: Vec<Addr> = (0..=u64::from(workers) / 2).map(|_| any(rng)).collect();
                side.sort_unstable();
                side.dedup();
                side
            }
            FaultKind::Partition | FaultKind::Reset | FaultKind::SlowLink => vec![any(rng)],
            FaultKind::Crash | FaultKind::Freeze if self.all_roles => vec![any(rng)],
            _ => vec![worker(rng)],
        };
        let nodes = targets.into_iter().map(NodeName).collect();
        Fault { at, kind, back_after: Some(Dur::from_nanos(lasting)), nodes, factor, ..Fault::default() }
    }

    pub(super) fn validate(&self) -> Result<(), SimError> {
        let slow = [self.slow_nodes, self.slow_links];
        let counts = [self.crashes, self.freezes, self.partitions, self.resets, self.drains];
        for count in counts.into_iter().chain(slow) {
            within("faults.random", count.into(), 0, 10_000)?;
        }
        Ok(())
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Addr::Gateway => f.write_str("gateway"),
            Addr::Controller => f.write_str("controller"),
            Addr::Worker(n) => write!(f, "w{n}"),
        }
    }
}

impl FromStr for NodeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let addr = match text {
            "gateway" => Some(Addr::Gateway),
            "controller" => Some(Addr::Controller),
            _ => text.strip_prefix('w').and_then(|n| n.parse().ok()).map(Addr::Worker),
        };
        addr.map(Self).ok_or_else(|| format!("`{text}` is no node: use controller, gateway, or w0, w1, …"))
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for NodeName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
