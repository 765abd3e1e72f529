//! What clients saw of their requests, summed up as it happens: of a request that has ended nothing is kept, so that a run
//! of a million needs no more memory for them than a short one.

use std::collections::BTreeMap;

use policies::batch::TokenEvent;
use policies::request::RequestSpec;
use policies::session::{Failure, Migrated};
use policies::time::{Span, Time};

use super::Distribution;
use super::moves::MoveTally;
use super::phases::PhaseTally;
use crate::scenario::{Phase, Slo};

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All choices ended.
    Finished,
    /// It failed.
    Failed(Failure),
}

/// What a client has seen of a request so far.
#[derive(Clone, Debug)]
pub struct Seen {
    number: u64,
    pub(super) arrived: Time,
    pub(super) prompt_tokens: u32,
    /// Tokens of the prompt that the first worker to answer had in its cache; none before the first token.
    pub(super) cached_tokens: Option<u32>,
    /// Of the first choice, which mostly is the only one, and of the others.
    answer: Answer,
    others: Vec<Answer>,
    /// It is at another worker, of which no token has come.
    moved: bool,
}

/// Times of a choice's tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Answer {
    first: Time,
    last: Time,
    tokens: u64,
}

impl Seen {
    /// Of a request that has just come.
    #[must_use]
    pub fn new(now: Time, spec: &RequestSpec) -> Self {
        Self {
            number: spec.id.number,
            arrived: now,
            prompt_tokens: spec.prompt.len() as u32,
            cached_tokens: None,
            answer: Answer::default(),
            others: vec![Answer::default(); spec.choices().saturating_sub(1)],
            moved: false,
        }
    }

    /// Another worker goes on with it.
    pub const fn moved(&mut self) {
        self.moved = true;
    }

    /// Time to the first token of any choice.
    pub(super) fn ttft(&self) -> Option<Span> {
        self.answered().map(|answer| answer.first.since(self.arrived)).min()
    }

    /// Mean inter-token latency of the slowest choice.
    fn pace(&self) -> Option<Span> {
        let pace = |answer: &Answer| answer.last.since(answer.first).0.checked_div(answer.tokens - 1);
        self.answered().filter_map(pace).map(Span).max()
    }

    pub(super) fn tokens(&self) -> u64 {
        self.answered().map(|answer| answer.tokens).sum()
    }

    fn answered(&self) -> impl Iterator<Item = &Answer> {
        std::iter::once(&self.answer).chain(&self.others).filter(|answer| answer.tokens > 0)
    }

    fn answer(&mut self, choice: u32) -> Option<&mut Answer> {
        match choice.checked_sub(1) {
            None => Some(&mut self.answer),
            Some(other) => self.others.get_mut(other as usize),
        }
    }

    fn keeps(&self, slo: &Slo) -> bool {
        let within = |seen: Option<Span>, limit: Option<config::Dur>| {
            limit.is_none_or(|limit| seen.is_none_or(|seen| seen <= Span::from(limit.get())))
        };
        within(self.ttft(), slo.ttft) && within(self.pace(), slo.inter_token)
    }
}

/// All requests of a run.
#[derive(Debug, Default)]
pub struct Tally {
    pub(super) slo: Slo,
    pub(super) requests: u64,
    pub(super) finished: u64,
    pub(super) failed: BTreeMap<&'static str, u64>,
    pub(super) retries: u64,
    pub(super) preemptions: u64,
    /// Of requests that were answered.
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) output_tokens: u64,
    /// Requests within the limits, and their tokens.
    pub(super) good: u64,
    pub(super) good_tokens: u64,
    pub(super) ttft: Distribution,
    pub(super) gaps: Distribution,
    pub(super) whole: Distribution,
    pub(super) moves: MoveTally,
    /// In their order; none where the workload has none.
    pub(super) phases: Vec<PhaseTally>,
}

impl Tally {
    /// Of a run whose requests are to keep within these limits, and come in these phases.
    #[must_use]
    pub fn new(slo: Slo, phases: &[Phase]) -> Self {
        Self { slo, phases: PhaseTally::each(phases), ..Self::default() }
    }

    /// A client is told a token.
    pub fn token(&mut self, now: Time, seen: &mut Seen, event: &TokenEvent) {
        seen.cached_tokens.get_or_insert(event.cached_tokens);
        let (number, moved) = (seen.number, seen.moved);
        let Some(answer) = seen.answer(event.seq.choice) else { return };
        if answer.tokens == 0 {
            answer.first = now;
        } else {
            let gap = now.since(answer.last);
            self.gaps.add(gap);
            if moved {
                self.moves.gap(gap);
            }
            if let Some(phase) = PhaseTally::of(&mut self.phases, number) {
                phase.gap(gap);
            }
        }
        answer.last = now;
        answer.tokens += 1;
        seen.moved = false;
    }

    /// A move is over.
    pub fn moved(&mut self, end: &Migrated) {
        self.moves.ended(end.as_str());
    }

    /// A request could not be moved.
    pub fn move_refused(&mut self) {
        self.moves.ended("refused");
    }

    /// A choice was preempted.
    pub const fn preempted(&mut self) {
        self.preemptions += 1;
    }

    /// A request is over, and was placed again so often; `end` is none where it never ended.
    pub fn ended(&mut self, seen: &Seen, retries: u32, end: Option<(Time, &Outcome)>) {
        self.requests += 1;
        self.retries += u64::from(retries);
        let tokens = seen.tokens();
        self.output_tokens += tokens;
        if let Some(cached) = seen.cached_tokens {
            self.prompt_tokens += u64::from(seen.prompt_tokens);
            self.cached_tokens += u64::from(cached);
        }
        seen.ttft().into_iter().for_each(|span| self.ttft.add(span));
        if let Some(phase) = PhaseTally::of(&mut self.phases, seen.number) {
            phase.ended(seen, end);
        }
        match end {
            Some((at, Outcome::Finished)) => {
                self.finished += 1;
                self.whole.add(at.since(seen.arrived));
                if seen.keeps(&self.slo) {
                    self.good += 1;
                    self.good_tokens += tokens;
                }
            }
            Some((_, Outcome::Failed(failure))) => *self.failed.entry(name(failure)).or_default() += 1,
            None => *self.failed.entry("unanswered").or_default() += 1,
        }
    }
}

const fn name(failure: &Failure) -> &'static str {
    match failure {
        Failure::UnknownModel(_) => "unknown-model",
        Failure::Overloaded(_) => "overloaded",
        Failure::Unavailable(_) => "unavailable",
        Failure::Invalid(_) => "invalid",
        Failure::WorkerLost(_) => "worker-lost",
        Failure::Engine(_) => "engine",
        Failure::Hopeless(_) => "hopeless",
        Failure::Deadline => "deadline",
        Failure::Cancelled => "client-left",
    }
}

#[cfg(test)]
mod tests {
    use config::Dur;
    use config::ids::{Attempt, RequestId};
    use policies::request::ResumedChoice;
    use policies::step::SeqKey;

    use super::*;

    fn ms(n: u64) -> Time {
        Time::ZERO + Span::from_millis(n)
    }

    fn token(choice: u32, cached_tokens: u32) -> TokenEvent {
        let seq = SeqKey { request: RequestId::new(1, 1), attempt: Attempt(0), choice };
        TokenEvent { seq, index: 0, token: 1, logprobs: None, finish: None, cached_tokens }
    }

    #[test]
    fn figures_of_a_request_by_hand() {
        let spec = RequestSpec {
            resumed: vec![ResumedChoice::default(); 2],
            ..RequestSpec::plain(RequestId::new(1, 1), "m".into(), [1, 2, 3], 9)
        };
        let good = |pace| {
            let slo = Slo { ttft: Some(Dur::from_millis(5)), inter_token: Some(Dur::from_millis(pace)) };
            let mut tally = Tally::new(slo, &[]);
            let mut seen = Seen::new(ms(10), &spec);
            for (at, choice) in [(14, 1), (15, 0), (16, 1), (20, 1)] {
                tally.token(ms(at), &mut seen, &token(choice, 2));
            }
            tally.ended(&seen, 3, Some((ms(20), &Outcome::Finished)));
            assert_eq!((tally.requests, tally.finished, tally.retries, tally.output_tokens), (1, 1, 3, 4));
            assert_eq!((tally.prompt_tokens, tally.cached_tokens), (3, 2));
            assert_eq!(tally.ttft.percentiles().max, 4.0);
            let gaps = tally.gaps.percentiles();
            assert_eq!((gaps.count, gaps.mean, gaps.max), (2, 3.0, 4.0));
            assert_eq!(tally.whole.percentiles().max, 10.0);
            (tally.good, tally.good_tokens)
        };
        // The slower choice has a mean of 3 ms.
        assert_eq!((good(3), good(2)), ((1, 4), (0, 0)));
    }

    #[test]
    fn a_request_without_an_answer_is_counted_by_why() {
        let spec = RequestSpec::plain(RequestId::new(1, 1), "m".into(), [1, 2, 3], 9);
        let mut tally = Tally::new(Slo::default(), &[]);
        let seen = Seen::new(ms(0), &spec);
        tally.ended(&seen, 0, None);
        tally.ended(&seen, 0, Some((ms(1), &Outcome::Failed(Failure::Deadline))));
        assert_eq!(tally.failed, BTreeMap::from([("deadline", 1), ("unanswered", 1)]));
        assert_eq!((tally.requests, tally.prompt_tokens, tally.ttft.percentiles().count), (2, 0, 0));
    }
}
