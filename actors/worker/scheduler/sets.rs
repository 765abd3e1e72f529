//! The page sets of the requests that a scheduler has taken: one actor each, under the worker.
//!
//! The scheduler's core keeps the block tables, so that no step waits for a mailbox; a request has them as long as its page
//! set lives. A page set that ends before its request does, for whatever reason, takes the request with it: its pages are
//! free, and whoever waits for it goes on elsewhere. One whose request is over is told to end.

use std::collections::BTreeMap;

use config::ids::{Attempt, RequestId};
use ractor::{ActorCell, ActorId, ActorRef};
use tracing::error;

use crate::worker::pages::{self, PageSetMsg};

type Id = (RequestId, Attempt);

/// The page sets of one scheduler's requests.
#[derive(Debug, Default)]
pub(super) struct Sets {
    live: BTreeMap<Id, ActorRef<PageSetMsg>>,
    /// By the actor's number.
    by_actor: BTreeMap<u64, Id>,
    /// Requests whose page sets are not started yet.
    starting: Vec<Id>,
}

impl Sets {
    /// A request was taken.
    pub(super) fn add(&mut self, id: Id) {
        self.starting.push(id);
    }

    /// The page set of a request.
    pub(super) fn get(&self, id: Id) -> Option<&ActorRef<PageSetMsg>> {
        self.live.get(&id)
    }

    /// A request is over.
    pub(super) fn end(&mut self, id: Id) {
        self.starting.retain(|starting| *starting != id);
        if let Some(set) = self.live.remove(&id) {
            self.by_actor.remove(&set.get_id().pid());
            // One that has ended in this moment needs no telling.
            let _ = set.cast(PageSetMsg::Over);
        }
    }

    /// An actor has ended: the request whose page set it was, if that is not over.
    pub(super) fn gone(&mut self, actor: ActorId) -> Option<Id> {
        let id = self.by_actor.remove(&actor.pid())?;
        self.live.remove(&id);
        Some(id)
    }

    /// Starts the page sets that are due. Gives back the requests that get none: their worker is stopping.
    pub(super) async fn start(&mut self, scheduler: u64, supervisor: &ActorCell) -> Vec<Id> {
        let mut without = Vec::new();
        for id in std::mem::take(&mut self.starting) {
            let name = format!("pages of {} attempt {} at {scheduler}", id.0, id.1);
            match pages::of_request(name, supervisor.clone()).await {
                Ok(set) => {
                    self.by_actor.insert(set.get_id().pid(), id);
                    self.live.insert(id, set);
                }
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
        for set in self.live.values() {
            // As above.
            let _ = set.cast(PageSetMsg::Over);
        }
    }
}
