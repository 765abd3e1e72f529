//! The view of the cluster that `/v1/cluster`, readiness and `actor-node status` show.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use cluster::wire::WorkerAd;
use config::WorkerRole;
use config::ids::NodeId;
use policies::membership::MemberView;
use serde::{Deserialize, Serialize};

use super::offers::Workers;
use super::pools::Pools;
use crate::clock;
use crate::doors::Doors;

/// The last published view, shared with whoever shows it.
#[derive(Clone, Debug, Default)]
pub struct Board {
    view: Arc<RwLock<Arc<ClusterView>>>,
}

/// A cluster as one of its nodes sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterView {
    /// The node that looks.
    pub node: String,
    /// It is linked to another node, or needs none.
    pub joined: bool,
    /// The node whose controller places requests; none when each gateway places by its own choice.
    pub leader: Option<String>,
    /// All nodes that it knows, itself included.
    pub nodes: Vec<NodeRow>,
    /// Decode workers for which no prefill worker is there.
    pub without_prefill: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// This life of it.
    pub incarnation: u64,
    /// Where other nodes reach it.
    pub address: String,
    /// Where its HTTP side listens.
    pub http: Option<String>,
    /// What it does.
    pub roles: String,
    /// `joined`, `ready`, `suspect` or `left`.
    pub state: String,
    /// It takes nothing new.
    pub draining: bool,
    /// Milliseconds since it was last heard.
    pub silent_ms: u64,
    /// Client sessions that live on it.
    pub sessions: u32,
    /// Its worker, while that serves.
    pub worker: Option<WorkerRow>,
    /// Its pool, while that takes pages.
    #[serde(default)]
    pub pool: Option<PoolRow>,
}

/// A pool; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolRow {
    /// Its name and incarnation.
    pub id: String,
    /// Where it exchanges KV pages with workers.
    pub kv: String,
    /// Pages that can be found there.
    pub pages: u64,
    /// In RAM.
    pub ram_bytes: u64,
    /// What may be there.
    pub ram_capacity: u64,
    /// On disk.
    pub disk_bytes: u64,
    /// What may be there; 0: it has no disk.
    pub disk_capacity: u64,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// Its name and incarnation.
    pub id: String,
    /// What it serves.
    pub models: Vec<String>,
    /// It takes nothing new.
    pub draining: bool,
    /// `unified`, `prefill` or `decode`.
    pub role: String,
    /// The role that it takes when what it has is done.
    pub switching_to: Option<String>,
    /// Where it exchanges KV pages with other workers.
    pub kv: Option<String>,
    /// Sequences being computed.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Tokens still to prefill.
    pub queued_prefill_tokens: u64,
    /// KV pages held by sequences.
    pub kv_pages_used: u32,
    /// KV pages with reusable content.
    pub kv_pages_cached: u32,
    /// KV pages in all.
    pub kv_pages_total: u32,
    /// Longest sequence in tokens.
    pub max_context: u32,
}

impl Board {
    /// The view as it is now.
    #[must_use]
    pub fn view(&self) -> Arc<ClusterView> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn publish(
        &self,
        members: &[MemberView],
        joined: bool,
        leader: Option<NodeId>,
        (workers, pools): (&Workers, &Pools),
        sessions: &BTreeMap<NodeId, u32>,
        doors: &Doors,
    ) {
        let now = clock::now();
        let row = |view: &MemberView| {
            let member = &view.member;
            let linked = view.itself || view.state.is_linked();
            let ad = workers.of((!view.itself).then_some(&member.id)).filter(|_| linked);
            NodeRow {
                name: member.id.to_string(),
                incarnation: member.incarnation,
                address: member.address.clone(),
                http: member.http.clone(),
                roles: member.roles.to_string(),
                state: view.state.as_str().to_owned(),
                draining: member.draining,
                silent_ms: if view.itself {
                    0
                } else {
                    now.since(view.heard).to_duration().as_millis() as u64
                },
                sessions: match view.itself {
                    true => doors.sessions(),
                    false => sessions.get(&member.id).copied().unwrap_or(0),
                },
                worker: ad.map(|ad| WorkerRow {
                    id: ad.info.id.to_string(),
                    models: ad.models.iter().map(|m| m.name.to_string()).collect(),
                    draining: ad.draining,
                    role: ad.info.role.to_string(),
                    switching_to: ad.info.switching_to.map(|role| role.to_string()),
                    kv: ad.info.kv.as_ref().map(|kv| kv.address.clone()),
                    running: ad.load.running,
                    waiting: ad.load.waiting,
                    queued_prefill_tokens: ad.load.queued_prefill_tokens,
                    kv_pages_used: ad.load.pages_used,
                    kv_pages_cached: ad.load.pages_cached,
                    kv_pages_total: ad.load.pages_total,
                    max_context: ad.info.max_context,
                }),
                pool: pools.of((!view.itself).then_some(&member.id)).filter(|_| linked).map(|ad| PoolRow {
                    id: ad.info.id.to_string(),
                    kv: ad.info.address.clone(),
                    pages: ad.load.pages,
                    ram_bytes: ad.load.ram,
                    ram_capacity: ad.load.ram_capacity,
                    disk_bytes: ad.load.disk,
                    disk_capacity: ad.load.disk_capacity,
                }),
            }
        };
        let linked = |view: &&MemberView| view.itself || view.state.is_linked();
        let ads = members.iter().filter(linked);
        let ads = ads.filter_map(|m| workers.of((!m.itself).then_some(&m.member.id)));
        let ads: Vec<&WorkerAd> = ads.filter(|ad| !ad.draining).collect();
        let me = members.iter().find(|m| m.itself).map(|m| m.member.id.to_string()).unwrap_or_default();
        let view = ClusterView {
            node: me,
            joined,
            leader: leader.map(|id| id.to_string()),
            nodes: members.iter().map(row).collect(),
            without_prefill: without_prefill(&ads),
        };
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }
}

/// The decode workers with whose pages no prefill worker's go.
fn without_prefill(ads: &[&WorkerAd]) -> Vec<String> {
    let of = |role: WorkerRole| ads.iter().map(|ad| &ad.info).filter(move |info| info.role == role);
    let alone =
        of(WorkerRole::Decode).filter(|decode| !of(WorkerRole::Prefill).any(|p| p.pairs_with(decode)));
    alone.map(|info| info.id.to_string()).collect()
}
