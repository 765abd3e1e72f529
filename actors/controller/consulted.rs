//! The controller's policies: each in an actor of its own, so that one that panics or is slow costs its own opinion and
//! nothing else. They are made from the configuration by [`makers`] alone, at the start, at a reload and after a panic.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Config;
use config::ids::PolicyName;
use policies::placement::{PolicyWork, Ticket, WorkerView};
use policies::policy::configured::configured;
use policies::policy::{ClusterPolicy, PolicyConfig, PolicyEvent, PolicyMode, PolicyQuery};
use policies::time::{Span, Time};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SpawnErr};
use ractor_cluster::RactorMessage;

use crate::clock;
use crate::doors::ControllerMsg;
use crate::supervise::Backoff;

/// How often a policy may forget and propose.
const TICK: Span = Span::from_secs(1);

/// A policy of the configuration, and how to make it.
#[derive(Clone)]
pub struct Maker {
    /// How the controller treats it.
    pub config: PolicyConfig,
    /// None where there is no such policy.
    make: Arc<dyn Fn() -> Option<Box<dyn ClusterPolicy>> + Send + Sync>,
}

impl Maker {
    /// What a policy is when it is made: its options, for it knows nothing yet.
    fn makes(&self) -> String {
        format!("{:?}", (self.make)())
    }
}

impl fmt::Debug for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Maker").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The policies that `cluster.cluster-policies` lists, in its order. The list and the tables were checked when the
/// configuration was loaded; each is made by [`configured`], in the simulator too.
#[must_use]
pub fn makers(config: &Config) -> Vec<Maker> {
    let tables = Arc::new(config.policy.clone());
    let maker = |name: &String| {
        let (config, _) = configured(name, &tables)?;
        let (name, tables) = (name.clone(), Arc::clone(&tables));
        let make = move || configured(&name, &tables).map(|(_, policy)| policy);
        Some(Maker { config, make: Arc::new(make) })
    };
    config.cluster.cluster_policies.iter().filter_map(maker).collect()
}

/// What a policy's actor takes.
#[derive(Debug, RactorMessage)]
pub enum PolicyMsg {
    /// What does it think?
    Consult { ticket: Ticket, query: PolicyQuery, asked: Time },
    /// Something happened.
    Observe(PolicyEvent),
    /// Time to forget, and to propose in the light of these workers.
    Tick(Arc<[WorkerView]>),
}

/// The actor of one policy.
#[derive(Debug, Default)]
struct PolicyActor;

#[derive(Debug)]
struct PolicyState {
    name: PolicyName,
    policy: Box<dyn ClusterPolicy>,
    controller: ActorRef<ControllerMsg>,
}

impl Actor for PolicyActor {
    type Msg = PolicyMsg;
    type State = PolicyState;
    type Arguments = (Maker, ActorRef<ControllerMsg>);

    async fn pre_start(
        &self,
        _: ActorRef<PolicyMsg>,
        (maker, controller): Self::Arguments,
    ) -> Result<PolicyState, ActorProcessingErr> {
        let policy = (maker.make)().ok_or("there is no such policy")?;
        Ok(PolicyState { name: maker.config.name.clone(), policy, controller })
    }

    async fn handle(
        &self,
        _: ActorRef<PolicyMsg>,
        message: PolicyMsg,
        state: &mut PolicyState,
    ) -> Result<(), ActorProcessingErr> {
        let now = clock::now();
        match message {
            PolicyMsg::Consult { ticket, query, asked } => {
                let opinion = state.policy.opinion(now, &query);
                let (policy, took) = (state.name.clone(), clock::now().since(asked));
                // The controller supervises this actor and ends after it.
                let _ = state.controller.cast(ControllerMsg::Opinion { ticket, policy, opinion, took });
            }
            PolicyMsg::Observe(event) => state.policy.observe(now, &event),
            PolicyMsg::Tick(workers) => {
                let mut actions = Vec::new();
                state.policy.tick(now, &workers, &mut actions);
                if !actions.is_empty() {
                    let policy = state.name.clone();
                    // As above.
                    let _ = state.controller.cast(ControllerMsg::Proposed { policy, actions });
                }
                crate::metrics::enforce("policy", state.policy.check());
            }
        }
        Ok(())
    }
}

/// The policies of one controller.
#[derive(Debug, Default)]
pub(super) struct Policies {
    list: Vec<Child>,
    ticked: Time,
}

#[derive(Debug)]
struct Child {
    maker: Maker,
    actor: Option<ActorRef<PolicyMsg>>,
    /// Questions without an answer.
    open: BTreeMap<u64, Time>,
    backoff: Backoff,
}

impl Child {
    /// Its actor runs, and is what `maker` would make.
    fn goes_on_as(&self, maker: &Maker) -> bool {
        self.actor.is_some()
            && self.maker.config.name == maker.config.name
            && self.maker.makes() == maker.makes()
    }
}

impl Policies {
    /// Starts the actors of `makers` in place of those before. One that would be made alike goes on, with all that it
    /// knows: its mode, its weight and its place in the list are not its own.
    ///
    /// # Errors
    /// One does not start; then those before go on.
    pub(super) async fn start(
        &mut self,
        makers: Vec<Maker>,
        controller: &ActorRef<ControllerMsg>,
    ) -> Result<(), SpawnErr> {
        let on: Vec<Maker> = makers.into_iter().filter(|m| m.config.mode != PolicyMode::Off).collect();
        let mut started = Vec::with_capacity(on.len());
        for maker in &on {
            if self.list.iter().any(|child| child.goes_on_as(maker)) {
                started.push(None);
                continue;
            }
            match spawn(maker, controller).await {
                Ok(actor) => started.push(Some(actor)),
                Err(error) => {
                    started.into_iter().flatten().for_each(|actor| actor.stop(None));
                    return Err(error);
                }
            }
        }
        let mut former = std::mem::take(&mut self.list);
        for (maker, actor) in on.into_iter().zip(started) {
            let kept = former.iter().position(|child| child.goes_on_as(&maker));
            self.list.push(match kept {
                Some(at) if actor.is_none() => Child { maker, ..former.swap_remove(at) },
                _ => Child { maker, actor, open: BTreeMap::new(), backoff: Backoff::default() },
            });
        }
        for actor in former.into_iter().filter_map(|child| child.actor) {
            actor.stop(Some("replaced by a reload".to_owned()));
        }
        Ok(())
    }

    /// How the core is told about them.
    pub(super) fn configs(&self) -> Vec<(PolicyConfig, Option<Box<dyn ClusterPolicy>>)> {
        self.list.iter().map(|child| (child.maker.config.clone(), None)).collect()
    }

    /// Whether it is time for a tick, and somebody needs one.
    pub(super) fn are_due(&self, now: Time) -> bool {
        !self.list.is_empty() && now.since(self.ticked) >= TICK
    }

    /// Lets all of them forget, and propose in the light of these workers.
    pub(super) fn tick(&mut self, now: Time, workers: &Arc<[WorkerView]>) {
        self.ticked = now;
        for actor in self.list.iter().filter_map(|child| child.actor.as_ref()) {
            // One that has just died knows nothing to forget.
            let _ = actor.cast(PolicyMsg::Tick(Arc::clone(workers)));
        }
    }

    /// Carries out work for a policy; gives back the question where its policy is not there to answer.
    pub(super) fn work(&mut self, work: PolicyWork) -> Option<(Ticket, PolicyName)> {
        match work {
            PolicyWork::Observe(event) => {
                for actor in self.list.iter().filter_map(|child| child.actor.as_ref()) {
                    // One that has just died is told everything when it is back.
                    let _ = actor.cast(PolicyMsg::Observe(event.clone()));
                }
                None
            }
            PolicyWork::Consult { ticket, policy, query } => {
                let asked = clock::now();
                let child = self.list.iter_mut().find(|child| child.maker.config.name == policy);
                let sent = child.is_some_and(|child| {
                    child.open.insert(ticket.0, asked);
                    let message = PolicyMsg::Consult { ticket, query, asked };
                    child.actor.as_ref().is_some_and(|actor| actor.cast(message).is_ok())
                });
                (!sent).then_some((ticket, policy))
            }
            // The controller's own.
            PolicyWork::Resync(_)
            | PolicyWork::ResyncPool(_)
            | PolicyWork::Note(_)
            | PolicyWork::Act { .. } => None,
        }
    }

    /// A question was answered.
    pub(super) fn answered(&mut self, ticket: Ticket, policy: &PolicyName) {
        if let Some(child) = self.list.iter_mut().find(|child| child.maker.config.name == *policy) {
            child.open.remove(&ticket.0);
        }
    }

    /// A policy's actor has failed: its name, the questions that it leaves, and when to start it again.
    pub(super) fn failed(&mut self, actor: ActorId) -> Option<(PolicyName, BTreeSet<u64>, Duration)> {
        let is = |child: &&mut Child| child.actor.as_ref().is_some_and(|a| a.get_id() == actor);
        let child = self.list.iter_mut().find(is)?;
        child.actor = None;
        let open = std::mem::take(&mut child.open).into_keys().collect();
        Some((child.maker.config.name.clone(), open, child.backoff.next_delay(Instant::now())))
    }

    /// Starts a failed policy again, and tells it what it has to know.
    ///
    /// # Errors
    /// It does not start.
    pub(super) async fn restart(
        &mut self,
        name: &PolicyName,
        known: Vec<PolicyEvent>,
        controller: &ActorRef<ControllerMsg>,
    ) -> Result<(), SpawnErr> {
        let waits = |child: &&mut Child| child.maker.config.name == *name && child.actor.is_none();
        // After a reload there may be another one of that name, which runs.
        let Some(child) = self.list.iter_mut().find(waits) else { return Ok(()) };
        let actor = spawn(&child.maker, controller).await?;
        for event in known {
            let _ = actor.cast(PolicyMsg::Observe(event));
        }
        child.actor = Some(actor);
        Ok(())
    }
}

async fn spawn(maker: &Maker, controller: &ActorRef<ControllerMsg>) -> Result<ActorRef<PolicyMsg>, SpawnErr> {
    let args = (maker.clone(), controller.clone());
    crate::supervise::spawn_on_thread::<PolicyActor>(args, controller.get_cell()).await
}

#[cfg(test)]
mod tests;
