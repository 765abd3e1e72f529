//! The simulated cluster: takes the next event, hands it to its node, schedules what comes of it.

use std::collections::BTreeMap;

use config::ids::{RequestId, WorkerId};
use config::{Choice, WorkerRole};
use policies::ensure_invariant;
use policies::invariant::Broken;
use policies::placement::{self, PlacementConfig};
use policies::policy::configured::configured;
use policies::request::Token;
use policies::session::SessionConfig;
use policies::time::{Span, Time};

use crate::SimError;
use crate::event::{Came, ControllerMsg, Event, GatewayMsg, KvMail, KvMessage, Outbox, WorkerMsg};
use crate::node::worker::Handoffs;
use crate::node::{Controller, Gateway, Worker};
use crate::queue::Queue;
use crate::report::{Glance, Left, Probe, Report};
use crate::scenario::{Cluster, FaultKind, Scenario};
use crate::trace::Trace;
use crate::workload::{Arrival, Clients};

use kinds::Kinds;

mod kinds;

/// A run that has ended.
#[derive(Debug)]
pub struct Run {
    /// Its figures.
    pub report: Report,
    /// What each request was answered, by choice; complete or not.
    pub answers: BTreeMap<RequestId, Vec<Vec<Token>>>,
    /// Tokens that each worker that lived to the end has computed in prefill.
    pub prefilled: BTreeMap<WorkerId, u64>,
    /// How transfers of pages between workers ended.
    pub handoffs: Handoffs,
    /// What each worker that lived to the end was then.
    pub roles: BTreeMap<WorkerId, WorkerRole>,
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
    workers: BTreeMap<WorkerId, Worker>,
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
        for fault in &scenario.faults {
            let at = Time::ZERO + Span::from(fault.at.get());
            let (gone, back) = match fault.kind {
                FaultKind::Crash => (Event::Crash(fault.worker), Event::Start(fault.worker)),
                FaultKind::FalseAlarm => (Event::FalseAlarm(fault.worker), Event::Rejoin(fault.worker)),
            };
            queue.push(at, gone);
            if let Some(after) = fault.back_after {
                queue.push(at + Span::from(after.get()), back);
            }
        }
        let policies: Vec<_> =
            c.cluster_policies.iter().filter_map(|name| configured(name, &scenario.policy)).collect();
        let mut clients = Clients::new(scenario)?;
        if let Some(first) = clients.next()? {
            queue.push(first.at, Event::Arrive(Box::new(first), Came::ByItself));
        }
        Ok(Self {
            kinds: Kinds::new(scenario)?,
            clients,
            queue,
            out: Outbox::new(c.network.get().into()),
            gateway: Gateway::new(
                SessionConfig { retry_limit: c.retry_limit, backoff: c.retry_backoff.get().into() },
                !policies.is_empty(),
            ),
            controller: Controller::new(placement_config(c, scenario.seed), policies)
                .checked(scenario.how_checked()),
            workers: BTreeMap::new(),
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

    /// Runs until nothing is left to happen.
    ///
    /// # Errors
    /// A broken invariant, or something left behind.
    pub fn run(mut self) -> Result<Run, SimError> {
        let seed = self.scenario.seed;
        let mut last = Time::ZERO;
        while let Some((now, event)) = self.queue.pop() {
            // A timer of a request that is over is no event: it neither counts nor makes the run longer.
            if matches!(event, Event::Timer(id) | Event::Leave(id) | Event::Read(id) if !self.gateway.is_live(id))
            {
                continue;
            }
            if let Event::KvTimer(worker, request, attempt) = &event
                && !self.workers.get(worker).is_some_and(|w| w.has_transfer((*request, *attempt)))
            {
                continue;
            }
            last = now;
            self.trace.record(now, &event);
            // Of those that follow nothing, just one is on its way.
            if matches!(event, Event::Arrive(_, Came::ByItself))
                && let Some(next) = self.clients.next()?
            {
                self.queue.push(next.at.max(now), Event::Arrive(Box::new(next), Came::ByItself));
            }
            self.probe.see(now, &event, &self.gateway, &self.controller, &self.workers);
            self.apply(now, event).map_err(|broken| SimError::broken(broken, now, seed))?;
            for id in self.gateway.take_ended() {
                if self.clients.is_followed(id) {
                    for arrival in self.clients.ended(now, id, &self.gateway.answer(id))? {
                        self.queue.push(arrival.at, Event::Arrive(Box::new(arrival), Came::AfterAnother));
                    }
                }
            }
            for (after, event) in self.out.sent.drain(..) {
                self.queue.push(now + after, event);
            }
            for (to, bytes, event) in std::mem::take(&mut self.out.bulk) {
                self.queue.push(now + self.carry(&to, bytes, &event), event);
            }
        }
        self.clients.check_all_came()?;
        self.workers.values_mut().for_each(Worker::end);
        self.nothing_left().map_err(|broken| SimError::broken(broken, last, seed))?;
        let records = self.gateway.into_records();
        let tokens = |choice: &Vec<(Time, Token)>| choice.iter().map(|&(_, token)| token).collect();
        let prefilled =
            self.workers.iter().map(|(id, w)| (id.clone(), w.core().load().prefilled_tokens)).collect();
        let mut handoffs = self.handoffs;
        self.workers.values().for_each(|worker| handoffs.merge(worker.handoffs()));
        let answers = records.iter().map(|(id, r)| (*id, r.answers.iter().map(tokens).collect())).collect();
        let report = Report::new(&Left {
            seed,
            slo: self.scenario.slo,
            records: &records,
            drawn_tokens: self.drawn,
            last,
            trace: self.trace,
            probe: &self.probe,
            workers: &self.workers,
        });
        let roles = self.workers.into_iter().map(|(id, worker)| (id, worker.info().role)).collect();
        Ok(Run { report, answers, prefilled, handoffs, roles })
    }

    fn apply(&mut self, now: Time, event: Event) -> Result<(), Broken> {
        let (out, lives) = (&mut self.out, &self.lives);
        match event {
            Event::Arrive(arrival, _) => {
                let Arrival { spec, leaves, reads, .. } = *arrival;
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
            Event::Controller(message) => self.controller.handle(now, message, out),
            Event::ControllerTick => self.controller.tick(now, out),
            Event::Worker(id, message) => match (self.workers.get_mut(&id), message) {
                (Some(worker), message) => worker.handle(now, message, out),
                (None, WorkerMsg::Submit(spec, _)) => {
                    out.send(Event::Gateway(GatewayMsg::Unreachable(spec.id, id)));
                    Ok(())
                }
                (None, WorkerMsg::Kv(mail)) => {
                    // From the link itself there is nobody to tell.
                    if !matches!(mail.message, KvMessage::LinkLost | KvMessage::Sent { .. }) {
                        let KvMail { id: about, key, from, .. } = *mail;
                        let lost = KvMail { id: about, key, from: id, at: now, message: KvMessage::LinkLost };
                        out.send(Event::Worker(from, WorkerMsg::Kv(Box::new(lost))));
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
                    | WorkerMsg::KvLost(_)
                    | WorkerMsg::SetRole(_),
                ) => Ok(()),
            },
            Event::KvTimer(id, request, attempt) => match self.workers.get_mut(&id) {
                Some(worker) => worker.kv_timer(now, (request, attempt), out),
                None => Ok(()),
            },
            Event::StepDone(id, outcome) => match self.workers.get_mut(&id) {
                Some(worker) => {
                    self.drawn += outcome.drawn.len() as u64;
                    worker.step_done(now, &outcome, out)
                }
                None => Ok(()),
            },
            Event::Crash(index) => {
                let id = life(lives, index);
                if let Some(worker) = self.workers.remove(&id) {
                    self.handoffs.merge(worker.handoffs());
                    let detect = self.scenario.cluster.detect.get().into();
                    for (peer, _) in self.workers.iter().filter(|(_, w)| w.has_transfers_with(&id)) {
                        out.after(detect, Event::Worker(peer.clone(), WorkerMsg::KvLost(id.clone())));
                    }
                    out.after(detect, Event::Controller(ControllerMsg::Left(id)));
                }
                Ok(())
            }
            Event::Start(index) => {
                self.start(index);
                Ok(())
            }
            Event::FalseAlarm(index) => {
                out.send(Event::Controller(ControllerMsg::Left(life(lives, index))));
                Ok(())
            }
            Event::Rejoin(index) => {
                let id = life(lives, index);
                self.join(&id);
                Ok(())
            }
        }
    }

    fn start(&mut self, index: u32) {
        if self.workers.contains_key(&life(&self.lives, index)) {
            return;
        }
        self.lives[index as usize] += 1;
        let id = life(&self.lives, index);
        self.workers.insert(
            id.clone(),
            Worker::new(self.kinds.worker(index, id.clone())).checked(self.scenario.how_checked()),
        );
        self.join(&id);
    }

    /// How long a message with pages is on its way.
    fn carry(&self, to: &WorkerId, bytes: u64, message: &Event) -> Span {
        let network: Span = self.scenario.cluster.network.get().into();
        let Event::Worker(_, WorkerMsg::Kv(mail)) = message else { return network };
        let machine = |id: &WorkerId| self.workers.get(id).map(|w| w.info().hardware.figures);
        // Where either is gone there is no link that would be slow.
        let (Some(from), Some(to)) = (machine(&mail.from), machine(to)) else { return network };
        network + from.send(&to, bytes)
    }

    /// A worker that lives tells the controller what it offers.
    fn join(&mut self, id: &WorkerId) {
        if let Some(worker) = self.workers.get(id) {
            self.out.send(Event::Controller(ControllerMsg::Joined(worker.info().clone())));
        }
    }

    /// The leak check: whatever happened, nothing is held anywhere when it is over.
    fn nothing_left(&self) -> Result<(), Broken> {
        let core = self.controller.core();
        ensure_invariant!(
            self.gateway.live() == 0 && core.booked() == 0 && core.queued() == 0 && core.consulting() == 0,
            "sim_requests_end",
            "{} sessions live, {} requests are booked, {} wait, {} are asked about",
            self.gateway.live(),
            core.booked(),
            core.queued(),
            core.consulting()
        );
        for row in core.workers() {
            ensure_invariant!(
                row.booked == 0 && row.booked_tokens == 0 && row.handoffs == 0 && row.handoff_tokens == 0,
                "sim_bookings_end",
                "{}: {} requests, {} tokens; prompts for others: {}, {} tokens",
                row.info.id,
                row.booked,
                row.booked_tokens,
                row.handoffs,
                row.handoff_tokens
            );
        }
        core.check()?;
        for (id, worker) in &self.workers {
            worker.core().check()?;
            let load = worker.core().load();
            ensure_invariant!(
                worker.core().is_idle()
                    && load.pages_used == 0
                    && load.running + load.waiting + load.paused == 0,
                "sim_pages_end",
                "{id}: {load:?}"
            );
            ensure_invariant!(
                worker.transfers_left() == 0,
                "sim_transfers_end",
                "{id}: {} transfers",
                worker.transfers_left()
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
