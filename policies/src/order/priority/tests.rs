//! Strict order, and that age ends every wait.

use super::super::testing::{Queue, arrival, key, with_props};
use super::*;
use crate::rng::Rng;

fn queue(age_every: Span) -> Queue<Priority> {
    Queue::new(Priority::new(PriorityOptions { age_every, ..PriorityOptions::default() }))
}

fn at(number: u64, level: i64, since: Time) -> Arrival {
    let props = with_props([(PROP, Prop::Int(level))]);
    Arrival { props, since, ..arrival(number, "t", 10) }
}

#[test]
fn higher_ones_first_and_equals_in_order_of_arrival() {
    let mut queue = queue(Span::ZERO);
    queue.arrive(arrival(0, "t", 10));
    for (number, level) in [(1, -5), (2, 10), (3, 0), (4, 10), (5, i64::MAX), (6, i64::MIN)] {
        queue.arrive(at(number, level, Time::ZERO));
    }
    let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|key| key.request.number).collect();
    assert_eq!(order, [5, 2, 4, 0, 3, 1, 6]);
}

#[test]
fn a_standing_says_what_may_be_displaced() {
    let strict = Priority::new(PriorityOptions { default: 3, preempt: false, ..PriorityOptions::default() });
    let standing = strict.standing(&arrival(0, "t", 1));
    assert_eq!((standing.level, standing.displaces), (3, false));
    assert_eq!(standing.level_at(Time(u64::MAX), Time::ZERO), 3, "no ageing");
    let ageing =
        Priority::new(PriorityOptions { age_every: Span::from_secs(2), ..PriorityOptions::default() });
    let standing = ageing.standing(&at(0, 4, Time::ZERO));
    assert_eq!(standing.level_at(Time::ZERO + Span::from_secs(5), Time::ZERO), 6);
    assert!(standing.displaces);
}

/// A server with one place and a flood of higher priorities: a request of priority 0 starts when it has waited for as
/// many times `age-every` as the others have priority, and a few services more.
#[test]
fn with_ageing_nothing_waits_for_ever() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let age = Span::from_millis(100 + rng.below(2000));
        let mut queue = queue(age);
        let highest = 1 + rng.below(10) as i64;
        let (mut number, mut started) = (1, None);
        queue.arrive(at(0, 0, Time::ZERO));
        let service = Span::from_millis(50);
        // Two come for each that is served.
        while started.is_none() {
            for _ in 0..2 {
                queue.arrive(at(number, 1 + rng.below(highest as u64) as i64, queue.now));
                number += 1;
            }
            if queue.pop() == Some(key(0)) {
                started = Some(queue.now);
            }
            queue.now = queue.now + service;
            assert!(number < 10_000, "seed {seed}: it starves");
        }
        // By then `t` later ones that are ahead came within `highest · age` of its arrival, two a service.
        let waited = started.unwrap().since(Time::ZERO).0;
        let bound = 2 * (highest as u64 * age.0 + 2 * service.0);
        assert!(waited <= bound, "seed {seed}: {waited} of {bound}");
    }
    // Without ageing it does wait for ever.
    let mut queue = queue(Span::ZERO);
    queue.arrive(at(0, 0, Time::ZERO));
    for number in 1..1000 {
        queue.arrive(at(number, 1, queue.now));
        assert_ne!(queue.pop(), Some(key(0)));
    }
}

#[test]
fn extreme_priorities_with_ageing_do_not_overflow() {
    let mut queue = queue(Span::from_secs(u64::MAX));
    for (number, level) in [(0, i64::MIN), (1, i64::MAX), (2, 0)] {
        queue.arrive(at(number, level, Time(u64::MAX)));
    }
    let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|key| key.request.number).collect();
    assert_eq!(order[0], 1);
    assert_eq!(order.len(), 3);
}
