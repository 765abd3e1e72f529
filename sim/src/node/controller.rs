//! The controller: [`policies::placement`] and its messages.

use policies::invariant::Broken;
use policies::placement::{Placement, PlacementConfig, PolicyWork};
use policies::policy::{ClusterPolicy, PolicyAction, PolicyConfig, PolicyMode};
use policies::time::Time;

use crate::event::{ControllerMsg, Event, GatewayMsg, Outbox, WorkerMsg};
use crate::watch::{Checks, Watch};

/// The simulated controller.
#[derive(Debug)]
pub struct Controller {
    core: Placement,
    /// When the next tick comes.
    tick: Option<Time>,
    watch: Watch,
    /// It places for the gateway of its own node alone, while that has no other.
    stand_in: bool,
}

impl Controller {
    /// A controller that knows no worker and asks these policies.
    #[must_use]
    pub fn new(config: PlacementConfig, policies: Vec<(PolicyConfig, Box<dyn ClusterPolicy>)>) -> Self {
        Self {
            core: Placement::new(config).with_policies(policies),
            tick: None,
            stand_in: false,
            watch: Watch::default(),
        }
    }

    /// From now on it is checked so often.
    #[must_use]
    pub fn checked(mut self, checks: Checks) -> Self {
        self.watch = Watch::new(checks);
        self
    }

    /// The one that stands in at a gateway's node while that has no other. It knows no pages and asks no policies.
    #[must_use]
    pub fn stand_in(config: &PlacementConfig) -> Self {
        let core = Placement::new(PlacementConfig { directory: false, ..config.clone() });
        Self { core, tick: None, stand_in: true, watch: Watch::default() }
    }

    /// A message came.
    ///
    /// # Errors
    /// A broken invariant of the core.
    pub fn handle(&mut self, now: Time, message: ControllerMsg, out: &mut Outbox) -> Result<(), Broken> {
        let mut fx = Vec::new();
        match message {
            ControllerMsg::Joined(info) => self.core.worker_joined(now, *info, &mut fx),
            ControllerMsg::Left(worker) => self.core.worker_left(now, &worker, &mut fx),
            ControllerMsg::Load(worker, load) => self.core.worker_load(now, &worker, load, &mut fx),
            ControllerMsg::Place(request) if self.stand_in => self.core.place(now, *request, &mut fx),
            ControllerMsg::Place(request) => self.core.place_elsewhere(now, *request, &mut fx),
            ControllerMsg::Release(request, attempt) => self.core.release(now, request, attempt, &mut fx),
            ControllerMsg::Accepted(request, attempt) => self.core.accepted(now, request, attempt),
            ControllerMsg::Prefilled(request, attempt) => self.core.prefilled(now, request, attempt, &mut fx),
            ControllerMsg::KvEvents(worker, seq, events) => {
                self.core.kv_events(&worker, seq, &events);
            }
            ControllerMsg::KvSnapshot(worker, seq, pages) => {
                self.core.kv_snapshot(&worker, seq, 0, 1, &pages);
            }
            ControllerMsg::Draining(worker) => self.core.worker_draining(&worker),
            ControllerMsg::GatewayLeft(life) => self.core.gateway_left(now, life, &mut fx),
        }
        self.finish(now, fx, out)
    }

    /// The tick that was asked for.
    ///
    /// # Errors
    /// As [`Controller::handle`].
    pub fn tick(&mut self, now: Time, out: &mut Outbox) -> Result<(), Broken> {
        self.tick = None;
        let mut fx = Vec::new();
        self.core.tick(now, &mut fx);
        self.finish(now, fx, out)
    }

    fn finish(
        &mut self,
        now: Time,
        fx: Vec<policies::placement::PlacementEffect>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        for effect in fx {
            out.send(Event::Gateway(GatewayMsg::Placement(effect)));
        }
        let mut work = Vec::new();
        self.core.take_policy_work(&mut work);
        for work in work {
            match work {
                PolicyWork::Resync(worker) => out.send(Event::Worker(worker, WorkerMsg::Resync)),
                // To be counted and said, where there are metrics and a log.
                PolicyWork::Note(_) => {}
                PolicyWork::Act { mode: PolicyMode::Shadow | PolicyMode::Off, .. } => {}
                PolicyWork::Act { mode: PolicyMode::Prod, action, .. } => {
                    let PolicyAction::SwitchRole { worker, role, .. } = action;
                    out.send(Event::Worker(worker, WorkerMsg::SetRole(role)));
                }
                // Policies are here, and were asked and told inline.
                PolicyWork::Consult { .. } | PolicyWork::Observe(_) => {
                    return Err(Broken { name: "sim_policies_are_inline", detail: format!("{work:?}") });
                }
            }
        }
        if let Some(next) = self.core.next_deadline()
            && self.tick.is_none_or(|t| next < t)
        {
            self.tick = Some(next);
            let tick = if self.stand_in { Event::StandInTick } else { Event::ControllerTick };
            out.after(next.since(now), tick);
        }
        let core = &self.core;
        let things =
            u64::from(core.booked() + core.queued() + core.consulting()) + core.worker_count() as u64;
        self.watch.check(things, || core.check(), || core.check_counts())
    }

    /// The core, to look at.
    #[must_use]
    pub const fn core(&self) -> &Placement {
        &self.core
    }
}
