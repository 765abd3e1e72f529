//! Prompts that another worker computes, and for which there are pages only when it begins, or later.

use super::*;

fn pair(p: u32, d: u32) -> Pair {
    let without = |pages| BatchConfig { watermark: 0.0, ..limits(pages) };
    Pair { late: true, ..Pair::new(&without(p), &without(d)) }
}

fn spec(number: u64, pages: u32, tokens: u32) -> RequestSpec {
    request(&limits(200), number, &prompt(number as u32, pages * PAGE), tokens)
}

/// A receiver whose memory is full of a request with `tokens` of output, which comes first, and a prompt that the sender has
/// gone on with for `steps` steps.
fn full(tokens: u32, steps: u32) -> (Pair, [RequestSpec; 2]) {
    let mut pair = pair(64, 16);
    let (own, late) = (spec(1, 12, tokens), spec(2, 8, 5));
    pair.d.add(&own);
    assert!(pair.d.step().is_some());
    pair.add(&late);
    for _ in 0..steps {
        pair.p.step();
        pair.news();
    }
    (pair, [own, late])
}

#[test]
fn a_prompt_that_waits_elsewhere_holds_no_pages() {
    let mut pair = pair(64, 64);
    let specs: Vec<RequestSpec> = (0..4).map(|n| spec(n, 6, 8)).collect();
    specs.iter().for_each(|spec| pair.add(spec));
    assert_eq!((pair.d.batch.set_aside().expected, pair.d.load().pages_used), (4, 0));
    assert_eq!(pair.d.load().waiting, 4);
    assert!(pair.p.step().is_some());
    pair.news();
    let aside = pair.d.batch.set_aside();
    // The first is computed, half of it, and nothing of the others.
    assert_eq!(
        (aside.expected, aside.receiving, aside.receiving_pages),
        (3, 1, 6),
        "at once, between two steps"
    );
    pair.run();
    specs.iter().for_each(|spec| pair.d.expect_complete(spec));
}

#[test]
fn memory_that_is_full_when_a_prompt_is_computed_takes_it_when_there_is_room() {
    let (mut pair, [own, late]) = full(12, 4);
    assert_eq!(pair.p.batch.set_aside().held, 1, "it is computed, and held");
    assert_eq!((pair.copied, pair.d.batch.set_aside().receiving), (0, 0));
    pair.run();
    [&own, &late].into_iter().for_each(|spec| pair.d.expect_complete(spec));
    assert_eq!((pair.copied, pair.d.load().prefilled_tokens), (8, u64::from(12 * PAGE)), "nothing twice");
}

#[test]
fn what_has_no_room_yet_takes_half_of_the_pages_and_keeps_nobody_out() {
    let mut pair = pair(40, 12);
    let specs: Vec<RequestSpec> = (0..10).map(|n| spec(n, 6, 4 * PAGE)).collect();
    specs.iter().for_each(|spec| pair.add(spec));
    // The receiver stands still.
    for _ in 0..40 {
        pair.p.step();
        pair.news();
    }
    let aside = pair.p.batch.set_aside();
    assert!(aside.held_pages > 12 && aside.held > 2 && aside.expected > 0, "{aside:?}");
    assert!(pair.p.load().pages_used <= 20 + 12, "half, and what is open: {:?}", pair.p.load());
    // One for a worker that has room is not kept from being computed by those that are for one without.
    let other = spec(77, 6, 4);
    pair.p.add_prefill(&other, true).unwrap();
    let mut done = false;
    for _ in 0..4 {
        pair.p.step();
        let is = |work: &KvWork| matches!(work, KvWork::Prefilled { request, .. } if *request == other.id);
        done |= pair.p.kv_work().iter().any(is);
    }
    assert!(done, "it waits behind what cannot go on");
    pair.p.cancel(id(&other));
    pair.run();
    specs.iter().for_each(|spec| pair.d.expect_complete(spec));
}

#[test]
fn an_open_prompt_that_needs_more_than_half_has_the_others_handed_back() {
    let config = BatchConfig { watermark: 0.0, ..limits(40) };
    let mut p = Driver::new(&config);
    for n in 0..3 {
        p.add_prefill(&spec(n, 6, 4), false).unwrap();
    }
    while p.step().is_some() {}
    assert_eq!(p.batch.set_aside().held, 3);
    p.kv_work();
    let big = spec(9, 30, 4);
    p.add_prefill(&big, true).unwrap();
    while p.step().is_some() {}
    let work = p.kv_work();
    let back: Vec<u64> = work
        .iter()
        .filter_map(|work| match work {
            KvWork::Dropped { request, reason: Some(_), .. } => Some(request.number),
            _ => None,
        })
        .collect();
    assert_eq!(back, [2, 1], "the last first, and no more than have to go");
    assert!(work.iter().any(|w| matches!(w, KvWork::Prefilled { request, .. } if *request == big.id)));
    assert_eq!(p.batch.set_aside().held, 2);
}

#[test]
fn a_request_that_is_called_off_while_it_waits_for_room_leaves_nothing() {
    for steps in 0..6 {
        let (mut pair, [own, late]) = full(20, steps);
        assert!(pair.d.cancel(id(&late)));
        pair.news();
        assert_eq!(pair.p.batch.set_aside(), Default::default());
        pair.run();
        pair.d.expect_complete(&own);
    }
}

/// The worker that computes dies: the other one computes, in its turn, whether it was begun or not.
#[test]
fn a_prompt_whose_worker_dies_while_there_is_no_room_is_computed_here() {
    for steps in 0..6 {
        let (mut pair, [own, late]) = full(8, steps);
        pair.p.cancel(id(&late));
        pair.p.kv_work();
        pair.fall_back(id(&late));
        pair.run();
        [&own, &late].into_iter().for_each(|spec| pair.d.expect_complete(spec));
    }
}

/// B48: what is cached by then is not asked for.
#[test]
fn little_that_is_missing_is_computed_at_once() {
    let mut pair = pair(64, 64);
    let first = spec(1, 4, 3);
    pair.add(&first);
    pair.run();
    let again = request(&limits(200), 2, &prompt(1, 4 * PAGE), 3);
    pair.d.add_expected(&again, 2 * PAGE);
    assert_eq!(pair.d.kv_work(), [KvWork::NotNeeded { request: again.id, attempt: again.attempt }]);
    pair.d.run();
    pair.d.expect_complete(&again);
}
