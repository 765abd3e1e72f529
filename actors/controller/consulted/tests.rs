//! Policies that panic or think for ever, asked by a controller that runs.

use std::sync::{Arc, Mutex, mpsc as blocking};
use std::time::Duration;

use cluster::wire::{ToController, ToGateway};
use config::ids::{Attempt, NodeId, RequestId, WorkerId};
use config::{ControllerConfig, Dur};
use policies::invariant::Broken;
use policies::placement::{PlaceRequest, PlacementEffect, Plan, PolicyView, WorkerInfo, WorkerView};
use policies::policy::{Opinion, PolicyAction};
use ractor::{ActorRef, call_t};
use tokio::sync::mpsc;

use super::*;
use crate::controller::{Controller, ControllerArgs};
use crate::doors::Doors;
use crate::testing::listener;

/// What a policy of these tests does when it is asked.
#[derive(Clone)]
enum Deed {
    Panic,
    /// Thinks until the test is over.
    Wait(Arc<Mutex<blocking::Receiver<()>>>),
}

struct Doer(Deed);

impl fmt::Debug for Doer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doer")
    }
}

impl ClusterPolicy for Doer {
    fn name(&self) -> PolicyName {
        "doer".into()
    }

    fn observe(&mut self, _now: Time, _event: &PolicyEvent) {}

    fn opinion(&mut self, _now: Time, _query: &PolicyQuery) -> Opinion {
        match &self.0 {
            Deed::Panic => panic!("asked to"),
            Deed::Wait(over) => {
                // Ends with the test, whose sender is then dropped.
                let _ = over.lock().unwrap().recv();
                Opinion::none("late", "")
            }
        }
    }

    fn tick(&mut self, _now: Time, _workers: &[WorkerView], _actions: &mut Vec<PolicyAction>) {}

    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}

struct Rig {
    controller: ActorRef<ControllerMsg>,
    told: mpsc::Receiver<ToGateway>,
}

const NODE: &str = "n";

/// A controller with two workers that asks one policy.
async fn rig(deed: Deed, opinion_deadline: Dur) -> Rig {
    let doors = Doors::default();
    let told = listener(&doors, NODE).await;
    let make = move || Some(Box::new(Doer(deed.clone())) as Box<dyn ClusterPolicy>);
    let args = ControllerArgs {
        node: NODE.into(),
        doors,
        config: ControllerConfig { opinion_deadline, ..Default::default() },
        seed: 1,
        stand_in: false,
        policies: vec![Maker { config: PolicyConfig::new("doer".into()), make: Arc::new(make) }],
    };
    let (controller, _) = Actor::spawn(None, Controller, args).await.unwrap();
    for n in 0..2 {
        let info = WorkerInfo::unified(WorkerId::new(format!("w{n}").into(), 1), "m".into(), 1000, 9, 16);
        controller.cast(ControllerMsg::WorkerJoined(info)).unwrap();
    }
    Rig { controller, told }
}

impl Rig {
    /// Asks for a place and waits for it.
    async fn place(&mut self, number: u64) -> Plan {
        let request = PlaceRequest {
            request: RequestId::new(1, number),
            attempt: Attempt(0),
            model: "m".into(),
            prompt_tokens: 100,
            context_tokens: 100,
            max_tokens: 10,
            choices: 1,
            resumed: false,
            prompt_logprobs: false,
            avoid: Vec::new(),
            pin: None,
            hashes: Arc::default(),
            session: None,
            props: Arc::default(),
            deadline: Time::NEVER,
        };
        let ask = ToController::Place { gateway: NodeId::from(NODE), request };
        self.controller.cast(ControllerMsg::Wire(ask)).unwrap();
        loop {
            let told = tokio::time::timeout(Duration::from_secs(60), self.told.recv());
            match told.await.expect("it is placed").unwrap() {
                ToGateway::Placement(PlacementEffect::Placed { request, plan, .. })
                    if request.number == number =>
                {
                    return plan;
                }
                ToGateway::Placement(other) => panic!("{other:?}"),
                _ => {}
            }
        }
    }

    /// The request is over: its place is free.
    fn release(&self, number: u64) {
        let release = ToController::Release { request: RequestId::new(1, number), attempt: Attempt(0) };
        self.controller.cast(ControllerMsg::Wire(release)).unwrap();
    }

    async fn views(&self) -> Vec<PolicyView> {
        call_t!(self.controller, ControllerMsg::ObservePolicies, 60_000).unwrap()
    }
}

/// A policy that panics is left out of that request, counted and started again; requests go on with it and without.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_panics_costs_its_own_opinion() {
    // No answer can be late.
    let mut rig = rig(Deed::Panic, Dur::from_secs(3600)).await;
    for number in 1..=5 {
        let plan = rig.place(number).await;
        assert_eq!((plan.why, plan.stages.len()), ("least-loaded", 2), "{:?}", plan.stages);
        assert_eq!(plan.stages[0].action, "skipped");
        assert!(plan.stages[0].why.contains("failed"), "{}", plan.stages[0].why);
    }
    let views = rig.views().await;
    assert_eq!((views[0].asked, views[0].failed, views[0].late), (5, 5, 0));
    // It is back after its pause: then it is asked, and fails by itself again instead of not being there.
    for number in 6.. {
        let plan = rig.place(number).await;
        if plan.stages[0].why.contains("it failed") {
            break;
        }
        assert!(plan.stages[0].why.contains("restarted"), "{}", plan.stages[0].why);
        rig.release(number);
    }
}

/// A policy that thinks for ever holds up a request for `controller.opinion-deadline`, and no longer.
/// With one thread in the runtime, as on a machine with one core.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_policy_that_is_late_is_not_waited_for() {
    let (over, until) = blocking::sync_channel(0);
    let mut rig = rig(Deed::Wait(Arc::new(Mutex::new(until))), Dur::from_millis(20)).await;
    for number in 1..=3 {
        let plan = rig.place(number).await;
        assert_eq!((plan.why, &*plan.stages[0].action), ("least-loaded", "skipped"));
        assert!(plan.stages[0].why.contains("late"), "{}", plan.stages[0].why);
    }
    let views = rig.views().await;
    assert_eq!((views[0].asked, views[0].failed, views[0].late), (3, 0, 3));
    drop(over);
}
