//! Who runs next by what a policy publishes, and who has to make room.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::RequestId;

use super::driver::{Driver, config, id, prompt, request};
use crate::batch::{BatchConfig, Refusal};
use crate::kv::page_hashes;
use crate::order::deadline::Deadline;
use crate::order::fair::Fair;
use crate::order::priority::{Priority, PriorityOptions};
use crate::request::{Prop, RequestSpec};
use crate::step::StepPlan;
use crate::time::Span;

fn with(mut spec: RequestSpec, name: &str, prop: Prop) -> RequestSpec {
    Arc::make_mut(&mut spec.props).insert(name.to_owned(), prop);
    spec
}

fn ranked(config: &BatchConfig, number: u64, priority: i64, len: u32, max: u32) -> RequestSpec {
    with(request(config, number, &prompt(number as u32, len), max), "priority", Prop::Int(priority))
}

fn of_tenant(config: &BatchConfig, mut spec: RequestSpec, tenant: &str) -> RequestSpec {
    spec.tenant = Some(tenant.into());
    let fingerprint = config.fingerprint.of_tenant(spec.tenant.as_ref());
    spec.hashes = page_hashes(&fingerprint, config.page_tokens, &spec.prompt).into();
    spec
}

fn numbers(plan: &StepPlan) -> Vec<u64> {
    plan.slices.iter().map(|s| s.seq.request.number).collect()
}

fn times(driver: &Driver, spec: &RequestSpec) -> u32 {
    driver.got(id(spec)).preempted.values().sum()
}

#[test]
fn b109_a_high_priority_starts_in_the_next_step_and_the_victim_goes_on_where_it_was() {
    for prefix_cache in [true, false] {
        let config = BatchConfig { max_running: 4, prefix_cache, ..config(4, 256) };
        let mut driver = Driver::new(&config);
        driver.order_by(Some(Box::new(Priority::default())));
        let long: Vec<_> = (0..4).map(|n| ranked(&config, n, 0, 12, 100)).collect();
        long.iter().for_each(|s| driver.add(s));
        (0..10).for_each(|_| assert!(driver.step().is_some()));
        let high = ranked(&config, 9, 10, 20, 5);
        driver.add(&high);
        let plan = driver.step().unwrap();
        assert!(numbers(&plan).contains(&9), "it starts in the next step: {:?}", numbers(&plan));
        assert_eq!(plan.slices.len(), 4);
        assert_eq!(times(&driver, &long[3]), 1, "of equals the youngest gives way");
        driver.run();
        long.iter().chain([&high]).for_each(|s| driver.expect_complete(s));
        assert_eq!(driver.load().preemptions, 1);
    }
}

#[test]
fn b109_equals_never_push_each_other_out() {
    let config = BatchConfig { max_running: 2, ..config(4, 256) };
    let mut driver = Driver::new(&config);
    driver.order_by(Some(Box::new(Priority::default())));
    let specs: Vec<_> = (0..10).map(|n| ranked(&config, n, 7, 10, 40)).collect();
    for spec in &specs {
        driver.add(spec);
        driver.step();
    }
    driver.run();
    specs.iter().for_each(|s| driver.expect_complete(s));
    assert_eq!(driver.load().preemptions, 0);
}

#[test]
fn pages_are_taken_from_the_lowest_and_only_if_that_helps() {
    let config = BatchConfig { watermark: 0.0, ..config(4, 20) };
    let mut driver = Driver::new(&config);
    driver.order_by(Some(Box::new(Priority::default())));
    let low = ranked(&config, 0, 1, 24, 10);
    let lowest = ranked(&config, 1, 0, 24, 10);
    let high = ranked(&config, 2, 5, 28, 4);
    [&low, &lowest].into_iter().for_each(|s| driver.add(s));
    driver.step();
    driver.add(&high);
    assert!(numbers(&driver.step().unwrap()).contains(&2));
    assert_eq!((times(&driver, &low), times(&driver, &lowest)), (0, 1));
    driver.run();
    // One that does not fit even then displaces nobody: an equal one holds the rest.
    let mut driver = Driver::new(&config);
    driver.order_by(Some(Box::new(Priority::default())));
    let equal = ranked(&config, 3, 5, 56, 4);
    let small = ranked(&config, 4, 0, 8, 4);
    let wide = ranked(&config, 5, 5, 24, 4);
    [&equal, &small].into_iter().for_each(|s| driver.add(s));
    driver.step();
    driver.add(&wide);
    assert!(!numbers(&driver.step().unwrap()).contains(&5));
    assert_eq!(driver.load().preemptions, 0);
    driver.run();
    [&equal, &small, &wide].into_iter().for_each(|s| driver.expect_complete(s));
}

#[test]
fn b110_nobody_is_displaced_more_than_three_times() {
    let config = BatchConfig { max_running: 2, ..config(4, 128) };
    let mut driver = Driver::new(&config);
    driver.order_by(Some(Box::new(Priority::default())));
    let low: Vec<_> = (0..2).map(|n| ranked(&config, n, 0, 8, 120)).collect();
    low.iter().for_each(|s| driver.add(s));
    for number in 10..30 {
        (0..5).for_each(|_| assert!(driver.step().is_some()));
        driver.add(&ranked(&config, number, 5, 4, 3));
    }
    driver.run();
    for spec in &low {
        driver.expect_complete(spec);
        assert_eq!(times(&driver, spec), 3, "then it is left alone");
    }
}

#[test]
fn age_protects_but_displaces_nobody() {
    let config = BatchConfig { max_running: 1, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    let age_every = Span::from_millis(10);
    driver
        .order_by(Some(Box::new(Priority::new(PriorityOptions { age_every, ..PriorityOptions::default() }))));
    let first = ranked(&config, 0, 1, 8, 60);
    let old = ranked(&config, 1, 0, 8, 60);
    driver.add(&first);
    driver.add(&old);
    // One step a millisecond: after fifty the waiting one counts as 5, which takes nothing from one of 1.
    (0..50).for_each(|_| assert_eq!(numbers(&driver.step().unwrap()), [0]));
    (0..10).for_each(|_| assert!(driver.step().is_some()));
    assert_eq!(numbers(&driver.step().unwrap()), [1]);
    // It began as 6 and yields to no 3, but to a 20.
    driver.add(&ranked(&config, 2, 3, 8, 2));
    assert_eq!(numbers(&driver.step().unwrap()), [1]);
    driver.add(&ranked(&config, 3, 20, 8, 2));
    assert_eq!(numbers(&driver.step().unwrap()), [3]);
    driver.run();
    [&first, &old].into_iter().for_each(|s| driver.expect_complete(s));
}

#[test]
fn without_preemption_only_the_order_changes() {
    let config = BatchConfig { max_running: 1, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    let options = PriorityOptions { preempt: false, ..PriorityOptions::default() };
    driver.order_by(Some(Box::new(Priority::new(options))));
    let specs = [(0, 0), (1, 0), (2, 9), (3, 5)].map(|(n, p)| ranked(&config, n, p, 8, 4));
    driver.add(&specs[0]);
    driver.step();
    specs[1..].iter().for_each(|s| driver.add(s));
    let mut order = vec![0];
    while let Some(plan) = driver.step() {
        order.extend(numbers(&plan));
    }
    order.dedup();
    assert_eq!((order, driver.load().preemptions), (vec![0, 2, 3, 1], 0));
}

#[test]
fn a_policy_that_is_gone_leaves_its_last_ranks() {
    let config = BatchConfig { max_running: 1, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    driver.order_by(Some(Box::new(Priority::default())));
    driver.add(&ranked(&config, 0, 50, 8, 10));
    driver.add(&ranked(&config, 1, 1, 8, 4));
    driver.add(&ranked(&config, 2, 3, 8, 4));
    driver.dead = true;
    driver.step();
    // Nobody ranks these: behind the others, in order of arrival, and nothing waits for a rank.
    driver.add(&ranked(&config, 3, 0, 8, 4));
    driver.add(&ranked(&config, 4, 9, 8, 4));
    let mut order = vec![0];
    while let Some(plan) = driver.step() {
        order.extend(numbers(&plan));
        if order.last() == Some(&3) {
            break;
        }
    }
    order.dedup();
    assert_eq!(order, [0, 2, 1, 3]);
    // Back again, it is told what is here.
    driver.dead = false;
    driver.order_by(Some(Box::new(Priority::default())));
    assert_eq!(numbers(&driver.step().unwrap()), [4], "the waiting 9 displaces the running 0");
    driver.run();
}

#[test]
fn a_new_policy_reorders_what_waits_and_leaves_what_runs() {
    let config = BatchConfig { max_running: 1, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    let specs: Vec<_> = [0, 1, 7, 3].into_iter().zip(0..).map(|(p, n)| ranked(&config, n, p, 8, 6)).collect();
    specs.iter().for_each(|s| driver.add(s));
    driver.step();
    let waiting = |driver: &Driver| -> Vec<u64> {
        driver.batch.waiting().map(|view| view.seq.request.number).collect()
    };
    assert_eq!(waiting(&driver), [1, 2, 3]);
    let calm = PriorityOptions { preempt: false, ..PriorityOptions::default() };
    driver.order_by(Some(Box::new(Priority::new(calm))));
    assert_eq!(waiting(&driver), [2, 3, 1]);
    assert_eq!(numbers(&driver.step().unwrap()), [0]);
    driver.order_by(Some(Box::new(Deadline::default())));
    assert_eq!(waiting(&driver), [1, 2, 3], "none has a deadline");
    driver.order_by(Some(Box::new(Fair::new(Default::default()))));
    driver.order_by(None);
    assert_eq!(waiting(&driver), [1, 2, 3]);
    driver.run();
    specs.iter().for_each(|s| driver.expect_complete(s));
    assert_eq!(driver.load().preemptions, 0);
}

/// Two tenants that flood the worker with prompts of different lengths: while both have requests waiting, they get the
/// same by weight.
#[test]
fn fair_tenants_share_the_batch_by_what_is_computed() {
    for (weight, share) in [(1000, 1.0), (2000, 2.0)] {
        let config = BatchConfig { max_running: 8, prefix_cache: false, ..config(16, 512) };
        let mut driver = Driver::new(&config);
        driver.silent = true;
        driver.order_by(Some(Box::new(Fair::new(Default::default()))));
        let mut service: BTreeMap<u64, u64> = BTreeMap::new();
        let mut owners: BTreeMap<RequestId, u64> = BTreeMap::new();
        let mut number = 0;
        for _ in 0..1500 {
            for (owner, tenant, len) in [(0, "a", 20), (1, "b", 120)] {
                let waits = driver.batch.waiting().filter(|v| owners[&v.seq.request] == owner).count();
                for _ in waits..12 {
                    let spec = request(&config, number, &prompt(number as u32 % 50, len), 8);
                    let mut spec = of_tenant(&config, spec, tenant);
                    spec.weight = if owner == 0 { weight } else { 1000 };
                    owners.insert(spec.id, owner);
                    driver.add(&spec);
                    number += 1;
                }
            }
            for slice in driver.step().unwrap().slices {
                let drawn = 2 * slice.draws.len() as u64;
                let prefill = if slice.tokens.len() > 1 { slice.tokens.len() as u64 } else { 0 };
                *service.entry(owners[&slice.seq.request]).or_default() += drawn + prefill;
            }
        }
        let ratio = service[&0] as f64 / service[&1] as f64 / share;
        assert!((0.9..1.1).contains(&ratio), "weight {weight}: {service:?}");
    }
}

#[test]
fn hopeless_work_is_refused_at_once_or_as_soon_as_it_is() {
    let config = BatchConfig { max_running: 1, max_batch_tokens: 64, ..config(4, 256) };
    let mut driver = Driver::new(&config);
    driver.order_by(Some(Box::new(Deadline::default())));
    let due = |number: u64, len: u32, ms: u64, driver: &Driver| {
        let mut spec = request(&config, number, &prompt(number as u32, len), 4);
        spec.deadline = driver.now + Span::from_millis(ms);
        with(spec, "deadline-ms", Prop::Int(ms as i64))
    };
    // Nothing is measured yet, so that nothing is refused.
    let first = due(0, 64, 1000, &driver);
    driver.add(&first);
    driver.step();
    // The model takes 1 ms a step of 64 tokens.
    let hopeless = due(1, 640, 5, &driver);
    let refused = driver.submit(&hopeless).unwrap_err();
    assert!(matches!(refused, Refusal::Hopeless { .. }), "{refused}");
    assert!(refused.to_string().contains("10.000ms") && refused.to_string().contains("5.000ms"), "{refused}");
    let cached = due(2, 64, 5, &driver);
    let cached = RequestSpec { prompt: first.prompt.clone(), hashes: first.hashes.clone(), ..cached };
    driver.add(&cached);
    // It could be done now, and waits too long for its turn.
    let waits = due(3, 512, 9, &driver);
    driver.add(&request(&config, 4, &prompt(4, 8), 40));
    driver.run();
    driver.expect_complete(&first);
    driver.expect_complete(&cached);
    drop(waits);
    let long = request(&config, 5, &prompt(5, 8), 40);
    driver.add(&long);
    driver.step();
    let waits = due(6, 512, 30, &driver);
    driver.add(&waits);
    // A request of its own limit is not refused, whatever the gateway's.
    let mut patient = request(&config, 7, &prompt(7, 512), 4);
    patient.deadline = driver.now + Span::from_secs(10);
    driver.add(&patient);
    for _ in 0..200 {
        if driver.step().is_none() {
            break;
        }
    }
    driver.expect_complete(&long);
    driver.expect_complete(&patient);
    let late = driver.got(id(&waits)).late.clone();
    assert!(late.is_some() || driver.got(id(&waits)).failed.is_some(), "{:?}", driver.got(id(&waits)));
}
