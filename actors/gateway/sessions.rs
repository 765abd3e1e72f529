//! The sessions that live, by request: how the door finds them, and what has to be given back when one dies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cluster::wire::{ToController, ToWorker};
use config::ids::{Attempt, RequestId, WorkerId};
use policies::session::Failure;
use ractor::{ActorId, ActorRef};
use tokio::sync::mpsc;

use crate::doors::{Doors, Placer};

use super::session::{SessionMsg, SessionOut};

/// What a session holds elsewhere, kept outside of it so that it can be given back when the session has panicked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    pub(crate) attempt: Attempt,
    /// Whom a place was asked of that is not released.
    pub(crate) booked: Option<Placer>,
    /// The worker that may be at it.
    pub(crate) worker: Option<WorkerId>,
    /// Whom a target was asked of that the request could move to, and under which attempt.
    pub(crate) choosing: Option<(Placer, Attempt)>,
    /// The worker that may be fetching its pages.
    pub(crate) fetching: Option<(WorkerId, Attempt)>,
}

/// A session's way out, shared by the session and the directory.
#[derive(Debug)]
pub(crate) struct Track {
    pub(crate) request: RequestId,
    pub(crate) held: Mutex<Held>,
    pub(crate) out: mpsc::Sender<SessionOut>,
}

impl Track {
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives back what the session held and tells its client: for a session that cannot do so itself.
    fn abandon(&self, doors: &Doors, failure: Failure) {
        let held = std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner));
        let (request, attempt) = (self.request, held.attempt);
        if let Some(worker) = held.worker {
            doors.to_worker(&worker, ToWorker::Cancel { request, attempt });
        }
        if let Some((worker, attempt)) = held.fetching {
            doors.to_worker(&worker, ToWorker::Cancel { request, attempt });
        }
        if let Some((placer, attempt)) = held.choosing {
            doors.to_placer(&placer, ToController::Release { request, attempt });
        }
        if let Some(placer) = held.booked {
            doors.to_placer(&placer, ToController::Release { request, attempt });
        }
        // A client that is gone needs no news, and the channel keeps a place for the last message.
        let _ = self.out.try_send(SessionOut::Failed(failure));
    }
}

/// The directory of sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    live: Mutex<Live>,
    /// Where other nodes' status reads how many there are.
    doors: Doors,
}

#[derive(Debug, Default)]
struct Live {
    sessions: BTreeMap<RequestId, (ActorRef<SessionMsg>, Arc<Track>)>,
    /// Whose actor it is, by the actor's number: asked at each session's end.
    by_actor: BTreeMap<u64, RequestId>,
}

impl Live {
    fn insert(&mut self, actor: ActorRef<SessionMsg>, track: Arc<Track>) {
        self.by_actor.insert(actor.get_id().pid(), track.request);
        self.sessions.insert(track.request, (actor, track));
    }

    fn remove(&mut self, request: RequestId) -> Option<Arc<Track>> {
        let (actor, track) = self.sessions.remove(&request)?;
        self.by_actor.remove(&actor.get_id().pid());
        Some(track)
    }
}

impl Sessions {
    pub(crate) fn new(doors: Doors) -> Self {
        Self { live: Mutex::default(), doors }
    }

    pub(crate) fn insert(&self, actor: ActorRef<SessionMsg>, track: Arc<Track>) {
        self.with(|live| live.insert(actor, track));
    }

    pub(crate) fn remove(&self, request: RequestId) {
        self.with(|live| live.remove(request));
    }

    pub(crate) fn len(&self) -> usize {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).sessions.len()
    }

    /// Sends to the session of exactly this request; one that has ended needs no news.
    pub(crate) fn send(&self, request: RequestId, message: SessionMsg) {
        if let Some(actor) = self.find(request) {
            // Ended between look-up and send.
            let _ = actor.cast(message);
        }
    }

    /// The session of a request, while it lives.
    pub(crate) fn find(&self, request: RequestId) -> Option<ActorRef<SessionMsg>> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.sessions.get(&request).map(|(actor, _)| actor.clone())
    }

    /// Sends to all sessions.
    pub(crate) fn broadcast(&self, message: impl Fn() -> SessionMsg) {
        let actors: Vec<_> =
            self.with(|live| live.sessions.values().map(|(actor, _)| actor.clone()).collect());
        for actor in actors {
            // Ended between look-up and send.
            let _ = actor.cast(message());
        }
    }

    /// Ends all sessions with `failure`.
    pub(crate) fn abort_all(&self, failure: &Failure) {
        self.broadcast(|| SessionMsg::Abort(failure.clone()));
    }

    /// Cleans up after a session that died without doing so. Gives back its request, none if it had ended properly.
    pub(crate) fn bury(&self, actor: ActorId, doors: &Doors, failure: Failure) -> Option<RequestId> {
        let track = self.with(|live| {
            let request = *live.by_actor.get(&actor.pid())?;
            live.remove(request)
        })?;
        track.abandon(doors, failure);
        Some(track.request)
    }

    /// Cleans up after all sessions, which died with the door.
    pub(crate) fn bury_all(&self, doors: &Doors, failure: &Failure) {
        for (_, track) in self.with(std::mem::take).sessions.into_values() {
            track.abandon(doors, failure.clone());
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Live) -> T) -> T {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let out = f(&mut live);
        metrics::gauge!(crate::metrics::SESSIONS).set(live.sessions.len() as f64);
        self.doors.set_sessions(live.sessions.len());
        out
    }
}
