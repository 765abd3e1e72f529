//! The pool's half of the hand-off of pages: page sets that give what is here to workers, and page sets that fetch what workers
//! hold. They are those of a worker ([`crate::worker::pages`]), under the pool, and ask of it what they would ask of a
//! scheduler.
//!
//! ```text
//!   a worker asks ─▶ page set ── Hold, Export, Release ──▶ look_up, grant, release
//!   Store ─────────▶ page set ── Import, Commit ─────────▶ begin, arrived, commit
//! ```
//!
//! What a page set has begun ends with it, however that comes about, and a page set ends when the pool has ended its part.
//! Page sets are known by their actors: what they call a request may be the same at two workers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cluster::kv::MAX_BODY_BYTES;
use config::ids::{RequestId, WorkerId};
use policies::cost::HardwareProfile;
use policies::kv::handoff::HandoffConfig;
use policies::rng;
use ractor::{ActorCell, ActorId, ActorRef, SpawnErr};
use tracing::error;

use super::{PoolMsg, PoolState};
use crate::kv::{self, Exchanged, KvEntry, KvPortArgs, KvPortMsg};
use crate::worker::pages::{Keeper, KvMsg, Provider};

mod giving;
mod taking;

use giving::Giving;
use taking::Taking;
pub use taking::Wish;

/// Stores under way at a time: a few links' worth, so that one slow worker holds up no other.
pub(super) const TAKEN_AT_ONCE: usize = 8;
/// Wishes that wait beyond those; the oldest gives way, for it is the likeliest to have left its worker's cache.
pub(super) const WISHES: usize = 64;

/// Page sets that give pages at a time. What each gives stays where it is meanwhile; who asks beyond those computes by itself.
pub(super) const GIVEN_AT_ONCE: usize = 256;

/// Pause before a port that failed is started again.
const AGAIN: Duration = Duration::from_millis(500);

/// What a pool's page sets need.
#[derive(Clone, Debug)]
pub struct PoolSide {
    /// The bound port.
    pub entry: Arc<KvEntry>,
    /// Limits of both ends of a transfer.
    pub limits: HandoffConfig,
    /// Its machine.
    pub hardware: HardwareProfile,
}

/// The transfers of one pool.
#[derive(Debug)]
pub(super) struct Transfers {
    side: Option<PoolSide>,
    /// The pool in this life.
    me: WorkerId,
    port: Option<ActorRef<KvPortMsg>>,
    giving: BTreeMap<u64, Giving>,
    taking: BTreeMap<u64, Taking>,
    wishes: VecDeque<Wish>,
    last: u64,
}

impl Transfers {
    pub(super) fn new(me: WorkerId, side: Option<PoolSide>) -> Self {
        let (giving, taking, wishes) = Default::default();
        Self { side, me, port: None, giving, taking, wishes, last: 0 }
    }

    /// Starts the port under the pool, where it has one, and answers there.
    pub(super) async fn start_port(&mut self, ram: u64, pool: &ActorRef<PoolMsg>) -> Result<(), SpawnErr> {
        let Some(PoolSide { entry, limits, .. }) = self.side.clone() else { return Ok(()) };
        // What RAM holds, and for each store under way what one message brings: then there is room for the next message as soon
        // as one of those that give pages has let go of what left RAM meanwhile.
        let bytes = usize::try_from(ram).unwrap_or(usize::MAX).saturating_add(bytes_on_their_way());
        let (worker, exchanged) = (self.me.clone(), Exchanged::Any { bytes });
        let port = kv::start(KvPortArgs { entry, worker, exchanged }, pool.get_cell()).await?;
        let (keeper, supervisor) = (Keeper::Pool(pool.clone()), pool.get_cell());
        let provider = Provider { keeper, supervisor, fingerprint: None, limits };
        // One that has ended in this moment is started again.
        let _ = port.cast(KvPortMsg::Serve(Some(provider)));
        self.port = Some(port);
        Ok(())
    }

    /// An actor under the pool has ended; true where that was the port.
    pub(super) fn port_lost(&mut self, who: ActorId, why: &str, pool: &ActorRef<PoolMsg>) -> bool {
        let is = self.port.as_ref().is_some_and(|port| port.get_id() == who);
        if is {
            error!(why, "the pool's KV port failed; nothing is stored and given until it is back");
            metrics::counter!(crate::metrics::RESTARTS, "actor" => "pool-kv-port").increment(1);
            self.port = None;
            pool.send_after(AGAIN, || PoolMsg::RestartPort);
        }
        is
    }

    /// A number for a transfer, and the name that its request goes by: no other pool and no gateway gives the same.
    fn new_id(&mut self) -> (u64, RequestId) {
        self.last += 1;
        let name =
            self.me.node.as_str().bytes().fold(self.me.incarnation, |sum, b| rng::bits(sum, u64::from(b), 0));
        (self.last, RequestId::new(name, self.last))
    }

    #[cfg(test)]
    pub(super) fn figures(&self) -> [usize; 3] {
        [self.giving.len(), self.taking.len(), self.wishes.len()]
    }
}

const fn bytes_on_their_way() -> usize {
    (TAKEN_AT_ONCE + 1) * MAX_BODY_BYTES
}

impl PoolState {
    /// Does what a page set asks for.
    pub(super) fn kv(&mut self, set: ActorId, message: KvMsg) {
        let set = set.pid();
        match message {
            KvMsg::Hold { spec, asker, set } => self.hold(&spec, &asker, set),
            KvMsg::Export { first, count, set, .. } => self.export(first, count, &set),
            KvMsg::Release { .. } => self.end_giving(set),
            KvMsg::Import { first, pages, set, .. } => self.import(first, pages, &set),
            KvMsg::Commit { .. } | KvMsg::ComputeHere { .. } => self.end_taking(set, true),
            KvMsg::SetGone(gone) => {
                self.end_giving(gone.pid());
                self.end_taking(gone.pid(), false);
            }
            // Of those who compute.
            KvMsg::Prefill { .. } | KvMsg::Reserve(_) | KvMsg::Opened { .. } | KvMsg::Sent { .. } => {}
        }
    }

    pub(super) async fn restart_port(&mut self, pool: &ActorRef<PoolMsg>) {
        if self.transfers.port.is_some() {
            return;
        }
        if let Err(e) = self.transfers.start_port(self.store.limits().ram, pool).await {
            error!(error = %e, "the pool's KV port cannot be started again");
            pool.send_after(AGAIN, || PoolMsg::RestartPort);
        }
    }

    /// What waits for its turn is begun.
    pub(super) async fn start_taking(&mut self, pool: &ActorRef<PoolMsg>) {
        let supervisor: ActorCell = pool.get_cell();
        while let Some((put, args)) = self.next_taking(pool) {
            self.taking_started(put, crate::worker::pages::receive(args, supervisor.clone()).await);
        }
        metrics::gauge!(crate::metrics::POOL_STORES_WAITING).set(self.transfers.wishes.len() as f64);
    }
}
