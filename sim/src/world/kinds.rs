//! The kinds of workers, ready to be started.

use std::sync::Arc;

use config::ids::WorkerId;
use policies::batch::BatchConfig;
use policies::cost::Hardware;
use policies::kv::PageLayout;
use policies::kv::events::Recording;
use policies::kv::handoff::HandoffConfig;
use policies::placement::{KvPeer, WorkerInfo};
use policies::rng;
use policies::time::Span;

use crate::SimError;
use crate::node::worker::{Beats, Orders, WorkerArgs};
use crate::scenario::Scenario;
use crate::workload::{self, MODEL};

use super::name;

/// Stream of the random numbers that say when workers beat.
const BEATS: u64 = 12;

/// What each worker is started with.
#[derive(Debug)]
pub(super) struct Kinds {
    /// With how many workers there are of it and those before it.
    list: Vec<(u32, WorkerArgs)>,
    seed: u64,
    heartbeat: Span,
    /// The workers that want to know what others have to do.
    listeners: Arc<[WorkerId]>,
}

impl Kinds {
    pub(super) fn new(scenario: &Scenario) -> Result<Self, SimError> {
        let shape = scenario.model.shape()?;
        let fingerprint = workload::fingerprint();
        let (mut list, mut upto) = (Vec::new(), 0);
        let mut listeners = Vec::new();
        let mut tables = scenario.worker_policy.clone();
        tables.offload.peers = scenario.peers()?.into_iter().map(|peer| name(peer).to_string()).collect();
        for class in scenario.classes() {
            let c = class.over(&scenario.cluster);
            let machine = class.hardware.as_ref().unwrap_or(&scenario.hardware);
            let batch = BatchConfig {
                max_batch_tokens: c.max_batch_tokens,
                max_mixed_tokens: c.max_mixed_tokens.unwrap_or(u32::MAX),
                max_running: c.max_running,
                max_waiting: c.max_waiting,
                prefix_cache: c.prefix_cache,
                watermark: c.watermark,
                kv_events: if c.cluster_policies.is_empty() { Recording::Off } else { Recording::Hashes },
                ..BatchConfig::sized(c.page_tokens, c.pages, c.max_context, fingerprint)
            };
            let layout = PageLayout {
                page_tokens: c.page_tokens,
                layers: shape.layers,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                element_bytes: shape.element_bytes,
            };
            // Its name comes with its start.
            let nobody = WorkerId::new("".into(), 0);
            let info = WorkerInfo {
                role: class.role,
                switchable: class.role_switch,
                hardware: machine.profile("node.hardware")?,
                shape: Some(shape),
                kv: Some(KvPeer { address: String::new(), fingerprint, layout }),
                ..WorkerInfo::unified(nobody, MODEL.into(), batch.window(), c.max_requests, c.page_tokens)
            };
            let args = WorkerArgs {
                info,
                batch,
                model: workload::model(&scenario.workload),
                cost: scenario.cost_on(machine)?,
                layout,
                handoff: HandoffConfig::from(&scenario.policy.disaggregate),
                orders: Orders { list: c.worker_policy.clone(), tables: tables.clone() },
                beats: Beats::default(),
            };
            if Scenario::offloads(&c.worker_policy) {
                // Whichever life of them.
                listeners.extend((upto..upto + class.count).map(|index| WorkerId::new(name(index), 0)));
            }
            upto += class.count;
            list.push((upto, args));
        }
        let heartbeat = scenario.cluster.heartbeat.get().into();
        Ok(Self { list, seed: scenario.seed, heartbeat, listeners: listeners.into() })
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
        if self.any_listens() {
            let phase = rng::bits(self.seed, BEATS, index.into()) % self.heartbeat.0.max(1);
            args.beats = Beats { every: self.heartbeat, phase: Span(phase), to: Arc::clone(&self.listeners) };
        }
        args
    }
}
