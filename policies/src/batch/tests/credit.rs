//! Clients that do not read: they stop themselves and nobody else.

use config::ids::{Attempt, RequestId};

use super::choices::with_choices;
use super::driver::{Driver, config, id, prompt, request};
use super::model::solo;
use crate::batch::BatchConfig;
use crate::request::RequestSpec;
use crate::rng::Rng;
use crate::time::Time;

/// A request whose choices may produce `credit` tokens unread.
fn on_credit(config: &BatchConfig, number: u64, len: u32, max_tokens: u32, credit: u32) -> RequestSpec {
    RequestSpec { credit, ..request(config, number, &prompt(number as u32, len), max_tokens) }
}

/// Steps until nothing can run; how many.
fn exhaust(driver: &mut Driver) -> u32 {
    (0..10_000).find(|_| driver.step().is_none()).expect("it goes on for ever")
}

fn heard(driver: &Driver, spec: &RequestSpec, choice: u32) -> usize {
    driver.received.get(&id(spec)).and_then(|r| r.choices.get(&choice)).map_or(0, Vec::len)
}

#[test]
fn a_choice_stops_at_its_credit_and_goes_on_where_it_was() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    let spec = on_credit(&config, 0, 10, 12, 5);
    driver.add(&spec);
    assert_eq!(exhaust(&mut driver), 5, "a step a token");
    assert_eq!(heard(&driver, &spec, 0), 5);
    let load = driver.load();
    assert_eq!((load.running, load.waiting, load.paused), (0, 0, 1));
    assert!(load.pages_used >= 3 && !driver.batch.is_idle(), "it keeps its place: {load:?}");
    assert_eq!(driver.batch.paused().map(|s| (s.output, s.computed)).collect::<Vec<_>>(), [(5, 14)]);

    let of = id(&spec);
    for (request, attempt, choice, upto) in [
        (of.0, of.1, 0, 5),
        (of.0, of.1, 1, 99),
        (of.0, Attempt(1), 0, 99),
        (RequestId::new(9, 9), of.1, 0, 99),
    ] {
        assert!(!driver.grant((request, attempt), choice, upto));
        assert!(driver.plan().is_none(), "{request} {attempt} {choice} {upto}");
    }
    assert!(driver.grant(of, 0, 7));
    assert!(!driver.grant(of, 0, 6), "what was granted stays");
    assert_eq!((exhaust(&mut driver), heard(&driver, &spec, 0)), (2, 7));
    // In flight, a grant comes in time for the next step.
    driver.grant(of, 0, 8);
    let plan = driver.plan().unwrap();
    driver.grant(of, 0, 99);
    driver.complete(&plan);
    assert_eq!(driver.load().running, 1);
    driver.run();
    driver.expect_complete(&spec);
    assert_eq!(
        (driver.load().prefilled_tokens, driver.load().preemptions),
        (10, 0),
        "nothing is computed twice"
    );
}

#[test]
fn a_limit_or_an_end_token_within_the_credit_needs_no_grant() {
    let config = config(4, 64);
    for credit in [3, 4, 0] {
        let mut driver = Driver::new(&config);
        let limited = on_credit(&config, 0, 6, 3, credit);
        let mut ends = on_credit(&config, 1, 6, 30, credit);
        ends.end_tokens = [solo(&ends, 0, 999).tokens[2].0].into();
        driver.add(&limited);
        driver.add(&ends);
        driver.run();
        driver.expect_complete(&limited);
        driver.expect_complete(&ends);
    }
}

#[test]
fn a_stalled_client_takes_no_slot_and_no_time_from_others() {
    // As many stalled ones as there are slots.
    for stalled in [0, 2] {
        let config = BatchConfig { max_running: 2, ..config(4, 256) };
        let mut driver = Driver::new(&config);
        let idle: Vec<_> = (0..stalled).map(|n| on_credit(&config, n, 10, 40, 4)).collect();
        idle.iter().for_each(|s| driver.add(s));
        assert_eq!(exhaust(&mut driver), if stalled == 0 { 0 } else { 4 });
        let before = driver.engine.computed;
        let others: Vec<_> = (10..16).map(|n| on_credit(&config, n, 8, 20, 0)).collect();
        others.iter().for_each(|s| driver.add(s));
        assert_eq!(exhaust(&mut driver), 3 * 20, "two at a time, whoever stalls");
        assert_eq!(driver.engine.computed - before, 6 * (8 + 19));
        others.iter().for_each(|s| driver.expect_complete(s));
        assert_eq!(u64::from(driver.load().paused), stalled);
        idle.iter().for_each(|s| assert!(driver.grant(id(s), 0, 40)));
        driver.run();
        idle.iter().for_each(|s| driver.expect_complete(s));
    }
}

#[test]
fn a_granted_choice_takes_the_next_slot_before_new_ones() {
    let config = BatchConfig { max_running: 1, ..config(4, 256) };
    let mut driver = Driver::new(&config);
    let (slow, busy, new) =
        (on_credit(&config, 0, 8, 8, 3), on_credit(&config, 1, 8, 6, 0), on_credit(&config, 2, 8, 6, 0));
    driver.add(&slow);
    exhaust(&mut driver);
    driver.add(&busy);
    driver.add(&new);
    driver.step();
    driver.grant(id(&slow), 0, 8);
    let load = driver.load();
    assert_eq!((load.running, load.paused, load.waiting), (1, 1, 1));
    while driver.got(id(&slow)).done.is_none() {
        driver.step().unwrap();
        assert_eq!(heard(&driver, &new, 0), 0);
    }
    driver.run();
    [&slow, &busy, &new].into_iter().for_each(|s| driver.expect_complete(s));
}

#[test]
fn paused_ones_give_up_their_pages_first_and_resume_by_recompute() {
    // Each takes 5 of the 12 pages in the end; two that stall leave no room for a third.
    let config = BatchConfig { watermark: 0.0, ..config(4, 12) };
    let mut driver = Driver::new(&config);
    let (first, last) = (on_credit(&config, 0, 16, 4, 2), on_credit(&config, 1, 16, 4, 2));
    driver.add(&first);
    driver.add(&last);
    exhaust(&mut driver);
    assert_eq!((driver.load().pages_used, driver.load().paused), (10, 2));
    // For admission: one gives way, the one that came last.
    let new = on_credit(&config, 2, 12, 9, 0);
    driver.add(&new);
    driver.step().unwrap();
    assert_eq!(driver.got(id(&last)).preempted[&0], 1);
    assert!(driver.got(id(&first)).preempted.is_empty());
    // For growth: the other one, and not the one that runs.
    let long = on_credit(&config, 3, 8, 20, 0);
    driver.add(&long);
    exhaust(&mut driver);
    for spec in [&new, &long] {
        driver.expect_complete(spec);
        assert!(driver.got(id(spec)).preempted.is_empty());
    }
    assert_eq!(driver.got(id(&first)).preempted[&0], 1);
    let load = driver.load();
    assert_eq!(
        (load.paused, load.waiting, load.pages_used),
        (2, 0, 0),
        "it does not wait for what it cannot use"
    );
    let before = load.prefilled_tokens;
    driver.grant(id(&last), 0, 4);
    assert_eq!((driver.load().paused, driver.load().waiting), (1, 1));
    exhaust(&mut driver);
    driver.expect_complete(&last);
    assert!(driver.load().prefilled_tokens > before);
    driver.grant(id(&first), 0, 3);
    driver.grant(id(&first), 0, 4);
    driver.run();
    driver.expect_complete(&first);
}

#[test]
fn nobody_is_evicted_for_a_request_that_does_not_fit_even_so() {
    let config = BatchConfig { watermark: 0.0, ..config(4, 12) };
    let mut driver = Driver::new(&config);
    let (slow, busy) = (on_credit(&config, 0, 8, 8, 2), on_credit(&config, 1, 16, 5, 0));
    let big = on_credit(&config, 2, 36, 2, 0);
    driver.add(&slow);
    exhaust(&mut driver);
    driver.add(&busy);
    driver.step();
    driver.add(&big);
    driver.step();
    assert!(driver.got(id(&slow)).preempted.is_empty());
    exhaust(&mut driver);
    driver.expect_complete(&big);
    assert_eq!(driver.got(id(&slow)).preempted[&0], 1, "when it fits, it does");
    driver.grant(id(&slow), 0, 8);
    driver.run();
    driver.expect_complete(&slow);
}

#[test]
fn under_page_pressure_everyone_else_finishes() {
    for (seed, prefix_cache) in [(0, true), (1, false), (2, true), (3, false)] {
        let config = BatchConfig { watermark: 0.01, prefix_cache, ..config(4, 24) };
        let mut driver = Driver::new(&config);
        let specs: Vec<_> = (0..40)
            .map(|n| on_credit(&config, n, 5 + (n as u32 * 7 + seed) % 9, 24, if n % 2 == 0 { 6 } else { 0 }))
            .collect();
        for spec in &specs {
            driver.add(spec);
            driver.step();
        }
        exhaust(&mut driver);
        let (stalled, others): (Vec<_>, Vec<_>) = specs.iter().partition(|s| s.credit > 0);
        for spec in others {
            driver.expect_complete(spec);
            let times = driver.got(id(spec)).preempted.get(&0).copied().unwrap_or(0);
            assert!(times <= 3, "{} was preempted {times} times", spec.id);
        }
        assert!(stalled.iter().all(|s| heard(&driver, s, 0) == 6));
        for upto in [12, 18, 24] {
            stalled.iter().for_each(|s| assert!(driver.grant(id(s), 0, upto)));
            exhaust(&mut driver);
            assert!(stalled.iter().all(|s| heard(&driver, s, 0) == upto as usize));
        }
        stalled.iter().for_each(|s| driver.expect_complete(s));
        driver.expect_idle();
    }
}

#[test]
fn b110_the_bound_on_preemptions_holds_whoever_stalls_and_goes_on() {
    let (mut preempted, mut evicted) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let config = BatchConfig {
            watermark: 0.0,
            prefix_cache: seed % 2 == 0,
            ..config(2, 20 + rng.below(20) as u32)
        };
        let mut driver = Driver::new(&config);
        let specs: Vec<_> = (0..60)
            .map(|n| on_credit(&config, n, 1 + rng.below(5) as u32, 30, rng.below(2) as u32 * 4))
            .collect();
        let mut waiting = specs.iter();
        while !driver.batch.is_idle() || waiting.len() > 0 {
            if let Some(spec) = waiting.next() {
                driver.add(spec);
            }
            let ran = driver.step().is_some();
            // A few clients read, more of them where nothing else happens.
            for _ in 0..if ran { 2 } else { 20 } {
                let spec = &specs[rng.below(60) as usize];
                let upto = heard(&driver, spec, 0) as u32 + 3;
                driver.grant(id(spec), 0, upto);
            }
        }
        for spec in &specs {
            driver.expect_complete(spec);
            let times = driver.got(id(spec)).preempted.get(&0).copied().unwrap_or(0);
            if spec.credit > 0 {
                evicted += times;
            } else {
                assert!(times <= 3, "seed {seed}: {} was preempted {times} times", spec.id);
                preempted += times;
            }
        }
        driver.expect_idle();
    }
    assert!(preempted > 100 && evicted > 1000, "dull: {preempted} preempted, {evicted} evicted");
}

#[test]
fn choices_have_credit_of_their_own() {
    // Also where there are fewer slots than choices, and where the first token is all that is granted.
    for (credit, max_running) in [(1, 8), (1, 1), (3, 8), (3, 2)] {
        let config = BatchConfig { max_running, ..config(4, 64) };
        let mut driver = Driver::new(&config);
        let spec = with_choices(on_credit(&config, 0, 9, 10, credit), 4);
        let of = id(&spec);
        driver.add(&spec);
        exhaust(&mut driver);
        (0..4).for_each(|c| assert_eq!(heard(&driver, &spec, c), credit as usize));
        assert_eq!(driver.load().paused, 4);
        driver.grant(of, 2, 10);
        exhaust(&mut driver);
        assert_eq!((heard(&driver, &spec, 2), heard(&driver, &spec, 1)), (10, credit as usize));
        assert!(driver.cancel_choice(of, 1), "a paused one can be stopped");
        (0..4).for_each(|c| _ = driver.grant(of, c, 10));
        driver.run();
        [0, 2, 3].into_iter().for_each(|c| assert_eq!(driver.expect_prefix(&spec, c), 10));
        assert!(driver.got(of).done.is_some());
    }
}

#[test]
fn a_resumed_choice_has_what_its_client_has_not_read_counted() {
    let config = config(4, 64);
    for (kept, unread, credit, more) in [(6, 0, 4, 4), (6, 4, 4, 0), (6, 1, 4, 3), (6, 6, 4, 0), (0, 0, 4, 4)]
    {
        let mut driver = Driver::new(&config);
        let mut spec = with_choices(on_credit(&config, 0, 9, 20, credit), 2);
        spec.attempt = Attempt(1);
        for choice in 0..2 {
            let alone = solo(&spec, choice as u32, 999).tokens;
            spec.resumed[choice].tokens = alone[..kept].iter().map(|t| t.0).collect();
            spec.resumed[choice].unread = unread;
        }
        driver.add(&spec);
        exhaust(&mut driver);
        assert_eq!((heard(&driver, &spec, 0), heard(&driver, &spec, 1)), (more, more), "{kept} {unread}");
        let held = driver.load().pages_used;
        assert_eq!(held > 0, more > 0, "without credit it is not even prefilled");
        (0..2).for_each(|c| assert!(driver.grant(id(&spec), c, 20)));
        driver.run();
        driver.expect_complete(&spec);
    }
}

/// How a paused request ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Cancel,
    LastChoice,
    Deadline,
    StepFailed,
}

#[test]
fn paused_requests_end_in_every_way_and_leave_nothing() {
    for end in [End::Cancel, End::LastChoice, End::Deadline, End::StepFailed] {
        for (evicted, in_flight) in [(false, false), (false, true), (true, false), (true, true)] {
            let config = BatchConfig { watermark: 0.0, ..config(4, 8) };
            let mut driver = Driver::new(&config);
            let mut spec = with_choices(on_credit(&config, 0, 10, 9, 2), 2);
            spec.deadline = Time(200_000_000);
            let of = id(&spec);
            driver.add(&spec);
            exhaust(&mut driver);
            assert_eq!(driver.batch.next_deadline(), Some(spec.deadline));
            if evicted {
                let big = on_credit(&config, 1, 30, 2, 0);
                driver.add(&big);
                exhaust(&mut driver);
                driver.expect_complete(&big);
                assert_eq!((driver.load().pages_used, driver.load().paused), (0, 2));
            }
            let other = on_credit(&config, 2, 3, 4, 0);
            let flight = in_flight.then(|| {
                driver.add(&other);
                let plan = driver.plan().unwrap();
                assert_eq!(driver.batch.next_deadline(), None, "it is looked at after the step");
                plan
            });
            match end {
                End::Cancel => assert!(driver.cancel(of)),
                End::LastChoice => (0..2).for_each(|c| assert!(driver.cancel_choice(of, c))),
                End::Deadline => driver.now = spec.deadline,
                // Its mate runs in the step that fails.
                End::StepFailed => _ = driver.grant(of, 0, 9),
            }
            if let Some(plan) = flight {
                driver.complete(&plan);
            }
            if end == End::StepFailed {
                let plan = driver.plan().unwrap();
                assert!(plan.slices.iter().all(|s| (s.seq.request, s.seq.choice) != (of.0, 1)));
                driver.fail_step(&plan);
            }
            exhaust(&mut driver);
            assert!(!driver.grant(of, 0, 99), "{end:?}: it is not there any more");
            driver.expect_idle();
            let got = driver.got(of);
            let want = match end {
                End::Cancel => (false, false),
                End::LastChoice => (true, false),
                End::Deadline | End::StepFailed => (false, true),
            };
            assert_eq!((got.done.is_some(), got.failed.is_some()), want, "{end:?}: {got:?}");
        }
    }
}

#[test]
fn a_deadline_that_passed_while_a_mate_ran_still_counts() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    let mut spec = with_choices(on_credit(&config, 0, 10, 9, 2), 2);
    spec.deadline = Time(6_000_000);
    driver.add(&spec);
    exhaust(&mut driver);
    driver.grant(id(&spec), 0, 9);
    while driver.now < spec.deadline {
        driver.step().unwrap();
    }
    assert!(driver.got(id(&spec)).failed.is_none(), "what runs is the gateway's to call off");
    exhaust(&mut driver);
    let reason = driver.got(id(&spec)).failed.clone().unwrap();
    assert!(reason.contains("deadline"), "{reason}");
    driver.expect_idle();
}

#[test]
fn a_draining_worker_waits_for_its_paused_requests() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    let spec = on_credit(&config, 0, 10, 9, 2);
    driver.add(&spec);
    exhaust(&mut driver);
    driver.batch.drain();
    assert!(driver.plan().is_none() && !driver.batch.is_idle());
    driver.grant(id(&spec), 0, 9);
    driver.run();
    driver.expect_complete(&spec);
}

#[test]
fn outstanding_work_counts_what_is_expected_and_falls_to_nothing() {
    let config = BatchConfig { max_running: 2, ..config(4, 600) };
    let mut driver = Driver::new(&config);
    // A limit beyond what is expected, several choices, one out of credit, one that waits.
    let long = on_credit(&config, 0, 10, 2000, 0);
    let many = with_choices(on_credit(&config, 1, 20, 8, 3), 3);
    let waits = with_choices(on_credit(&config, 2, 30, 5, 0), 2);
    driver.add(&long);
    assert_eq!(driver.load().outstanding_tokens, 10 + 256);
    driver.add(&many);
    driver.add(&waits);
    assert_eq!(driver.load().outstanding_tokens, (10 + 256) + (20 + 3 * 8) + (30 + 2 * 5));
    assert_eq!((driver.load().requests, driver.load().waiting), (3, 3));
    driver.cancel_choice(id(&waits), 1);
    assert_eq!(driver.load().outstanding_tokens, (10 + 256) + (20 + 3 * 8) + (30 + 5));
    driver.step();
    driver.cancel(id(&long));
    exhaust(&mut driver);
    let load = driver.load();
    assert_eq!(
        (load.requests, load.paused, load.outstanding_tokens),
        (1, 3, 3 * 5),
        "what is paused comes still"
    );
    (0..3).for_each(|c| _ = driver.grant(id(&many), c, 8));
    driver.run();
    assert_eq!((driver.load().requests, driver.load().outstanding_tokens), (0, 0));
}

#[test]
fn b110_room_that_is_promised_counts_paused_ones() {
    // Together they need 17 of the 12 pages.
    let config = BatchConfig { watermark: 0.0, ..config(4, 12) };
    let mut driver = Driver::new(&config);
    let (slow, often) = (on_credit(&config, 0, 8, 32, 2), on_credit(&config, 1, 8, 20, 0));
    driver.add(&slow);
    exhaust(&mut driver);
    driver.add(&often);
    for _ in 0..3 {
        driver.step().unwrap();
        let key = driver.batch.running[0];
        driver.batch.preempt(key);
    }
    driver.step().unwrap();
    driver.grant(id(&slow), 0, 32);
    driver.run();
    [&slow, &often].into_iter().for_each(|s| driver.expect_complete(s));
    assert_eq!(driver.got(id(&often)).preempted[&0], 3);
}
