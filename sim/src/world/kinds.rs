//! The kinds of workers, ready to be started.

use std::sync::Arc;

use config::ids::WorkerId;
use policies::cost::{CostModel, Hardware};
use policies::rng;
use policies::time::Span;

use super::name;
use crate::SimError;
use crate::node::worker::{Beats, Orders, WorkerArgs};
use crate::scenario::Scenario;
use crate::speed::Speeds;

mod class;

/// Stream of the random numbers that say when workers beat.
const BEATS: u64 = 12;

/// What each worker is started with.
#[derive(Debug)]
pub(super) struct Kinds {
    /// With how many workers there are of it and those before it.
    list: Vec<(u32, WorkerArgs)>,
    speeds: Speeds,
    seed: u64,
    heartbeat: Span,
    /// The workers that want to know what others have to do.
    listeners: Arc<[WorkerId]>,
}

impl Kinds {
    pub(super) fn new(scenario: &Scenario) -> Result<Self, SimError> {
        let (mut list, mut upto) = (Vec::new(), 0);
        let mut listeners = Vec::new();
        let mut tables = scenario.worker_policy.clone();
        tables.offload.peers = scenario.peers()?.into_iter().map(|peer| name(peer).to_string()).collect();
        for class in scenario.classes() {
            let c = class.over(&scenario.cluster);
            let orders = Orders { list: c.worker_policy.clone(), tables: tables.clone() };
            let args = class::args(scenario, &class, &c, orders)?;
            if Scenario::offloads(&c.worker_policy) {
                // Whichever life of them.
                listeners.extend((upto..upto + class.count).map(|index| WorkerId::new(name(index), 0)));
            }
            upto += class.count;
            list.push((upto, args));
        }
        let costs: Vec<CostModel> = list.iter().map(|(_, args): &(u32, WorkerArgs)| args.cost).collect();
        let speeds = Speeds::read(scenario, &costs)?;
        let heartbeat = scenario.cluster.heartbeat.get().into();
        Ok(Self { list, speeds, seed: scenario.seed, heartbeat, listeners: listeners.into() })
    }

    /// Whether a worker wants to know what others have to do.
    pub(super) fn any_listens(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// The machine of each worker.
    pub(super) fn machines(&self) -> Vec<Hardware> {
        let mut machines = Vec::new();
        for (upto, args) in &self.list {
            machines.resize(*upto as usize, args.info.hardware.figures);
        }
        machines
    }

    /// What worker number `index` is started with, as `id`.
    pub(super) fn worker(&self, index: u32, id: WorkerId) -> WorkerArgs {
        let at = self.list.partition_point(|(upto, _)| *upto <= index).min(self.list.len() - 1);
        let mut args = self.list[at].1.clone();
        if let Some(kv) = &mut args.info.kv {
            kv.address = id.to_string();
        }
        args.info.id = id;
        args.speed = self.speeds.of(index, at);
        if self.any_listens() {
            let phase = rng::bits(self.seed, BEATS, index.into()) % self.heartbeat.0.max(1);
            args.beats = Beats { every: self.heartbeat, phase: Span(phase), to: Arc::clone(&self.listeners) };
        }
        args
    }
}
