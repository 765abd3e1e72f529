//! What goes wrong, as data: faults with a time, and faults drawn from the seed.

use std::fmt;
use std::str::FromStr;

use config::Dur;
use policies::rng::{self, Rng};
use serde::{Deserialize, Serialize};

use super::{PoolClass, invalid, within};
use crate::SimError;
use crate::network::Addr;

/// Stands for "no worker, or pool, is named".
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
    /// Or to which pool, from 0.
    #[serde(skip_serializing_if = "is_nobody")]
    pub pool: u32,
    /// What; a crash where this is left out.
    pub kind: FaultKind,
    /// After how long it is over (a node that crashed starts again); never where this is left out.
    pub back_after: Option<Dur>,
    /// To which nodes: `controller`, `gateway`, `w0`, `w1`, …, `p0`, `p1`, … (pools); only `worker` or `pool`
    /// where this is left out.
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
    /// Steps of the workers named, and reads and writes of the pools' disks, take `factor` times as long.
    SlowNode,
    /// Messages from and to the nodes named take `factor` times as long and `added` more; bulk transfers have
    /// 1 / `factor` of the bandwidth.
    SlowLink,
    /// The disks of the pools named are full: every write fails, when it has taken its time. Reads go on.
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
    /// Disks of pools that are full.
    #[serde(skip_serializing_if = "is_none")]
    pub full_disks: u32,
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
            pool: NOBODY,
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
            full_disks: 0,
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
            true if self.worker == NOBODY => vec![Addr::Pool(self.pool)],
            true => vec![Addr::Worker(self.worker)],
            false => self.nodes.iter().map(|name| name.0).collect(),
        }
    }

    /// [`Fault::factor`] in thousandths.
    #[must_use]
    pub fn permille(&self) -> u64 {
        (self.factor * 1000.0).round() as u64
    }

    pub(super) fn validate(&self, workers: u32, pools: &[PoolClass]) -> Result<(), SimError> {
        let last = u64::from(workers) - 1;
        let disks: Vec<bool> =
            pools.iter().flat_map(|class| (0..class.count).map(|_| class.disk.is_some())).collect();
        if self.nodes.is_empty() && self.worker == NOBODY && self.pool == NOBODY {
            let reason = format!("say who it happens to: worker = 0 to {last}, or nodes = [\"controller\"]");
            return Err(invalid("fault.worker", &"missing", reason));
        }
        if self.nodes.is_empty() && self.worker != NOBODY && self.pool != NOBODY {
            let reason = format!("there is fault.worker = {} too; use nodes for both", self.worker);
            return Err(invalid("fault.pool", &self.pool, reason));
        }
        let key = match (self.nodes.is_empty(), self.worker) {
            (false, _) => "fault.nodes",
            (true, NOBODY) => "fault.pool",
            (true, _) => "fault.worker",
        };
        for node in self.targets() {
            match node {
                Addr::Worker(worker) => within(key, worker.into(), 0, last)?,
                Addr::Pool(pool) if disks.is_empty() => {
                    return Err(invalid(key, &pool, "there is no pool; add one, [[pool]]".into()));
                }
                Addr::Pool(pool) => within(key, pool.into(), 0, disks.len() as u64 - 1)?,
                Addr::Controller | Addr::Gateway => {}
            }
            self.validate_target(key, node, &disks)?;
        }
        if self.kind == FaultKind::PoolDiskFull && self.back_after.is_none() {
            let reason =
                "a full disk is tried again for ever, so that the run would not end; say how long it lasts";
            return Err(invalid("fault.back-after", &"missing", reason.into()));
        }
        if !(1.0..=1000.0).contains(&self.factor) {
            return Err(invalid("fault.factor", &self.factor, "use 1 to 1000".into()));
        }
        Ok(())
    }

    fn validate_target(&self, key: &'static str, node: Addr, disks: &[bool]) -> Result<(), SimError> {
        let (worker, pool) = (matches!(node, Addr::Worker(_)), matches!(node, Addr::Pool(_)));
        let name = NodeName(node);
        match self.kind {
            FaultKind::FalseAlarm | FaultKind::Drain if !worker => {
                Err(invalid(key, &name, "only workers are drained or falsely given up".into()))
            }
            FaultKind::SlowNode if !worker && !pool => {
                Err(invalid(key, &name, "only workers and disks of pools are slow".into()))
            }
            FaultKind::PoolDiskFull => match node {
                Addr::Pool(pool) if disks.get(pool as usize) == Some(&true) => Ok(()),
                Addr::Pool(_) => Err(invalid(key, &name, "it has no disk; set pool.disk".into())),
                _ => {
                    Err(invalid(key, &name, "only pools have a disk that can be full; use p0, p1, …".into()))
                }
            },
            _ => Ok(()),
        }
    }
}

impl RandomFaults {
    /// Whether there are any.
    #[must_use]
    pub const fn are_any(&self) -> bool {
        let slow = self.slow_nodes | self.slow_links;
        self.crashes | self.freezes | self.partitions | self.resets | self.drains | self.full_disks | slow > 0
    }

    /// The faults of this seed. Those of pools come to nothing where there are none.
    #[must_use]
    pub fn draw(&self, seed: u64, workers: u32, pools: u32) -> Vec<Fault> {
        let counts = [
            (FaultKind::Crash, self.crashes),
            (FaultKind::Freeze, self.freezes),
            (FaultKind::Partition, self.partitions),
            (FaultKind::Reset, self.resets),
            (FaultKind::SlowNode, self.slow_nodes),
            (FaultKind::SlowLink, self.slow_links),
            (FaultKind::Drain, self.drains),
            (FaultKind::PoolDiskFull, if pools == 0 { 0 } else { self.full_disks }),
        ];
        let mut faults = Vec::new();
        for (kind, count) in counts {
            // A stream each, so that another number of one kind does not move the others.
            let mut rng = Rng::new(rng::bits(seed, FAULTS, kind as u64));
            faults.extend((0..count).map(|_| self.one(kind, (workers, pools), &mut rng)));
        }
        faults
    }

    fn one(&self, kind: FaultKind, (workers, pools): (u32, u32), rng: &mut Rng) -> Fault {
        let at = Dur::from_nanos(rng.below(self.within.as_nanos().saturating_add(1)));
        let lasting = rng.below(self.lasting.as_nanos().saturating_mul(2).saturating_add(1));
        let factor = 1.0 + rng.below(9) as f64;
        let half = rng.below(2) == 0;
        let any = |rng: &mut Rng| match rng.below(u64::from(workers) + u64::from(pools) + 2) {
            0 => Addr::Controller,
            1 => Addr::Gateway,
            n if n - 2 < workers.into() => Addr::Worker(n as u32 - 2),
            n => Addr::Pool(n as u32 - 2 - workers),
        };
        let worker = |rng: &mut Rng| Addr::Worker(rng.below(workers.into()) as u32);
        // What stores pages dies and is slow as what computes them.
        let busy = |rng: &mut Rng| match rng.below(u64::from(workers) + u64::from(pools)) {
            n if n < workers.into() => Addr::Worker(n as u32),
            n => Addr::Pool(n as u32 - workers),
        };
        let targets = match kind {
            FaultKind::Partition if half => {
                let mut side: Vec<Addr> = (0..=u64::from(workers) / 2).map(|_| any(rng)).collect();
                side.sort_unstable();
                side.dedup();
                side
            }
            FaultKind::Partition | FaultKind::Reset | FaultKind::SlowLink => vec![any(rng)],
            FaultKind::Crash | FaultKind::Freeze if self.all_roles => vec![any(rng)],
            FaultKind::Crash | FaultKind::Freeze | FaultKind::SlowNode => vec![busy(rng)],
            FaultKind::PoolDiskFull => vec![Addr::Pool(rng.below(pools.into()) as u32)],
            _ => vec![worker(rng)],
        };
        let nodes = targets.into_iter().map(NodeName).collect();
        Fault { at, kind, back_after: Some(Dur::from_nanos(lasting)), nodes, factor, ..Fault::default() }
    }

    pub(super) fn validate(&self) -> Result<(), SimError> {
        let slow = [self.slow_nodes, self.slow_links];
        let counts = [self.crashes, self.freezes, self.partitions, self.resets, self.drains, self.full_disks];
        for count in counts.into_iter().chain(slow) {
            within("faults.random", count.into(), 0, 10_000)?;
        }
        Ok(())
    }
}

const fn is_nobody(number: &u32) -> bool {
    *number == NOBODY
}

const fn is_none(count: &u32) -> bool {
    *count == 0
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Addr::Gateway => f.write_str("gateway"),
            Addr::Controller => f.write_str("controller"),
            Addr::Worker(n) => write!(f, "w{n}"),
            Addr::Pool(n) => write!(f, "p{n}"),
        }
    }
}

impl FromStr for NodeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let addr = match text {
            "gateway" => Some(Addr::Gateway),
            "controller" => Some(Addr::Controller),
            _ => {
                let worker = text.strip_prefix('w').and_then(|n| n.parse().ok()).map(Addr::Worker);
                worker.or_else(|| text.strip_prefix('p').and_then(|n| n.parse().ok()).map(Addr::Pool))
            }
        };
        addr.map(Self)
            .ok_or_else(|| format!("`{text}` is no node: use controller, gateway, w0, w1, …, or p0, p1, …"))
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
