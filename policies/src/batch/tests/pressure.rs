//! More sequences than pages: preemption, and what it must not change.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::driver::{Driver, config, id, prompt, request};
use crate::batch::BatchConfig;
use crate::request::{RequestSpec, ResumedChoice, Sampling};

#[test]
fn b110_nobody_is_preempted_more_than_three_times() {
    for prefix_cache in [true, false] {
        // 12 requests that grow from 3 to 10 pages, on 64.
        let config = BatchConfig { prefix_cache, ..config(16, 64) };
        let mut driver = Driver::new(&config);
        let specs: Vec<_> = (0..12).map(|i| request(&config, i, &prompt(i as u32, 40), 120)).collect();
        specs.iter().for_each(|s| driver.add(s));
        driver.run();
        let mut times = Vec::new();
        for spec in &specs {
            driver.expect_complete(spec);
            times.extend(driver.got(id(spec)).preempted.values().copied());
        }
        let load = driver.load();
        assert!(load.preemptions > 0 && times.iter().all(|t| *t <= 3), "{times:?}");
        let again = load.prefilled_tokens - 12 * 40;
        assert!(again * 2 < driver.engine.computed, "{again} of {} computed again", driver.engine.computed);
    }
}

#[test]
fn b110_the_bound_holds_under_a_stream_of_arrivals() {
    // Short prompts and long answers: admission is always too hopeful.
    for seed in 0..20 {
        let config =
            BatchConfig { watermark: 0.0, prefix_cache: seed % 2 == 0, ..config(2, 20 + seed as u32) };
        let mut driver = Driver::new(&config);
        let specs: Vec<_> =
            (0..60).map(|i| request(&config, i, &prompt(i as u32 % 7, 1 + i as u32 % 4), 30)).collect();
        for spec in &specs {
            driver.add(spec);
            driver.step();
        }
        driver.run();
        for spec in &specs {
            driver.expect_complete(spec);
            let times = driver.got(id(spec)).preempted.get(&0).copied().unwrap_or(0);
            assert!(times <= 3, "{} was preempted {times} times on {} pages", spec.id, config.pages);
        }
        assert!(driver.load().preemptions > 0);
    }
}

#[test]
fn b111_a_preempted_stream_has_no_gap_and_no_repetition() {
    // Two requests on pages for one and a bit: the older one takes the younger one's pages when it grows. The lengths
    // vary, so that the younger one is caught with outputs of different lengths around the page size.
    let page = 4_u32;
    let mut caught = BTreeSet::new();
    for (prefix_cache, lead) in [(true, 0), (true, 1), (false, 2), (true, 3), (false, 3)] {
        for len in 10..34 {
            let config = BatchConfig { prefix_cache, watermark: 0.0, ..config(page, 12) };
            let mut driver = Driver::new(&config);
            let sampling = Sampling {
                seed: 3,
                temperature: 1.0,
                presence_penalty: 0.5,
                logprobs: Some(2),
                ..Sampling::default()
            };
            let mut first = request(&config, 0, &prompt(0, 12 + lead), 26);
            let mut second = request(&config, 1, &prompt(1, len), 14);
            for spec in [&mut first, &mut second] {
                spec.sampling = Arc::new(sampling.clone());
                driver.add(spec);
            }
            let output = |driver: &Driver| driver.got(id(&second)).choices.get(&0).map_or(0, Vec::len);
            let mut before = 0;
            while driver.got(id(&second)).preempted.is_empty() && driver.got(id(&second)).done.is_none() {
                before = output(&driver);
                driver.step().unwrap();
            }
            if driver.got(id(&second)).done.is_none() {
                caught.insert(before as u32);
            }
            driver.run();
            driver.expect_complete(&first);
            driver.expect_complete(&second);
            let usage = driver.got(id(&second)).done.unwrap();
            assert_eq!(usage.drawn_tokens, 14);
            assert_eq!(
                driver.got(id(&first)).done.unwrap().preemptions,
                0,
                "the older one is never the victim"
            );
        }
    }
    assert!([1, page - 1, page, page + 1].iter().all(|n| caught.contains(n)), "{caught:?}");
}

#[test]
fn a_preempted_sequence_resumes_before_new_ones_and_reuses_what_is_left() {
    let config = BatchConfig { watermark: 0.0, ..config(4, 12) };
    let mut driver = Driver::new(&config);
    let old = request(&config, 0, &prompt(0, 16), 12);
    let young = request(&config, 1, &prompt(1, 16), 20);
    driver.add(&old);
    driver.add(&young);
    while driver.got(id(&young)).preempted.is_empty() {
        driver.step().unwrap();
    }
    let new = request(&config, 2, &prompt(2, 4), 2);
    driver.add(&new);
    driver.run();
    [&old, &young, &new].into_iter().for_each(|s| driver.expect_complete(s));
    let usage = driver.got(id(&young)).done.unwrap();
    assert_eq!(usage.cached_tokens, 0, "reuse at first admission only");
    assert!(usage.prefilled_tokens < 16 + 16, "pages that survived were reused: {usage:?}");
}

#[test]
fn prompt_logprobs_are_not_repeated_after_a_preemption() {
    let config = BatchConfig { watermark: 0.0, max_batch_tokens: 6, ..config(4, 14) };
    let mut driver = Driver::new(&config);
    let mut old = request(&config, 0, &prompt(0, 6), 24);
    old.sampling = Arc::new(Sampling { logprobs: Some(1), ..Sampling::default() });
    driver.add(&old);
    driver.step();
    let mut scored = request(&config, 1, &prompt(1, 45), 3);
    scored.prompt_logprobs = true;
    scored.resumed = vec![ResumedChoice::default(); 2];
    driver.add(&scored);
    driver.run();
    driver.expect_complete(&old);
    driver.expect_complete(&scored);
    let usage = driver.got(id(&scored)).done.unwrap();
    assert!(usage.preemptions > 0, "{usage:?}");
    assert!(usage.prefilled_tokens < 2 * 45, "scored pages are not computed again: {usage:?}");
}

#[test]
fn two_hundred_streams_on_few_pages_all_finish() {
    let config = config(16, 64);
    let mut driver = Driver::new(&config);
    let specs: Vec<RequestSpec> =
        (0..200).map(|i| request(&config, i, &prompt(i as u32 % 9, 8 + i as u32 % 40), 40)).collect();
    specs.iter().for_each(|s| driver.add(s));
    driver.run();
    specs.iter().for_each(|s| driver.expect_complete(s));
}
