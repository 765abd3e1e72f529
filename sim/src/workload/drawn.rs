//! Requests that are drawn: independent ones, conversations, closed loops.

use std::collections::BTreeMap;
use std::sync::Arc;

use policies::request::{Props, Token};
use policies::rng::{self, Rng};
use policies::time::{Span, Time};

use super::draw::{Gaps, byte, class, length, seconds, stream};
use super::{Ask, Source};
use crate::SimError;
use crate::scenario::{Arrivals, Class, Scenario, Workload};

/// All drawn requests of a scenario. Conversation `c` (from 0) has the requests `c · turns + 1` to `(c + 1) · turns`.
#[derive(Debug)]
pub(super) struct Drawn {
    workload: Workload,
    seed: u64,
    gaps: Gaps,
    /// Conversations that have begun.
    begun: u64,
    /// Where questions come again: the order in which they do. Question `q` is of group `q / questions`.
    order: Vec<u32>,
    /// Prompts of the requests that another one follows when they have ended.
    followed: BTreeMap<u64, Arc<[Token]>>,
}

impl Drawn {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let workload = Workload { requests: scenario.workload.drawn(), ..scenario.workload.clone() };
        let gaps = Gaps::new(&workload, workload.turns, scenario.seed);
        let order = shuffled(workload.users(), &mut stream(scenario.seed, 11, 0));
        Self { workload, seed: scenario.seed, gaps, begun: 0, order, followed: BTreeMap::new() }
    }

    const fn clients(&self) -> Option<u64> {
        match self.workload.arrivals {
            Arrivals::Closed { clients } => Some(clients as u64),
            _ => None,
        }
    }

    /// The first request of the next conversation.
    pub(super) fn begin(&mut self, at: Time) -> Option<Ask> {
        let w = &self.workload;
        let number = 1 + self.begun * u64::from(w.turns);
        if number > w.requests {
            return None;
        }
        self.begun += 1;
        let (index, kind) = self.kind(number);
        let groups = kind.and_then(|c| c.groups).unwrap_or(w.groups);
        let shared = kind.and_then(|c| c.shared_prefix).unwrap_or(w.shared_prefix);
        let group = match self.question(number) {
            None => stream(self.seed, 2, number).below(groups.into()),
            Some(question) => u64::from(question / w.questions),
        };
        // The prefixes of a kind with groups of its own are its own.
        let own = kind.map_or(0, |c| if c.groups.is_some() { (index as u64 + 1) << 32 } else { 0 });
        let prefix = |i: u32| byte(rng::bits(self.seed, 8 + own + group, i.into()));
        let said = (0..shared).map(prefix).collect();
        Some(self.ask(at, number, said))
    }

    /// The request with a number, which adds its own tokens to what was said before.
    fn ask(&mut self, at: Time, number: u64, mut said: Vec<Token>) -> Ask {
        let w = &self.workload;
        let turns = u64::from(w.turns);
        let (conversation, turn) = ((number - 1) / turns, (number - 1) % turns);
        let (index, kind) = self.kind(number - turn);
        let mut lengths = stream(self.seed, 1, number);
        let mut own = length(kind.and_then(|c| c.prompt).unwrap_or(w.prompt), &mut lengths);
        let mut texts = stream(self.seed, 3, number);
        if let Some(question) = self.question(number) {
            own = length(w.prompt, &mut stream(self.seed, 12, question.into()));
            texts = stream(self.seed, 13, question.into());
        }
        said.extend((0..own).map(|_| byte(texts.next_u64())));
        let ask = Ask {
            at,
            number,
            prompt: said.into(),
            max_tokens: length(kind.and_then(|c| c.output).unwrap_or(w.output), &mut lengths),
            exact: false,
            session: (turns > 1).then(|| format!("conversation-{conversation}").into()),
            class: index,
            tenant: None,
            props: Props::new(),
        };
        let goes_on = turn + 1 < turns && number < w.requests;
        if goes_on || self.clients().is_some() {
            self.followed.insert(number, Arc::clone(&ask.prompt));
        }
        ask
    }

    /// The question that a request asks, where questions come again.
    fn question(&self, number: u64) -> Option<u32> {
        let turn = (number - 1).checked_rem(self.order.len() as u64)?;
        self.order.get(turn as usize).copied()
    }

    /// The kind of the conversation that begins with a request.
    fn kind(&self, first: u64) -> (usize, Option<&Class>) {
        let index = class(&self.workload.classes, &mut stream(self.seed, 9, first));
        (index, self.workload.classes.get(index))
    }
}

/// The numbers below `n` in an order of chance (Fisher and Yates).
fn shuffled(n: u64, rng: &mut Rng) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    order
}

impl Source for Drawn {
    fn next(&mut self) -> Result<Option<Ask>, SimError> {
        if self.clients().is_some_and(|clients| self.begun >= clients) {
            return Ok(None);
        }
        let at = self.gaps.next();
        Ok(self.begin(at))
    }

    fn is_followed(&self, number: u64) -> bool {
        self.followed.contains_key(&number)
    }

    fn ended(&mut self, now: Time, number: u64, answer: &[Token]) -> Result<Vec<Ask>, SimError> {
        let Some(prompt) = self.followed.remove(&number) else { return Ok(Vec::new()) };
        let w = &self.workload;
        let think = w.think.get().as_secs_f64() / w.speedup;
        let pause: Span = seconds(stream(self.seed, 5, number + 1).exponential(think));
        let at = now + pause;
        if number.is_multiple_of(w.turns.into()) || number >= w.requests {
            return Ok(self.begin(at).into_iter().collect());
        }
        let said = prompt.iter().chain(answer).copied().collect();
        Ok(vec![self.ask(at, number + 1, said)])
    }

    fn check_all_came(&self) -> Result<(), SimError> {
        Ok(())
    }
}
