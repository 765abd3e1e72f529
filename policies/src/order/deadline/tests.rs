//! EDF: optimal where everything can be met.

use std::collections::BTreeMap;

use super::super::testing::{Queue, arrival, key, with_props};
use super::super::{Ranks, RequestKey};
use super::*;
use crate::request::Prop;
use crate::rng::Rng;

fn queue() -> Queue<Deadline> {
    Queue::new(Deadline::new(DeadlineOptions::default()))
}

/// Due at `due`.
fn due_at(number: u64, due: u64) -> Arrival {
    let props = with_props([(PROP, Prop::Int(1))]);
    Arrival { props, deadline: Time(due), ..arrival(number, "t", 1) }
}

#[derive(Clone, Copy, Debug)]
struct Job {
    release: u64,
    work: u64,
    due: u64,
}

/// Whether a server of unit speed can meet all deadlines: in no interval more has to be done than fits (the processor
/// demand criterion).
fn feasible(jobs: &[Job]) -> bool {
    jobs.iter().all(|from| {
        jobs.iter().all(|to| {
            let inside = |job: &&Job| job.release >= from.release && job.due <= to.due;
            let demand: u64 = jobs.iter().filter(inside).map(|job| job.work).sum();
            demand == 0 || from.release + demand <= to.due
        })
    })
}

/// One unit of work at a time goes to whoever is first by the published ranks.
fn meets(jobs: &[Job]) -> bool {
    let mut queue = queue();
    let mut left: BTreeMap<RequestKey, (u64, u64)> = BTreeMap::new();
    let last = jobs.iter().map(|job| job.due).max().unwrap_or(0);
    for now in 0..last {
        for (number, job) in (0..).zip(jobs).filter(|(_, job)| job.release == now) {
            queue.arrive(due_at(number, job.due));
            left.insert(key(number), (job.work, job.due));
        }
        if let Some(first) = queue.first() {
            let entry = left.get_mut(&first).unwrap();
            entry.0 -= 1;
            if entry.0 == 0 {
                if now + 1 > entry.1 {
                    return false;
                }
                left.remove(&first);
                queue.admit(first, 0);
            }
        }
        if left.values().any(|(_, due)| *due <= now + 1) {
            return false;
        }
    }
    true
}

#[test]
fn every_set_that_can_be_met_is_met() {
    let (mut met, mut missed) = (0, 0);
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let count = 1 + rng.below(8);
        let jobs: Vec<Job> = (0..count)
            .map(|_| {
                let (release, work) = (rng.below(30), 1 + rng.below(8));
                Job { release, work, due: release + work + rng.below(20) }
            })
            .collect();
        let can = feasible(&jobs);
        assert_eq!(meets(&jobs), can, "seed {seed}: {jobs:?}");
        *(if can { &mut met } else { &mut missed }) += 1;
    }
    assert!(met > 300 && missed > 300, "both kinds were tried: {met}, {missed}");
}

#[test]
fn without_a_deadline_last_and_in_order() {
    let mut queue = queue();
    // The gateway's own limit is no deadline of the client's.
    queue.arrive(Arrival { deadline: Time(5), ..arrival(0, "t", 1) });
    queue.arrive(arrival(1, "t", 1));
    queue.arrive(due_at(2, u64::MAX - 1));
    queue.arrive(due_at(3, 100));
    queue.arrive(due_at(4, 50));
    let slo = with_props([(TTFT_PROP, Prop::Int(0)), (PROP, Prop::Int(9))]);
    queue.arrive(Arrival { props: slo, deadline: Time(90), since: Time(40), ..arrival(5, "t", 1) });
    let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|key| key.request.number).collect();
    assert_eq!(order[..3], [5, 4, 3]);
    assert_eq!(order[3..], [0, 1, 2], "a deadline beyond all time is none");
}

#[test]
fn far_deadlines_do_not_overflow() {
    let props = with_props([(PROP, Prop::Int(i64::MAX)), (TTFT_PROP, Prop::Duration(Span(u64::MAX)))]);
    assert_eq!(Deadline::due(&props, Time(7), Time::NEVER), Time::NEVER);
    let props = with_props([(TTFT_PROP, Prop::Text("soon".into()))]);
    assert_eq!(Deadline::due(&props, Time(7), Time(9)), Time::NEVER);
}

#[test]
fn the_pace_is_measured_from_steps_that_prefill() {
    let mut policy = Deadline::default();
    let mut ranks = Ranks::default();
    policy.observe(Time::ZERO, &[OrderEvent::Stepped { took: Span(900), prefill: 3 }], &mut ranks);
    assert_eq!(ranks.pace, None, "a step of decodes says nothing");
    let step =
        |prefill: u32, each: u64| OrderEvent::Stepped { took: Span(u64::from(prefill) * each), prefill };
    policy.observe(Time::ZERO, &[step(100, 1000)], &mut ranks);
    assert_eq!(ranks.pace, Some(Span(1000)));
    policy.observe(Time::ZERO, &vec![step(64, 3000); 60], &mut ranks);
    assert!(ranks.pace.is_some_and(|pace| (2900..=3000).contains(&pace.0)), "{ranks:?}");
    let mut silent = Deadline::new(DeadlineOptions { refuse_hopeless: false });
    let mut ranks = Ranks::default();
    silent.observe(Time::ZERO, &[step(100, 1000)], &mut ranks);
    assert!(ranks.is_empty());
}
