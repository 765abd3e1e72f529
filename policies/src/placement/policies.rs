//! The list of policies, wherever they live.

use std::sync::Arc;

use config::ids::{Attempt, PolicyName, RequestId, WorkerId};

use super::route::RouteNote;
use super::types::{PolicyView, PolicyWork, Ticket, WorkerView};
use super::{Booking, Placement, PlacementEffect, Row};
use crate::invariant::Broken;
use crate::policy::disaggregate::Disaggregate;
use crate::policy::pool_replicate::PoolReplicate;
use crate::policy::replicate::Replicate;
use crate::policy::{
    ClusterPolicy, Opinion, PlacedAt, PolicyAction, PolicyConfig, PolicyEvent, PolicyMode, PolicyQuery,
};
use crate::time::{Span, Time};

/// How often policies that live here are ticked at most.
const TICK: Span = Span::from_secs(1);

/// The policies in their order.
#[derive(Debug, Default)]
pub(super) struct PolicySet {
    list: Vec<Policy>,
    /// Some of them live in actors, which have to be told and asked.
    elsewhere: bool,
    /// For those, what was not taken yet.
    work: Vec<PolicyWork>,
    ticked: Time,
}

/// A policy of the list.
#[derive(Debug)]
struct Policy {
    view: PolicyView,
    /// The policy itself, where it lives here.
    here: Option<Box<dyn ClusterPolicy>>,
}

impl PolicySet {
    /// Whether any policy is told and asked.
    pub(super) const fn are_any(&self) -> bool {
        !self.list.is_empty()
    }

    /// Whether what a policy says on where a request goes counts. Others say nothing on that.
    pub(super) fn decide(&self) -> bool {
        let silent = [Disaggregate::NAME, Replicate::NAME, PoolReplicate::NAME];
        let places = |c: &PolicyConfig| c.mode == PolicyMode::Prod && !silent.contains(&c.name.as_str());
        self.list.iter().any(|p| places(&p.view.config))
    }

    /// How they are configured.
    pub(super) fn configs(&self) -> impl Iterator<Item = &PolicyConfig> {
        self.list.iter().map(|p| &p.view.config)
    }

    /// The policy's counters.
    pub(super) fn view(&mut self, name: &PolicyName) -> Option<&mut PolicyView> {
        self.list.iter_mut().map(|p| &mut p.view).find(|v| v.config.name == *name)
    }

    /// Shows an event to all.
    pub(super) fn tell(&mut self, now: Time, event: &PolicyEvent) {
        for policy in &mut self.list {
            if let Some(here) = &mut policy.here {
                here.observe(now, event);
            }
        }
        if self.elsewhere {
            self.work.push(PolicyWork::Observe(event.clone()));
        }
    }

    /// Whether those that live here, if any, are to be ticked.
    fn is_due(&self, now: Time) -> bool {
        now.since(self.ticked) >= TICK && self.list.iter().any(|p| p.here.is_some())
    }

    /// Ticks those that live here; what they propose.
    fn tick(&mut self, now: Time, workers: &[WorkerView]) -> Vec<(PolicyName, Vec<PolicyAction>)> {
        self.ticked = now;
        let mut proposals = Vec::new();
        for policy in &mut self.list {
            let mut actions = Vec::new();
            if let Some(here) = &mut policy.here {
                here.tick(now, workers, &mut actions);
            }
            if !actions.is_empty() {
                proposals.push((policy.view.config.name.clone(), actions));
            }
        }
        proposals
    }

    /// Asks those that live here, and has the others asked. The answers that are here, in the order of the list.
    pub(super) fn ask(&mut self, now: Time, ticket: Ticket, query: &PolicyQuery) -> Vec<Option<Opinion>> {
        let mut opinions = Vec::with_capacity(self.list.len());
        for policy in &mut self.list {
            policy.view.asked += 1;
            opinions.push(policy.here.as_mut().map(|here| here.opinion(now, query)));
            if policy.here.is_none() {
                let policy = policy.view.config.name.clone();
                self.work.push(PolicyWork::Consult { ticket, policy, query: query.clone() });
            }
        }
        opinions
    }

    /// The first broken invariant of those that live here.
    pub(super) fn check(&self) -> Result<(), Broken> {
        self.list.iter().filter_map(|p| p.here.as_ref()).try_for_each(|p| p.check())
    }

    /// Something to count and perhaps to say.
    pub(super) fn note(&mut self, note: RouteNote) {
        self.work.push(PolicyWork::Note(note));
    }

    /// A worker has to say again which pages it holds.
    pub(super) fn resync(&mut self, worker: WorkerId) {
        self.work.push(PolicyWork::Resync(worker));
    }

    /// A pool has to.
    pub(super) fn resync_pool(&mut self, pool: WorkerId) {
        self.work.push(PolicyWork::ResyncPool(pool));
    }
}

impl Placement {
    /// The controller with policies that are called inline, in their order.
    #[must_use]
    pub fn with_policies(mut self, policies: Vec<(PolicyConfig, Box<dyn ClusterPolicy>)>) -> Self {
        let policies = policies.into_iter().map(|(config, policy)| (config, Some(policy))).collect();
        // Nothing is known and nobody waits, so nothing comes of it.
        self.set_policies(Time::ZERO, policies, &mut Vec::new());
        self
    }

    /// Puts this list in the place of the one before. A policy is given along where it is to be called inline; one that
    /// is not lives in an actor, for which there is work from now on ([`Placement::take_policy_work`]).
    ///
    /// Bookings and the queue stay. Whom the former policies were being asked about, these are asked about. All that is
    /// known is told to them as if it happened now; to one that is in both lists it is told again.
    pub fn set_policies(
        &mut self,
        now: Time,
        policies: Vec<(PolicyConfig, Option<Box<dyn ClusterPolicy>>)>,
        fx: &mut Vec<PlacementEffect>,
    ) {
        let on = policies.into_iter().filter(|(config, _)| config.mode != PolicyMode::Off);
        let list: Vec<Policy> = on
            .map(|(config, here)| {
                let former = self.policies.view(&config.name).cloned();
                let (asked, late, failed) = former.map_or((0, 0, 0), |v| (v.asked, v.late, v.failed));
                Policy { view: PolicyView { config, asked, late, failed }, here }
            })
            .collect();
        self.policies.elsewhere = list.iter().any(|p| p.here.is_none());
        self.policies.list = list;
        // Questions to the former ones are void; they are asked anew below.
        self.policies.work.retain(|work| {
            matches!(work, PolicyWork::Resync(_) | PolicyWork::ResyncPool(_) | PolicyWork::Note(_))
        });
        if self.policies.are_any() {
            for event in self.policy_events() {
                self.policies.tell(now, &event);
            }
        }
        self.ask_again(now, fx);
    }

    /// What a policy has to be told that knows nothing: after a restart of its actor, for example.
    #[must_use]
    pub fn policy_events(&self) -> Vec<PolicyEvent> {
        let mut events: Vec<_> = self.workers.keys().cloned().map(PolicyEvent::WorkerJoined).collect();
        for (&(request, attempt), booking) in &self.bookings {
            let at = booking.placed_at(request, attempt);
            events.push(PolicyEvent::Placed(at.clone()));
            if booking.accepted {
                events.push(PolicyEvent::Accepted(at));
            }
        }
        events
    }

    /// Ticks the policies that live here, where it is time for that.
    pub(super) fn tick_policies(&mut self, now: Time) {
        if self.policies.is_due(now) {
            let workers = self.workers();
            for (policy, actions) in self.policies.tick(now, &workers) {
                self.proposed(&policy, actions);
            }
        }
    }

    /// A policy proposes what should be done. What is not possible (any more) is dropped; the rest comes as
    /// [`PolicyWork::Act`]. Proposals of a policy that is not in the list are nothing.
    pub fn proposed(&mut self, policy: &PolicyName, actions: Vec<PolicyAction>) {
        let Some(mode) = self.policies.view(policy).map(|view| view.config.mode) else { return };
        for action in actions {
            let PolicyAction::SwitchRole { worker, role, .. } = &action;
            let can = |row: &Row| row.takes_new() && row.info.switchable && row.info.role != *role;
            if self.workers.get(worker).is_some_and(can) {
                self.policies.work.push(PolicyWork::Act { policy: policy.clone(), mode, action });
            }
        }
    }

    /// Takes what there is to do for policies that live in actors, and for the directory, in order. To be called after
    /// every other call, and carried out at once.
    pub fn take_policy_work(&mut self, into: &mut Vec<PolicyWork>) {
        into.append(&mut self.policies.work);
    }

    /// The policies that are not off, in their order, with what became of them.
    #[must_use]
    pub fn policies(&self) -> Vec<PolicyView> {
        self.policies.list.iter().map(|p| p.view.clone()).collect()
    }
}

impl Booking {
    /// As policies are told of it.
    pub(super) fn placed_at(&self, request: RequestId, attempt: Attempt) -> PlacedAt {
        let pages = Arc::clone(&self.pages);
        PlacedAt { request, attempt, session: self.session.clone(), pages, worker: self.plan.worker.clone() }
    }
}
