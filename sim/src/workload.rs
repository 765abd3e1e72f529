//! Clients: what arrives when, all of it drawn before the run starts.

use std::sync::Arc;

use config::ids::{Attempt, RequestId};
use policies::request::{RequestSpec, ResumedChoice, Sampling, Token};
use policies::rng::{self, Rng};
use policies::time::{Span, Time};

use crate::scenario::{Lengths, Scenario};

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

/// The requests of a scenario, in order of arrival.
#[must_use]
pub fn arrivals(scenario: &Scenario) -> Vec<Arrival> {
    let w = &scenario.workload;
    // A stream each, so that another length or patience does not move the arrivals.
    let stream = |n: u64| Rng::new(rng::bits(scenario.seed, 7, n));
    let (mut gaps, mut lengths, mut texts, mut patience) = (stream(0), stream(1), stream(2), stream(3));
    let mut stalls = stream(4);
    let mut at = Time::ZERO;
    let arrival = |number| {
        at = at + seconds(gaps.exponential(1.0 / w.rate));
        let group = texts.below(w.groups.into());
        let shared = (0..w.shared_prefix).map(|i| byte(rng::bits(scenario.seed, 8 + group, i.into())));
        let own: Vec<Token> = (0..draw(w.prompt, &mut lengths)).map(|_| byte(texts.next_u64())).collect();
        let stays = patience.exponential(w.patience.get().as_secs_f64());
        let leaves = (patience.unit() < w.leave).then(|| at + seconds(stays));
        let stall = stalls.exponential(w.stall_for.get().as_secs_f64());
        let reads = (stalls.unit() < w.stall).then(|| at + seconds(stall));
        let sampling = Sampling { temperature: w.temperature, seed: number, ..Sampling::default() };
        let spec = RequestSpec {
            id: RequestId::new(1, number),
            attempt: Attempt(0),
            model: MODEL.into(),
            prompt: shared.chain(own).collect(),
            hashes: Vec::new().into(),
            resumed: vec![ResumedChoice::default(); w.choices as usize],
            max_tokens: draw(w.output, &mut lengths),
            credit: scenario.cluster.credit,
            end_tokens: vec![END].into(),
            ignore_end: false,
            sampling: Arc::new(sampling),
            prompt_logprobs: false,
            props: Arc::default(),
            session: None,
            deadline: at + Span::from(w.deadline.get()),
        };
        Arrival { at, spec, leaves, reads }
    };
    (1..=w.requests).map(arrival).collect()
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
