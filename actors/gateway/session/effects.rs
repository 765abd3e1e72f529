//! What a session does at the word of its core: to the controller, to workers, and to its client.

use std::collections::VecDeque;

use cluster::wire::{ToController, ToPool, ToWorker};
use policies::batch::TokenEvent;
use policies::placement::Rejection;
use policies::request::Finish;
use policies::session::{Failure, SessionEffect};
use policies::time::Time;
use tokio::sync::mpsc;

use super::{Delta, SessionOut, SessionState, SessionUsage};
use crate::gateway::error;
use crate::gateway::record::Ended;

impl SessionState {
    pub(super) fn carry_out(&mut self, fx: Vec<SessionEffect>, now: Time) {
        let mut work = VecDeque::from(fx);
        let mut more = Vec::new();
        while let Some(effect) = work.pop_front() {
            self.effect(effect, now, &mut more);
            work.extend(more.drain(..));
        }
    }

    fn effect(&mut self, effect: SessionEffect, now: Time, more: &mut Vec<SessionEffect>) {
        let doors = &self.shared.doors;
        match effect {
            SessionEffect::Place(request) => {
                let (id, attempt, model) = (request.request, request.attempt, request.model.clone());
                let ask = ToController::Place { gateway: self.shared.node.clone(), request };
                let placer = if std::mem::take(&mut self.own_choice) {
                    doors.place_here(ask)
                } else {
                    doors.place(ask)
                };
                if placer.is_none() {
                    self.core.rejected(now, attempt, Rejection::NoWorker(model), more);
                }
                let asked_before = self.track.update(|held| {
                    held.attempt = attempt;
                    std::mem::replace(&mut held.booked, placer.clone())
                });
                // Only after a change of controllers: the former one may live and have booked.
                if let Some(former) = asked_before.filter(|former| Some(former) != placer.as_ref()) {
                    doors.to_placer(&former, ToController::Release { request: id, attempt });
                }
            }
            SessionEffect::Submit { worker, prefill, fetch, spec } => {
                self.track.update(|held| held.worker = Some(worker.clone()));
                let gateway = self.shared.node.clone();
                let submit = ToWorker::Submit { to: worker.clone(), gateway, spec, prefill, fetch };
                if !doors.to_worker(&worker, submit) {
                    self.core.worker_lost(now, &worker, more);
                }
            }
            SessionEffect::Deliver(event) => self.deliver(event, now, more),
            SessionEffect::DeliverPrompt { first, tokens } => self.send(SessionOut::Prompt { first, tokens }),
            SessionEffect::Choose(request) => self.choose(request, more, now),
            SessionEffect::Unchoose { request, attempt } => self.unchoose(request, attempt),
            SessionEffect::Fetch { to, from, spec } => self.fetch(&to, from, spec, more, now),
            SessionEffect::Take { to, from, takes, spec } => {
                self.take_over(&to, from, takes, spec, more, now);
            }
            SessionEffect::Switched { worker, attempt } => self.switched(worker, attempt),
            SessionEffect::Migration(end) => self.migrated(end),
            SessionEffect::CancelAt { worker, request, attempt } => {
                doors.to_worker(&worker, ToWorker::Cancel { request, attempt });
            }
            SessionEffect::CancelChoice { worker, request, attempt, choice } => {
                doors.to_worker(&worker, ToWorker::CancelChoice { request, attempt, choice });
            }
            SessionEffect::Grant { worker, request, attempt, choice, upto } => {
                doors.to_worker(&worker, ToWorker::Grant { request, attempt, choice, upto });
            }
            SessionEffect::Store { pool, from, spec } => {
                // One that cannot be reached keeps nothing.
                doors.to_pool(&pool, ToPool::Store { to: pool.clone(), from, spec });
            }
            SessionEffect::Prefilled { request, attempt } => {
                if let Some(placer) = self.track.update(|held| held.booked.clone()) {
                    doors.to_placer(&placer, ToController::Prefilled { request, attempt });
                }
            }
            SessionEffect::Release { request, attempt } => {
                let placer = self.track.update(|held| {
                    held.worker = None;
                    held.booked.take()
                });
                if let Some(placer) = placer {
                    doors.to_placer(&placer, ToController::Release { request, attempt });
                }
            }
            SessionEffect::Finished => {
                self.over("success", now);
                self.send(SessionOut::Finished(self.usage()));
            }
            SessionEffect::Failed(failure) => {
                let failure = if failure == Failure::Cancelled {
                    self.abort.take().unwrap_or(failure)
                } else {
                    failure
                };
                self.over(error::outcome(&failure), now);
                self.send(SessionOut::Failed(failure));
            }
        }
    }

    /// The request is over: what was measured of it is counted, remembered and recorded.
    fn over(&self, outcome: &'static str, now: Time) {
        let measured = self.timing.end(now, outcome);
        if let Some(recorder) = &self.shared.recorder {
            let spec = self.core.spec();
            let choices = (0..spec.choices() as u32).map(|choice| self.core.tokens(choice));
            recorder.add(&Ended {
                spec,
                page_tokens: self.page_tokens,
                fingerprint: self.fingerprint,
                answer: choices.max_by_key(|tokens| tokens.len()).unwrap_or_default(),
                outcome,
                measured: &measured,
                cached: self.cached,
                worker: self.last_worker.as_ref().map(ToString::to_string),
            });
        }
        self.shared.recent.ended(self.track.request, outcome, measured);
    }

    /// Shows a token; a stop string in its text ends the choice.
    fn deliver(&mut self, event: TokenEvent, now: Time, more: &mut Vec<SessionEffect>) {
        let choice = event.seq.choice;
        if self.cached.is_none() {
            self.cached = Some(event.cached_tokens);
            self.compare_hits(event.cached_tokens);
        }
        let Some(assembler) = self.choices.get_mut(choice as usize) else { return };
        if self.discard_output {
            let finish = Some(Finish::Length);
            let total = event.index + 1;
            return self.send(SessionOut::Delta(Delta { choice, total, finish, ..Delta::default() }));
        }
        let total = event.index + 1;
        self.timing.token(now, choice as usize);
        let piece = assembler.push(event.token, event.logprobs, event.finish);
        if piece.finish == Some(Finish::StopString) {
            self.core.stop_choice(now, choice, more);
        }
        let (text, tokens, finish) = (piece.text, piece.tokens, piece.finish);
        // Also where there is nothing to show: that the client has come this far is news for the worker.
        self.send(SessionOut::Delta(Delta { choice, total, text, tokens, finish }));
    }

    fn usage(&self) -> SessionUsage {
        let spec = self.core.spec();
        let drawn: usize = (0..spec.choices()).map(|c| self.core.tokens(c as u32).len()).sum();
        SessionUsage {
            prompt: spec.prompt.len() as u64,
            completion: if self.discard_output { 0 } else { drawn as u64 },
            cached: u64::from(self.cached.unwrap_or(0)),
        }
    }

    pub(super) fn send(&self, out: SessionOut) {
        // A closed channel is a client that left, which its stream's drop reports; a full one cannot be.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.track.out.try_send(out) {
            tracing::error!(request = %self.track.request, "the way to the client is full");
            metrics::counter!(crate::metrics::BROKEN_INVARIANTS, "name" => "session_out_has_room")
                .increment(1);
        }
    }

    /// Holds what the directory promised against what the worker found, for the first attempt that produces something.
    fn compare_hits(&self, found: u32) {
        let Some(predicted) = self.predicted else { return };
        metrics::counter!(crate::metrics::PREDICTED_HITS).increment(u64::from(predicted));
        metrics::counter!(crate::metrics::ACTUAL_HITS).increment(u64::from(found));
        if predicted.abs_diff(found) > self.page_tokens {
            metrics::counter!(crate::metrics::MISPREDICTED).increment(1);
        }
    }
}
