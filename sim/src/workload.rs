//! Clients: what arrives when. A request's tokens are made when it arrives, so that a workload of any length fits.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{Attempt, RequestId};
use policies::cost::fake::FakeModel;
use policies::kv::{Fingerprint, page_hashes};
use policies::request::{RequestSpec, ResumedChoice, Sampling, Token, WEIGHT_ONE};
use policies::rng::{self, Rng};
use policies::time::{Span, Time};

use crate::SimError;
use crate::scenario::{Lengths, Scenario, Workload};

/// The model's name in a simulation.
pub const MODEL: &str = "simulated";

/// The token that ends an answer, outside of the bytes that prompts and answers are made of.
pub const END: Token = 256;

/// A client's request.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When it comes.
    pub at: Time,
    /// What it asks.
    pub spec: RequestSpec,
    /// When the client leaves, unless it has its answer by then.
    pub leaves: Option<Time>,
    /// When the client begins to read; none: as soon as there is something.
    pub reads: Option<Time>,
}

/// What all pages have in common.
#[must_use]
pub fn fingerprint() -> Fingerprint {
    Fingerprint::of(&[("engine", b"simulated")])
}

/// What answers.
#[must_use]
pub fn model(w: &Workload) -> FakeModel {
    FakeModel { end: (w.end_every > 0).then_some((END, w.end_every)) }
}

/// All clients of a scenario. What a request asks is a function of the seed and of the request's number (and, in a
/// conversation, of the answers before it); only when it comes may depend on the course of the run. Gaps and lengths are
/// drawn with floating-point logarithms: they are the one part of a run that another platform's libm could round
/// otherwise.
#[derive(Debug)]
pub struct Clients {
    workload: Workload,
    seed: u64,
    page_tokens: u32,
    credit: u32,
    fingerprint: Fingerprint,
    gaps: Rng,
    /// When the last conversation began.
    began: Time,
    /// Conversations that have begun.
    conversations: u64,
    /// Prompts of the requests that another one follows when they have ended.
    followed: BTreeMap<RequestId, Arc<[Token]>>,
}

impl Clients {
    /// Clients who have asked nothing yet.
    ///
    /// # Errors
    /// A workload that cannot be read.
    pub fn new(scenario: &Scenario) -> Result<Self, SimError> {
        Ok(Self {
            workload: scenario.workload.clone(),
            seed: scenario.seed,
            page_tokens: scenario.cluster.page_tokens,
            credit: scenario.cluster.credit,
            fingerprint: fingerprint(),
            gaps: Rng::new(rng::bits(scenario.seed, 7, 0)),
            began: Time::ZERO,
            conversations: 0,
            followed: BTreeMap::new(),
        })
    }

    /// The next request that follows none, in order of arrival; none after the last.
    ///
    /// # Errors
    /// A workload that cannot be read further.
    #[expect(clippy::should_implement_trait, reason = "an arrival may fail, and more come from `ended`")]
    pub fn next(&mut self) -> Result<Option<Arrival>, SimError> {
        let w = &self.workload;
        let number = 1 + self.conversations * u64::from(w.turns);
        if number > w.requests {
            return Ok(None);
        }
        self.conversations += 1;
        // A conversation begins, with as many requests to come.
        let gap = seconds(self.gaps.exponential(f64::from(w.turns) / w.rate));
        self.began = self.began + gap;
        let group = self.stream(2, number).below(w.groups.into());
        let prefix = |i: u32| byte(rng::bits(self.seed, 8 + group, i.into()));
        let said = (0..w.shared_prefix).map(prefix).collect();
        Ok(Some(self.ask(self.began, number, said)))
    }

    /// Whether the end of a request makes others come, so that [`Clients::ended`] has to be told.
    #[must_use]
    pub fn is_followed(&self, id: RequestId) -> bool {
        self.followed.contains_key(&id)
    }

    /// A request has ended with `answer`, complete or not: those that come because of it.
    ///
    /// # Errors
    /// As [`Clients::next`].
    pub fn ended(&mut self, now: Time, id: RequestId, answer: &[Token]) -> Result<Vec<Arrival>, SimError> {
        let Some(prompt) = self.followed.remove(&id) else { return Ok(Vec::new()) };
        let number = id.number + 1;
        let pause = self.stream(5, number).exponential(self.workload.think.get().as_secs_f64());
        let said = prompt.iter().chain(answer).copied().collect();
        Ok(vec![self.ask(now + seconds(pause), number, said)])
    }

    /// The request with a number, which adds its own tokens to what was said before.
    fn ask(&mut self, at: Time, number: u64, mut said: Vec<Token>) -> Arrival {
        let w = &self.workload;
        let (mut lengths, mut texts) = (self.stream(1, number), self.stream(3, number));
        said.extend((0..draw(w.prompt, &mut lengths)).map(|_| byte(texts.next_u64())));
        let mut patience = self.stream(4, number);
        let stays = patience.exponential(w.patience.get().as_secs_f64());
        let leaves = (patience.unit() < w.leave).then(|| at + seconds(stays));
        let mut stalls = self.stream(6, number);
        let stall = stalls.exponential(w.stall_for.get().as_secs_f64());
        let reads = (stalls.unit() < w.stall).then(|| at + seconds(stall));
        let (conversation, turn) = ((number - 1) / u64::from(w.turns), (number - 1) % u64::from(w.turns));
        let spec = RequestSpec {
            id: RequestId::new(1, number),
            attempt: Attempt(0),
            model: MODEL.into(),
            hashes: page_hashes(&self.fingerprint, self.page_tokens, &said).into(),
            prompt: said.into(),
            resumed: vec![ResumedChoice::default(); w.choices as usize],
            max_tokens: draw(w.output, &mut lengths),
            credit: self.credit,
            end_tokens: vec![END].into(),
            ignore_end: false,
            sampling: Arc::new(Sampling { temperature: w.temperature, seed: number, ..Sampling::default() }),
            prompt_logprobs: false,
            props: Arc::default(),
            session: (w.turns > 1).then(|| format!("conversation-{conversation}").into()),
            tenant: None,
            weight: WEIGHT_ONE,
            deadline: at + Span::from(w.deadline.get()),
        };
        if turn + 1 < u64::from(w.turns) && number < w.requests {
            self.followed.insert(spec.id, Arc::clone(&spec.prompt));
        }
        Arrival { at, spec, leaves, reads }
    }

    /// A request's draws for one purpose, so that another length or patience does not move the rest.
    const fn stream(&self, purpose: u64, number: u64) -> Rng {
        Rng::new(rng::bits(rng::bits(self.seed, 7, purpose), 1, number))
    }
}

fn draw(lengths: Lengths, rng: &mut Rng) -> u32 {
    match lengths {
        Lengths::Fixed(n) => n,
        Lengths::Uniform { min, max } => min + rng.below(u64::from(max - min) + 1) as u32,
        Lengths::Exponential { mean, max } => (rng.exponential(mean.into()).ceil() as u32).clamp(1, max),
    }
}

/// A byte of prompt text from random bits.
const fn byte(bits: u64) -> Token {
    (bits >> 56) as Token
}

/// Saturates.
fn seconds(s: f64) -> Span {
    Span((s * 1e9) as u64)
}
