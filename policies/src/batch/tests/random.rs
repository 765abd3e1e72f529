//! Hundreds of random schedules; every stream equals its solo run, and nothing is left behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::Attempt;

use super::driver::{Driver, Id, config, id, request};
use super::model::{VOCABULARY, solo};
use crate::batch::BatchConfig;
use crate::invariant::Broken;
use crate::kv::{Fingerprint, PageHash, page_hashes};
use crate::order::deadline::Deadline;
use crate::order::fair::Fair;
use crate::order::keep_session::KeepOptions;
use crate::order::priority::{Priority, PriorityOptions};
use crate::order::{Flow, OrderEvent, Ranks, Standing, WorkerPolicy};
use crate::request::{Prop, RequestSpec, ResumedChoice, Sampling, Token};
use crate::rng::Rng;
use crate::time::{Span, Time};

fn random_config(rng: &mut Rng) -> BatchConfig {
    let page_tokens = 1 + rng.below(5) as u32;
    BatchConfig {
        max_batch_tokens: 1 + rng.below(24) as u32,
        max_mixed_tokens: [1, 4, u32::MAX][rng.below(3) as usize],
        max_running: 1 + rng.below(7) as u32,
        max_waiting: 1 + rng.below(12) as u32,
        max_context: 8 + rng.below(56) as u32,
        prefix_cache: rng.below(4) > 0,
        watermark: [0.0, 0.01, 0.25][rng.below(3) as usize],
        ..config(page_tokens, 2 + rng.below(24) as u32)
    }
}

/// Prompts from a small family of prefixes, so that they share pages.
fn random_prompt(rng: &mut Rng) -> Vec<Token> {
    let family = rng.below(3) as Token;
    let shared = rng.below(20) as Token;
    let own = rng.below(8) as Token;
    let salt = rng.below(3) as Token;
    let mut prompt: Vec<Token> = (0..shared).map(|i| family * 100 + i).collect();
    prompt.extend((0..=own).map(|i| 500 + salt * 50 + i));
    prompt
}

fn random_request(rng: &mut Rng, config: &BatchConfig, number: u64) -> RequestSpec {
    let prompt = random_prompt(rng);
    let mut spec = request(config, number, &prompt, rng.below(20) as u32);
    spec.sampling = Arc::new(Sampling {
        seed: rng.below(4),
        repetition_penalty: if rng.below(4) == 0 { 1.5 } else { 1.0 },
        logprobs: [None, None, Some(0), Some(2)][rng.below(4) as usize],
        ..Sampling::default()
    });
    spec.end_tokens = Arc::new([rng.below(VOCABULARY) as Token]);
    hints(rng, config, &mut spec);
    spec.ignore_end = rng.below(4) == 0;
    spec.prompt_logprobs = rng.below(6) == 0;
    spec.resumed = vec![ResumedChoice::default(); 1 + rng.below(3) as usize];
    spec.credit = rng.below(3).saturating_mul(rng.below(7)) as u32;
    if rng.below(4) == 0 && spec.max_tokens > 0 {
        spec.attempt = Attempt(1 + rng.below(3) as u32);
        for choice in 0..spec.choices() {
            let alone = solo(&spec, choice as u32, config.window());
            let kept = rng.below(alone.tokens.len() as u64 + 1) as usize;
            spec.resumed[choice].tokens = alone.tokens[..kept].iter().map(|t| t.0).collect();
            spec.resumed[choice].ended = rng.below(5) == 0;
            spec.resumed[choice].unread = rng.below(kept as u64 + 1) as u32;
        }
    }
    spec
}

/// What policies look at.
pub(super) fn hints(rng: &mut Rng, config: &BatchConfig, spec: &mut RequestSpec) {
    let mut props = crate::request::Props::new();
    if rng.below(2) == 0 {
        props.insert("priority".into(), Prop::Int(rng.below(4) as i64));
    }
    if rng.below(2) == 0 {
        props.insert("keep-ms".into(), Prop::Int(rng.below(40) as i64));
    }
    if rng.below(8) == 0 {
        props.insert("session-final".into(), Prop::Bool(true));
    }
    if rng.below(2) == 0 {
        props.insert("slo-ttft-ms".into(), Prop::Int(rng.below(100) as i64));
    }
    spec.props = Arc::new(props);
    spec.session = (rng.below(2) == 0).then(|| format!("s{}", rng.below(3)).into());
    spec.tenant = (rng.below(3) == 0).then(|| if rng.below(2) == 0 { "a" } else { "b" }.into());
    spec.weight = [500, 1000, 3000][rng.below(3) as usize];
    let fingerprint = config.fingerprint.of_tenant(spec.tenant.as_ref());
    spec.hashes = page_hashes(&fingerprint, config.page_tokens, &spec.prompt).into();
}

/// Says anything about anybody at any time.
#[derive(Debug)]
struct Chaos(Rng, Vec<crate::order::RequestKey>);

impl WorkerPolicy for Chaos {
    fn name(&self) -> config::ids::PolicyName {
        "chaos".into()
    }

    fn observe(&mut self, _now: Time, events: &[OrderEvent], ranks: &mut Ranks) {
        for event in events {
            if let OrderEvent::Arrived(arrival) = event {
                self.1.push(arrival.key);
            }
        }
        for _ in 0..self.0.below(3) {
            let Some(key) = self.1.get(self.0.below(self.1.len() as u64 + 1) as usize) else { continue };
            let standing = Standing {
                flow: Flow(self.0.below(3)),
                place: self.0.below(20) as i64 - 10,
                level: self.0.below(4) as i64,
                ageing: Span::from_millis(self.0.below(3)),
                displaces: self.0.below(2) == 0,
            };
            ranks.standings.push((*key, standing));
            let account = crate::order::Account { tenant: None, counter: 0 };
            ranks.flows.push((Flow(self.0.below(3)), self.0.below(20) as i64 - 10, account));
        }
    }

    fn tick(&mut self, _now: Time, _ranks: &mut Ranks) {}

    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}

pub(super) fn random_policy(rng: &mut Rng) -> Option<Box<dyn WorkerPolicy>> {
    let ageing = |ms| PriorityOptions { age_every: Span::from_millis(ms), ..PriorityOptions::default() };
    Some(match rng.below(7) {
        0 | 1 => return None,
        2 => Box::new(Fair::new(Default::default())),
        3 => Box::new(Priority::default()),
        4 => Box::new(Priority::new(ageing(5))),
        5 => Box::new(Deadline::default()),
        _ => Box::new(Chaos(Rng::new(rng.next_u64()), Vec::new())),
    })
}

fn random_keeping(rng: &mut Rng) -> Option<KeepOptions> {
    let limits = KeepOptions { max_keep: Span::from_millis(30), max_share: rng.unit() };
    (rng.below(2) == 0).then_some(limits)
}

#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Runs,
    Cancelled,
    MayFail,
}

struct Run {
    driver: Driver,
    rng: Rng,
    specs: Vec<RequestSpec>,
    fate: BTreeMap<Id, Fate>,
    stopped: BTreeMap<(Id, u32), ()>,
}

impl Run {
    fn disturb(&mut self, config: &BatchConfig) {
        match self.rng.below(30) {
            0 => {
                let policy = random_policy(&mut self.rng);
                self.driver.order_by(policy);
            }
            1 => {
                let limits = random_keeping(&mut self.rng);
                self.driver.batch.keep_sessions(limits);
            }
            2 => self.driver.dead = !self.driver.dead,
            _ => {}
        }
        match self.rng.below(10) {
            0..=5 => {
                let spec = random_request(&mut self.rng, config, self.specs.len() as u64);
                if self.driver.submit(&spec).is_ok() {
                    self.fate.insert(id(&spec), Fate::Runs);
                    self.specs.push(spec);
                }
            }
            6 | 7 if !self.specs.is_empty() => {
                let of = self.pick();
                if self.driver.cancel(of) {
                    self.fate.insert(of, Fate::Cancelled);
                }
            }
            8 if !self.specs.is_empty() => {
                let (of, choice) = (self.pick(), self.rng.below(3) as u32);
                if self.driver.cancel_choice(of, choice) {
                    self.stopped.insert((of, choice), ());
                }
            }
            9 if !self.specs.is_empty() => (0..4).for_each(|_| self.grant()),
            _ => {}
        }
    }

    /// A client has read something.
    fn grant(&mut self) {
        let (of, choice) = (self.pick(), self.rng.below(3) as u32);
        let upto = self.rng.below(24) as u32;
        self.driver.grant(of, choice, upto);
    }

    fn pick(&mut self) -> Id {
        id(&self.specs[self.rng.below(self.specs.len() as u64) as usize])
    }

    fn step(&mut self, config: &BatchConfig, calm: bool) -> bool {
        let Some(plan) = self.driver.plan() else { return false };
        assert!(
            plan.slices.iter().map(|s| s.tokens.len()).sum::<usize>() <= config.max_batch_tokens as usize
        );
        if !calm && self.rng.below(3) == 0 {
            assert!(self.driver.plan().is_none(), "one step at a time");
            self.disturb(config);
        }
        let doom = |fate: &mut BTreeMap<Id, Fate>, of: Id| {
            if fate.get(&of) == Some(&Fate::Runs) {
                fate.insert(of, Fate::MayFail);
            }
        };
        match self.rng.below(60) {
            0 if !calm => {
                plan.slices.iter().for_each(|s| doom(&mut self.fate, (s.seq.request, s.seq.attempt)));
                self.driver.fail_step(&plan);
            }
            1 | 2 if !calm => {
                let bad = plan.slices[self.rng.below(plan.slices.len() as u64) as usize].seq;
                doom(&mut self.fate, (bad.request, bad.attempt));
                let mut outcome = self.driver.engine.run(&plan);
                outcome.failed.push((bad, "not a number".to_owned()));
                outcome.drawn.retain(|d| (d.seq.request, d.seq.attempt) != (bad.request, bad.attempt));
                self.driver.finish_step(&outcome);
            }
            _ => self.driver.complete(&plan),
        }
        true
    }

    fn verify(&self) {
        for spec in &self.specs {
            let of = id(spec);
            let got = self.driver.got(of);
            for choice in 0..spec.choices() as u32 {
                if spec.max_tokens > 0 {
                    self.driver.expect_prefix(spec, choice);
                } else {
                    assert!(got.choices.is_empty());
                }
            }
            let stopped = (0..3).any(|c| self.stopped.contains_key(&(of, c)));
            match self.fate[&of] {
                Fate::Cancelled => assert!(got.done.is_none() && got.failed.is_none()),
                Fate::MayFail => assert!(got.done.is_some() || got.failed.is_some()),
                Fate::Runs => {
                    assert!(got.done.is_some() && got.failed.is_none(), "{of:?}: {got:?}");
                    if !stopped && spec.max_tokens > 0 {
                        self.driver.expect_complete(spec);
                    }
                }
            }
            // Beyond that, only a client that does not read loses its pages.
            for (choice, times) in got.preempted.iter().filter(|_| spec.credit == 0) {
                assert!(*times <= 3, "{of:?} choice {choice} was preempted {times} times");
            }
        }
    }
}

fn run(seed: u64, driver: impl FnOnce(&BatchConfig) -> Driver) {
    let mut rng = Rng::new(seed);
    let config = random_config(&mut rng);
    let mut driver = driver(&config);
    driver.order_by(random_policy(&mut rng));
    driver.batch.keep_sessions(random_keeping(&mut rng));
    let mut run = Run { driver, rng, specs: Vec::new(), fate: BTreeMap::new(), stopped: BTreeMap::new() };
    for _ in 0..120 {
        if run.rng.below(3) == 0 {
            run.disturb(&config);
        } else {
            run.step(&config, false);
        }
    }
    for _ in 0..100_000 {
        if run.step(&config, true) {
            continue;
        }
        let load = run.driver.load();
        assert_eq!(load.running + load.waiting, 0, "only those without credit stop: {load:?}");
        if load.paused == 0 {
            break;
        }
        run.grant();
    }
    run.driver.expect_idle();
    run.verify();
}

fn named(seed: u64, body: impl FnOnce() + std::panic::UnwindSafe) {
    if let Err(panic) = std::panic::catch_unwind(body) {
        println!("seed {seed}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_schedule_gives_the_solo_tokens() {
    for seed in 0..1500 {
        named(seed, move || run(seed, Driver::new));
    }
}

/// Two bits of the real hash, in the requests' own hashes as in the scheduler's.
fn collider(fingerprint: &Fingerprint, parent: Option<PageHash>, tokens: &[Token]) -> PageHash {
    let full = PageHash::chained(fingerprint, parent, tokens);
    let mut short = [0; 16];
    short[0] = full.0[0] & 3;
    PageHash(short)
}

#[test]
fn b74_colliding_hashes_never_give_foreign_tokens() {
    for seed in 0..600 {
        named(seed, move || run(seed, |config| Driver::with_hasher(config, collider)));
    }
    // The requests above carry full hashes for their prompts; here they collide as well.
    let config = config(4, 64);
    let mut driver = Driver::with_hasher(&config, collider);
    let mut specs = Vec::new();
    for number in 0..200 {
        let prompt: Vec<Token> = (0..13).map(|i| (number as Token / 3) * 7 + i).collect();
        let mut spec = request(&config, number, &prompt, 6);
        spec.hashes = collide(&page_hashes(&config.fingerprint, 4, &prompt));
        specs.push(spec);
    }
    for chunk in specs.chunks(7) {
        chunk.iter().for_each(|s| driver.add(s));
        driver.run();
    }
    specs.iter().for_each(|s| driver.expect_complete(s));
    assert!(driver.load().prefix_hits > 0, "equal prompts still hit");
}

fn collide(hashes: &[PageHash]) -> Arc<[PageHash]> {
    let short = |h: &PageHash| {
        let mut short = [0; 16];
        short[0] = h.0[0] & 3;
        PageHash(short)
    };
    hashes.iter().map(short).collect()
}
