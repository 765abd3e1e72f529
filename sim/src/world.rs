//! The simulated cluster: takes the next event, hands it to its node, schedules what comes of it.

use std::collections::BTreeMap;

use config::Choice;
use config::ids::{RequestId, WorkerId};
use policies::batch::BatchConfig;
use policies::cost::CostModel;
use policies::ensure_invariant;
use policies::invariant::Broken;
use policies::kv::events::Recording;
use policies::placement::{self, PlacementConfig, WorkerInfo};
use policies::policy::configured::configured;
use policies::request::Token;
use policies::session::SessionConfig;
use policies::step::StepOutcome;
use policies::time::Time;

use crate::SimError;
use crate::event::{ControllerMsg, Event, GatewayMsg, Outbox, WorkerMsg};
use crate::network::{self, Addr, Network};
use crate::node::{Controller, Gateway, Worker};
use crate::queue::Queue;
use crate::report::Report;
use crate::scenario::{Cluster, Fault, Scenario};
use crate::trace::Trace;
use crate::workload::{self, Arrival, MODEL};

mod faults;

/// Events between two looks at everything, at least.
const CHECK_EVERY: u64 = 4096;

/// A run that has ended.
#[derive(Debug)]
pub struct Run {
    /// Its figures.
    pub report: Report,
    /// What each request was answered, by choice; complete or not.
    pub answers: BTreeMap<RequestId, Vec<Vec<Token>>>,
    /// Tokens that each worker that lived to the end has computed in prefill.
    pub prefilled: BTreeMap<WorkerId, u64>,
    /// Messages that were lost with their links.
    pub lost_messages: u64,
}

/// All nodes, and what is on its way between them.
#[derive(Debug)]
pub struct World {
    scenario: Scenario,
    cost: CostModel,
    arrivals: Vec<Arrival>,
    queue: Queue,
    out: Outbox,
    gateway: Gateway,
    controller: Controller,
    /// Places for the gateway while that has no controller.
    stand_in: Controller,
    workers: BTreeMap<WorkerId, Worker>,
    network: Network,
    /// Those that the scenario lists, and those drawn from its seed.
    faults: Vec<Fault>,
    /// The life of each worker that the controller, and the gateway's node, have met.
    met: BTreeMap<(Addr, u32), WorkerId>,
    /// Events until the next look at everything.
    next_check: u64,
    /// Lives that each worker has had.
    lives: Vec<u64>,
    /// Tokens drawn by workers that lived to say so.
    drawn: u64,
    trace: Trace,
}

impl World {
    /// A cluster in which nothing has happened yet.
    ///
    /// # Errors
    /// An unknown model or machine.
    pub fn new(scenario: &Scenario) -> Result<Self, SimError> {
        let c = &scenario.cluster;
        let mut queue = Queue::default();
        (0..c.workers).for_each(|w| queue.push(Time::ZERO, Event::Start(w)));
        let mut faults = scenario.faults.clone();
        faults.extend(scenario.random_faults.random.draw(scenario.seed, c.workers));
        faults::schedule(&faults, &mut queue);
        let arrivals = workload::arrivals(scenario);
        for (index, arrival) in arrivals.iter().enumerate() {
            queue.push(arrival.at, Event::Arrive(index));
            if let Some(at) = arrival.leaves {
                queue.push(at, Event::Leave(arrival.spec.id));
            }
            if let Some(at) = arrival.reads {
                queue.push(at, Event::Read(arrival.spec.id));
            }
        }
        let mut gateway = Gateway::new(
            SessionConfig { retry_limit: c.retry_limit, backoff: c.retry_backoff.get().into() },
            !c.cluster_policies.is_empty(),
        );
        if scenario.check_answers {
            gateway.check_answers(workload::model(&scenario.workload));
        }
        Ok(Self {
            cost: scenario.cost()?,
            arrivals,
            queue,
            out: Outbox::new(),
            gateway,
            controller: controller(scenario),
            stand_in: Controller::stand_in(placement_config(c, scenario.seed)),
            workers: BTreeMap::new(),
            network: Network::new(scenario, !faults.is_empty())?,
            faults,
            met: BTreeMap::new(),
            next_check: 0,
            lives: vec![0; c.workers as usize],
            drawn: 0,
            trace: Trace::default(),
            scenario: scenario.clone(),
        })
    }

    /// Runs until nothing is left to happen.
    ///
    /// # Errors
    /// A broken invariant, or something left behind.
    pub fn run(mut self) -> Result<Run, SimError> {
        let seed = self.scenario.seed;
        let mut last = Time::ZERO;
        while let Some((now, event)) = self.queue.pop() {
            let Some(event) = self.network.arrive(event) else { continue };
            // A timer of a request that is over is no event: it neither counts nor makes the run longer.
            if matches!(event, Event::Timer(id) | Event::Leave(id) | Event::Read(id) if !self.gateway.is_live(id))
            {
                continue;
            }
            // A tick for what waits no more neither.
            let idle = match &event {
                Event::ControllerTick => self.controller.core().next_deadline().is_none(),
                Event::StandInTick => self.stand_in.core().next_deadline().is_none(),
                _ => false,
            };
            last = if idle { last } else { now };
            self.trace.record(now, &event);
            self.out.from = network::place(&event).unwrap_or(Addr::Gateway);
            let applied = self.apply(now, event).and_then(|()| self.check());
            applied.map_err(|broken| SimError::broken(broken, now, seed))?;
            self.network.take(now, &mut self.out, &mut self.queue);
        }
        self.nothing_left().map_err(|broken| SimError::broken(broken, last, seed))?;
        let lost_messages = self.network.lost();
        let records = self.gateway.into_records();
        let tokens = |choice: &Vec<(Time, Token)>| choice.iter().map(|&(_, token)| token).collect();
        let prefilled =
            self.workers.iter().map(|(id, w)| (id.clone(), w.core().load().prefilled_tokens)).collect();
        let answers = records.iter().map(|(id, r)| (*id, r.answers.iter().map(tokens).collect())).collect();
        Ok(Run {
            report: Report::new(seed, &records, self.drawn, last, self.trace),
            answers,
            prefilled,
            lost_messages,
        })
    }

    fn apply(&mut self, now: Time, event: Event) -> Result<(), Broken> {
        let out = &mut self.out;
        match event {
            Event::Arrive(index) => {
                let arrival = &self.arrivals[index];
                if self.network.is_dead(Addr::Gateway) {
                    self.gateway.refuse(now, &arrival.spec);
                    return Ok(());
                }
                self.gateway.arrive(now, arrival.spec.clone(), arrival.reads.is_none(), out)
            }
            Event::Read(id) => self.gateway.read(now, id, out),
            Event::Leave(id) => self.gateway.leave(now, id, out),
            Event::Timer(id) => self.gateway.timer(now, id, out),
            Event::Gateway(message) => self.gateway.handle(now, message, out),
            Event::Controller(message) => {
                self.meet(Addr::Controller, &message);
                self.controller.handle(now, message, &mut self.out)
            }
            Event::ControllerTick => self.controller.tick(now, out),
            Event::StandIn(message) => {
                self.meet(Addr::Gateway, &message);
                self.stand_in.handle(now, message, &mut self.out)
            }
            Event::StandInTick => self.stand_in.tick(now, out),
            Event::Worker(id, message) => self.worker(now, id, message),
            Event::StepDone(id, outcome) => self.step_done(now, &id, &outcome),
            Event::Start(index) => {
                self.start(index);
                Ok(())
            }
            Event::Rejoin(index) => {
                self.rejoin(index);
                Ok(())
            }
            Event::Crash(index) => {
                self.crash(now, Addr::Worker(index));
                Ok(())
            }
            Event::FalseAlarm(index) => {
                self.false_alarm(index);
                Ok(())
            }
            Event::Fault(_)
            | Event::FaultOver(_)
            | Event::Notice { .. }
            | Event::Relink(..)
            | Event::Flow(_)
            | Event::Wire(_) => {
                self.fault(now, event);
                Ok(())
            }
        }
    }

    /// A message reaches the node of a worker.
    fn worker(&mut self, now: Time, id: WorkerId, message: WorkerMsg) -> Result<(), Broken> {
        if let Some(worker) = self.workers.get_mut(&id) {
            return worker.handle(now, message, &mut self.out);
        }
        let here = life(&self.lives, network::index_of(&id));
        match (self.workers.get_mut(&here), message) {
            // Placed on a life of it that is over: whoever placed it had not heard yet.
            (_, WorkerMsg::Submit(spec)) => {
                self.out.send(Event::Gateway(GatewayMsg::Unreachable(spec.id, id)));
                Ok(())
            }
            // All else is for the node, whichever life of it.
            (Some(worker), message) => worker.handle(now, message, &mut self.out),
            // There is nothing to stop, nor to go on, at a worker that is gone.
            (
                None,
                WorkerMsg::Cancel(..)
                | WorkerMsg::CancelChoice(..)
                | WorkerMsg::Grant(..)
                | WorkerMsg::Resync
                | WorkerMsg::GatewayLeft
                | WorkerMsg::PeerLost(_),
            ) => Ok(()),
        }
    }

    /// The engine of a worker has run a step, for the process that began it.
    fn step_done(&mut self, now: Time, id: &WorkerId, outcome: &StepOutcome) -> Result<(), Broken> {
        let id = match self.workers.contains_key(id) {
            true => id.clone(),
            false => {
                let here = life(&self.lives, network::index_of(id));
                match self.workers.get(&here).is_some_and(|worker| worker.was(id)) {
                    true => here,
                    false => return Ok(()),
                }
            }
        };
        let Some(worker) = self.workers.get_mut(&id) else { return Ok(()) };
        self.drawn += outcome.drawn.len() as u64;
        worker.step_done(now, outcome, &mut self.out)?;
        // As live, where a beat tells every node: whoever has no controller looks at it.
        if self.network.links().is_some_and(|links| !links.sees(Addr::Gateway, Addr::Controller)) {
            let load = worker.core().load();
            self.out.send(Event::StandIn(ControllerMsg::Load(id, load)));
        }
        Ok(())
    }

    fn start(&mut self, index: u32) {
        let c = &self.scenario.cluster;
        if self.workers.contains_key(&life(&self.lives, index)) {
            return;
        }
        self.lives[index as usize] += 1;
        let again = self.lives[index as usize] > 1;
        let id = life(&self.lives, index);
        let config = BatchConfig {
            max_batch_tokens: c.max_batch_tokens,
            max_running: c.max_running,
            max_waiting: c.max_waiting,
            prefix_cache: c.prefix_cache,
            watermark: c.watermark,
            kv_events: if c.cluster_policies.is_empty() { Recording::Off } else { Recording::Hashes },
            ..BatchConfig::sized(c.page_tokens, c.pages, c.max_context, workload::fingerprint())
        };
        let model = workload::model(&self.scenario.workload);
        self.workers.insert(id.clone(), Worker::new(id, config, model, self.cost));
        match again {
            // It says what it offers over each link that it has.
            true => self.started(Addr::Worker(index)),
            false => self.rejoin(index),
        }
    }

    /// What a worker that lives tells others of itself.
    fn offer(&self, index: u32) -> Option<WorkerInfo> {
        let id = life(&self.lives, index);
        let worker = self.workers.get(&id)?;
        Some(WorkerInfo::unified(
            id,
            MODEL.into(),
            worker.core().config().window(),
            self.scenario.cluster.max_requests,
            self.scenario.cluster.page_tokens,
        ))
    }

    /// What is too dear to look at after each event: where no link can break, each request at a worker is booked there.
    fn check(&mut self) -> Result<(), Broken> {
        if self.network.links().is_some() || self.trace.events() < self.next_check {
            return Ok(());
        }
        self.next_check = self.trace.events() + CHECK_EVERY.max(16 * self.gateway.live() as u64);
        let core = self.controller.core();
        let lost = self.gateway.at_workers().find(|id| !core.is_booked(*id));
        ensure_invariant!(lost.is_none(), "sim_requests_at_workers_are_booked", "{lost:?} is not");
        Ok(())
    }

    /// The leak check: whatever happened, nothing is held anywhere when it is over.
    fn nothing_left(&self) -> Result<(), Broken> {
        let stands_still = |node| self.network.is_frozen(node) || self.network.is_dead(node);
        ensure_invariant!(
            self.gateway.live() == 0 || stands_still(Addr::Gateway),
            "sim_requests_end",
            "{} sessions live",
            self.gateway.live()
        );
        for (node, controller) in [(Addr::Controller, &self.controller), (Addr::Gateway, &self.stand_in)] {
            if stands_still(node) {
                continue;
            }
            let core = controller.core();
            ensure_invariant!(
                core.booked() == 0 && core.queued() == 0 && core.consulting() == 0,
                "sim_bookings_end",
                "at the {node:?}: {} requests are booked, {} wait, {} are asked about",
                core.booked(),
                core.queued(),
                core.consulting()
            );
            for row in core.workers() {
                ensure_invariant!(
                    row.booked == 0 && row.booked_tokens == 0,
                    "sim_bookings_end",
                    "at the {node:?}: {} requests, {} tokens on {}",
                    row.booked,
                    row.booked_tokens,
                    row.info.id
                );
            }
        }
        for (id, worker) in &self.workers {
            if stands_still(Addr::Worker(network::index_of(id))) {
                continue;
            }
            let load = worker.core().load();
            ensure_invariant!(
                worker.core().is_idle()
                    && load.pages_used == 0
                    && load.running + load.waiting + load.paused == 0,
                "sim_pages_end",
                "{id}: {load:?}"
            );
        }
        Ok(())
    }
}

/// The latest life of a worker.
fn life(lives: &[u64], index: u32) -> WorkerId {
    // Padded, so that names sort by number.
    WorkerId::new(format!("w{index:05}").into(), lives[index as usize])
}

/// A controller that has just started.
fn controller(scenario: &Scenario) -> Controller {
    let names = &scenario.cluster.cluster_policies;
    let policies = names.iter().filter_map(|name| configured(name, &scenario.policy)).collect();
    Controller::new(placement_config(&scenario.cluster, scenario.seed), policies)
}

fn placement_config(cluster: &Cluster, seed: u64) -> PlacementConfig {
    PlacementConfig {
        max_queued: cluster.queue_limit,
        queue_timeout: cluster.queue_timeout.get().into(),
        choice: match cluster.choice {
            Choice::LeastLoaded => placement::Choice::LeastLoaded,
            Choice::PowerOfTwo => placement::Choice::PowerOfTwo,
        },
        seed,
        opinion_deadline: policies::policy::OPINION_DEADLINE,
        directory: !cluster.cluster_policies.is_empty(),
    }
}
