//! What happens to a session, event by event.

use std::sync::Arc;

use config::ids::{Attempt, WorkerId};

use super::{Failure, Migrated, Phase, Session, SessionEffect};
use crate::batch::{Refusal, TokenEvent, Usage};
use crate::placement::{PlaceRequest, Plan, Rejection};
use crate::request::{Finish, Logprobs, RequestSpec, ResumedChoice};
use crate::time::{Span, Time};

impl Session {
    /// Starts: asks for a place. A second call does nothing.
    pub fn start(&mut self, now: Time, fx: &mut Vec<SessionEffect>) {
        if self.phase != Phase::New {
            return;
        }
        if now >= self.spec.deadline {
            return self.end(Some(Failure::Deadline), false, fx);
        }
        if !self.choices.is_empty() && self.choices.iter().all(|c| c.ended.is_some()) {
            return self.end(None, false, fx);
        }
        self.place(fx);
    }

    /// The controller found a place.
    pub fn placed(&mut self, _now: Time, attempt: Attempt, plan: Plan, fx: &mut Vec<SessionEffect>) {
        if self.is_choosing(attempt) {
            return self.chosen(plan.worker, fx);
        }
        // A late reply needs no release of its own: whoever left this attempt behind has released it.
        if !self.is_asking() || attempt != self.spec.attempt {
            return;
        }
        self.phase = Phase::Submitted;
        self.accepted = false;
        let spec = self.submission();
        for (choice, resumed) in self.choices.iter_mut().zip(&spec.resumed) {
            choice.granted = spec.allowance(resumed);
        }
        let (worker, prefill) = (plan.worker.clone(), plan.prefill.clone());
        let fetch = plan.fetch;
        fx.push(SessionEffect::Submit { worker, prefill, fetch, spec: Box::new(spec) });
        self.at = Some(plan.worker);
        self.prefill = plan.prefill;
        self.store = plan.store.map(|pool| *pool);
    }

    /// The controller has no place.
    pub fn rejected(&mut self, _now: Time, attempt: Attempt, reason: Rejection, fx: &mut Vec<SessionEffect>) {
        if self.is_choosing(attempt) {
            return self.not_chosen(reason.to_string(), fx);
        }
        if !self.is_asking() || attempt != self.spec.attempt {
            return;
        }
        self.tally.rejected += 1;
        if self.asked_again {
            // It may be the answer of one that was asked before, and the one that was asked last books.
            fx.push(SessionEffect::Release { request: self.spec.id, attempt });
        }
        let text = reason.to_string();
        let failure = match reason {
            Rejection::UnknownModel(model) => Failure::UnknownModel(model.to_string()),
            Rejection::NoWorker(_) | Rejection::NoPrefill(_) | Rejection::Timeout(_) => {
                Failure::Unavailable(text)
            }
            Rejection::QueueFull { .. } | Rejection::Pinned { .. } => Failure::Overloaded(text),
            Rejection::TooLong { .. } => Failure::Invalid(text),
        };
        // Where one was asked, nothing is booked for a rejected attempt, so there is nothing to release.
        self.last(Some(failure), fx);
    }

    /// The worker took the request.
    pub fn accepted(&mut self, _now: Time, attempt: Attempt, _fx: &mut Vec<SessionEffect>) {
        if self.is_at_worker(attempt) {
            self.accepted = true;
        }
    }

    /// The worker did not take the request.
    #[expect(clippy::needless_pass_by_value, reason = "an event, given away like the others")]
    pub fn refused(&mut self, now: Time, attempt: Attempt, reason: Refusal, fx: &mut Vec<SessionEffect>) {
        let text = reason.to_string();
        if self.not_taken(attempt, &text, fx) || !self.is_at_worker(attempt) {
            return;
        }
        match reason {
            Refusal::QueueFull { .. } | Refusal::Draining => {
                self.retry(now, Failure::Overloaded(text), false, fx);
            }
            Refusal::NeverFits { .. } | Refusal::TooLong { .. } => {
                self.end(Some(Failure::Invalid(text)), false, fx);
            }
            // Elsewhere it would have even less time.
            Refusal::Hopeless { .. } => self.end(Some(Failure::Hopeless(text)), false, fx),
            Refusal::Malformed(_) => self.end(Some(Failure::Engine(text)), false, fx),
        }
    }

    /// A token came. Tokens of old attempts and those that were delivered are dropped.
    pub fn token(&mut self, now: Time, event: &TokenEvent, fx: &mut Vec<SessionEffect>) {
        if event.seq.request != self.spec.id
            || self.token_of_target(now, event, fx)
            || !self.is_at_worker(event.seq.attempt)
        {
            return;
        }
        let max = self.spec.max_tokens;
        let Some(choice) = self.choices.get_mut(event.seq.choice as usize) else { return };
        let next = choice.tokens.len() as u32;
        if choice.ended.is_some() || event.index < next || next >= max {
            return;
        }
        if event.index > next {
            let text =
                format!("tokens {next} to {} of choice {} got lost", event.index - 1, event.seq.choice);
            return self.retry(now, Failure::WorkerLost(text), true, fx);
        }
        let first = std::mem::replace(&mut self.phase, Phase::Streaming) == Phase::Submitted;
        self.accepted = true;
        choice.tokens.push(event.token);
        // The limit holds even where a worker would go on.
        let cut = event.finish.is_none() && next + 1 >= max;
        let finish = if cut { Some(Finish::Length) } else { event.finish };
        choice.ended = finish;
        let (choice, ended) = (event.seq.choice, finish.is_some());
        let (seq, index, token, cached_tokens) = (event.seq, event.index, event.token, event.cached_tokens);
        let told = |logprobs| TokenEvent { seq, index, token, logprobs, finish, cached_tokens };
        fx.push(match &event.logprobs {
            None => SessionEffect::Deliver(told(None)),
            some => SessionEffect::Deliver(told(some.clone())),
        });
        if first && self.prefill.is_some() {
            let (request, attempt) = (self.spec.id, self.spec.attempt);
            fx.push(SessionEffect::Prefilled { request, attempt });
        }
        if first && let (Some(pool), Some(at)) = (self.store.take(), &self.at) {
            // Whoever computed it: the other one generates, and is not to be kept from that.
            let from = self.prefill.as_ref().unwrap_or(at).clone();
            let spec = Box::new(self.spec.prompt_to_store());
            fx.push(SessionEffect::Store { pool, from, spec });
        }
        if ended {
            self.choice_ended(choice, cut, fx);
        }
        self.switch_if_due(now, fx);
    }

    /// Log-probabilities of the prompt came, the first for position `first`.
    pub fn prompt_logprobs(
        &mut self,
        now: Time,
        attempt: Attempt,
        first: u32,
        mut tokens: Vec<Logprobs>,
        fx: &mut Vec<SessionEffect>,
    ) {
        if !self.is_at_worker(attempt) || !self.spec.prompt_logprobs {
            return;
        }
        if first > self.next_prompt {
            let text = format!("log-probabilities of prompt tokens from {} got lost", self.next_prompt);
            return self.retry(now, Failure::WorkerLost(text), true, fx);
        }
        let known = (self.next_prompt - first) as usize;
        if known >= tokens.len() {
            return;
        }
        tokens.drain(..known);
        let first = self.next_prompt;
        self.next_prompt += tokens.len() as u32;
        fx.push(SessionEffect::DeliverPrompt { first, tokens });
    }

    /// The worker is done with the attempt. After the last token of the last choice this changes nothing.
    pub fn done(&mut self, now: Time, attempt: Attempt, _usage: Usage, fx: &mut Vec<SessionEffect>) {
        if self.not_taken(attempt, "the target ended it", fx) || !self.is_at_worker(attempt) {
            return;
        }
        let max = self.spec.max_tokens as usize;
        for choice in &mut self.choices {
            if choice.ended.is_none() && choice.tokens.len() >= max {
                choice.ended = Some(Finish::Length);
            }
        }
        if self.choices.iter().all(|c| c.ended.is_some()) {
            return self.end(None, false, fx);
        }
        self.retry(
            now,
            Failure::WorkerLost("the worker ended the request before its last token".into()),
            false,
            fx,
        );
    }

    /// The request failed at the worker, alone. It is not tried elsewhere: the same input fails again. After the deadline,
    /// that is why: a worker drops what it did not get to in time.
    pub fn failed_at_worker(
        &mut self,
        now: Time,
        attempt: Attempt,
        reason: String,
        fx: &mut Vec<SessionEffect>,
    ) {
        if !self.not_taken(attempt, &reason, fx) && self.is_at_worker(attempt) {
            let late = now >= self.spec.deadline;
            self.end(Some(if late { Failure::Deadline } else { Failure::Engine(reason) }), false, fx);
        }
    }

    /// The worker gave the request up: it could not be done in time any more.
    pub fn late_at_worker(&mut self, attempt: Attempt, reason: String, fx: &mut Vec<SessionEffect>) {
        if !self.not_taken(attempt, &reason, fx) && self.is_at_worker(attempt) {
            self.end(Some(Failure::Hopeless(reason)), false, fx);
        }
    }

    /// A worker is gone, or cannot be reached any more. Does nothing unless the request is there. Where it was computing the
    /// prompt for another, that one goes on by itself; should the request have to be placed again, then without this one.
    pub fn worker_lost(&mut self, now: Time, worker: &WorkerId, fx: &mut Vec<SessionEffect>) {
        if self.prefill.as_ref() == Some(worker) && !self.avoid.contains(worker) {
            self.avoid.push(worker.clone());
        }
        if self.moving_to() == Some(worker) {
            self.drop_move(Migrated::Stayed(format!("the worker {worker} was lost")), fx);
        }
        if self.at.as_ref() == Some(worker) {
            // Lost may mean unreachable: the cancel stops what still runs behind a broken link, and is nothing otherwise.
            self.retry(now, Failure::WorkerLost(format!("the worker {worker} was lost")), true, fx);
        }
    }

    /// The client has taken the first `total` tokens of `choice`, those of all attempts counted; less than said before
    /// is nothing. Where the request has a credit, the worker is told after each half of it. What is taken while no
    /// worker is at it goes into the next submission.
    pub fn consumed(&mut self, _now: Time, choice: u32, total: u32, fx: &mut Vec<SessionEffect>) {
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        state.consumed = state.consumed.max(total.min(state.tokens.len() as u32));
        let (credit, upto) = (self.spec.credit, state.consumed.saturating_add(self.spec.credit));
        let Some(worker) = &self.at else { return };
        // Beyond the limit there is nothing to grant.
        let goes_on = state.ended.is_none() && state.granted < self.spec.max_tokens;
        if credit == 0 || !goes_on || upto < state.granted.saturating_add(credit.div_ceil(2)) {
            return;
        }
        state.granted = upto;
        fx.push(SessionEffect::Grant {
            worker: worker.clone(),
            request: self.spec.id,
            attempt: self.spec.attempt,
            choice,
            upto,
        });
    }

    /// The driver found a stop string in the text of `choice`: nothing more is generated for it. A choice that has
    /// ended (its last token completed the string) stays as it is.
    pub fn stop_choice(&mut self, _now: Time, choice: u32, fx: &mut Vec<SessionEffect>) {
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        if state.ended.is_some() || self.phase == Phase::Ended {
            return;
        }
        state.ended = Some(Finish::StopString);
        self.choice_ended(choice, true, fx);
    }

    /// The client is gone.
    pub fn cancel(&mut self, _now: Time, fx: &mut Vec<SessionEffect>) {
        if self.phase != Phase::Ended {
            self.end(Some(Failure::Cancelled), true, fx);
        }
    }

    /// Does what is due: ends the request if its deadline has passed, asks the controller again if it is time to.
    pub fn expire(&mut self, now: Time, fx: &mut Vec<SessionEffect>) {
        if self.phase != Phase::Ended && now >= self.spec.deadline {
            self.end(Some(Failure::Deadline), true, fx);
        } else if self.retry_at.is_some_and(|at| at <= now) {
            self.place(fx);
        } else {
            self.expire_move(now, fx);
        }
    }

    /// Whether the controller has been asked and has not answered.
    pub(super) fn is_asking(&self) -> bool {
        self.phase == Phase::Placing && self.retry_at.is_none()
    }

    pub(super) fn is_at_worker(&self, attempt: Attempt) -> bool {
        attempt == self.spec.attempt && self.at.is_some()
    }

    /// `choice` has just ended; `running`: the worker does not know.
    fn choice_ended(&mut self, choice: u32, running: bool, fx: &mut Vec<SessionEffect>) {
        if self.choices.iter().all(|c| c.ended.is_some()) {
            return self.end(None, running, fx);
        }
        if let (true, Some(worker)) = (running, &self.at) {
            fx.push(SessionEffect::CancelChoice {
                worker: worker.clone(),
                request: self.spec.id,
                attempt: self.spec.attempt,
                choice,
            });
        }
    }

    /// Leaves the current attempt and places the rest of the request again; fails with `failure` when no retry is left.
    #[cold]
    #[inline(never)]
    pub(super) fn retry(&mut self, now: Time, failure: Failure, running: bool, fx: &mut Vec<SessionEffect>) {
        if self.retries >= self.config.retry_limit {
            return self.end(Some(failure), running, fx);
        }
        // Whoever was to compute the prompt may be to blame where the request was taken and nothing came of it; that a
        // token came, or that it was not even taken, clears it.
        let suspect = self.prefill.clone().filter(|_| self.accepted && self.phase == Phase::Submitted);
        for worker in self.at.clone().into_iter().chain(suspect) {
            if !self.avoid.contains(&worker) {
                self.avoid.push(worker);
            }
        }
        self.drop_move(Migrated::Elsewhere(failure_text(&failure)), fx);
        self.leave(running, fx);
        self.retries += 1;
        self.spec.attempt = self.next_attempt();
        if self.retries == 1 {
            return self.place(fx);
        }
        let doublings = (self.retries - 2).min(16);
        let wait = Span(self.config.backoff.0.saturating_mul(1 << doublings));
        self.phase = Phase::Placing;
        self.retry_at = Some(now + wait);
    }

    /// Another controller answers from now on: what was asked and is not answered is asked again, under the same attempt.
    pub fn ask_again(&mut self, _now: Time, fx: &mut Vec<SessionEffect>) {
        if self.is_asking() {
            self.asked_again = true;
            fx.push(SessionEffect::Place(self.place_request()));
        }
    }

    pub(super) fn place(&mut self, fx: &mut Vec<SessionEffect>) {
        self.phase = Phase::Placing;
        self.retry_at = None;
        self.asked_again = false;
        self.tally.asked += 1;
        fx.push(SessionEffect::Place(self.place_request()));
    }

    pub(super) fn place_request(&self) -> PlaceRequest {
        let prompt = self.spec.prompt.len() as u32;
        let max = self.spec.max_tokens;
        let live = || self.choices.iter().filter(|c| c.ended.is_none()).map(|c| c.tokens.len() as u32);
        PlaceRequest {
            request: self.spec.id,
            attempt: self.spec.attempt,
            model: self.spec.model.clone(),
            prompt_tokens: live().fold(prompt, u32::saturating_add),
            context_tokens: prompt.saturating_add(live().max().unwrap_or(0)),
            max_tokens: max.saturating_sub(live().min().unwrap_or(0)),
            choices: live().count() as u32,
            resumed: live().any(|tokens| tokens > 0),
            prompt_logprobs: self.wants_prompt_logprobs(),
            avoid: self.avoid.clone(),
            pin: self.pin().cloned(),
            hashes: Arc::clone(&self.spec.hashes),
            session: self.spec.session.clone(),
            props: Arc::clone(&self.spec.props),
            deadline: self.spec.deadline,
        }
    }

    /// The request as the worker of this attempt gets it.
    pub(super) fn submission(&self) -> RequestSpec {
        let resumed = self
            .choices
            .iter()
            .map(|c| ResumedChoice {
                tokens: c.tokens.clone(),
                ended: c.ended.is_some(),
                unread: c.tokens.len() as u32 - c.consumed,
            })
            .collect();
        RequestSpec { resumed, prompt_logprobs: self.wants_prompt_logprobs(), ..self.spec.clone() }
    }

    /// Whether log-probabilities of the prompt are asked for and not all delivered yet.
    fn wants_prompt_logprobs(&self) -> bool {
        self.spec.prompt_logprobs && self.next_prompt < self.spec.prompt.len() as u32
    }

    /// Gives up what the current attempt holds. `running`: the worker may still be at it.
    pub(super) fn leave(&mut self, running: bool, fx: &mut Vec<SessionEffect>) {
        let (request, attempt) = (self.spec.id, self.spec.attempt);
        let held = self.is_asking() || self.at.is_some();
        if let Some(worker) = self.at.take()
            && running
        {
            fx.push(SessionEffect::CancelAt { worker, request, attempt });
        }
        if held {
            self.tally.released += 1;
            fx.push(SessionEffect::Release { request, attempt });
        }
        self.prefill = None;
        self.store = None;
        self.accepted = false;
    }

    fn end(&mut self, failure: Option<Failure>, running: bool, fx: &mut Vec<SessionEffect>) {
        self.drop_move(Migrated::Ended, fx);
        self.leave(running, fx);
        self.last(failure, fx);
    }

    fn last(&mut self, failure: Option<Failure>, fx: &mut Vec<SessionEffect>) {
        self.phase = Phase::Ended;
        self.retry_at = None;
        self.tally.last_effects += 1;
        fx.push(failure.map_or(SessionEffect::Finished, SessionEffect::Failed));
    }
}

/// What a failure says.
fn failure_text(failure: &Failure) -> String {
    match failure {
        Failure::UnknownModel(text)
        | Failure::Overloaded(text)
        | Failure::Unavailable(text)
        | Failure::Invalid(text)
        | Failure::WorkerLost(text)
        | Failure::Hopeless(text)
        | Failure::Engine(text) => text.clone(),
        Failure::Deadline => "its deadline passed".to_owned(),
        Failure::Cancelled => "it was cancelled".to_owned(),
    }
}
