//! The page sets of the requests that a scheduler has taken: an actor of its own for each, under the worker.
//!
//! The scheduler's core keeps the block tables, so that no step waits for a mailbox; a request has them as long as its page
//! set lives. A page set that ends before its request does, for whatever reason, takes the request with it: its pages are
//! free, and whoever waits for it goes on elsewhere.
//!
//! Starting and ending an actor takes about as long as all else that is done here for a short request. So a page set whose
//! request is over waits for the next one, unless it has had to do with another worker: what is still on its way to it
//! then must not be taken for the next request's.

use std::collections::BTreeMap;

use config::ids::{Attempt, RequestId};
use ractor::{ActorCell, ActorId, ActorRef, ActorStatus};
use tracing::error;

use crate::worker::pages::{self, PageSetMsg};

type Id = (RequestId, Attempt);

/// Page sets that wait for requests, at most: some 10 KB each.
pub(crate) const IDLE: usize = 256;

/// The page sets of one scheduler's requests.
#[derive(Debug, Default)]
pub(super) struct Sets {
    live: BTreeMap<Id, Live>,
    /// Of those that are live, by the actor's number.
    by_actor: BTreeMap<u64, Id>,
    /// Without a request.
    idle: Vec<ActorRef<PageSetMsg>>,
    /// Requests whose page sets are not started yet.
    starting: Vec<Id>,
}

#[derive(Debug)]
struct Live {
    set: ActorRef<PageSetMsg>,
    /// It has had to do with another worker.
    used: bool,
}

impl Sets {
    /// A request was taken.
    pub(super) fn add(&mut self, id: Id) {
        // Whoever has ended may not have been heard of yet, and would take the request with it.
        let lives = |set: &ActorRef<PageSetMsg>| {
            !matches!(set.get_status(), ActorStatus::Stopping | ActorStatus::Stopped)
        };
        while let Some(set) = self.idle.pop() {
            if lives(&set) {
                return self.assign(id, set);
            }
        }
        self.starting.push(id);
    }

    fn assign(&mut self, id: Id, set: ActorRef<PageSetMsg>) {
        self.by_actor.insert(set.get_id().pid(), id);
        self.live.insert(id, Live { set, used: false });
    }

    /// The page set of a request, for a transfer.
    pub(super) fn use_of(&mut self, id: Id) -> Option<&ActorRef<PageSetMsg>> {
        let live = self.live.get_mut(&id)?;
        live.used = true;
        Some(&live.set)
    }

    /// A request is over.
    pub(super) fn end(&mut self, id: Id) {
        self.starting.retain(|starting| *starting != id);
        let Some(Live { set, used }) = self.live.remove(&id) else { return };
        self.by_actor.remove(&set.get_id().pid());
        if used || self.idle.len() >= IDLE {
            // One that has ended in this moment needs no telling.
            let _ = set.cast(PageSetMsg::Over);
        } else {
            self.idle.push(set);
        }
    }

    /// An actor has ended: the request whose page set it was, if that is not over.
    pub(super) fn gone(&mut self, actor: ActorId) -> Option<Id> {
        let Some(id) = self.by_actor.remove(&actor.pid()) else {
            self.idle.retain(|set| set.get_id() != actor);
            return None;
        };
        self.live.remove(&id);
        Some(id)
    }

    /// Whether page sets are to be started.
    pub(super) const fn are_due(&self) -> bool {
        !self.starting.is_empty()
    }

    /// Starts those that are due. Gives back the requests that get none: their worker is stopping.
    pub(super) async fn start(&mut self, supervisor: &ActorCell) -> Vec<Id> {
        let mut without = Vec::new();
        for id in std::mem::take(&mut self.starting) {
            match pages::of_request(supervisor.clone()).await {
                Ok(set) => self.assign(id, set),
                Err(e) => {
                    error!(request = %id.0, error = %e, "a page set does not start");
                    without.push(id);
                }
            }
        }
        without
    }
}

/// The requests are gone with the scheduler.
impl Drop for Sets {
    fn drop(&mut self) {
        for set in self.live.values().map(|live| &live.set).chain(&self.idle) {
            // As above.
            let _ = set.cast(PageSetMsg::Over);
        }
    }
}
