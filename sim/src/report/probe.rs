//! What is written down while a run goes on.

use std::collections::BTreeMap;
use std::fmt;

use config::ids::{NodeId, WorkerId};
use config::{Mode, WorkerRole};
use policies::batch::BatchLoad;
use policies::placement::{PlacementEffect, Plan};
use policies::policy::Stage;
use policies::time::{Span, Time};

use super::series::{Glimpse, Row, Samples};
use super::{StageCount, WorkerFigures};
use crate::event::{ControllerMsg, Event, GatewayMsg};
use crate::network::index_of;
use crate::node::{Controller, Gateway, Workers};

/// Different reasons that are counted apart.
const REASONS: usize = 256;

/// Events from one call of whoever watches to the next.
const WATCH: u64 = 4096;

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Virtual time.
    pub at: Time,
    /// Events so far.
    pub events: u64,
    /// Requests that have arrived.
    pub arrived: u64,
    /// How many of those have ended.
    pub ended: u64,
}

/// Sees every event before it takes effect: counts, and takes a sample from time to time.
#[derive(Debug, Default)]
pub struct Probe {
    pub(super) samples: Samples,
    events: u64,
    arrived: u64,
    watch: Option<Watch>,
    /// By number.
    workers: Vec<Option<Totals>>,
    /// How often each was said, and the sum of what it saved; by `policy NUL mode NUL action NUL why`.
    stages: BTreeMap<String, (u64, i64)>,
    pub(super) refusals: BTreeMap<String, u64>,
    /// What each worker said that it is, last.
    roles: BTreeMap<NodeId, WorkerRole>,
    pub(super) role_changes: u64,
    /// Room to make a key in.
    key: String,
}

/// What a worker did in all its lives.
#[derive(Clone, Debug)]
struct Totals {
    node: NodeId,
    /// The last report of each life.
    loads: Vec<(u64, BatchLoad)>,
    steps: u64,
    busy: Span,
    drawn: u64,
    peak_kv: f64,
}

struct Watch(Box<dyn FnMut(Glance)>);

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl Probe {
    /// Calls `watch` now and then as the run goes on.
    pub fn watched_by(&mut self, watch: Box<dyn FnMut(Glance)>) {
        self.watch = Some(Watch(watch));
    }

    /// An event is about to happen to these.
    pub(crate) fn see(
        &mut self,
        now: Time,
        event: &Event,
        gateway: &Gateway,
        controller: &Controller,
        workers: &Workers,
    ) {
        // Since the event before nothing has changed, so that this is how it was when the sample was due.
        while let Some(at) = self.samples.due(now) {
            self.samples.push(self.row(at, gateway, controller, workers));
        }
        self.count(event);
        self.events += 1;
        if self.events.is_multiple_of(WATCH)
            && let Some(Watch(watch)) = &mut self.watch
        {
            let ended = self.arrived.saturating_sub(gateway.live() as u64);
            watch(Glance { at: now, events: self.events, arrived: self.arrived, ended });
        }
    }

    fn row(&self, at: Time, gateway: &Gateway, controller: &Controller, workers: &Workers) -> Row {
        let each: Vec<(&NodeId, Glimpse)> =
            workers.iter().map(|(id, w)| (&id.node, Glimpse::of(&w.core().levels()))).collect();
        let drawn = self.workers.iter().flatten().map(|w| w.drawn).sum();
        Row::new(at, gateway.live() as u64, controller.core().queued(), drawn, each)
    }

    fn count(&mut self, event: &Event) {
        match event {
            Event::Arrive(..) => self.arrived += 1,
            Event::StepDone(id, outcome) => {
                let worker = self.totals(id);
                worker.steps += 1;
                worker.busy.0 = worker.busy.0.saturating_add(outcome.took.0);
                worker.drawn += outcome.drawn.len() as u64;
            }
            Event::Controller(ControllerMsg::Load(id, load)) => self.loaded(id, load),
            Event::Controller(ControllerMsg::Joined(info)) => {
                let former = self.roles.insert(info.id.node.clone(), info.role);
                self.role_changes += u64::from(former.is_some_and(|former| former != info.role));
            }
            Event::Gateway(GatewayMsg::Placement(PlacementEffect::Placed { plan, .. })) => self.placed(plan),
            Event::Gateway(GatewayMsg::Placement(PlacementEffect::Rejected { reason, .. })) => {
                self.refused(&reason.to_string());
            }
            Event::Gateway(GatewayMsg::Refused(_, _, refusal)) => self.refused(&refusal.to_string()),
            _ => {}
        }
    }

    fn totals(&mut self, id: &WorkerId) -> &mut Totals {
        let at = index_of(id) as usize;
        if at >= self.workers.len() {
            self.workers.resize(at + 1, None);
        }
        self.workers[at].get_or_insert_with(|| Totals {
            node: id.node.clone(),
            loads: Vec::new(),
            steps: 0,
            busy: Span::ZERO,
            drawn: 0,
            peak_kv: 0.0,
        })
    }

    fn loaded(&mut self, id: &WorkerId, load: &BatchLoad) {
        let used = Glimpse::of(load).kv;
        let worker = self.totals(id);
        worker.peak_kv = worker.peak_kv.max(used);
        match worker.loads.iter_mut().rev().find(|(life, _)| *life == id.incarnation) {
            Some((_, last)) => *last = *load,
            None => worker.loads.push((id.incarnation, *load)),
        }
    }

    fn placed(&mut self, plan: &Plan) {
        for stage in plan.stages.iter() {
            let mode = match stage.mode {
                Mode::Off => "off",
                Mode::Shadow => "shadow",
                Mode::Prod => "prod",
            };
            self.key.clear();
            for part in [stage.policy.as_str(), mode, &stage.action] {
                self.key.push_str(part);
                self.key.push('\0');
            }
            let without_why = self.key.len();
            // Of the choice itself the action says all that can be counted.
            if stage.policy.as_str() != Stage::PLACEMENT {
                blur(&stage.why, &mut self.key);
            }
            if self.stages.len() >= REASONS && !self.stages.contains_key(self.key.as_str()) {
                self.key.truncate(without_why);
                self.key.push_str("(another reason)");
            }
            let saved = stage.saved.unwrap_or(0);
            match self.stages.get_mut(self.key.as_str()) {
                Some((count, sum)) => (*count, *sum) = (*count + 1, sum.saturating_add(saved)),
                None => {
                    self.stages.insert(self.key.clone(), (1, saved));
                }
            }
        }
    }

    fn refused(&mut self, why: &str) {
        let mut key = String::new();
        blur(why, &mut key);
        if self.refusals.len() >= REASONS && !self.refusals.contains_key(&key) {
            key = "(another reason)".to_owned();
        }
        *self.refusals.entry(key).or_default() += 1;
    }

    /// The counts of stages, the most frequent of each policy first.
    pub(super) fn stages(&self) -> Vec<StageCount> {
        let mut all: Vec<StageCount> = self
            .stages
            .iter()
            .map(|(key, &(count, saved_tokens))| {
                let mut parts = key.split('\0').map(str::to_owned);
                let mut part = || parts.next().unwrap_or_default();
                let (policy, mode, action, why) = (part(), part(), part(), part());
                StageCount { policy, mode, action, why, count, saved_tokens }
            })
            .collect();
        all.sort_by(|a, b| {
            let key = |s: &StageCount| (s.policy == Stage::PLACEMENT, s.policy.clone(), s.mode.clone());
            key(a)
                .cmp(&key(b))
                .then(b.count.cmp(&a.count))
                .then_with(|| (&a.action, &a.why).cmp(&(&b.action, &b.why)))
        });
        all
    }

    /// What each worker did until `last`; those that live are asked once more.
    pub(super) fn workers(&self, last: Time, workers: &Workers) -> Vec<WorkerFigures> {
        let seconds = last.since(Time::ZERO).as_secs_f64();
        let reported = self.workers.iter().flatten().flat_map(|totals| {
            totals.loads.iter().map(|(life, load)| (WorkerId::new(totals.node.clone(), *life), *load))
        });
        let mut loads: BTreeMap<WorkerId, BatchLoad> = reported.collect();
        loads.extend(workers.iter().map(|(id, w)| (id.clone(), w.core().load())));
        let mut all: BTreeMap<&NodeId, WorkerFigures> = BTreeMap::new();
        for (id, load) in &loads {
            let figures = all.entry(&id.node).or_default();
            figures.lives += 1;
            figures.prefilled_tokens += load.prefilled_tokens;
            figures.preemptions += load.preemptions;
            figures.prefix_queries += load.prefix_queries;
            figures.prefix_hits += load.prefix_hits;
        }
        for (id, worker) in workers.iter() {
            all.entry(&id.node).or_default().slowed = worker.slowed();
        }
        for totals in self.workers.iter().flatten() {
            let figures = all.entry(&totals.node).or_default();
            figures.steps = totals.steps;
            figures.busy_seconds = totals.busy.as_secs_f64();
            figures.busy_share = if seconds > 0.0 { figures.busy_seconds / seconds } else { 0.0 };
            figures.drawn_tokens = totals.drawn;
            figures.peak_kv = totals.peak_kv;
        }
        let named = |(node, figures): (&NodeId, WorkerFigures)| {
            let role = self.roles.get(node).copied().unwrap_or_default().as_str();
            WorkerFigures { name: node.to_string(), role, series: self.samples.of(node), ..figures }
        };
        all.into_iter().map(named).collect()
    }
}

/// Appends `text` with each number as `N`, so that what differs in numbers alone is counted together.
fn blur(text: &str, key: &mut String) {
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '#' {
            // A worker's life, in hexadecimal.
            while chars.next_if(char::is_ascii_hexdigit).is_some() {}
        } else if c.is_ascii_digit() {
            while chars.next_if(|c| c.is_ascii_digit() || *c == '.').is_some() {}
            key.push('N');
        } else {
            key.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_differ_in_numbers_are_one() {
        let blurred = |text: &str| {
            let mut key = String::new();
            blur(text, &mut key);
            key
        };
        assert_eq!(blurred("w00012#1f holds 3520 tokens of the prompt"), "wN holds N tokens of the prompt");
        assert_eq!(blurred("ratio: 0.25 of it is new"), "ratio: N of it is new");
        assert_eq!(blurred("keine Zahl – größer"), "keine Zahl – größer");
    }
}
