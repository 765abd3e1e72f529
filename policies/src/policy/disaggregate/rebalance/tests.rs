use super::*;
use crate::batch::BatchLoad;
use crate::kv::PageLayout;
use crate::placement::{KvPeer, WorkerInfo};
use crate::policy::testing;

const UNIFIED: WorkerRole = WorkerRole::Unified;
const PREFILL: WorkerRole = WorkerRole::Prefill;
const DECODE: WorkerRole = WorkerRole::Decode;

const OPTIONS: RebalanceOptions = RebalanceOptions {
    high: 2.0,
    low: 0.5,
    after: Span::from_secs(10),
    pause: Span::from_secs(60),
    least_tokens: 100,
};

/// A worker with so many prompt tokens waiting and tokens to draw, which may be switched.
fn worker(n: u64, role: WorkerRole, waiting: u64, drawing: u64) -> WorkerView {
    let layout = PageLayout { page_tokens: 16, layers: 2, kv_heads: 1, head_dim: 8, element_bytes: 2 };
    let kv = KvPeer { address: format!("h:{n}"), fingerprint: Fingerprint([7; 32]), layout };
    let info = WorkerInfo::clone(&testing::row(n).info);
    WorkerView {
        info: WorkerInfo { role, switchable: true, kv: Some(kv), ..info },
        draining: false,
        load: BatchLoad {
            queued_prefill_tokens: waiting,
            outstanding_tokens: waiting + drawing,
            ..BatchLoad::default()
        },
        booked: 0,
        booked_tokens: 0,
        handoffs: 0,
        handoff_tokens: 0,
        foreign: 0,
        placed: 0,
    }
}

fn seconds(s: u64) -> Time {
    Time::ZERO + Span::from_secs(s)
}

/// What is proposed at that second, as name and role.
fn at(state: &mut Rebalance, second: u64, workers: &[WorkerView]) -> Option<(String, WorkerRole)> {
    let mut actions = Vec::new();
    state.tick(seconds(second), &OPTIONS, workers, &mut actions);
    assert!(actions.len() <= 1, "{actions:?}");
    actions.pop().map(|PolicyAction::SwitchRole { worker, role, why }| {
        assert!(why.contains("rebalance-"), "{why}");
        (worker.node.to_string(), role)
    })
}

/// What is proposed when this has lasted.
fn lasting(workers: &[WorkerView]) -> Option<(String, WorkerRole)> {
    let mut state = Rebalance::default();
    assert_eq!(at(&mut state, 0, workers), None, "at once");
    assert_eq!(at(&mut state, 9, workers), None, "too soon");
    at(&mut state, 10, workers)
}

/// Prefill lacks workers; `drawing` of each unified one is as given.
fn starved(drawing: &[u64]) -> Vec<WorkerView> {
    let unified = drawing.iter().zip(1..).map(|(drawing, n)| worker(n, UNIFIED, 0, *drawing));
    std::iter::once(worker(0, PREFILL, 1000, 0)).chain(unified).collect()
}

fn to_prefill(name: &str) -> Option<(String, WorkerRole)> {
    Some((name.to_owned(), PREFILL))
}

#[test]
fn a_want_that_lasts_moves_the_worker_that_is_soonest_free() {
    assert_eq!(lasting(&starved(&[300, 100, 200])), to_prefill("w2"));
    // 1000 to 500 each is just the threshold.
    assert_eq!(lasting(&starved(&[400, 600])), None);
    assert_eq!(lasting(&starved(&[400, 598])), to_prefill("w1"));
    // What is on its way counts before it is reported.
    let mut booked = starved(&[0, 0]);
    booked[0] = WorkerView { handoff_tokens: 150, ..worker(0, PREFILL, 0, 0) };
    assert_eq!(lasting(&booked), to_prefill("w1"));
    // Prompts that decode workers compute for want of room are no load of theirs.
    let local = [worker(0, PREFILL, 1000, 0), worker(1, DECODE, 5000, 100), worker(2, DECODE, 5000, 200)];
    assert_eq!(lasting(&local), to_prefill("w1"));
}

#[test]
fn few_tokens_are_no_want() {
    let few = [worker(0, PREFILL, 99, 0), worker(1, UNIFIED, 0, 1), worker(2, UNIFIED, 0, 1)];
    assert_eq!(lasting(&few), None);
    let few = [worker(0, PREFILL, 0, 0), worker(1, PREFILL, 0, 0), worker(2, DECODE, 0, 99)];
    assert_eq!(lasting(&few), None);
}

#[test]
fn decode_gets_workers_back_as_what_is_there() {
    let idle = |n| worker(n, PREFILL, 0, 0);
    let busy = |n, role| worker(n, role, 0, 1000);
    let wants = |others: &[WorkerView]| lasting(&[&[idle(0), idle(1)], others].concat());
    assert_eq!(wants(&[busy(2, DECODE)]), Some(("w0".to_owned(), DECODE)));
    assert_eq!(wants(&[busy(2, UNIFIED)]), Some(("w0".to_owned(), UNIFIED)));
    assert_eq!(wants(&[busy(2, DECODE), busy(3, UNIFIED)]), Some(("w0".to_owned(), UNIFIED)));
    // The one with less to do.
    let working = [worker(0, PREFILL, 40, 0), idle(1), busy(2, DECODE)];
    assert_eq!(lasting(&working), Some(("w1".to_owned(), DECODE)));
    // 1000 to 500 is within the thresholds, of which the lower is not passed.
    assert_eq!(lasting(&[worker(0, PREFILL, 1000, 0), idle(1), busy(2, DECODE)]), None);
}

#[test]
fn the_last_of_a_side_stays_and_so_does_who_may_not_be_switched() {
    assert_eq!(lasting(&starved(&[10])), None);
    assert_eq!(lasting(&[worker(0, PREFILL, 0, 0), worker(1, DECODE, 0, 1000)]), None);
    // Nobody computes prompts for others here: there is nothing to compare.
    assert_eq!(lasting(&[worker(0, UNIFIED, 5000, 0), worker(1, UNIFIED, 0, 10)]), None);
    let mut fixed = starved(&[10, 20]);
    fixed[1].info.switchable = false;
    assert_eq!(lasting(&fixed), to_prefill("w2"));
    fixed[2].info.switchable = false;
    assert_eq!(lasting(&fixed), None);
    // One that drains is not there.
    let mut draining = starved(&[10, 20]);
    draining[2].draining = true;
    assert_eq!(lasting(&draining), None);
    // Nor is one with other pages.
    let mut other = starved(&[10, 20]);
    other[2].info.kv.as_mut().unwrap().fingerprint = Fingerprint([8; 32]);
    assert_eq!(lasting(&other), None);
    other[2].info.kv = None;
    assert_eq!(lasting(&other), None);
    // Of one decode worker and two unified ones a unified one goes, however busy.
    let mixed = [&starved(&[300, 200])[..], &[worker(3, DECODE, 0, 10)]].concat();
    assert_eq!(lasting(&mixed), to_prefill("w2"));
}

#[test]
fn a_break_begins_the_time_anew() {
    let mut state = Rebalance::default();
    let (want, calm) = (starved(&[100, 100]), starved(&[900, 900]));
    assert_eq!(at(&mut state, 0, &want), None);
    assert_eq!(at(&mut state, 8, &calm), None);
    assert_eq!(at(&mut state, 9, &want), None);
    assert_eq!(at(&mut state, 18, &want), None);
    assert_eq!(at(&mut state, 19, &want), to_prefill("w1"));
    // From one want straight to the other.
    let mut state = Rebalance::default();
    let reverse = [
        worker(0, PREFILL, 0, 0),
        worker(1, UNIFIED, 0, 900),
        worker(2, UNIFIED, 0, 900),
        worker(3, PREFILL, 0, 0),
    ];
    assert_eq!(at(&mut state, 0, &want), None);
    assert_eq!(at(&mut state, 9, &reverse), None);
    assert_eq!(at(&mut state, 18, &reverse), None);
    assert_eq!(at(&mut state, 19, &reverse), Some(("w0".to_owned(), UNIFIED)));
}

#[test]
fn after_a_change_there_is_a_pause() {
    let mut state = Rebalance::default();
    let want = starved(&[100, 100, 100]);
    at(&mut state, 0, &want);
    assert_eq!(at(&mut state, 10, &want), to_prefill("w1"));
    // Also where nothing came of it, as in shadow.
    for second in 11..70 {
        assert_eq!(at(&mut state, second, &want), None, "{second}");
    }
    assert_eq!(at(&mut state, 70, &want), None);
    assert_eq!(at(&mut state, 80, &want), to_prefill("w1"));

    // Whoever asked for it: while a worker changes, and for the pause after it has.
    let mut state = Rebalance::default();
    let mut changing = want.clone();
    changing[1].info.switching_to = Some(PREFILL);
    at(&mut state, 0, &want);
    for second in 5..30 {
        assert_eq!(at(&mut state, second, &changing), None);
    }
    let mut changed = want.clone();
    changed[1].info.role = PREFILL;
    for second in 30..100 {
        assert_eq!(at(&mut state, second, &changed), None, "{second}");
    }
    assert_eq!(at(&mut state, 100, &changed), to_prefill("w2"));
}

#[test]
fn each_kind_of_pages_is_looked_at_for_itself() {
    let mut others = starved(&[100, 100]);
    for (n, other) in others.iter_mut().enumerate() {
        other.info.id = WorkerId::new(format!("x{n}").as_str().into(), 1);
        other.info.kv.as_mut().unwrap().fingerprint = Fingerprint([8; 32]);
    }
    let all = [starved(&[200, 100]), others].concat();
    let mut state = Rebalance::default();
    let mut actions = Vec::new();
    state.tick(seconds(0), &OPTIONS, &all, &mut actions);
    state.tick(seconds(10), &OPTIONS, &all, &mut actions);
    let names: Vec<&str> =
        actions.iter().map(|PolicyAction::SwitchRole { worker, .. }| worker.node.as_str()).collect();
    assert_eq!(names, ["w2", "x1"]);
}

#[test]
fn the_configuration_says_when() {
    let mut table = DisaggregateConfig::default();
    assert_eq!(RebalanceOptions::configured(&table), None);
    table.rebalance = true;
    let options = RebalanceOptions {
        high: 2.0,
        low: 0.1,
        after: Span::from_secs(30),
        pause: Span::from_secs(120),
        least_tokens: 1024,
    };
    assert_eq!(RebalanceOptions::configured(&table), Some(options));
}
