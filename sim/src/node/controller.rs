//! The controller: [`policies::placement`] and its messages.

use policies::invariant::Broken;
use policies::placement::{Placement, PlacementConfig};
use policies::policy::{ClusterPolicy, PolicyConfig};
use policies::time::Time;

use crate::event::{ControllerMsg, Outbox, PoolNews};
use crate::watch::{Checks, Watch};

mod effects;

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
            ControllerMsg::Pool(news) => self.pool(*news),
            ControllerMsg::GatewayLeft(life) => self.core.gateway_left(now, life, &mut fx),
        }
        self.finish(now, fx, out)
    }

    fn pool(&mut self, news: PoolNews) {
        match news {
            PoolNews::Joined(info) => self.core.pool_joined(info),
            PoolNews::Left(pool) => self.core.pool_left(&pool),
            PoolNews::Events(pool, seq, events) => _ = self.core.pool_events(&pool, seq, &events),
            PoolNews::Snapshot(pool, seq, pages) => _ = self.core.pool_snapshot(&pool, seq, 0, 1, &pages),
        }
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

    /// The core, to look at.
    #[must_use]
    pub const fn core(&self) -> &Placement {
        &self.core
    }
}
