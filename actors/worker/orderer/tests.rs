//! A scheduler whose policy panics, and one whose policies are replaced while requests run.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, mpsc as blocking};

use cluster::wire::{ToGateway, ToWorker};
use config::ids::{PolicyName, WorkerId};
use engine::fake::{FakeEngine, FakeOptions, fake_card};
use policies::batch::{BatchConfig, BatchEffect};
use policies::invariant::Broken;
use policies::order::fair::Fair;
use policies::order::priority::Priority;
use policies::request::{Prop, RequestSpec};
use policies::time::Time;
use ractor::call_t;
use tokio::sync::mpsc;

use super::*;
use crate::doors::Doors;
use crate::testing::{listener, request};
use crate::worker::load::StepAge;
use crate::worker::scheduler::{Scheduler, SchedulerArgs};

const GATEWAY: &str = "g";

/// Orders by priority, and panics while told to.
#[derive(Debug)]
struct Fragile {
    inner: Priority,
    breaks: Arc<AtomicBool>,
}

impl WorkerPolicy for Fragile {
    fn name(&self) -> PolicyName {
        "fragile".into()
    }

    fn observe(&mut self, now: Time, events: &[OrderEvent], ranks: &mut Ranks) {
        assert!(!self.breaks.load(Ordering::Relaxed), "asked to");
        self.inner.observe(now, events, ranks);
    }

    fn tick(&mut self, _now: Time, _ranks: &mut Ranks) {}

    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}

/// Thinks until the test is over.
#[derive(Debug)]
struct Stuck(Arc<Mutex<blocking::Receiver<()>>>);

impl WorkerPolicy for Stuck {
    fn name(&self) -> PolicyName {
        "stuck".into()
    }

    fn observe(&mut self, _now: Time, _events: &[OrderEvent], _ranks: &mut Ranks) {
        // Ends with the test, whose sender is then dropped.
        let _ = self.0.lock().unwrap().recv();
    }

    fn tick(&mut self, _now: Time, _ranks: &mut Ranks) {}

    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}

struct Rig {
    scheduler: ActorRef<SchedulerMsg>,
    told: mpsc::Receiver<ToGateway>,
    /// Requests in the order of their ends.
    done: Vec<u64>,
}

impl Rig {
    /// A scheduler that runs one request at a time.
    async fn start(orders: Orders) -> Self {
        let doors = Doors::default();
        let told = listener(&doors, GATEWAY).await;
        let mut config = Config::default().engine;
        config.fake.step_overhead = config::Dur::from_millis(1);
        let engine = Box::new(FakeEngine::new(FakeOptions::from_config(&config)));
        let card = fake_card("fake", 8192, 16);
        let batch = BatchConfig { max_running: 1, ..BatchConfig::sized(16, 1024, 8192, card.fingerprint) };
        let worker = WorkerId::new("w".into(), 1);
        let args = SchedulerArgs {
            doors,
            worker,
            batch,
            engine,
            age: StepAge::default(),
            orders,
            kv: None,
            kv_events: None,
            step_log: None,
        };
        let (scheduler, _) = Actor::spawn(None, Scheduler, args).await.unwrap();
        Self { scheduler, told, done: Vec::new() }
    }

    fn submit(&self, number: u64, priority: i64, max_tokens: u32) {
        let props = [("priority".to_owned(), Prop::Int(priority))].into_iter().collect();
        let spec = RequestSpec { props: Arc::new(props), ..request(number, max_tokens) };
        let to = WorkerId::new("w".into(), 1);
        let submit = ToWorker::Submit {
            to,
            gateway: GATEWAY.into(),
            spec: Box::new(spec),
            prefill: None,
            fetch: None,
        };
        self.scheduler.cast(SchedulerMsg::Wire(submit)).unwrap();
    }

    /// Waits until so many requests have ended, each with all its tokens.
    async fn until_done(&mut self, count: usize) {
        while self.done.len() < count {
            let next = tokio::time::timeout(Duration::from_secs(60), self.told.recv());
            let ToGateway::Step { events, .. } = next.await.expect("it goes on").unwrap() else { continue };
            for event in events {
                match event {
                    BatchEffect::Done { request, .. } => self.done.push(request.number),
                    BatchEffect::Failed { .. } | BatchEffect::Late { .. } => panic!("{event:?}"),
                    _ => {}
                }
            }
        }
    }

    async fn set(&self, orders: Orders) {
        let reply = call_t!(self.scheduler, SchedulerMsg::SetOrders, 10_000, orders);
        reply.expect("it answers").unwrap();
    }
}

fn made(make: impl Fn() -> Option<Box<dyn WorkerPolicy>> + Send + Sync + 'static) -> Orders {
    Orders { make: Arc::new(make), keep: None, offload: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_panics_does_not_stop_the_scheduler() {
    let (breaks, lives) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (shared, counted) = (breaks.clone(), lives.clone());
    let mut rig = Rig::start(made(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Some(Box::new(Fragile { inner: Priority::default(), breaks: shared.clone() }))
    }))
    .await;
    rig.submit(1, 0, 30);
    rig.until_done(1).await;
    breaks.store(true, Ordering::Relaxed);
    let before = lives.load(Ordering::Relaxed);
    for number in 2..8 {
        rig.submit(number, number as i64, 20);
    }
    rig.until_done(7).await;
    assert!(lives.load(Ordering::Relaxed) > before, "it was started again, and failed again");
    // It comes back, is told what is here, and orders again.
    breaks.store(false, Ordering::Relaxed);
    rig.submit(10, 100, 3000);
    rig.submit(11, 1, 4);
    rig.submit(12, 5, 4);
    rig.until_done(10).await;
    assert_eq!(rig.done[7..], [10, 12, 11], "{:?}", rig.done);
    rig.scheduler.stop(None);
}

/// With one thread in the runtime, as on a machine with one core.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_policy_that_never_returns_does_not_stop_the_scheduler() {
    let (over, until) = blocking::sync_channel(0);
    let until = Arc::new(Mutex::new(until));
    let mut rig = Rig::start(made(move || Some(Box::new(Stuck(until.clone()))))).await;
    for number in 1..4 {
        rig.submit(number, 0, 20);
    }
    rig.until_done(3).await;
    // Another one takes its place.
    rig.set(made(|| Some(Box::new(Priority::default())))).await;
    rig.submit(4, 0, 20);
    rig.until_done(4).await;
    rig.scheduler.stop(None);
    drop(over);
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_replaced_while_requests_run() {
    let mut rig = Rig::start(orders(&Config::default())).await;
    // Runs throughout.
    rig.submit(1, 50, 2000);
    for number in 2..6 {
        rig.submit(number, number as i64, 4);
    }
    rig.set(made(|| Some(Box::new(Fair::new(Default::default()))))).await;
    rig.set(orders(&Config::default())).await;
    rig.set(made(|| Some(Box::new(Priority::default())))).await;
    // The same again changes nothing.
    rig.set(made(|| Some(Box::new(Priority::default())))).await;
    rig.until_done(5).await;
    assert_eq!(rig.done, [1, 5, 4, 3, 2], "the running one went on, and the others by priority");
    rig.scheduler.stop(None);
}
