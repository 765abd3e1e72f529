//! What is refused, what is clamped, and what has to be ignored.

use config::ids::{Attempt, RequestId};

use super::driver::{Driver, config, id, prompt, request};
use crate::batch::{Batch, BatchConfig, Refusal};
use crate::request::{Finish, RequestSpec};
use crate::step::StepOutcome;
use crate::time::{Span, Time};

#[test]
fn b10_the_window_is_kept() {
    let config = BatchConfig { max_context: 512, ..config(16, 64) };
    let mut driver = Driver::new(&config);
    for len in [512, 513] {
        let refused = driver.submit(&request(&config, 0, &prompt(0, len), 100)).unwrap_err();
        assert_eq!(refused, Refusal::TooLong { prompt: len, window: 512 });
        assert!(refused.to_string().contains(&len.to_string()) && refused.to_string().contains("512"));
    }
    for (number, len, max_tokens, tokens) in [(1, 500, 100, 12), (2, 500, u32::MAX, 12), (3, 511, 7, 1)] {
        let spec = request(&config, number, &prompt(number as u32, len), max_tokens);
        driver.add(&spec);
        driver.run();
        driver.expect_complete(&spec);
        let events = &driver.got(id(&spec)).choices[&0];
        assert_eq!((events.len(), events.last().unwrap().finish), (tokens, Some(Finish::Length)));
    }
}

#[test]
fn pages_that_hold_less_than_the_window_are_the_window() {
    let config = config(4, 5);
    assert_eq!(config.window(), 20);
    let mut driver = Driver::new(&config);
    let refused = driver.submit(&request(&config, 0, &prompt(0, 20), 1)).unwrap_err();
    assert_eq!(refused, Refusal::NeverFits { needed: 6, pages: 5, page_tokens: 4 });
    let specs: Vec<_> = (0..3).map(|i| request(&config, i, &prompt(i as u32, 9), 1000)).collect();
    specs.iter().for_each(|s| driver.add(s));
    driver.run();
    for spec in &specs {
        driver.expect_complete(spec);
        assert_eq!(driver.got(id(spec)).choices[&0].len(), 11);
    }
}

#[test]
fn b106_the_defaults_hold_many_long_requests() {
    // 16 requests of 1,000 + 200 tokens need 75 pages each.
    let config = config(16, 16 * 75 + 13);
    assert_eq!(config.concurrent(1200), 16);
    let mut driver = Driver::new(&config);
    for number in 0..16 {
        driver.add(&request(&config, number, &prompt(number as u32, 1000), 200));
    }
    let mut steps = 0;
    while let Some(plan) = driver.plan() {
        let draws = plan.slices.iter().flat_map(|s| s.draws.iter().map(move |d| (s.seq, d.choice)));
        let drawn = draws.map(|(seq, choice)| crate::step::Drawn {
            seq: crate::step::SeqKey { choice, ..seq },
            token: 1,
            logprobs: None,
        });
        driver.finish_step(&StepOutcome { step: plan.step, drawn: drawn.collect(), ..Default::default() });
        steps += 1;
    }
    driver.expect_idle();
    assert_eq!(driver.load().preemptions, 0);
    assert!(steps < 2 * (16 * 1000 / 512 + 200), "far fewer steps than one after another: {steps}");
}

#[test]
fn malformed_requests_and_a_full_or_draining_worker_are_said_so() {
    let config = BatchConfig { max_waiting: 2, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    assert!(matches!(driver.submit(&request(&config, 0, &[], 4)), Err(Refusal::Malformed(_))));
    let none = RequestSpec { resumed: vec![], ..request(&config, 0, &prompt(0, 4), 4) };
    assert!(matches!(driver.submit(&none), Err(Refusal::Malformed(_))));
    let spec = request(&config, 0, &prompt(0, 4), 4);
    driver.add(&spec);
    assert!(matches!(driver.submit(&spec), Err(Refusal::Malformed(_))));
    driver.add(&RequestSpec { attempt: Attempt(1), ..spec.clone() });
    assert_eq!(driver.submit(&request(&config, 1, &prompt(0, 4), 4)), Err(Refusal::QueueFull { waiting: 2 }));
    driver.step();
    driver.batch.drain();
    assert_eq!(driver.submit(&request(&config, 1, &prompt(0, 4), 4)), Err(Refusal::Draining));
    driver.run();
    driver.expect_complete(&spec);
    driver.expect_complete(&RequestSpec { attempt: Attempt(1), ..spec });
}

#[test]
fn no_tokens_asked_for_is_done_at_once_or_when_the_prompt_is_scored() {
    let config = BatchConfig { max_batch_tokens: 5, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    let nothing = request(&config, 0, &prompt(0, 13), 0);
    driver.add(&nothing);
    assert!(driver.got(id(&nothing)).done.is_some());
    let mut scored = request(&config, 1, &prompt(0, 13), 0);
    scored.prompt_logprobs = true;
    driver.add(&scored);
    driver.run();
    let got = driver.got(id(&scored));
    assert_eq!(got.prompt, super::model::solo_prompt(&scored));
    assert_eq!(got.prompt.len(), 12);
    assert!(got.choices.is_empty() && got.done.unwrap().drawn_tokens == 0);
}

#[test]
fn a_request_whose_deadline_passes_in_the_queue_is_dropped() {
    let config = BatchConfig { max_running: 1, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    let due = |number, ms| {
        let mut spec = request(&config, number, &prompt(number as u32, 6), 20);
        spec.deadline = Time::ZERO + Span::from_millis(ms);
        spec
    };
    let (runs, late, patient) = (due(0, 5), due(1, 5), due(2, 9000));
    [&runs, &late, &patient].into_iter().for_each(|s| driver.add(s));
    (0..8).for_each(|_| assert!(driver.step().is_some()));
    let reason = driver.got(id(&late)).failed.clone().unwrap();
    assert!(reason.contains("deadline"), "{reason}");
    driver.run();
    driver.expect_complete(&runs);
    driver.expect_complete(&patient);
    assert!(driver.got(id(&late)).choices.is_empty());
}

#[test]
fn outcomes_of_other_steps_and_of_strangers_are_ignored() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    let spec = request(&config, 0, &prompt(0, 6), 5);
    driver.add(&spec);
    driver.finish_step(&StepOutcome { step: 1, ..StepOutcome::default() });
    let plan = driver.plan().unwrap();
    assert_eq!(plan.step, 1);
    driver.finish_step(&StepOutcome { step: 2, ..StepOutcome::default() });
    assert!(driver.plan().is_none(), "still in flight");
    let mut outcome = driver.engine.run(&plan);
    let mut stranger = outcome.drawn[0].clone();
    stranger.seq.request = RequestId::new(8, 8);
    outcome.failed.push((stranger.seq, "unknown".to_owned()));
    outcome.drawn.insert(0, stranger);
    driver.finish_step(&outcome);
    driver.finish_step(&outcome);
    driver.run();
    driver.expect_complete(&spec);
}

#[test]
fn limits_of_zero_are_taken_as_one() {
    let zero = BatchConfig {
        max_batch_tokens: 0,
        max_running: 0,
        max_waiting: 0,
        page_tokens: 0,
        pages: 40,
        ..config(1, 1)
    };
    let batch = Batch::new(zero);
    let config = batch.config().clone();
    let mut driver = Driver::new(&config);
    let spec = request(&config, 0, &prompt(0, 6), 5);
    driver.add(&spec);
    driver.run();
    driver.expect_complete(&spec);
    let mut none = Driver::new(&BatchConfig { pages: 0, ..config });
    assert!(matches!(none.submit(&spec), Err(Refusal::NeverFits { pages: 0, .. })));
    assert!(none.plan().is_none());
}
