//! A session that moves to another worker: who asked for it, and what the core wants done for it.

use cluster::wire::{ToController, ToWorker};
use config::ids::{Attempt, RequestId, WorkerId};
use policies::placement::{PlaceRequest, Rejection};
use policies::request::RequestSpec;
use policies::session::{MigrateError, Migrated, SessionEffect};
use policies::time::Time;
use ractor::RpcReplyPort;

use super::SessionState;

/// How whoever asked for a migration hears that it has begun, or why not.
pub(crate) type BegunReply = RpcReplyPort<Result<(), MigrateError>>;
/// How whoever asked for a migration hears how it ended.
pub(crate) type DoneReply = RpcReplyPort<Migrated>;

impl SessionState {
    pub(super) fn migrate(
        &mut self,
        now: Time,
        to: Option<WorkerId>,
        begun: BegunReply,
        done: DoneReply,
        fx: &mut Vec<SessionEffect>,
    ) {
        let begins = self.core.migrate(now, to.clone(), fx);
        if begins.is_ok() {
            self.mover = Some(done);
            self.shared.recent.moving(self.track.request, to);
        } else {
            metrics::counter!(crate::metrics::MIGRATIONS, "outcome" => "refused").increment(1);
        }
        // Whoever asked may be gone.
        let _ = begun.send(begins);
    }

    /// Asks the controller for a target.
    pub(super) fn choose(&mut self, request: PlaceRequest, more: &mut Vec<SessionEffect>, now: Time) {
        let (attempt, model) = (request.attempt, request.model.clone());
        let gateway = self.shared.node.clone();
        match self.shared.doors.place(ToController::Place { gateway, request }) {
            Some(placer) => self.track.update(|held| held.choosing = Some((placer, attempt))),
            None => self.core.rejected(now, attempt, Rejection::NoWorker(model), more),
        }
    }

    /// Gives back what was asked for a target.
    pub(super) fn unchoose(&self, request: RequestId, attempt: Attempt) {
        if let Some((placer, _)) = self.track.update(|held| held.choosing.take()) {
            self.shared.doors.to_placer(&placer, ToController::Release { request, attempt });
        }
    }

    /// Has the target fetch the pages.
    pub(super) fn fetch(
        &mut self,
        to: &WorkerId,
        from: WorkerId,
        spec: Box<RequestSpec>,
        more: &mut Vec<SessionEffect>,
        now: Time,
    ) {
        self.track.update(|held| held.fetching = Some((to.clone(), spec.attempt)));
        let gateway = self.shared.node.clone();
        let fetch = ToWorker::Fetch { to: to.clone(), from, gateway, spec };
        if !self.shared.doors.to_worker(to, fetch) {
            self.core.worker_lost(now, to, more);
        }
    }

    /// Has the target, which is booked, take the request over.
    pub(super) fn take_over(
        &mut self,
        to: &WorkerId,
        from: WorkerId,
        takes: Attempt,
        spec: Box<RequestSpec>,
        more: &mut Vec<SessionEffect>,
        now: Time,
    ) {
        self.track.update(|held| held.fetching = Some((to.clone(), spec.attempt)));
        let gateway = self.shared.node.clone();
        let take = ToWorker::Take { to: to.clone(), from, takes, gateway, spec };
        if !self.shared.doors.to_worker(to, take) {
            self.core.worker_lost(now, to, more);
        }
    }

    /// The session is at the target. What was booked for it is the session's place from now on.
    pub(super) fn switched(&mut self, worker: WorkerId, attempt: Attempt) {
        self.track.update(|held| {
            held.booked = held.choosing.take().map(|(placer, _)| placer);
            held.worker = Some(worker.clone());
            (held.attempt, held.fetching) = (attempt, None);
        });
        self.last_worker = Some(worker);
        if let Some(placed) = self.target.take() {
            self.shared.recent.placed(placed.clone());
            self.placed = Some(placed);
        }
        self.taken();
    }

    /// A migration is over.
    pub(super) fn migrated(&mut self, end: Migrated) {
        self.track.update(|held| (held.choosing, held.fetching) = (None, None));
        self.target = None;
        metrics::counter!(crate::metrics::MIGRATIONS, "outcome" => end.as_str()).increment(1);
        match &end {
            Migrated::Moved { from, to } => {
                tracing::debug!(request = %self.track.request, %from, %to, "moved");
            }
            Migrated::Stayed(why) | Migrated::Elsewhere(why) => {
                tracing::warn!(request = %self.track.request, outcome = end.as_str(), why, "a migration failed");
            }
            Migrated::Ended => {}
        }
        self.shared.recent.moved(self.track.request, &end);
        if let Some(done) = self.mover.take() {
            // Whoever asked may be gone, or may have waited for long enough.
            let _ = done.send(end);
        }
    }
}
