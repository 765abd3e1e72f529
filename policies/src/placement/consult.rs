//! Asking the policies about a request: from the question to the booking.

use std::sync::Arc;

use config::ids::{Attempt, PolicyName, RequestId, WorkerId};

use super::types::Ticket;
use super::{Placement, PlacementEffect, Rejection, Row, Waiting};
use crate::policy::{CandidateRow, Opinion, PolicyMode, PolicyQuery, Stage};
use crate::time::{Span, Time};

/// A request about which policies are being asked.
#[derive(Debug)]
pub(super) struct Consultation {
    waiting: Waiting,
    pub(super) query: PolicyQuery,
    pub(super) asked: Vec<Asked>,
    pub(super) since: Time,
    until: Time,
}

/// A policy that is being asked.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) name: PolicyName,
    pub(super) mode: PolicyMode,
    pub(super) weight: f64,
    answer: Option<(Answer, Span)>,
}

#[derive(Debug)]
enum Answer {
    Said(Opinion),
    /// It failed, in these words.
    Failed(String),
}

impl Consultation {
    /// The request that it is about.
    pub(super) fn key(&self) -> (RequestId, Attempt) {
        self.waiting.key()
    }

    /// When it goes on without those that have not answered, or is over.
    pub(super) fn until(&self) -> Time {
        self.until.min(self.waiting.until)
    }

    /// Where the row of a worker is, if it was free when the question was asked.
    pub(super) fn row(&self, worker: &WorkerId) -> Option<usize> {
        self.query.rows.binary_search_by(|row| row.worker.cmp(worker)).ok()
    }

    fn is_complete(&self) -> bool {
        self.asked.iter().all(|a| a.answer.is_some())
    }

    /// One stage a policy, of a request that goes to `worker`.
    pub(super) fn stages(&self, now: Time, worker: &WorkerId) -> Vec<Stage> {
        let stage = |asked: &Asked| {
            let (name, mode) = (&asked.name, asked.mode);
            match &asked.answer {
                Some((Answer::Said(opinion), took)) => Stage::of(name, mode, opinion, worker, *took),
                Some((Answer::Failed(why), took)) => {
                    Stage::skipped(name, mode, format!("failed: {why}"), *took)
                }
                None => {
                    let took = now.since(self.since);
                    Stage::skipped(name, mode, format!("late: no opinion within {took}"), took)
                }
            }
        };
        self.asked.iter().map(stage).collect()
    }
}

impl Asked {
    /// What it said, where that counts.
    pub(super) fn opinion(&self) -> Option<&Opinion> {
        self.said().filter(|_| self.mode == PolicyMode::Prod)
    }

    /// What it said.
    pub(super) fn said(&self) -> Option<&Opinion> {
        match &self.answer {
            Some((Answer::Said(opinion), _)) => Some(opinion),
            Some((Answer::Failed(_), _)) | None => None,
        }
    }
}

impl Placement {
    /// Finds a place for a request now, asks about it, or turns it away. Gives it back where it has to wait for a
    /// worker that is free.
    pub(super) fn consider(
        &mut self,
        now: Time,
        waiting: Waiting,
        fx: &mut Vec<PlacementEffect>,
    ) -> Option<Waiting> {
        if let Some(pin) = waiting.request.pin.clone() {
            self.place_pinned(now, &waiting.request, pin, fx);
            return None;
        }
        let free = match self.free(&waiting.request) {
            Ok(free) => free,
            // Its model is known; its last worker is gone or drains, and another may come.
            Err(Rejection::NoWorker(_)) if waiting.queued => return Some(waiting),
            Err(reason) => {
                let (request, attempt) = waiting.key();
                fx.push(PlacementEffect::Rejected { request, attempt, reason });
                return None;
            }
        };
        if free.places.is_empty() {
            return Some(waiting);
        }
        if !self.policies.are_any() {
            let chosen = self.choose(now, &waiting.request, &free.places, free.only, None);
            self.book(now, &waiting.request, chosen, fx);
            return None;
        }
        // Each request that is being asked about, and could go where this one could, will take a place: there has to be
        // one more for this. Those for other models are looked at only where there are many.
        let rows: Vec<&Row> = free.places.iter().map(|place| &self.workers.at(*place).1).collect();
        let places = |r: &&Row| u64::from(r.info.max_requests.saturating_sub(r.requests()));
        let places = rows.iter().map(places).sum::<u64>();
        let competes = |c: &&Consultation| rows.iter().any(|r| c.row(&r.info.id).is_some());
        if places <= self.pending.len() as u64
            && places <= self.pending.values().filter(competes).count() as u64
        {
            return Some(waiting);
        }
        let prefill = self.prefill_workers(&free);
        let known = prefill.len() as u32;
        let able: Vec<&Row> = prefill.into_iter().filter(|r| r.may_prefill(&waiting.request)).collect();
        let query = PolicyQuery {
            request: Arc::clone(&waiting.request),
            rows: self.rows(&waiting, &rows).into(),
            prefill: if able.is_empty() { Arc::default() } else { self.rows(&waiting, &able).into() },
            prefill_known: known,
            pools: self.pool_rows(now, &waiting.request.hashes),
        };
        self.consult(now, waiting, query, fx);
        None
    }

    /// What policies are shown of workers.
    fn rows(&self, waiting: &Waiting, rows: &[&Row]) -> Vec<CandidateRow> {
        let request = &waiting.request;
        let mut pages = Vec::new();
        if self.config.directory && !request.hashes.is_empty() {
            let names: Vec<WorkerId> = rows.iter().map(|r| r.info.id.clone()).collect();
            self.directory.hits(&request.hashes, &names, &mut pages);
        }
        let row = |(index, row): (usize, &&Row)| CandidateRow {
            worker: row.info.id.clone(),
            info: Arc::clone(&row.info),
            work_tokens: row.work(),
            prefill_tokens: row.prefill_queue(),
            requests: row.requests(),
            handoffs: row.handoffs,
            max_requests: row.info.max_requests,
            pages_used: row.load.pages_used,
            pages_free: row.load.pages_free(),
            pages_total: row.load.pages_total,
            kv_tokens: row.kv_tokens(),
            hit_tokens: {
                let pages = pages.get(index).copied().unwrap_or(0);
                // The last token is computed in any case: its logits are what the answer begins with.
                pages.saturating_mul(row.info.page_tokens).min(request.prompt_tokens.saturating_sub(1))
            },
            last_chosen: row.last_chosen,
        };
        rows.iter().enumerate().map(row).collect()
    }

    fn consult(&mut self, now: Time, waiting: Waiting, query: PolicyQuery, fx: &mut Vec<PlacementEffect>) {
        self.tick_policies(now);
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let opinions = self.policies.ask(now, ticket, &query);
        let asked = self
            .policies
            .configs()
            .zip(opinions)
            .map(|(config, opinion)| Asked {
                name: config.name.clone(),
                mode: config.mode,
                weight: config.weight,
                answer: opinion.map(|o| (Answer::Said(o), Span::ZERO)),
            })
            .collect();
        let until = now + self.config.opinion_deadline;
        let consultation = Consultation { waiting, query, asked, since: now, until };
        if consultation.is_complete() {
            self.conclude(now, consultation, fx);
        } else {
            self.pending.insert(ticket, consultation);
        }
    }

    /// A policy says what it thinks, `took` after it was asked. Of consultations that are over it is nothing.
    pub fn opinion(
        &mut self,
        now: Time,
        ticket: Ticket,
        policy: &PolicyName,
        opinion: Opinion,
        took: Span,
        fx: &mut Vec<PlacementEffect>,
    ) {
        self.answered(now, ticket, policy, (Answer::Said(opinion), took), fx);
    }

    /// A policy failed on a question (it panicked, it is not there).
    pub fn opinion_failed(
        &mut self,
        now: Time,
        ticket: Ticket,
        policy: &PolicyName,
        why: String,
        took: Span,
        fx: &mut Vec<PlacementEffect>,
    ) {
        self.answered(now, ticket, policy, (Answer::Failed(why), took), fx);
    }

    fn answered(
        &mut self,
        now: Time,
        ticket: Ticket,
        policy: &PolicyName,
        answer: (Answer, Span),
        fx: &mut Vec<PlacementEffect>,
    ) {
        let Some(consultation) = self.pending.get_mut(&ticket) else { return };
        let mut open = consultation.asked.iter_mut().filter(|a| a.name == *policy && a.answer.is_none());
        let Some(asked) = open.next() else { return };
        if matches!(answer.0, Answer::Failed(_))
            && let Some(view) = self.policies.view(policy)
        {
            view.failed += 1;
        }
        asked.answer = Some(answer);
        if consultation.is_complete()
            && let Some(consultation) = self.pending.remove(&ticket)
        {
            self.conclude(now, consultation, fx);
            self.place_waiting(now, fx);
        }
    }

    /// Goes on with those for which not all have answered in time.
    pub(super) fn conclude_late(&mut self, now: Time, fx: &mut Vec<PlacementEffect>) {
        let due: Vec<Ticket> =
            self.pending.iter().filter(|(_, c)| c.until() <= now).map(|(ticket, _)| *ticket).collect();
        for ticket in &due {
            let Some(consultation) = self.pending.remove(ticket) else { continue };
            for asked in consultation.asked.iter().filter(|a| a.answer.is_none()) {
                if let Some(view) = self.policies.view(&asked.name) {
                    view.late += 1;
                }
            }
            self.conclude(now, consultation, fx);
        }
        if !due.is_empty() {
            self.place_waiting(now, fx);
        }
    }

    /// Books the request where it is best placed by now. What was free when the question was asked may be taken or gone;
    /// then it waits again, ahead of those that came after it.
    fn conclude(&mut self, now: Time, consultation: Consultation, fx: &mut Vec<PlacementEffect>) {
        let (free, only) = match self.free(&consultation.waiting.request) {
            Ok(free) => (free.places, free.only),
            Err(Rejection::NoWorker(_)) => (Vec::new(), false),
            Err(reason) => {
                let (request, attempt) = consultation.key();
                fx.push(PlacementEffect::Rejected { request, attempt, reason });
                return;
            }
        };
        if free.is_empty() {
            self.wait_first(consultation.waiting, fx);
            return;
        }
        let chosen = self.choose(now, &consultation.waiting.request, &free, only, Some(&consultation));
        self.book(now, &consultation.waiting.request, chosen, fx);
    }

    /// Asks the present policies about all that former ones were being asked about.
    pub(super) fn ask_again(&mut self, now: Time, fx: &mut Vec<PlacementEffect>) {
        let pending = std::mem::take(&mut self.pending);
        let waiting: Vec<Waiting> =
            pending.into_values().filter_map(|c| self.consider(now, c.waiting, fx)).collect();
        for waiting in waiting.into_iter().rev() {
            self.wait_first(waiting, fx);
        }
    }
}
