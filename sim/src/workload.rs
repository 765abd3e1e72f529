//! Clients: what arrives when. A request's tokens are made when it arrives and go when it has ended, so that a workload
//! of any length fits.

use std::fmt;

use config::ids::RequestId;
use policies::cost::fake::FakeModel;
use policies::kv::Fingerprint;
use policies::request::{RequestSpec, Token};
use policies::time::Time;

use crate::SimError;
use crate::scenario::{Scenario, Workload};

mod draw;
mod drawn;
mod make;
mod phased;
pub mod trace;

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

/// What answers.
#[must_use]
pub fn model(w: &Workload) -> FakeModel {
    FakeModel { end: (w.end_every > 0).then_some((END, w.end_every)) }
}

/// All clients of a scenario. What a request asks is a function of the seed and of the request's number (and, in a
/// conversation, of the answers before it); only when it comes may depend on the course of the run.
#[derive(Debug)]
pub struct Clients {
    make: make::Make,
    source: Box<dyn Source>,
}

impl Clients {
    /// Clients who have asked nothing yet.
    ///
    /// # Errors
    /// A trace that cannot be read.
    pub fn new(scenario: &Scenario) -> Result<Self, SimError> {
        let source: Box<dyn Source> = match &scenario.workload.trace {
            Some(path) => Box::new(trace::Replay::open(path, scenario)?),
            None if scenario.workload.phases.is_empty() => Box::new(drawn::Drawn::new(scenario)),
            None => Box::new(phased::Phased::new(scenario)),
        };
        Ok(Self { make: make::Make::new(scenario), source })
    }

    /// The next request that follows none, in order of arrival; none after the last.
    ///
    /// # Errors
    /// A line of a trace that cannot be read or makes no sense.
    #[expect(clippy::should_implement_trait, reason = "it may fail, and more come from `ended`")]
    pub fn next(&mut self) -> Result<Option<Arrival>, SimError> {
        Ok(self.source.next()?.map(|ask| self.make.arrival(ask)))
    }

    /// Whether the end of a request may make others come, so that [`Clients::ended`] has to be told.
    #[must_use]
    pub fn is_followed(&self, id: RequestId) -> bool {
        self.source.is_followed(id.number)
    }

    /// A request has ended with `answer`, complete or not: those that come because of it.
    ///
    /// # Errors
    /// As [`Clients::next`].
    pub fn ended(&mut self, now: Time, id: RequestId, answer: &[Token]) -> Result<Vec<Arrival>, SimError> {
        let asks = self.source.ended(now, id.number, answer)?;
        Ok(asks.into_iter().map(|ask| self.make.arrival(ask)).collect())
    }

    /// Whether all requests have come: some wait for others that never will.
    ///
    /// # Errors
    /// One that waits.
    pub fn check_all_came(&self) -> Result<(), SimError> {
        self.source.check_all_came()
    }
}

/// Where requests come from.
trait Source: fmt::Debug {
    /// As [`Clients::next`].
    fn next(&mut self) -> Result<Option<Ask>, SimError>;
    /// As [`Clients::is_followed`].
    fn is_followed(&self, number: u64) -> bool;
    /// As [`Clients::ended`].
    fn ended(&mut self, now: Time, number: u64, answer: &[Token]) -> Result<Vec<Ask>, SimError>;
    /// As [`Clients::check_all_came`].
    fn check_all_came(&self) -> Result<(), SimError>;
}

/// A request as its source has it.
#[derive(Debug)]
struct Ask {
    at: Time,
    number: u64,
    prompt: std::sync::Arc<[Token]>,
    max_tokens: u32,
    /// The answer has exactly this length.
    exact: bool,
    session: Option<config::ids::SessionId>,
    /// Index of its kind among the scenario's; 0 where there are none.
    class: usize,
    /// What replaces the kind's tenant and hints.
    tenant: Option<config::ids::TenantId>,
    props: policies::request::Props,
}
