//! Who runs when, and that batch mates do not notice each other.

use super::driver::{Driver, config, id, prompt, request};
use crate::batch::BatchConfig;
use crate::step::StepPlan;

fn shape(plan: &StepPlan) -> Vec<(u64, usize)> {
    plan.slices.iter().map(|s| (s.seq.request.number, s.tokens.len())).collect()
}

#[test]
fn decodes_then_the_prefill_under_way_then_new_ones() {
    let config = BatchConfig { max_batch_tokens: 10, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    driver.add(&request(&config, 0, &prompt(0, 4), 50));
    assert_eq!(shape(&driver.step().unwrap()), [(0, 4)]);
    driver.add(&request(&config, 1, &prompt(1, 15), 50));
    driver.add(&request(&config, 2, &prompt(2, 4), 50));
    driver.add(&request(&config, 3, &prompt(3, 4), 50));
    assert_eq!(shape(&driver.step().unwrap()), [(0, 1), (1, 9)]);
    assert_eq!(shape(&driver.step().unwrap()), [(0, 1), (1, 6), (2, 3)]);
    assert_eq!(shape(&driver.step().unwrap()), [(0, 1), (1, 1), (2, 1), (3, 4)]);
    assert_eq!(shape(&driver.step().unwrap()), [(0, 1), (1, 1), (2, 1), (3, 1)]);
    driver.run();
}

#[test]
fn b112_a_long_prompt_never_keeps_a_decode_waiting() {
    let config = BatchConfig { max_context: 16_384, max_batch_tokens: 64, ..config(16, 1024) };
    let mut driver = Driver::new(&config);
    for number in 0..4 {
        driver.add(&request(&config, number, &prompt(number as u32, 20), 400));
    }
    while driver.load().running < 4 || driver.load().queued_prefill_tokens > 0 {
        driver.step();
    }
    driver.add(&request(&config, 9, &prompt(9, 8000), 4));
    let mut chunks = 0;
    while driver.load().queued_prefill_tokens > 0 {
        let plan = driver.plan().unwrap();
        let decodes = plan.slices.iter().filter(|s| s.seq.request.number < 4).count();
        assert_eq!(decodes, 4, "each stream gets a token in each step");
        assert!(plan.slices.iter().map(|s| s.tokens.len()).sum::<usize>() <= 64);
        // Attention over 8,000 tokens is slow in the model; the outcome is not looked at here.
        let draws = plan.slices.iter().flat_map(|s| s.draws.iter().map(move |d| (s.seq, d.choice)));
        let drawn = draws.map(|(seq, choice)| crate::step::Drawn {
            seq: crate::step::SeqKey { choice, ..seq },
            token: 1,
            logprobs: None,
        });
        let outcome =
            crate::step::StepOutcome { step: plan.step, drawn: drawn.collect(), ..Default::default() };
        driver.finish_step(&outcome);
        chunks += 1;
    }
    assert_eq!(chunks, 8000_u32.div_ceil(60));
}

/// Beside decodes a prompt is computed in small pieces, alone in pieces of a whole step; every step that has a prompt to
/// compute computes as much of it as it may.
#[test]
fn b112_a_prompt_beside_decodes_has_a_budget_of_its_own() {
    let config =
        BatchConfig { max_context: 16_384, max_batch_tokens: 64, max_mixed_tokens: 10, ..config(16, 1024) };
    let mut driver = Driver::new(&config);
    driver.add(&request(&config, 0, &prompt(0, 200), 9));
    let alone: Vec<_> = (0..4).map(|_| shape(&driver.step().unwrap())).collect();
    assert_eq!(alone, [[(0, 64)], [(0, 64)], [(0, 64)], [(0, 8)]], "nobody waits: whole steps");
    driver.add(&request(&config, 1, &prompt(1, 100), 3));
    driver.add(&request(&config, 2, &prompt(2, 100), 3));
    for _ in 0..8 {
        assert_eq!(shape(&driver.step().unwrap()), [(0, 1), (1, 10)], "beside a stream: small pieces");
    }
    assert_eq!(shape(&driver.step().unwrap()), [(1, 20), (2, 44)], "it has ended: whole steps again");
    assert_eq!(shape(&driver.step().unwrap()), [(1, 1), (2, 10)]);
    driver.run();
}

/// However many streams decode, prompts are computed, and each in a number of steps that its length bounds.
#[test]
fn prompts_beside_decodes_do_not_starve() {
    let config =
        BatchConfig { max_batch_tokens: 32, max_mixed_tokens: 8, max_running: 16, ..config(16, 1024) };
    let mut driver = Driver::new(&config);
    for number in 0..12 {
        driver.add(&request(&config, number, &prompt(number as u32, 4), 2000));
    }
    while driver.load().queued_prefill_tokens > 0 {
        driver.step().unwrap();
    }
    let late: Vec<_> = (0..3).map(|i| request(&config, 20 + i, &prompt(20 + i as u32, 64), 5)).collect();
    late.iter().for_each(|spec| driver.add(spec));
    let mut steps = 0;
    while driver.load().queued_prefill_tokens > 0 {
        let plan = driver.step().unwrap();
        assert_eq!(plan.slices.iter().filter(|s| s.seq.request.number < 12).count(), 12);
        steps += 1;
    }
    assert_eq!(steps, 3 * 64 / 8, "each step computes as much of them as it may");
    late.iter().for_each(|spec| {
        while driver.got(id(spec)).done.is_none() {
            driver.step().unwrap();
        }
    });
    late.iter().for_each(|spec| driver.expect_complete(spec));
}

#[test]
fn b107_different_lengths_run_together_and_nothing_is_computed_twice() {
    let config = config(4, 512);
    let mut driver = Driver::new(&config);
    let specs: Vec<_> = (1..=8).map(|i| request(&config, i, &prompt(i as u32, 10 * i as u32), 100)).collect();
    specs.iter().for_each(|s| driver.add(s));
    let mut steps = 0;
    while driver.step().is_some() {
        steps += 1;
    }
    specs.iter().for_each(|s| driver.expect_complete(s));
    assert_eq!(driver.load().prefilled_tokens, (1..=8).map(|i| 10 * i).sum::<u64>());
    assert_eq!(steps, 100, "all prompts in one step, then all decode together");
}

#[test]
fn b108_a_failed_slice_fails_alone() {
    let config = config(4, 512);
    let mut driver = Driver::new(&config);
    let specs: Vec<_> =
        (0..6).map(|i| request(&config, i, &prompt(i as u32, 5 + 3 * i as u32), 20)).collect();
    specs.iter().for_each(|s| driver.add(s));
    (0..5).for_each(|_| assert!(driver.step().is_some()));
    let plan = driver.plan().unwrap();
    let mut outcome = driver.engine.run(&plan);
    let bad = plan.slices[2].seq;
    outcome.failed.push((bad, "logits are not finite".to_owned()));
    outcome.drawn.retain(|d| d.seq != bad);
    // A sequence that the engine forgot fails alone too.
    outcome.drawn.retain(|d| d.seq != plan.slices[4].seq);
    driver.finish_step(&outcome);
    driver.run();
    for (i, spec) in specs.iter().enumerate() {
        match i {
            2 => assert_eq!(driver.got(id(spec)).failed.as_deref(), Some("logits are not finite")),
            4 => assert_eq!(
                driver.got(id(spec)).failed.as_deref(),
                Some("the engine drew no token for choice 0")
            ),
            _ => driver.expect_complete(spec),
        }
        driver.expect_prefix(spec, 0);
    }
}

#[test]
fn a_failed_step_fails_what_was_in_it_and_nothing_else() {
    let config = BatchConfig { max_running: 2, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    let specs: Vec<_> = (0..4).map(|i| request(&config, i, &prompt(i as u32, 6), 8)).collect();
    specs.iter().for_each(|s| driver.add(s));
    driver.step();
    let plan = driver.plan().unwrap();
    driver.fail_step(&plan);
    driver.fail_step(&plan);
    driver.run();
    for (i, spec) in specs.iter().enumerate() {
        if i < 2 {
            assert!(driver.got(id(spec)).failed.is_some());
        } else {
            driver.expect_complete(spec);
        }
    }
}

#[test]
fn a_big_request_is_not_overtaken_by_small_ones() {
    let config = config(4, 16);
    let mut driver = Driver::new(&config);
    driver.add(&request(&config, 0, &prompt(0, 8), 24));
    driver.step();
    driver.add(&request(&config, 1, &prompt(1, 56), 4));
    for number in 2..6 {
        driver.add(&request(&config, number, &prompt(number as u32, 4), 4));
    }
    let mut first_seen = Vec::new();
    while let Some(plan) = driver.step() {
        for (number, _) in shape(&plan) {
            if !first_seen.contains(&number) {
                first_seen.push(number);
            }
        }
    }
    assert_eq!(first_seen, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn the_running_limit_holds_and_a_free_slot_is_filled_in_the_next_step() {
    let config = BatchConfig { max_running: 3, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    for number in 0..7 {
        driver.add(&request(&config, number, &prompt(number as u32, 5), 4 + number as u32));
    }
    let mut sizes = Vec::new();
    while let Some(plan) = driver.step() {
        sizes.push(plan.slices.len());
    }
    assert!(sizes.iter().all(|s| *s <= 3));
    let full = sizes.iter().take_while(|s| **s == 3).count();
    assert!(full >= 4 + 7 && sizes[full..].iter().all(|s| *s < 3), "{sizes:?}");
}
