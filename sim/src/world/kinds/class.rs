//! One kind of workers: what its scheduler may do, what its pages are like, and what it offers.

use config::ids::WorkerId;
use policies::batch::BatchConfig;
use policies::kv::PageLayout;
use policies::kv::events::Recording;
use policies::kv::handoff::HandoffConfig;
use policies::placement::{KvPeer, WorkerInfo};

use crate::SimError;
use crate::node::worker::{Beats, Orders, WorkerArgs};
use crate::scenario::{Cluster, NodeClass, Scenario};
use crate::workload::{self, MODEL};

/// What a worker of this class is started with, but for its name; `c` is what it has of the cluster's settings.
pub(super) fn args(
    scenario: &Scenario,
    class: &NodeClass,
    c: &Cluster,
    orders: Orders,
) -> Result<WorkerArgs, SimError> {
    let shape = scenario.model.shape()?;
    let fingerprint = workload::fingerprint();
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
    Ok(WorkerArgs {
        info,
        batch,
        model: workload::model(&scenario.workload),
        cost: scenario.cost_on(machine)?,
        speed: None,
        layout,
        handoff: HandoffConfig::from(&scenario.policy.disaggregate),
        orders,
        beats: Beats::default(),
    })
}
