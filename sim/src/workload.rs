//! Clients: what arrives when, all of it drawn before the run starts.

use std::sync::Arc;

use config::ids::{Attempt, RequestId};
use policies::cost::fake::FakeModel;
use policies::kv::{Fingerprint, page_hashes};
use policies::request::{RequestSpec, ResumedChoice, Sampling, Token, WEIGHT_ONE};
use policies::rng::{self, Rng};
use policies::time::{Span, Time};

use crate::scenario::{Lengths, Scenario, Workload};

/// The model's name in a simulation.
pub const MODEL: &str = "simulated";

/// The process of the gateway, in request ids.
pub const GATEWAY: u64 = 1;

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

/// What answers: the workers of a scenario and its clients, whose next turn contains the answer, have to agree.
#[must_use]
pub fn model(w: &Workload) -> FakeModel {
    FakeModel { end: (w.end_every > 0).then_some((END, w.end_every)) }
}

/// The requests of a scenario, in order of arrival.
#[must_use]
pub fn arrivals(scenario: &Scenario) -> Vec<Arrival> {
    let w = &scenario.workload;
    // A stream each, so that another length or patience does not move the arrivals.
    let stream = |n: u64| Rng::new(rng::bits(scenario.seed, 7, n));
    let (mut gaps, mut lengths, mut texts, mut patience) = (stream(0), stream(1), stream(2), stream(3));
    let (mut stalls, mut thinking) = (stream(4), stream(5));
    let model = model(w);
    let print = fingerprint();
    let mut at = Time::ZERO;
    let mut arrivals: Vec<Arrival> = Vec::new();
    for number in 1..=w.requests {
        let (came, mut said): (Time, Vec<Token>) = match arrivals.last() {
            Some(former) if !(number - 1).is_multiple_of(w.turns.into()) => {
                let spec = &former.spec;
                let answer = model.answer(&spec.prompt, &spec.sampling, 0, spec.max_tokens);
                let pause = seconds(thinking.exponential(w.think.get().as_secs_f64()));
                (former.at + pause, spec.prompt.iter().copied().chain(answer).collect())
            }
            _ => {
                // A conversation begins, with as many requests to come.
                at = at + seconds(gaps.exponential(f64::from(w.turns) / w.rate));
                let group = texts.below(w.groups.into());
                let prefix = |i: u32| byte(rng::bits(scenario.seed, 8 + group, i.into()));
                (at, (0..w.shared_prefix).map(prefix).collect())
            }
        };
        said.extend((0..draw(w.prompt, &mut lengths)).map(|_| byte(texts.next_u64())));
        let stays = patience.exponential(w.patience.get().as_secs_f64());
        let leaves = (patience.unit() < w.leave).then(|| came + seconds(stays));
        let stall = stalls.exponential(w.stall_for.get().as_secs_f64());
        let reads = (stalls.unit() < w.stall).then(|| came + seconds(stall));
        let sampling = Sampling { temperature: w.temperature, seed: number, ..Sampling::default() };
        let conversation = (number - 1) / u64::from(w.turns);
        let spec = RequestSpec {
            id: RequestId::new(GATEWAY, number),
            attempt: Attempt(0),
            model: MODEL.into(),
            hashes: page_hashes(&print, scenario.cluster.page_tokens, &said).into(),
            prompt: said.into(),
            resumed: vec![ResumedChoice::default(); w.choices as usize],
            max_tokens: draw(w.output, &mut lengths),
            credit: scenario.cluster.credit,
            end_tokens: vec![END].into(),
            ignore_end: false,
            sampling: Arc::new(sampling),
            prompt_logprobs: false,
            props: Arc::default(),
            session: (w.turns > 1).then(|| format!("conversation-{conversation}").into()),
            tenant: None,
            weight: WEIGHT_ONE,
            deadline: came + Span::from(w.deadline.get()),
        };
        arrivals.push(Arrival { at: came, spec, leaves, reads });
    }
    arrivals.sort_by_key(|arrival| (arrival.at, arrival.spec.id));
    arrivals
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
