//! Several choices of one prompt, and choices that an earlier attempt began.

use std::sync::Arc;

use config::ids::Attempt;

use super::driver::{Driver, config, id, prompt, request};
use super::model::solo;
use crate::batch::BatchConfig;
use crate::request::{Finish, RequestSpec, ResumedChoice};

pub(super) fn with_choices(mut spec: RequestSpec, choices: usize) -> RequestSpec {
    spec.resumed = vec![ResumedChoice::default(); choices];
    spec
}

#[test]
fn choices_share_the_prompt_and_all_but_the_last_copy_its_partial_page() {
    let config = config(4, 64);
    for (len, copies) in [(6, 3), (8, 0), (1, 3)] {
        let mut driver = Driver::new(&config);
        let spec = with_choices(request(&config, 0, &prompt(0, len), 9), 4);
        driver.add(&spec);
        let plan = driver.step().unwrap();
        assert_eq!((plan.slices.len(), plan.slices[0].draws.len()), (1, 4));
        assert_eq!(driver.load().pages_used, len.div_ceil(4), "nothing is copied before it is written");
        let plan = driver.step().unwrap();
        assert_eq!((plan.slices.len(), plan.copies.len()), (4, copies));
        let copied = plan.copies.iter().map(|c| c.from).collect::<Vec<_>>();
        assert!(copied.windows(2).all(|w| w[0] == w[1]), "all copy the same page");
        assert_eq!(driver.load().pages_used, len / 4 + 4);
        driver.run();
        driver.expect_complete(&spec);
        assert_eq!(driver.engine.copies, copies as u64);
        assert_eq!(driver.load().prefilled_tokens, u64::from(len));
    }
}

#[test]
fn b42_a_request_for_one_token_gets_one() {
    let config = config(4, 64);
    for choices in [1, 2] {
        let mut driver = Driver::new(&config);
        let one = with_choices(request(&config, 0, &prompt(0, 8), 1), choices);
        let mut ends = with_choices(request(&config, 1, &prompt(0, 9), 50), choices);
        ends.end_tokens =
            (0..choices as u32).map(|c| solo(&ends, c, 999).tokens[0].0).collect::<Vec<_>>().into();
        let two = with_choices(request(&config, 2, &prompt(2, 8), 2), choices);
        [&one, &ends, &two].into_iter().for_each(|s| driver.add(s));
        driver.run();
        for (spec, tokens, finish) in
            [(&one, 1, Finish::Length), (&ends, 1, Finish::EndToken), (&two, 2, Finish::Length)]
        {
            driver.expect_complete(spec);
            for events in driver.got(id(spec)).choices.values() {
                assert_eq!(events.len(), tokens);
                assert_eq!(events.last().unwrap().finish, Some(finish));
            }
        }
        // Only the third request had anything to decode.
        assert_eq!(driver.engine.computed, driver.load().prefilled_tokens + choices as u64);
    }
}

#[test]
fn an_end_token_is_passed_over_where_asked() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    let mut spec = request(&config, 0, &prompt(0, 8), 30);
    spec.end_tokens = (0..29).collect::<Vec<_>>().into();
    spec.ignore_end = true;
    driver.add(&spec);
    driver.run();
    driver.expect_complete(&spec);
    assert_eq!(driver.got(id(&spec)).choices[&0].len(), 30);
}

#[test]
fn choices_that_do_not_fit_together_run_one_after_another() {
    // The prompt and one answer take 7 of the 8 pages.
    let config = config(4, 8);
    let mut driver = Driver::new(&config);
    let spec = with_choices(request(&config, 0, &prompt(0, 9), 18), 5);
    driver.add(&spec);
    driver.run();
    driver.expect_complete(&spec);
    let got = driver.got(id(&spec));
    assert!(got.preempted.values().all(|times| *times <= 3), "{:?}", got.preempted);
}

#[test]
fn choices_beyond_the_running_limit_wait_for_a_slot() {
    let config = BatchConfig { max_running: 2, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    let spec = with_choices(request(&config, 0, &prompt(0, 9), 6), 5);
    driver.add(&spec);
    driver.step();
    assert_eq!((driver.load().running, driver.load().waiting), (2, 3));
    driver.run();
    driver.expect_complete(&spec);
    assert_eq!(driver.load().preemptions, 0);
}

fn resumed(spec: &RequestSpec, kept: &[usize]) -> RequestSpec {
    let mut next = spec.clone();
    next.attempt = Attempt(1);
    for (choice, kept) in kept.iter().enumerate() {
        let alone = solo(spec, choice as u32, 4096);
        next.resumed[choice].tokens = alone.tokens[..*kept].iter().map(|t| t.0).collect();
    }
    next
}

#[test]
fn a_resumed_request_goes_on_where_each_choice_stopped() {
    let config = BatchConfig { max_batch_tokens: 16, ..config(4, 64) };
    for kept in [[0, 0, 0], [1, 0, 5], [3, 4, 5], [11, 2, 0]] {
        let mut driver = Driver::new(&config);
        let first = with_choices(request(&config, 0, &prompt(0, 30), 12), 3);
        let mut next = resumed(&first, &kept);
        next.resumed[2].ended = true;
        driver.add(&next);
        driver.run();
        driver.expect_complete(&next);
        assert_eq!(driver.got(id(&next)).choices[&0][0].index as usize, kept[0]);
        assert!(!driver.got(id(&next)).choices.contains_key(&2), "an ended choice gives nothing");
        // The prompt is computed once; the second choice has what follows the last full page.
        let tails = if kept[..2] == [0, 0] { 0 } else { kept[0] + 2 + kept[1] };
        assert_eq!(driver.load().prefilled_tokens as usize, 30 + tails, "{kept:?}");
    }
}

#[test]
fn resumed_choices_that_have_all_their_tokens_end_without_computation() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    let mut spec = with_choices(request(&config, 0, &prompt(0, 9), 5), 2);
    let full = resumed(&spec, &[5, 5]);
    driver.add(&full);
    assert!(driver.got(id(&full)).done.is_some());
    assert!(driver.plan().is_none());

    spec.end_tokens = Arc::new([solo(&spec, 0, 999).tokens[2].0]);
    spec.resumed.truncate(1);
    let len = solo(&spec, 0, 999).tokens.len();
    let ended = RequestSpec { attempt: Attempt(2), ..resumed(&spec, &[len]) };
    driver.add(&ended);
    assert!(driver.got(id(&ended)).done.is_some());
    driver.expect_idle();
}

#[test]
fn a_stopped_choice_is_silent_and_the_others_go_on() {
    let config = config(4, 64);
    for in_flight in [false, true] {
        let mut driver = Driver::new(&config);
        let spec = with_choices(request(&config, 0, &prompt(0, 9), 20), 3);
        let of = id(&spec);
        driver.add(&spec);
        (0..4).for_each(|_| assert!(driver.step().is_some()));
        let plan = driver.plan().unwrap();
        if in_flight {
            assert!(driver.cancel_choice(of, 1));
        }
        driver.complete(&plan);
        if !in_flight {
            assert!(driver.cancel_choice(of, 1));
        }
        assert!(!driver.cancel_choice(of, 1), "it has ended");
        assert!(!driver.cancel_choice(of, 3), "there is no such choice");
        let heard = driver.got(of).choices[&1].len();
        assert_eq!(heard, if in_flight { 4 } else { 5 });
        (0..3).for_each(|_| assert!(driver.step().is_some()));
        assert!(driver.cancel_choice(of, 0));
        driver.run();
        let got = driver.got(of);
        assert_eq!((got.choices[&1].len(), got.choices[&0].len()), (heard, 8));
        assert_eq!(driver.expect_prefix(&spec, 2), 20);
        assert!(got.done.is_some());
    }
}

#[test]
fn the_last_stopped_choice_ends_the_request() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    let spec = with_choices(request(&config, 0, &prompt(0, 9), 20), 2);
    driver.add(&spec);
    assert!(driver.cancel_choice(id(&spec), 0), "before its prompt is computed");
    driver.step();
    assert!(!driver.got(id(&spec)).choices.contains_key(&0));
    assert!(driver.cancel_choice(id(&spec), 1));
    assert_eq!(driver.got(id(&spec)).done.unwrap().drawn_tokens, 1);
    driver.expect_idle();

    let alone = with_choices(request(&config, 1, &prompt(0, 9), 20), 2);
    driver.add(&alone);
    assert!(driver.cancel_choice(id(&alone), 1) && driver.cancel_choice(id(&alone), 0));
    assert!(driver.got(id(&alone)).done.is_some());
    driver.expect_idle();
}
