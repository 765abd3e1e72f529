//! Who keeps the pages that a page set moves.

use config::ids::WorkerId;
use policies::kv::{Fingerprint, PageLayout};
use ractor::ActorRef;

use super::{KvMsg, PageSetMsg};
use crate::pool::PoolMsg;
use crate::worker::scheduler::SchedulerMsg;

/// Does with pages what a page set asks for.
#[derive(Clone, Debug)]
pub enum Keeper {
    /// The scheduler of a worker, which has them in its engine.
    Scheduler(ActorRef<SchedulerMsg>),
    /// A pool.
    Pool(ActorRef<PoolMsg>),
}

impl Keeper {
    /// A wish of the page set `set`.
    pub(super) fn tell(&self, set: &ActorRef<PageSetMsg>, message: KvMsg) {
        let message = Box::new(message);
        // One that has ended has taken its requests, or its pages, with it.
        match self {
            Self::Scheduler(scheduler) => _ = scheduler.cast(SchedulerMsg::Kv(message)),
            Self::Pool(pool) => _ = pool.cast(PoolMsg::Kv { set: set.get_id(), message }),
        }
    }

    /// It can do without what does not come.
    pub(super) const fn computes(&self) -> bool {
        matches!(self, Self::Scheduler(_))
    }
}

/// Who asks for what is held of a prompt, and from where on.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The worker, or the pool.
    pub worker: WorkerId,
    /// Identity of its pages.
    pub fingerprint: Fingerprint,
    /// Their shape.
    pub layout: PageLayout,
    /// The first page that it does not hold.
    pub first_page: u32,
}
