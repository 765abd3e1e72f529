//! Requests that are called off, at any moment.

use std::sync::Arc;

use config::ids::{Attempt, RequestId};

use super::driver::{Driver, config, id, prompt, request};
use crate::batch::BatchConfig;
use crate::request::ResumedChoice;
use crate::rng::Rng;

#[test]
fn b29_cancel_takes_exactly_the_attempt_that_it_names() {
    let config = config(4, 128);
    let mut driver = Driver::new(&config);
    let mut specs = Vec::new();
    for (gateway, number, attempt) in [(1, 1, 0), (1, 1, 1), (1, 11, 0), (1, 12, 0), (11, 1, 0), (0, 1, 0)] {
        let mut spec = request(&config, number, &prompt(number as u32, 6), 12);
        spec.id = RequestId::new(gateway, number);
        spec.attempt = Attempt(attempt);
        spec.resumed = vec![ResumedChoice::default(); 3];
        driver.add(&spec);
        specs.push(spec);
    }
    assert!(!driver.cancel((RequestId::new(1, 2), Attempt(0))));
    assert!(!driver.cancel((RequestId::new(1, 1), Attempt(2))));
    (0..3).for_each(|_| assert!(driver.step().is_some()));
    assert!(driver.cancel(id(&specs[0])));
    assert!(!driver.cancel(id(&specs[0])));
    let heard: usize = driver.got(id(&specs[0])).choices.values().map(Vec::len).sum();
    driver.run();
    specs[1..].iter().for_each(|s| driver.expect_complete(s));
    let got = driver.got(id(&specs[0]));
    assert_eq!(got.choices.values().map(Vec::len).sum::<usize>(), heard, "all three choices are silent");
    assert!(got.done.is_none() && got.failed.is_none());
}

#[test]
fn pages_of_a_cancelled_request_are_fenced_until_the_step_is_over() {
    let config = config(4, 32);
    for fails in [false, true] {
        let mut driver = Driver::new(&config);
        let (gone, stays) = (request(&config, 0, &prompt(0, 10), 20), request(&config, 1, &prompt(1, 6), 20));
        driver.add(&gone);
        driver.step();
        let plan = driver.plan().unwrap();
        assert!(driver.cancel(id(&gone)));
        driver.add(&stays);
        assert_eq!(driver.load().pages_used, 3, "the engine may still write to them");
        assert!(!driver.batch.is_idle());
        if fails {
            driver.fail_step(&plan);
        } else {
            driver.complete(&plan);
        }
        let load = driver.load();
        assert_eq!((load.pages_used, load.pages_cached), (0, 2), "free at once; full pages stay findable");
        driver.run();
        driver.expect_complete(&stays);
        assert_eq!(driver.got(id(&gone)).choices[&0].len(), 1);
    }
}

#[test]
fn a_cancelled_attempt_can_come_again_while_its_step_is_in_flight() {
    let config = config(4, 32);
    let mut driver = Driver::new(&config);
    let spec = request(&config, 0, &prompt(0, 10), 5);
    driver.add(&spec);
    driver.step();
    let plan = driver.plan().unwrap();
    assert!(driver.cancel(id(&spec)));
    driver.add(&spec);
    driver.complete(&plan);
    assert!(
        driver.got(id(&spec)).choices.is_empty(),
        "tokens of the cancelled run are not those of the new one"
    );
    driver.run();
    driver.expect_complete(&spec);
}

#[test]
fn b28_nothing_leaks_whenever_a_request_is_called_off() {
    let mut rng = Rng::new(28);
    let config = BatchConfig { max_batch_tokens: 24, max_running: 8, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    for round in 0..1000_u64 {
        let live: Vec<_> = (0..30)
            .map(|i| {
                let salt = rng.below(6) as u32;
                let mut spec =
                    request(&config, round * 100 + i, &prompt(salt, 10 + rng.below(12) as u32), 10);
                spec.resumed = vec![ResumedChoice::default(); 1 + rng.below(2) as usize];
                spec.end_tokens = Arc::new([3]);
                driver.add(&spec);
                id(&spec)
            })
            .collect();
        let mut left = live;
        while !left.is_empty() {
            let plan = driver.plan();
            let in_flight = rng.below(2) == 0;
            if in_flight && plan.is_some() {
                driver.cancel(left.swap_remove(rng.below(left.len() as u64) as usize));
            }
            if let Some(plan) = plan {
                driver.complete(&plan);
            }
            if !left.is_empty() {
                driver.cancel(left.swap_remove(rng.below(left.len() as u64) as usize));
            }
        }
        driver.expect_idle();
    }
}
