//! Page sets that end in the middle of their requests, at a scheduler without other workers.

use std::collections::{BTreeSet, VecDeque};

use cluster::wire::{ToGateway, ToWorker};
use config::ids::WorkerId;
use config::{Config, Dur};
use engine::fake::{FakeEngine, FakeOptions, fake_card};
use policies::batch::{BatchConfig, BatchEffect};
use ractor::call_t;
use tokio::sync::mpsc;

use super::*;
use crate::doors::{Doors, WorkerStats};
use crate::testing::{listener, request};
use crate::worker::load::StepAge;
use crate::worker::orderer::orders;
use crate::worker::scheduler::{IDLE_SETS, Scheduler, SchedulerArgs, SchedulerMsg};

mod nodes;
mod transfer;

struct Rig {
    scheduler: ActorRef<SchedulerMsg>,
    told: mpsc::Receiver<ToGateway>,
    /// Of the step that was told of last, what has not been looked at.
    events: VecDeque<BatchEffect>,
}

impl Rig {
    async fn start() -> Self {
        let doors = Doors::default();
        let told = listener(&doors, "g").await;
        let mut config = Config::default();
        config.engine.fake.step_overhead = Dur::from_millis(1);
        let engine = Box::new(FakeEngine::new(FakeOptions::from_config(&config.engine)));
        let fingerprint = fake_card("fake", 8192, 16).fingerprint;
        // A prompt of some length takes many steps.
        let batch = BatchConfig {
            max_batch_tokens: 16,
            max_running: 8,
            ..BatchConfig::sized(16, 1024, 8192, fingerprint)
        };
        let args = SchedulerArgs {
            doors,
            worker: WorkerId::new("w".into(), 1),
            batch,
            engine,
            age: StepAge::default(),
            orders: orders(&config),
            kv: None,
            kv_events: None,
            step_log: None,
        };
        let (scheduler, _) = Actor::spawn(None, Scheduler, args).await.unwrap();
        Self { scheduler, told, events: VecDeque::new() }
    }

    fn submit(&self, number: u64, prompt: u32, max_tokens: u32) {
        let spec = RequestSpec { prompt: (0..prompt).collect(), ..request(number, max_tokens) };
        let to = WorkerId::new("w".into(), 1);
        let submit =
            ToWorker::Submit { to, gateway: "g".into(), spec: Box::new(spec), prefill: None, fetch: None };
        self.scheduler.cast(SchedulerMsg::Wire(submit)).unwrap();
    }

    /// The page sets, of requests and idle ones.
    fn sets(&self) -> Vec<ActorRef<PageSetMsg>> {
        nodes::sets(&self.scheduler)
    }

    /// What is told next of a request that is neither taken nor a token.
    async fn end(&mut self) -> BatchEffect {
        loop {
            let effect = self.next().await;
            if !matches!(effect, BatchEffect::Token(_)) {
                return effect;
            }
        }
    }

    async fn next(&mut self) -> BatchEffect {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let told = tokio::time::timeout(Duration::from_secs(60), self.told.recv());
            if let ToGateway::Step { events, .. } = told.await.expect("it goes on").unwrap() {
                self.events.extend(events);
            }
        }
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self, &WorkerStats) -> bool) {
        let begun = std::time::Instant::now();
        loop {
            let observe = |reply| SchedulerMsg::Observe { base: WorkerStats::default(), reply };
            let stats = call_t!(self.scheduler, observe, 60_000).unwrap();
            if holds(self, &stats) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {:?}", stats.load);
            tokio::task::yield_now().await;
        }
    }
}

/// In the middle of a prompt and in the middle of an answer; killed, stopped, and by a defect of its own: the pages are free
/// and the gateway is told to go on elsewhere. What else runs is untouched.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_set_that_ends_takes_its_request_with_it() {
    let mut rig = Rig::start().await;
    let ends: [fn(&ActorRef<PageSetMsg>); 3] =
        [|set| set.kill(), |set| set.stop(None), |set| set.cast(PageSetMsg::Crash).unwrap()];
    for (number, end) in (1..).zip(ends) {
        for (number, prompt, decoding) in [(number, 8000, false), (10 + number, 40, true)] {
            rig.submit(number, prompt, 4000);
            rig.until("it runs", |rig, stats| {
                rig.sets().len() == 1 && stats.load.pages_used > 0 && stats.load.running == 1
            })
            .await;
            if decoding {
                while !matches!(rig.next().await, BatchEffect::Token(_)) {}
            }
            end(&rig.sets()[0]);
            let id = RequestId::new(1, number);
            assert_eq!(rig.end().await, BatchEffect::TakenOver { request: id, attempt: Attempt(0) });
            rig.until("nothing is held", |_, stats| stats.load.requests == 0 && stats.load.pages_used == 0)
                .await;
        }
    }
    rig.submit(99, 40, 5);
    assert!(matches!(rig.end().await, BatchEffect::Done { request, .. } if request.number == 99));
}

/// The page set of a request that is over is the next one's, so that there are as many as there were requests at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_set_outlives_its_request() {
    let mut rig = Rig::start().await;
    for number in 1..=4 {
        rig.submit(number, 40, 5 * number as u32);
    }
    for _ in 1..=4 {
        assert!(matches!(rig.end().await, BatchEffect::Done { .. }));
    }
    let before: BTreeSet<u64> = rig.sets().iter().map(|set| set.get_id().pid()).collect();
    assert!((1..=4).contains(&before.len()), "{before:?}");
    rig.submit(5, 8000, 4000);
    rig.until("it runs", |_, stats| stats.load.running == 1).await;
    let cancel = ToWorker::Cancel { request: RequestId::new(1, 5), attempt: Attempt(0) };
    rig.scheduler.cast(SchedulerMsg::Wire(cancel)).unwrap();
    rig.until("it is gone", |_, stats| stats.load.requests == 0).await;
    rig.submit(6, 40, 5);
    assert!(matches!(rig.end().await, BatchEffect::Done { .. }));
    let after: BTreeSet<u64> = rig.sets().iter().map(|set| set.get_id().pid()).collect();
    assert_eq!(after, before);
    // One that ends while it is idle is not given to a request.
    for set in rig.sets() {
        set.kill();
    }
    rig.until("all are gone", |rig, _| rig.sets().is_empty()).await;
    rig.submit(7, 40, 5);
    assert!(matches!(rig.end().await, BatchEffect::Done { request, .. } if request.number == 7));
}

/// No more wait for requests than are worth their memory.
#[tokio::test(flavor = "multi_thread")]
async fn few_page_sets_wait_for_requests() {
    let rig = Rig::start().await;
    let many = IDLE_SETS as u64 + 50;
    for number in 1..=many {
        rig.submit(number, 40, 4000);
    }
    rig.until("all have one", |rig, _| rig.sets().len() as u64 == many).await;
    for number in 1..=many {
        let cancel = ToWorker::Cancel { request: RequestId::new(1, number), attempt: Attempt(0) };
        rig.scheduler.cast(SchedulerMsg::Wire(cancel)).unwrap();
    }
    rig.until("the others are gone", |rig, _| rig.sets().len() == IDLE_SETS).await;
}
