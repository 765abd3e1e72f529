//! The simulated cluster: takes the next event, hands it to its node, schedules what comes of it.

use std::collections::BTreeMap;

use config::ids::{NodeId, RequestId, WorkerId};
use config::{Choice, WorkerRole};
use policies::invariant::Broken;
use policies::placement::{self, PlacementConfig, WorkerInfo};
use policies::policy::configured::configured;
use policies::request::Token;
use policies::session::SessionConfig;
use policies::step::StepOutcome;
use policies::time::Time;

use crate::SimError;
use crate::event::{Came, ControllerMsg, Event, GatewayMsg, Outbox, WorkerMsg};
use crate::network::{self, Addr, Network};
use crate::node::worker::Handoffs;
use crate::node::{Controller, Gateway, History, Placed, Worker, Workers};
use crate::queue::{Place, Queue};
use crate::report::{Glance, Left, Probe, Report, Tally};
use crate::scenario::{Cluster, Fault, Scenario};
use crate::trace::Trace;
use crate::watch::Checks;
use crate::workload::{self, Arrival, Clients};

use kinds::Kinds;

mod checks;
mod faults;
mod kinds;
mod moves;

/// A run that has ended.
#[derive(Debug)]
pub struct Run {
    /// Its figures.
    pub report: Report,
    /// What each request was answered, by choice; complete or not. Empty where nobody asked for it.
    pub answers: BTreeMap<RequestId, Vec<Vec<Token>>>,
    /// The placements of each request in turn. Empty where nobody asked for it.
    pub placements: BTreeMap<RequestId, Vec<Placed>>,
    /// Tokens that each worker that lived to the end has computed in prefill.
    pub prefilled: BTreeMap<WorkerId, u64>,
    /// How transfers of pages between workers ended.
    pub handoffs: Handoffs,
    /// What each worker that lived to the end was then.
    pub roles: BTreeMap<WorkerId, WorkerRole>,
    /// Messages that were lost with their links.
    pub lost_messages: u64,
}

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
        let c = &scenario.cluster;
        let mut queue = Queue::default();
        let workers = scenario.workers();
        (0..workers).for_each(|w| queue.push(Time::ZERO, Event::Start(w)));
        let mut faults = scenario.faults.clone();
        faults.extend(scenario.random_faults.random.draw(scenario.seed, workers));
        faults::schedule(&faults, &mut queue);
        moves::schedule(&scenario.moves, &mut queue);
        let mut clients = Clients::new(scenario)?;
        if let Some(first) = clients.next()? {
            queue.push(first.at, Event::Arrive(Box::new(first), Came::ByItself));
        }
        let kinds = Kinds::new(scenario)?;
        let mut gateway = Gateway::new(
            SessionConfig { retry_limit: c.retry_limit, backoff: c.retry_backoff.get().into() },
            !c.cluster_policies.is_empty(),
            Tally::new(scenario.slo, &scenario.workload.phases),
        );
        if scenario.check_answers && scenario.how_checked() == Checks::Every {
            gateway.check_answers(workload::model(&scenario.workload));
        }
        Ok(Self {
            clients,
            queue,
            out: Outbox::new(),
            gateway,
            controller: controller(scenario).checked(scenario.how_checked()),
            stand_in: Controller::stand_in(&placement_config(c, scenario.seed))
                .checked(scenario.how_checked()),
            workers: Workers::default(),
            network: Network::new(scenario, &kinds.machines(), !faults.is_empty()),
            kinds,
            faults,
            met: BTreeMap::new(),
            next_check: 0,
            lives: vec![0; workers as usize],
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

    /// Runs until nothing is left to happen.
    ///
    /// # Errors
    /// A broken invariant, or something left behind.
    pub fn run(mut self) -> Result<Run, SimError> {
        let seed = self.scenario.seed;
        let mut last = Time::ZERO;
        while let Some((now, mut place)) = self.queue.due() {
            if self.network.links().is_some() {
                let Some(arrived) = self.queue.take(place).and_then(|event| self.network.arrive(event))
                else {
                    continue;
                };
                place = self.queue.keep(arrived);
            }
            let Some(event) = self.queue.at(place) else { continue };
            if self.is_nothing(event) {
                self.queue.forget(place);
                continue;
            }
            // A tick for what waits no more does not make the run longer.
            let idle = match event {
                Event::ControllerTick => self.controller.core().next_deadline().is_none(),
                Event::StandInTick => self.stand_in.core().next_deadline().is_none(),
                Event::Worker(_, message) => message.is_routine(),
                Event::Move(_) => self.gateway.live() == 0,
                _ => false,
            };
            last = if idle { last } else { now };
            self.trace.record(now, event);
            self.probe.see(now, event, &self.gateway, &self.controller, &self.workers);
            self.out.from = network::place(event).unwrap_or(Addr::Gateway);
            // Of those that follow nothing, just one is on its way.
            if matches!(event, Event::Arrive(_, Came::ByItself))
                && let Some(next) = self.clients.next()?
            {
                self.queue.push(next.at.max(now), Event::Arrive(Box::new(next), Came::ByItself));
            }
            let applied = self.happen(now, place).and_then(|()| self.check());
            applied.map_err(|broken| SimError::broken(broken, now, seed))?;
            if self.gateway.has_ended() {
                self.follow(now)?;
            }
            self.network.take(now, &mut self.out, &mut self.queue);
        }
        // What a gateway that stands still for ever has never ends, and so what would follow never comes.
        if !self.network.is_frozen(Addr::Gateway) {
            self.clients.check_all_came()?;
        }
        self.workers.iter_mut().for_each(Worker::end);
        self.nothing_left().map_err(|broken| SimError::broken(broken, last, seed))?;
        let lost_messages = self.network.lost();
        let (tally, history) = self.gateway.into_seen();
        let prefilled =
            self.workers.iter().map(|(id, w)| (id.clone(), w.core().load().prefilled_tokens)).collect();
        let mut handoffs = self.handoffs;
        self.workers.iter().for_each(|(_, worker)| handoffs.merge(&worker.handoffs()));
        let report = Report::new(&Left {
            seed,
            tally: &tally,
            drawn_tokens: self.drawn,
            last,
            trace: self.trace,
            probe: &self.probe,
            handoffs: &handoffs,
            checks: self.scenario.how_checked(),
            workers: &self.workers,
        });
        let roles = self.workers.iter().map(|(id, worker)| (id.clone(), worker.info().role)).collect();
        let History { answers, placements } = history.unwrap_or_default();
        Ok(Run { report, answers, placements, prefilled, handoffs, roles, lost_messages })
    }

    /// A timer of a request that is over is no event, nor is one of a transfer: it neither counts nor makes the run longer.
    fn is_nothing(&self, event: &Event) -> bool {
        match event {
            Event::Timer(id) | Event::Leave(id) | Event::Read(id) => !self.gateway.is_live(*id),
            Event::KvTimer(worker, request, attempt) => !self
                .process(worker)
                .and_then(|w| self.workers.get(&w))
                .is_some_and(|w| w.has_transfer((*request, *attempt))),
            _ => false,
        }
    }

    /// What follows the requests that have just ended comes when it does.
    fn follow(&mut self, now: Time) -> Result<(), SimError> {
        for (id, answer) in self.gateway.take_ended() {
            if self.clients.is_followed(id) {
                for arrival in self.clients.ended(now, id, &answer)? {
                    self.queue.push(arrival.at, Event::Arrive(Box::new(arrival), Came::AfterAnother));
                }
            }
        }
        Ok(())
    }

    /// Messages are copied once: from where they are kept to whom they are for.
    fn happen(&mut self, now: Time, place: Place) -> Result<(), Broken> {
        match self.queue.at_mut(place) {
            Some(Event::Gateway(message)) => {
                let message = std::mem::replace(message, GatewayMsg::ControllerLost);
                self.queue.forget(place);
                self.gateway.handle(now, message, &mut self.out)
            }
            Some(Event::Controller(message)) => {
                let message = std::mem::replace(message, ControllerMsg::GatewayLeft(0));
                self.queue.forget(place);
                self.meet(Addr::Controller, &message);
                self.controller.handle(now, message, &mut self.out)
            }
            _ => match self.queue.take(place) {
                Some(event) => self.apply(now, event),
                None => Ok(()),
            },
        }
    }

    fn apply(&mut self, now: Time, event: Event) -> Result<(), Broken> {
        let out = &mut self.out;
        match event {
            Event::Arrive(arrival, _) => {
                let Arrival { spec, leaves, reads, .. } = *arrival;
                if self.network.is_dead(Addr::Gateway) {
                    self.gateway.refuse(now, &spec);
                    return Ok(());
                }
                if let Some(at) = leaves {
                    out.after(at.since(now), Event::Leave(spec.id));
                }
                if let Some(at) = reads {
                    out.after(at.since(now), Event::Read(spec.id));
                }
                self.gateway.arrive(now, spec, reads.is_none(), out)
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
            Event::StepDone(id, outcome) => self.step_done(now, &id, outcome),
            Event::KvTimer(id, request, attempt) => {
                let here = self.process(&id);
                match here.and_then(|here| self.workers.get_mut(&here)) {
                    Some(worker) => worker.kv_timer(now, (request, attempt), &mut self.out),
                    None => Ok(()),
                }
            }
            Event::Move(index) => self.move_some(now, index),
            Event::Drained(id) => {
                self.drained(now, &id);
                Ok(())
            }
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
                self.fault(now, &event);
                Ok(())
            }
        }
    }

    /// A message reaches the node of a worker.
    fn worker(&mut self, now: Time, id: WorkerId, message: WorkerMsg) -> Result<(), Broken> {
        if let Some(worker) = self.workers.get_mut(&id) {
            return worker.handle(now, message, &mut self.out);
        }
        let here = match &message {
            // Placed on a life of it that is over: whoever placed it had not heard yet.
            WorkerMsg::Submit(..) | WorkerMsg::Fetch(..) | WorkerMsg::Take(..) => None,
            // A transfer is between two processes.
            WorkerMsg::Kv(_) => self.process(&id),
            // All else is for the node, whichever life of it.
            _ => Some(life(&self.lives, network::index_of(&id))),
        };
        match (here.and_then(|here| self.workers.get_mut(&here)), message) {
            (Some(worker), message) => worker.handle(now, message, &mut self.out),
            (None, WorkerMsg::Submit(spec, _) | WorkerMsg::Fetch(spec, _) | WorkerMsg::Take(spec, ..)) => {
                self.out.send(Event::Gateway(GatewayMsg::Unreachable(spec.id, id)));
                Ok(())
            }
            (None, WorkerMsg::Kv(mail)) => {
                if let Some(lost) = network::link_lost(now, *mail, id) {
                    self.out.send(lost);
                }
                Ok(())
            }
            // There is nothing to stop, nor to go on, at a worker that is gone.
            (
                None,
                WorkerMsg::Cancel(..)
                | WorkerMsg::CancelChoice(..)
                | WorkerMsg::Grant(..)
                | WorkerMsg::Resync
                | WorkerMsg::SetRole(_)
                | WorkerMsg::GatewayLeft
                | WorkerMsg::PeerLost(_)
                | WorkerMsg::Beat(_)
                | WorkerMsg::BeatDue
                | WorkerMsg::Look
                | WorkerMsg::Drain,
            ) => Ok(()),
        }
    }

    /// The present name of the process that has, or had, this one; none where that is over.
    fn process(&self, id: &WorkerId) -> Option<WorkerId> {
        if self.workers.contains(id) {
            return Some(id.clone());
        }
        let here = life(&self.lives, network::index_of(id));
        self.workers.get(&here).is_some_and(|worker| worker.was(id)).then_some(here)
    }

    /// The engine of a worker has run a step, for the process that began it.
    fn step_done(&mut self, now: Time, id: &WorkerId, outcome: Box<StepOutcome>) -> Result<(), Broken> {
        let renamed = if self.workers.contains(id) { None } else { self.process(id) };
        let id = renamed.as_ref().unwrap_or(id);
        let Some(worker) = self.workers.get_mut(id) else { return Ok(()) };
        self.drawn += outcome.drawn.len() as u64;
        worker.step_done(now, outcome, &mut self.out)?;
        // As live, where a beat tells every node: whoever has no controller looks at it.
        if self.network.links().is_some_and(|links| !links.sees(Addr::Gateway, Addr::Controller)) {
            let load = worker.core().load();
            self.out.send(Event::StandIn(ControllerMsg::Load(id.clone(), load)));
        }
        Ok(())
    }

    fn start(&mut self, index: u32) {
        if self.workers.contains(&life(&self.lives, index)) {
            return;
        }
        self.lives[index as usize] += 1;
        let again = self.lives[index as usize] > 1;
        let id = life(&self.lives, index);
        self.workers.insert(Worker::new(self.kinds.worker(index, id)).checked(self.scenario.how_checked()));
        match again {
            // It says what it offers over each link that it has.
            true => self.started(Addr::Worker(index)),
            false => {
                self.rejoin(index);
                self.beats(Addr::Worker(index));
            }
        }
    }

    /// What a worker that lives tells others of itself.
    fn offer(&self, index: u32) -> Option<WorkerInfo> {
        let id = life(&self.lives, index);
        self.workers.get(&id).map(|worker| worker.info().clone())
    }
}

/// The latest life of a worker.
fn life(lives: &[u64], index: u32) -> WorkerId {
    WorkerId::new(name(index), lives[index as usize])
}

/// The node of a worker.
fn name(index: u32) -> NodeId {
    // Padded, so that names sort by number.
    format!("w{index:05}").into()
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
            Choice::RoundRobin => placement::Choice::RoundRobin,
            Choice::Random => placement::Choice::Random,
        },
        seed,
        opinion_deadline: cluster.opinion_deadline.get().into(),
        directory: !cluster.cluster_policies.is_empty(),
    }
}
