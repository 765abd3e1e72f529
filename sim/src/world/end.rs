//! What a run ends with.

use std::collections::BTreeMap;

use config::WorkerRole;
use config::ids::{RequestId, WorkerId};
use policies::request::Token;
use policies::time::Time;

use super::World;
use crate::SimError;
use crate::network::Addr;
use crate::node::worker::Handoffs;
use crate::node::{History, Placed, Worker};
use crate::report::{Left, Pools, Report};

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

impl World {
    /// Nothing is left to happen, and the last thing that counts did at `last`.
    pub(super) fn end(mut self, last: Time) -> Result<Run, SimError> {
        // What a gateway that stands still for ever has never ends, and so what would follow never comes.
        if !self.network.is_frozen(Addr::Gateway) {
            self.clients.check_all_came()?;
        }
        self.workers.iter_mut().for_each(Worker::end);
        self.nothing_left().map_err(|broken| SimError::broken(broken, last, self.scenario.seed))?;
        let lost_messages = self.network.lost();
        let (tally, history) = self.gateway.into_seen();
        let prefilled =
            self.workers.iter().map(|(id, w)| (id.clone(), w.core().load().prefilled_tokens)).collect();
        let mut handoffs = self.handoffs;
        self.workers.iter().for_each(|(_, worker)| handoffs.merge(&worker.handoffs()));
        let report = Report::new(Left {
            seed: self.scenario.seed,
            tally: &tally,
            drawn_tokens: self.drawn,
            last,
            trace: self.trace,
            probe: &self.probe,
            handoffs: &handoffs,
            checks: self.scenario.how_checked(),
            workers: &self.workers,
            pools: Pools::of(&self.pools, self.scenario.cluster.page_tokens),
        });
        let roles = self.workers.iter().map(|(id, worker)| (id.clone(), worker.info().role)).collect();
        let History { answers, placements } = history.unwrap_or_default();
        Ok(Run { report, answers, placements, prefilled, handoffs, roles, lost_messages })
    }
}
