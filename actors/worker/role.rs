//! The worker's role, which can change while it runs.
//!
//! First it says that it is about to change: controllers give it nothing new, as if it drained. What it has goes on to its
//! end, and so does what was on its way: a worker of any role can do whatever it is sent. When nothing is left it says
//! what it is now. The engine and its cached pages stay.

use std::time::Duration;

use config::{ClusterConfig, WorkerRole};
use policies::placement::SwitchCause;
use ractor::ActorRef;
use tracing::{info, warn};

use super::scheduler::SchedulerMsg;
use super::{Msg, WorkerState};
use crate::doors::WorkerStats;

/// How often a worker that is about to change looks whether it is done.
const LOOK: Duration = Duration::from_millis(50);

/// What a worker is, and what it is about to be.
#[derive(Debug)]
pub(super) struct Role {
    now: WorkerRole,
    next: Option<Next>,
    /// Policies may change it.
    by_policies: bool,
}

#[derive(Clone, Copy, Debug)]
struct Next {
    role: WorkerRole,
    cause: SwitchCause,
}

impl Role {
    pub(super) const fn new(config: &ClusterConfig) -> Self {
        Self { now: config.role, next: None, by_policies: config.role_switch }
    }

    /// The role of a worker whose engine has just been loaded: what it had is gone, so nothing is waited for.
    pub(super) fn taken_at_load(&mut self) -> WorkerRole {
        self.take();
        self.now
    }

    /// Is what it was about to be.
    fn take(&mut self) {
        if let Some(Next { role, cause }) = self.next.take() {
            info!(former = %self.now, %role, cause = cause.as_str(), "the worker has another role");
            metrics::counter!(
                crate::metrics::ROLE_SWITCHES, "cause" => cause.as_str(), "role" => role.as_str()
            )
            .increment(1);
            self.now = role;
        }
    }
}

impl WorkerState {
    /// Somebody wants another role, or the present one again.
    pub(super) fn set_role(&mut self, myself: &ActorRef<Msg>, role: WorkerRole, cause: SwitchCause) {
        let refused = match &self.serving {
            None => Some("the model is being loaded"),
            Some(serving) if serving.info.kv.is_none() => Some("it exchanges no KV pages"),
            Some(_) if self.draining => Some("it is shutting down"),
            Some(_) if cause == SwitchCause::Policy && !self.role.by_policies => {
                Some("cluster.role-switch is false")
            }
            Some(_) => None,
        };
        if let Some(why) = refused {
            warn!(%role, cause = cause.as_str(), why, "the worker keeps its role");
            return;
        }
        let (former, present) = (self.role.next, self.role.now);
        match former {
            None if role == present => return,
            Some(next) if next.role == role => return,
            _ if role == present => {
                info!(%role, cause = cause.as_str(), "the worker stays what it is");
                self.role.next = None;
            }
            _ => {
                info!(%present, %role, cause = cause.as_str(), "the worker takes nothing new until it has another role");
                self.role.next = Some(Next { role, cause });
            }
        }
        self.announce_role();
        // Otherwise it looks already.
        if former.is_none() {
            self.look_done(myself);
        }
    }

    /// The worker shuts down, and changes no more.
    pub(super) fn stay(&mut self) {
        self.role.next = None;
        if let Some(serving) = &mut self.serving {
            serving.info.switching_to = None;
        }
    }

    /// Asks the scheduler what is left, if the answer matters.
    pub(super) fn look_done(&self, myself: &ActorRef<Msg>) {
        let (Some(_), Some(serving)) = (self.role.next, &self.serving) else { return };
        let ask = |reply| SchedulerMsg::Observe { base: WorkerStats::default(), reply };
        let left = |stats: WorkerStats| Msg::Left(stats.load.requests);
        // One that has died does not answer; it is started again, and then the role is taken at once.
        let _ = serving.child.call_and_forward(ask, myself, left, None);
    }

    /// So many requests are here.
    pub(super) fn left(&mut self, myself: &ActorRef<Msg>, requests: u32) {
        if self.role.next.is_none() {
            return;
        }
        if requests > 0 {
            myself.send_after(LOOK, || Msg::LookDone);
            return;
        }
        self.role.take();
        self.announce_role();
    }

    fn announce_role(&mut self) {
        if let Some(serving) = &mut self.serving {
            serving.info.role = self.role.now;
            serving.info.switching_to = self.role.next.map(|next| next.role);
        }
        self.announce();
    }
}
