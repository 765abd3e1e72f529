//! Prompts that leave the queue for another worker, and come back to it.

use super::*;
use crate::batch::WaitingPrompt;
use crate::order::fair::Fair;
use crate::order::{OrderEvent, Ranks, RequestKey, WorkerPolicy};

impl Pair {
    /// A request of the receiving end alone, so far.
    fn here(&mut self, number: u64, len: u32) -> RequestSpec {
        let spec = request(self.d.batch.config(), number, &prompt(number as u32, len), 5);
        self.d.add(&spec);
        spec
    }

    pub(super) fn leave(&mut self, key: RequestKey) -> bool {
        let left = self.d.with(|d, now| d.offload(now, key.request, key.attempt));
        let Some(spec) = left else { return false };
        self.streams.insert(id(&spec), Stream::reserved(spec));
        self.news();
        true
    }

    /// The first tokens that the receiving end gives, in order.
    fn first_tokens(&mut self) -> Vec<u64> {
        let mut order = Vec::new();
        for _ in 0..1000 {
            let stepped = self.step();
            let got = self.d.received.iter().filter(|(_, got)| !got.choices.is_empty());
            let new: Vec<u64> = got.map(|(of, _)| of.0.number).filter(|n| !order.contains(n)).collect();
            order.extend(new);
            if !stepped {
                break;
            }
        }
        order
    }
}

fn key_of(spec: &RequestSpec) -> RequestKey {
    RequestKey { request: spec.id, attempt: spec.attempt }
}

/// Which prompts may leave, by number, with what is ahead of each.
fn waiting(driver: &mut Driver, least: u32, over: u64) -> Vec<(u64, u64)> {
    let found: Vec<WaitingPrompt> = driver.with(|d, _| d.waiting_prompts(least, over));
    found.iter().map(|prompt| (prompt.key.request.number, prompt.ahead)).collect()
}

#[test]
fn a_prompt_that_waits_is_computed_elsewhere() {
    let mut pair = Pair::one(200);
    let first = pair.here(1, 5 * CHUNK);
    assert_eq!(waiting(&mut pair.d, 1, 0), [], "nothing is before it");
    pair.step();
    let second = pair.here(2, 4 * CHUNK + 3);
    let third = pair.here(3, 2 * CHUNK);
    let (left, all) = (u64::from(4 * CHUNK), u64::from(8 * CHUNK + 3));
    assert_eq!(waiting(&mut pair.d, 1, 0), [(2, left), (3, all)]);
    assert_eq!(waiting(&mut pair.d, 3 * CHUNK, 0), [(2, left)], "the other is short");
    assert_eq!(waiting(&mut pair.d, 1, left), [(3, all)], "the other does not wait for long");
    assert!(pair.leave(key_of(&second)));
    assert!(!pair.leave(key_of(&second)), "twice");
    assert!(!pair.leave(key_of(&first)), "it runs");
    assert_eq!(waiting(&mut pair.d, 1, 0), [(3, left)]);
    pair.run();
    [&first, &second, &third].into_iter().for_each(|spec| pair.d.expect_complete(spec));
    assert_eq!(pair.d.load().prefilled_tokens, u64::from(7 * CHUNK));
    assert_eq!(pair.p.load().prefilled_tokens, u64::from(4 * CHUNK + 3));
}

#[test]
fn a_prompt_that_comes_back_keeps_its_place_and_what_came_of_it() {
    // The one that falls back overtakes nobody, however far it had come; so does one that is refused at once.
    for steps in 0..6 {
        let mut pair = Pair::one(400);
        let specs: Vec<RequestSpec> = (1..=4).map(|number| pair.here(number, 6 * CHUNK)).collect();
        pair.step();
        let third = id(&specs[2]);
        assert!(pair.leave(key_of(&specs[2])));
        (0..steps).for_each(|_| _ = pair.step());
        let there = pair.streams[&third].there;
        assert!(there == 0 || steps > 0);
        pair.p.cancel(third);
        pair.fall_back(third);
        assert!(!pair.leave(key_of(&specs[2])), "once is enough");
        assert_eq!(pair.first_tokens(), [1, 2, 3, 4], "after {steps} steps");
        pair.run();
        specs.iter().for_each(|spec| pair.d.expect_complete(spec));
        assert_eq!(pair.d.load().prefilled_tokens, u64::from(4 * 6 * CHUNK - there));
        let load = pair.d.load();
        assert_eq!(load.prefix_queries, u64::from(4 * 6 * CHUNK), "each is looked up once");
        assert_eq!(load.prefix_hits, 0, "what was received was not cached");
    }
}

#[test]
fn it_takes_no_room_from_those_before_it() {
    let long = 6 * CHUNK;
    let pages = long / PAGE;
    // Room for the one that runs and the two that wait, or for a page less; one is left free for growth.
    for (all, leaves) in [(3 * pages + 1, true), (3 * pages, false)] {
        let mut pair = Pair::one(all);
        let specs: Vec<RequestSpec> = (1..=3).map(|number| pair.here(number, long)).collect();
        pair.step();
        let last = u64::from(2 * long - CHUNK) - 1;
        let found = waiting(&mut pair.d, 1, last);
        assert_eq!(found.len(), usize::from(leaves), "{found:?}");
        found.iter().for_each(|_| assert!(pair.leave(key_of(&specs[2]))));
        pair.run();
        specs.iter().for_each(|spec| pair.d.expect_complete(spec));
    }
    // Nor a slot.
    let config = BatchConfig { max_running: 2, ..limits(400) };
    let mut pair = Pair::new(&config, &config);
    (1..=3).for_each(|number| _ = pair.here(number, long));
    pair.step();
    assert_eq!(waiting(&mut pair.d, 1, u64::from(long)), []);
    assert_eq!(waiting(&mut pair.d, 1, 0).len(), 1);
    pair.run();
}

/// Running sequences grow into the pages of a prompt that is away before any of them gives up its own.
#[test]
fn a_prompt_is_called_back_for_those_that_run() {
    let mut pair = Pair::one(26);
    let mut grows = request(&limits(26), 1, &prompt(1, 4 * PAGE), 60);
    grows.ignore_end = true;
    pair.d.add(&grows);
    (0..3).for_each(|_| _ = pair.d.step());
    let second = pair.here(2, 10 * PAGE);
    pair.d.step();
    let third = pair.here(3, 10 * PAGE);
    assert!(pair.leave(key_of(&third)));
    while pair.d.got(id(&grows)).done.is_none() {
        assert!(pair.d.step().is_some());
    }
    assert_eq!(pair.d.load().preemptions, 0);
    pair.news();
    assert!(pair.streams.is_empty(), "the other worker need not go on");
    pair.run();
    [&grows, &second, &third].into_iter().for_each(|spec| pair.d.expect_complete(spec));
    assert_eq!(pair.d.load().prefilled_tokens, u64::from(24 * PAGE));
}

/// What comes before it gets its pages, although the room that was left has gone to others since.
#[test]
fn a_prompt_is_called_back_for_those_before_it() {
    for later in [false, true] {
        let mut pair = Pair::one(56);
        let mut grows = request(&limits(56), 1, &prompt(1, 4 * PAGE), 60);
        grows.ignore_end = true;
        pair.d.add(&grows);
        (0..3).for_each(|_| _ = pair.d.step());
        let second = pair.here(2, 30 * PAGE);
        pair.d.step();
        let (third, fourth);
        if later {
            fourth = pair.here(4, 10 * PAGE);
            assert!(pair.leave(key_of(&fourth)));
            third = pair.here(3, 10 * PAGE);
        } else {
            third = pair.here(3, 10 * PAGE);
            fourth = pair.here(4, 10 * PAGE);
            assert!(pair.leave(key_of(&fourth)));
        }
        while pair.d.got(id(&second)).choices.is_empty() {
            assert!(pair.d.step().is_some());
        }
        (0..4).for_each(|_| _ = pair.d.step());
        assert_eq!(pair.d.got(id(&third)).choices.is_empty(), later, "who came later waits");
        pair.news();
        pair.run();
        [&grows, &second, &third, &fourth].into_iter().for_each(|spec| pair.d.expect_complete(spec));
        assert_eq!(pair.d.load().preemptions, 0);
    }
}

#[test]
fn what_cannot_leave_stays() {
    let mut pair = Pair::one(400);
    let first = pair.here(1, 6 * CHUNK);
    pair.step();
    let config = limits(400);
    let all = |number| request(&config, number, &prompt(number as u32, 4 * CHUNK), 5);
    let scored = RequestSpec { prompt_logprobs: true, ..all(2) };
    let mut two = all(3);
    two.resumed = vec![ResumedChoice { tokens: vec![1], ..ResumedChoice::default() }; 2];
    // What it needs is being computed.
    let shared = request(&config, 4, &[&first.prompt[..], &[7; 40]].concat(), 5);
    for spec in [&scored, &two, &shared] {
        pair.d.add(spec);
    }
    assert_eq!(waiting(&mut pair.d, 1, 0), []);
    assert!(!pair.leave(key_of(&scored)) && !pair.leave(key_of(&two)));
    pair.d.add_received(&all(5), 1);
    pair.streams.insert(id(&all(5)), Stream::reserved(all(5)));
    pair.d.add_prefill(&all(6), true).unwrap();
    assert_eq!(waiting(&mut pair.d, 1, 0), [], "what comes from elsewhere, and what is for another");
    pair.d.cancel(id(&all(6)));
    pair.news();
    pair.run();
}

/// The other worker is asked for what came before too, whatever of it the client has read.
#[test]
fn a_request_that_goes_on_leaves_with_its_output() {
    let mut d = Driver::new(&limits(400));
    d.add(&request(&limits(400), 1, &prompt(1, 6 * CHUNK), 5));
    d.step();
    let mut spec = RequestSpec { credit: 4, ..request(&limits(400), 2, &prompt(2, 4 * CHUNK), 9) };
    let tokens = super::super::model::solo(&spec, 0, 4096).tokens[..3].iter().map(|t| t.0).collect();
    spec.resumed[0] = ResumedChoice { tokens, ended: false, unread: 3 };
    d.add(&spec);
    assert_eq!(waiting(&mut d, 1, 0).len(), 1);
    let asked = d.with(|d, now| d.offload(now, spec.id, spec.attempt)).unwrap();
    spec.resumed[0].unread = 0;
    assert_eq!((&asked.resumed, &asked.prompt), (&spec.resumed, &spec.prompt));
    assert!(asked.allowance(&asked.resumed[0]) > 3, "it may draw a token there");
    d.cancel(id(&spec));
    assert!(
        matches!(d.kv_work()[..], [KvWork::Reserved { tokens, .. }, KvWork::Dropped { .. }] if tokens == 4 * CHUNK + 3)
    );
    d.run();
}

/// A tenant is charged at each worker for what that one computes.
#[test]
fn who_offloads_is_charged_for_what_is_computed_here() {
    for lost_after in [None, Some(3)] {
        let mut pair = Pair::one(400);
        pair.d.batch.order_by_policy(true, Vec::new());
        let first = pair.here(1, 6 * CHUNK);
        pair.step();
        let second = pair.here(2, 5 * CHUNK);
        assert!(pair.leave(key_of(&second)));
        let mut there = 5 * CHUNK;
        if let Some(steps) = lost_after {
            (0..steps).for_each(|_| _ = pair.step());
            there = pair.streams[&id(&second)].there;
            assert!(there > 0 && there < 5 * CHUNK);
            pair.p.cancel(id(&second));
            pair.fall_back(id(&second));
        }
        while pair.step() {}
        let mut events: Vec<OrderEvent> = Vec::new();
        pair.d.batch.take_order_events(&mut events);
        let mut fair = Fair::new(Default::default());
        fair.observe(pair.d.now, &events, &mut Ranks::default());
        fair.check().unwrap();
        let computed = f64::from(11 * CHUNK - there) + 2.0 * 10.0;
        assert_eq!(fair.counter(None), Some(computed), "{lost_after:?}");
        pair.run();
        [&first, &second].into_iter().for_each(|spec| pair.d.expect_complete(spec));
    }
}
