//! Reuse of pages by content.

use super::driver::{Driver, config, id, prompt, request};
use crate::batch::BatchConfig;
use crate::request::Token;

fn cached(driver: &Driver, spec: &crate::request::RequestSpec) -> u32 {
    driver.got(id(spec)).done.unwrap().cached_tokens
}

#[test]
fn b78_equal_and_related_prompts_give_their_own_tokens() {
    for page_tokens in [1, 4, 16] {
        for len in [1, 15, 16, 17, 48] {
            for prefix_cache in [true, false] {
                let config = BatchConfig { prefix_cache, ..config(page_tokens, 600) };
                let mut driver = Driver::new(&config);
                let base = prompt(0, len);
                let extension = [base.clone(), prompt(1, 9)].concat();
                let sibling = [&base[..base.len() / 2], &prompt(2, 11)[..]].concat();
                let mut specs = Vec::new();
                for number in 0..5 {
                    specs.push(request(&config, number, &base, 20));
                    driver.add(&specs[number as usize]);
                    driver.run();
                    let hit =
                        if prefix_cache && number > 0 { (len - 1) / page_tokens * page_tokens } else { 0 };
                    assert_eq!(cached(&driver, &specs[number as usize]), hit);
                }
                for number in 5..20 {
                    let related = [&base[..], &extension, &sibling, &base[..1]][number as usize % 4];
                    let unrelated = prompt(number as u32, 10 + number as u32);
                    specs.push(request(&config, 2 * number, related, 20));
                    specs.push(request(&config, 2 * number + 1, &unrelated, 20));
                }
                specs[5..].iter().for_each(|s| driver.add(s));
                driver.run();
                specs.iter().for_each(|s| driver.expect_complete(s));
            }
        }
    }
}

#[test]
fn b49_the_last_token_of_a_fully_cached_prompt_is_computed_again() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    for (number, len, start) in [(0, 56, 52), (2, 55, 52), (4, 57, 56)] {
        let prompt = prompt(number as u32, len);
        let (first, second) =
            (request(&config, number, &prompt, 9), request(&config, number + 1, &prompt, 9));
        driver.add(&first);
        driver.run();
        driver.add(&second);
        let plan = driver.step().unwrap();
        assert_eq!((plan.slices[0].start, plan.slices[0].tokens.len() as u32), (start, len - start));
        assert_eq!(plan.slices[0].draws[0].position, len);
        driver.run();
        driver.expect_complete(&first);
        driver.expect_complete(&second);
    }
}

#[test]
fn b72_pages_that_were_found_are_not_evicted_for_the_request_that_found_them() {
    let config = BatchConfig { max_batch_tokens: 32, ..config(4, 24) };
    let mut driver = Driver::new(&config);
    let prefix = prompt(0, 80);
    driver.add(&request(&config, 0, &prefix, 1));
    driver.run();
    for number in 1..200 {
        let spec = request(&config, number, &[prefix.clone(), prompt(number as u32, 13)].concat(), 3);
        let other = request(&config, 1000 + number, &prompt(number as u32, 20), 4);
        driver.add(&spec);
        driver.add(&other);
        driver.run();
        driver.expect_complete(&spec);
        driver.expect_complete(&other);
    }
    assert!(driver.load().prefix_hits >= 80, "{:?}", driver.load());
}

#[test]
fn the_next_turn_of_a_conversation_finds_the_pages_of_the_answer() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    let first = request(&config, 0, &prompt(0, 10), 15);
    driver.add(&first);
    driver.run();
    let answer = driver.got(id(&first)).choices[&0].iter().map(|e| e.token);
    let turn: Vec<Token> = first.prompt.iter().copied().chain(answer).chain([7]).collect();
    let second = request(&config, 1, &turn, 5);
    driver.add(&second);
    driver.run();
    driver.expect_complete(&second);
    // 24 of the 25 tokens have keys and values: the last drawn token was never computed.
    assert_eq!(cached(&driver, &second), 24);
}

#[test]
fn an_equal_prompt_waits_for_the_one_that_is_being_computed() {
    let config = BatchConfig { max_batch_tokens: 8, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    let shared = prompt(0, 40);
    let (first, second) = (request(&config, 0, &shared, 4), request(&config, 1, &shared, 4));
    let other = request(&config, 2, &prompt(1, 6), 30);
    for spec in [&first, &second, &other] {
        driver.add(spec);
    }
    driver.run();
    [&first, &second, &other].into_iter().for_each(|s| driver.expect_complete(s));
    // Of the second prompt only the page with its last token was computed.
    assert_eq!(driver.load().prefilled_tokens, 40 + 4 + 6);
    assert_eq!(cached(&driver, &second), 36);
}

#[test]
fn a_waiting_equal_prompt_does_not_keep_others_from_running() {
    let config = BatchConfig { max_batch_tokens: 12, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    driver.add(&request(&config, 0, &prompt(0, 21), 4));
    driver.add(&request(&config, 1, &prompt(0, 21), 4));
    driver.add(&request(&config, 2, &prompt(1, 3), 4));
    driver.step();
    let plan = driver.step().unwrap();
    let numbers: Vec<u64> = plan.slices.iter().map(|s| s.seq.request.number).collect();
    assert_eq!(
        numbers,
        [0, 2],
        "the third runs in the tokens that are left while the second waits for a page"
    );
    driver.run();
}

#[test]
fn when_the_one_that_computes_is_gone_the_waiting_one_computes() {
    let config = BatchConfig { max_batch_tokens: 8, ..config(4, 64) };
    for in_flight in [false, true] {
        let mut driver = Driver::new(&config);
        let (first, second) =
            (request(&config, 0, &prompt(0, 40), 4), request(&config, 1, &prompt(0, 40), 4));
        driver.add(&first);
        driver.add(&second);
        driver.step();
        driver.step();
        let plan = driver.plan().unwrap();
        if in_flight {
            assert!(driver.cancel(id(&first)));
            driver.complete(&plan);
        } else {
            driver.complete(&plan);
            assert!(driver.cancel(id(&first)));
        }
        driver.run();
        driver.expect_complete(&second);
        assert_eq!(cached(&driver, &second), if in_flight { 16 } else { 24 }, "what was complete is reused");
    }
}

#[test]
fn a_page_is_found_only_after_the_step_that_filled_it() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    let (first, second) = (request(&config, 0, &prompt(0, 20), 4), request(&config, 1, &prompt(0, 20), 4));
    driver.add(&first);
    let plan = driver.plan().unwrap();
    driver.add(&second);
    driver.fail_step(&plan);
    assert_eq!(driver.got(id(&first)).failed.as_deref(), Some("the device is gone"));
    driver.run();
    driver.expect_complete(&second);
    assert_eq!(driver.load().prefix_hits, 0, "a failed step leaves nothing to find");
}

#[test]
fn prompt_logprobs_are_computed_in_full() {
    let config = BatchConfig { max_batch_tokens: 7, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    for number in 0..2 {
        let mut spec = request(&config, number, &prompt(0, 22), 4);
        spec.prompt_logprobs = true;
        driver.add(&spec);
        driver.run();
        driver.expect_complete(&spec);
        assert_eq!(cached(&driver, &spec), 0);
    }
    assert_eq!(driver.load().prefilled_tokens, 44);
    let plain = request(&config, 2, &prompt(0, 22), 4);
    driver.add(&plain);
    driver.run();
    assert_eq!(cached(&driver, &plain), 20, "others reuse what it computed");
}

#[test]
fn wrong_or_missing_hashes_cost_hits_and_nothing_else() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    driver.real_hashes = false;
    let mut wrong = request(&config, 0, &prompt(0, 20), 4);
    wrong.hashes = request(&config, 9, &prompt(1, 20), 4).hashes;
    let mut none = request(&config, 1, &prompt(0, 20), 4);
    none.hashes = [].into();
    let foreign = request(&config, 2, &prompt(1, 20), 4);
    for spec in [&wrong, &none, &foreign] {
        driver.add(spec);
        driver.run();
        driver.expect_complete(spec);
    }
    assert_eq!(driver.load().prefix_hits, 0);
    let again = request(&config, 3, &prompt(0, 20), 4);
    driver.add(&again);
    driver.run();
    assert_eq!(cached(&driver, &again), 16, "where hashes are missing, the scheduler computes them");
}
