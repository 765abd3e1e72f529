//! Drives a scheduler with the model engine, checks invariants after each call, and compares streams with solo runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{Attempt, RequestId};

use super::model::{Engine, solo, solo_prompt};
use super::replay::Replay;
use crate::batch::{
    Batch, BatchConfig, BatchEffect, BatchLoad, Held, KvWork, PageHasher, Refusal, TokenEvent, Usage,
};
use crate::kv::events::Recording;
use crate::kv::{Fingerprint, page_hashes};
use crate::order::{OrderEvent, Ranks, WorkerPolicy};
use crate::request::{Logprobs, RequestSpec, Sampling, Token};
use crate::step::StepPlan;
use crate::time::Time;

pub(super) fn config(page_tokens: u32, pages: u32) -> BatchConfig {
    BatchConfig {
        kv_events: Recording::Tokens,
        ..BatchConfig::sized(page_tokens, pages, 4096, Fingerprint::of(&[("model", b"test")]))
    }
}

/// A request of one choice with no end tokens, and the right page hashes for `config`.
pub(super) fn request(config: &BatchConfig, number: u64, prompt: &[Token], max_tokens: u32) -> RequestSpec {
    RequestSpec {
        hashes: page_hashes(&config.fingerprint, config.page_tokens, prompt).into(),
        sampling: Arc::new(Sampling { seed: number, ..Sampling::default() }),
        ..RequestSpec::plain(RequestId::new(1, number), "m".into(), prompt, max_tokens)
    }
}

/// `len` tokens that differ between `salt`s from the first one on.
pub(super) fn prompt(salt: u32, len: u32) -> Vec<Token> {
    (0..len).map(|i| 1000 * (salt + 1) + i).collect()
}

pub(super) type Id = (RequestId, Attempt);

pub(super) fn id(spec: &RequestSpec) -> Id {
    (spec.id, spec.attempt)
}

/// Everything that a gateway would have received for a request.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) choices: BTreeMap<u32, Vec<TokenEvent>>,
    pub(super) prompt: Vec<Logprobs>,
    pub(super) done: Option<Usage>,
    pub(super) failed: Option<String>,
    pub(super) late: Option<String>,
    pub(super) taken_over: bool,
    /// By choice.
    pub(super) preempted: BTreeMap<u32, u32>,
}

pub(super) struct Driver {
    pub(super) batch: Batch,
    pub(super) engine: Engine,
    pub(super) now: Time,
    pub(super) received: BTreeMap<Id, Received>,
    specs: BTreeMap<Id, RequestSpec>,
    /// How far each choice of a request with credit may go.
    granted: BTreeMap<(Id, u32), u32>,
    /// Pages have the hashes of their content.
    pub(super) real_hashes: bool,
    replay: Replay,
    /// Leaves the events of pages to the test.
    pub(super) silent: bool,
    /// Orders the requests; what it says is published at once, unless it is dead.
    policy: Option<Box<dyn WorkerPolicy>>,
    /// The policy hears and says nothing.
    pub(super) dead: bool,
}

impl Driver {
    pub(super) fn new(config: &BatchConfig) -> Self {
        Self::over(config, Batch::new(config.clone()), true)
    }

    pub(super) fn with_hasher(config: &BatchConfig, hasher: PageHasher) -> Self {
        Self::over(config, Batch::with_hasher(config.clone(), hasher), false)
    }

    fn over(config: &BatchConfig, batch: Batch, real_hashes: bool) -> Self {
        let engine = Engine::new(config);
        let (received, specs, granted) = Default::default();
        let (replay, silent) = (Replay::default(), false);
        Self {
            batch,
            engine,
            now: Time(1),
            received,
            specs,
            granted,
            real_hashes,
            replay,
            silent,
            policy: None,
            dead: false,
        }
    }

    /// Another policy takes over, or none.
    pub(super) fn order_by(&mut self, policy: Option<Box<dyn WorkerPolicy>>) {
        self.batch.order_by_policy(policy.is_some(), Vec::new());
        self.policy = policy;
        self.settle();
    }

    fn consult(&mut self) {
        let Some(policy) = self.policy.as_mut().filter(|_| !self.dead) else { return };
        let mut events: Vec<OrderEvent> = Vec::new();
        self.batch.take_order_events(&mut events);
        let mut ranks = Ranks::default();
        policy.observe(self.now, &events, &mut ranks);
        policy.tick(self.now, &mut ranks);
        policy.check().unwrap();
        self.batch.publish(&ranks);
    }

    pub(super) fn submit(&mut self, spec: &RequestSpec) -> Result<(), Refusal> {
        let taken = self.batch.submit(self.now, spec.clone());
        if taken.is_ok() {
            self.received.insert(id(spec), Received::default());
            self.specs.insert(id(spec), spec.clone());
            for (choice, resumed) in (0..).zip(&spec.resumed).filter(|_| spec.credit > 0) {
                let has = resumed.tokens.len() as u32;
                self.granted.insert((id(spec), choice), has.max(has - resumed.unread + spec.credit));
            }
        }
        self.settle();
        taken
    }

    /// Submits a request whose prompt is computed elsewhere, unless fewer than `least` tokens are missing.
    pub(super) fn add_received(&mut self, spec: &RequestSpec, least: u32) {
        self.batch.submit_received(self.now, spec.clone(), least).unwrap();
        self.received.insert(id(spec), Received::default());
        self.specs.insert(id(spec), spec.clone());
        self.settle();
    }

    /// Submits a request of whose prompt another worker holds the start.
    pub(super) fn add_held(&mut self, spec: &RequestSpec, held: Held) {
        self.batch.submit_held(self.now, spec.clone(), held).unwrap();
        self.received.insert(id(spec), Received::default());
        self.specs.insert(id(spec), spec.clone());
        self.settle();
    }

    /// As [`Driver::add_prefill`], where a third worker holds the start.
    pub(super) fn add_prefill_held(&mut self, spec: &RequestSpec, open: bool, held: Held) {
        self.batch.submit_prefill(self.now, spec.clone(), open, held).unwrap();
        self.specs.insert(id(spec), spec.clone());
        self.settle();
    }

    /// A request as it was submitted.
    pub(super) fn spec(&self, of: Id) -> &RequestSpec {
        &self.specs[&of]
    }

    /// As [`Driver::add_received`], with pages only when the prompt is begun elsewhere.
    pub(super) fn add_expected(&mut self, spec: &RequestSpec, least: u32) {
        self.batch.submit_expected(self.now, spec.clone(), least).unwrap();
        self.received.insert(id(spec), Received::default());
        self.specs.insert(id(spec), spec.clone());
        self.settle();
    }

    /// Submits a request for another worker, which has pages for it or not; nothing of it is for a gateway.
    pub(super) fn add_prefill(&mut self, spec: &RequestSpec, open: bool) -> Result<(), Refusal> {
        let taken = self.batch.submit_prefill(self.now, spec.clone(), open, Held::default());
        self.settle();
        taken
    }

    /// What became of transfers.
    pub(super) fn kv_work(&mut self) -> Vec<KvWork> {
        let mut work = Vec::new();
        self.batch.take_kv_work(&mut work);
        work
    }

    /// Does something to the scheduler itself.
    pub(super) fn with<T>(&mut self, change: impl FnOnce(&mut Batch, Time) -> T) -> T {
        let result = change(&mut self.batch, self.now);
        self.settle();
        result
    }

    /// Submits what has to be taken.
    pub(super) fn add(&mut self, spec: &RequestSpec) {
        self.submit(spec).unwrap();
    }

    pub(super) fn cancel(&mut self, of: Id) -> bool {
        let there = self.batch.cancel(self.now, of.0, of.1);
        self.settle();
        there
    }

    pub(super) fn cancel_choice(&mut self, of: Id, choice: u32) -> bool {
        let there = self.batch.cancel_choice(self.now, of.0, of.1, choice);
        self.settle();
        there
    }

    pub(super) fn grant(&mut self, of: Id, choice: u32, upto: u32) -> bool {
        let more = self.batch.grant(self.now, of.0, of.1, choice, upto);
        if let Some(granted) = self.granted.get_mut(&(of, choice)) {
            *granted = (*granted).max(upto);
        }
        self.settle();
        more
    }

    pub(super) fn plan(&mut self) -> Option<StepPlan> {
        self.now = Time(self.now.0 + 1_000_000);
        let plan = self.batch.plan(self.now);
        self.settle();
        plan
    }

    pub(super) fn complete(&mut self, plan: &StepPlan) {
        let outcome = self.engine.run(plan);
        self.finish_step(&outcome);
        // As drivers do it or do not.
        if !plan.step.is_multiple_of(3) {
            self.batch.reuse(plan.clone());
        }
    }

    pub(super) fn finish_step(&mut self, outcome: &crate::step::StepOutcome) {
        let mut effects = Vec::new();
        self.batch.complete(self.now, outcome, &mut effects);
        self.absorb(effects);
        self.settle();
    }

    pub(super) fn fail_step(&mut self, plan: &StepPlan) {
        let mut effects = Vec::new();
        self.batch.step_failed(self.now, plan.step, "the device is gone", &mut effects);
        self.absorb(effects);
        self.settle();
    }

    /// One whole step; its plan, or none where nothing could run.
    pub(super) fn step(&mut self) -> Option<StepPlan> {
        let plan = self.plan()?;
        self.complete(&plan);
        Some(plan)
    }

    /// Runs to the end, within a bound on the steps, and checks that nothing is left behind.
    pub(super) fn run(&mut self) {
        for _ in 0..100_000 {
            if self.step().is_none() {
                break;
            }
        }
        self.expect_idle();
    }

    pub(super) fn expect_idle(&mut self) {
        self.batch.keep_sessions(None);
        self.batch.check().unwrap();
        assert!(self.batch.is_idle(), "stuck with {:?}", self.batch.load());
        let load = self.batch.load();
        let left = (load.running, load.waiting + load.paused, load.queued_prefill_tokens, load.pages_used);
        assert_eq!(left, (0, 0, 0, 0), "{load:?}");
    }

    pub(super) fn load(&self) -> BatchLoad {
        self.batch.load()
    }

    pub(super) fn got(&self, of: Id) -> &Received {
        &self.received[&of]
    }

    /// The request is done and each choice gave what it gives alone.
    pub(super) fn expect_complete(&self, spec: &RequestSpec) {
        let got = self.got(id(spec));
        assert_eq!(got.failed, None, "{}", spec.id);
        assert!(got.done.is_some(), "{} is not done", spec.id);
        for choice in 0..spec.choices() as u32 {
            if spec.resumed[choice as usize].ended {
                assert!(!got.choices.contains_key(&choice));
                continue;
            }
            let len = self.expect_prefix(spec, choice);
            assert_eq!(
                len,
                solo(spec, choice, self.batch.config().window()).tokens.len(),
                "{} choice {choice}",
                spec.id
            );
        }
        let unspoken = spec.resumed.iter().all(|c| c.tokens.is_empty());
        if spec.prompt_logprobs && unspoken && spec.resumed.iter().any(|c| !c.ended) {
            assert_eq!(got.prompt, solo_prompt(spec), "{}", spec.id);
        }
    }

    /// What came so far is the beginning of what the choice gives alone. Returns the tokens so far.
    pub(super) fn expect_prefix(&self, spec: &RequestSpec, choice: u32) -> usize {
        let expected = solo(spec, choice, self.batch.config().window());
        let start = spec.resumed[choice as usize].tokens.len();
        let Some(events) = self.got(id(spec)).choices.get(&choice) else { return start };
        for (i, event) in events.iter().enumerate() {
            let index = start + i;
            let (token, logprobs) = &expected.tokens[index];
            assert_eq!(event.index as usize, index, "{} choice {choice}: a gap or a repetition", spec.id);
            assert_eq!(
                (event.token, &event.logprobs),
                (*token, logprobs),
                "{} choice {choice} at {index}",
                spec.id
            );
            let last = index + 1 == expected.tokens.len();
            assert_eq!(
                event.finish,
                last.then_some(expected.finish),
                "{} choice {choice} at {index}",
                spec.id
            );
            assert_eq!(event.cached_tokens, events[0].cached_tokens);
        }
        start + events.len()
    }

    fn settle(&mut self) {
        let mut effects = Vec::new();
        self.batch.take_effects(&mut effects);
        self.absorb(effects);
        self.consult();
        self.batch.check().unwrap();
        if !self.silent {
            self.replay.follow(&mut self.batch, self.real_hashes);
        }
    }

    fn absorb(&mut self, effects: Vec<BatchEffect>) {
        for effect in effects {
            match effect {
                BatchEffect::Token(event) => {
                    let of = (event.seq.request, event.seq.attempt);
                    let granted = self.granted.get(&(of, event.seq.choice)).copied().unwrap_or(u32::MAX);
                    assert!(event.index < granted, "{event:?} of {granted} granted");
                    let got = self.open((event.seq.request, event.seq.attempt));
                    got.choices.entry(event.seq.choice).or_default().push(event);
                }
                BatchEffect::PromptLogprobs { request, attempt, first, tokens } => {
                    let got = self.open((request, attempt));
                    assert!(got.choices.is_empty(), "prompt log-probabilities come before the first token");
                    assert_eq!(first as usize, got.prompt.len() + 1, "a gap or a repetition");
                    got.prompt.extend(tokens);
                }
                BatchEffect::Done { request, attempt, usage } => {
                    self.open((request, attempt)).done = Some(usage);
                }
                BatchEffect::Failed { request, attempt, reason } => {
                    self.open((request, attempt)).failed = Some(reason);
                }
                BatchEffect::TakenOver { request, attempt } => {
                    self.open((request, attempt)).taken_over = true;
                }
                BatchEffect::Late { request, attempt, reason } => {
                    self.open((request, attempt)).late = Some(reason);
                }
                // Nobody hears of what is computed for another worker.
                BatchEffect::Preempted { seq, .. }
                    if !self.received.contains_key(&(seq.request, seq.attempt)) => {}
                BatchEffect::Preempted { seq, .. } => {
                    *self.open((seq.request, seq.attempt)).preempted.entry(seq.choice).or_default() += 1;
                }
            }
        }
    }

    /// No event follows the last one of a request.
    fn open(&mut self, of: Id) -> &mut Received {
        let got = self.received.get_mut(&of).unwrap();
        assert!(
            got.done.is_none() && got.failed.is_none() && got.late.is_none(),
            "an event after the end of {of:?}"
        );
        got
    }
}
