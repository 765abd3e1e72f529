//! The simulated cluster: takes the next event, hands it to its node, schedules what comes of it.
//!
//! `run` is the loop, `driver` hands events to nodes. What happens to nodes and links is in `faults`, who hears of it in
//! `links`.

use std::collections::BTreeMap;

use config::ids::WorkerId;

use crate::SimError;
use crate::event::Outbox;
use crate::network::{Addr, Network};
use crate::node::worker::Handoffs;
use crate::node::{Controller, Gateway, Pools, Workers};
use crate::queue::Queue;
use crate::report::{Glance, Probe};
use crate::scenario::{Fault, Scenario};
use crate::trace::Trace;
use crate::workload::Clients;

mod checks;
mod deliver;
mod driver;
mod end;
mod faults;
mod idle;
mod introductions;
mod kinds;
mod links;
mod lives;
mod moves;
mod pools;
mod run;
mod starts;

pub use end::Run;
use kinds::Kinds;
use lives::{life, name};
use starts::{controller, gateway, stand_in};

/// All nodes, and what is on its way between them.
#[derive(Debug)]
pub struct World {
    scenario: Scenario,
    kinds: Kinds,
    clients: Clients,
    queue: Queue,
    out: Outbox,
    gateway: Gateway,
    controller: Controller,
    /// Places for the gateway while that has no controller.
    stand_in: Controller,
    workers: Workers,
    pools: Pools,
    network: Network,
    /// Those that the scenario lists, and those drawn from its seed.
    faults: Vec<Fault>,
    /// The life of each worker, and of each pool, that the controller, and the gateway's node, have met.
    met: BTreeMap<(Addr, Addr), WorkerId>,
    /// Events until the next look at everything.
    next_check: u64,
    /// Lives that each worker has had.
    lives: Vec<u64>,
    /// Tokens drawn by workers that lived to say so.
    drawn: u64,
    /// Transfers of workers that are gone.
    handoffs: Handoffs,
    trace: Trace,
    probe: Probe,
}

impl World {
    /// A cluster in which nothing has happened yet.
    ///
    /// # Errors
    /// An unknown model or machine.
    pub fn new(scenario: &Scenario) -> Result<Self, SimError> {
        let mut clients = Clients::new(scenario)?;
        let (queue, faults) = starts::queue(scenario, &mut clients)?;
        let kinds = Kinds::new(scenario)?;
        Ok(Self {
            clients,
            queue,
            out: Outbox::new(),
            gateway: gateway(scenario),
            controller: controller(scenario).checked(scenario.how_checked()),
            stand_in: stand_in(scenario).checked(scenario.how_checked()),
            workers: Workers::default(),
            network: Network::new(
                scenario,
                &kinds.machines(),
                &pools::machines(scenario)?,
                !faults.is_empty(),
            ),
            pools: Pools::new(pools::args(scenario)?, scenario.how_checked()),
            kinds,
            faults,
            met: BTreeMap::new(),
            next_check: 0,
            lives: vec![0; scenario.workers() as usize],
            drawn: 0,
            handoffs: Handoffs::default(),
            trace: Trace::default(),
            probe: Probe::default(),
            scenario: scenario.clone(),
        })
    }

    /// The same, with someone who is told now and then how far it is.
    #[must_use]
    pub fn watched_by(mut self, watch: Box<dyn FnMut(Glance)>) -> Self {
        self.probe.watched_by(watch);
        self
    }

    /// The same, with all answers and placements kept until the end.
    #[must_use]
    pub fn with_history(mut self) -> Self {
        self.gateway.keep_history();
        self
    }
}
