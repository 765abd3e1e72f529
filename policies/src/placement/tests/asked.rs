//! Policies that are asked: what counts before what, what is recorded, and what happens while they think.

use config::ids::PolicyName;

use super::*;
use crate::invariant::Broken;
use crate::policy::{
    ClusterPolicy, Fetch, Opinion, Pin, PlacedAt, PolicyAction, PolicyConfig, PolicyMode, PolicyQuery, Stage,
};

mod work;

/// A policy that always says the same.
#[derive(Debug)]
struct Says(&'static str, Opinion);

impl ClusterPolicy for Says {
    fn name(&self) -> PolicyName {
        self.0.into()
    }

    fn observe(&mut self, _now: Time, _event: &PolicyEvent) {}

    fn opinion(&mut self, _now: Time, _query: &PolicyQuery) -> Opinion {
        self.1.clone()
    }

    fn tick(&mut self, _now: Time, _workers: &[WorkerView], _actions: &mut Vec<PolicyAction>) {}

    fn check(&self) -> Result<(), Broken> {
        Ok(())
    }
}

fn excludes(workers: &[u64]) -> Opinion {
    Opinion { exclude: workers.iter().map(|n| id(*n, 1)).collect(), ..Opinion::none("exclude", "") }
}

fn pins(worker: u64, hard: bool) -> Opinion {
    Opinion { pin: Some(Pin { worker: id(worker, 1), hard }), ..Opinion::none("pin", "") }
}

fn costs(costs: &[(u64, u64)]) -> Opinion {
    Opinion { costs: costs.iter().map(|(n, cost)| (id(*n, 1), *cost)).collect(), ..Opinion::none("cost", "") }
}

/// What a policy says, the weight of its costs, and whether it counts.
type Said = (Opinion, f64, PolicyMode);

const NAMES: [&str; 3] = ["first", "second", "third"];

/// Four workers, of which w0 has the least to do and w3 the most, and policies that say this.
fn said(opinions: Vec<Said>) -> Placement {
    let list = opinions.into_iter().zip(NAMES).map(|((opinion, weight, mode), name)| {
        let config = PolicyConfig { name: name.into(), mode, weight };
        let policy: Box<dyn ClusterPolicy> = Box::new(Says(name, opinion));
        (config, policy)
    });
    let mut p = Placement::new(config()).with_policies(list.collect());
    for n in 0..4 {
        p.worker_joined(T, info(n, 1, 9), &mut Vec::new());
        let load = BatchLoad { requests: 1, outstanding_tokens: 1000 * (n + 1), ..BatchLoad::default() };
        p.worker_load(T, &id(n, 1), load, &mut Vec::new());
    }
    p
}

fn plan(effect: Option<PlacementEffect>) -> Plan {
    match effect {
        Some(PlacementEffect::Placed { plan, .. }) => plan,
        other => panic!("not placed: {other:?}"),
    }
}

#[test]
fn filters_then_pins_then_costs_then_load() {
    let prod = |opinion| (opinion, 1.0, PolicyMode::Prod);
    let nothing = || Opinion::none("nothing", "");
    let cases: Vec<(&str, Vec<Said>, u64, &str)> = vec![
        ("nobody asked", vec![], 0, "least-loaded"),
        ("nothing said", vec![prod(nothing())], 0, "least-loaded"),
        ("a filter", vec![prod(excludes(&[0, 1]))], 2, "least-loaded"),
        ("filters of two", vec![prod(excludes(&[0])), prod(excludes(&[1]))], 2, "least-loaded"),
        ("all filtered: none is", vec![prod(excludes(&[0, 1])), prod(excludes(&[2, 3]))], 0, "least-loaded"),
        ("a pin over costs", vec![prod(costs(&[(2, 0), (3, 9)])), prod(pins(3, false))], 3, "pinned"),
        ("the first pin", vec![prod(pins(2, false)), prod(pins(3, false))], 2, "pinned"),
        ("a filter over a soft pin", vec![prod(pins(2, false)), prod(excludes(&[2]))], 0, "least-loaded"),
        (
            "then the next pin",
            vec![prod(pins(2, false)), prod(excludes(&[2])), prod(pins(1, false))],
            1,
            "pinned",
        ),
        ("a hard pin over a filter", vec![prod(excludes(&[2])), prod(pins(2, true))], 2, "pinned"),
        ("a hard pin on nobody", vec![prod(pins(8, true))], 0, "least-loaded"),
        ("the cheapest", vec![prod(costs(&[(0, 5), (1, 4), (2, 3), (3, 4)]))], 2, "least-cost"),
        (
            "the cheapest that is left",
            vec![prod(costs(&[(0, 5), (1, 4), (2, 3)])), prod(excludes(&[2]))],
            1,
            "least-cost",
        ),
        ("unnamed is as the worst", vec![prod(costs(&[(1, 5), (2, 5)]))], 0, "least-cost"),
        (
            "sums",
            vec![
                prod(costs(&[(0, 9), (1, 5), (2, 0), (3, 9)])),
                prod(costs(&[(0, 9), (1, 3), (2, 9), (3, 0)])),
            ],
            1,
            "least-cost",
        ),
        (
            "by weight",
            vec![
                (costs(&[(0, 9), (1, 5), (2, 0), (3, 9)]), 0.5, PolicyMode::Prod),
                (costs(&[(0, 9), (1, 3), (2, 9), (3, 0)]), 2.0, PolicyMode::Prod),
            ],
            3,
            "least-cost",
        ),
        (
            "shadow and off say nothing",
            vec![
                (pins(3, true), 1.0, PolicyMode::Shadow),
                (excludes(&[0]), 1.0, PolicyMode::Shadow),
                (costs(&[(1, 0), (2, 9)]), 1.0, PolicyMode::Off),
            ],
            0,
            "least-loaded",
        ),
    ];
    for (name, opinions, worker, why) in cases {
        let plan = plan(place(&mut said(opinions), ask(1)));
        assert_eq!((&plan.worker, plan.why), (&id(worker, 1), why), "{name}: {:?}", plan.stages);
    }
}

#[test]
fn equal_costs_go_by_load_and_equal_loads_by_last_use() {
    let equal = (costs(&[(0, 7), (1, 7), (2, 7)]), 1.0, PolicyMode::Prod);
    let list = PolicyConfig { name: "first".into(), mode: PolicyMode::Prod, weight: 1.0 };
    let mut p = Placement::new(config()).with_policies(vec![(list, Box::new(Says("first", equal.0)))]);
    for n in 0..3 {
        p.worker_joined(T, info(n, 1, 9), &mut Vec::new());
    }
    let mut order = Vec::new();
    for n in 0..6 {
        order.push(chosen(place(&mut p, ask(n)).as_ref()).clone());
        p.release(T, RequestId::new(1, n), Attempt(0), &mut Vec::new());
    }
    assert_eq!(order, [id(0, 1), id(1, 1), id(2, 1), id(0, 1), id(1, 1), id(2, 1)]);
}

#[test]
fn every_decision_is_a_stage() {
    let opinion = Opinion { saved: Some(64), numbers: vec![("n", 2.0)], ..pins(2, false) };
    let mut p = said(vec![
        (opinion, 1.0, PolicyMode::Shadow),
        (excludes(&[0]), 1.0, PolicyMode::Prod),
        (excludes(&[1]), 1.0, PolicyMode::Off),
    ]);
    let plan = plan(place(&mut p, ask(1)));
    let seen: Vec<(&str, PolicyMode, &str)> =
        plan.stages.iter().map(|s| (s.policy.as_str(), s.mode, &*s.action)).collect();
    assert_eq!(
        seen,
        [
            ("first", PolicyMode::Shadow, "would_pin"),
            ("second", PolicyMode::Prod, "exclude"),
            (Stage::PLACEMENT, PolicyMode::Prod, "least-loaded"),
        ]
    );
    let [shadow, _, placement] = &plan.stages[..] else { panic!("{:?}", plan.stages) };
    assert_eq!((shadow.saved, &shadow.numbers[..]), (Some(64), &[("n".into(), 2.0)][..]));
    let number = |name| placement.numbers.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
    assert_eq!(
        (number("free"), number("excluded"), number("work-tokens")),
        (Some(4.0), Some(1.0), Some(2000.0))
    );
    assert_eq!(plan.worker, id(1, 1));
}

/// As many workers of one place each, and two policies in actors.
fn elsewhere(workers: u64, max_requests: u32) -> Placement {
    let mut p = cluster(workers, max_requests);
    p.set_policies(T, two(), &mut Vec::new());
    work(&mut p);
    p
}

type List = Vec<(PolicyConfig, Option<Box<dyn ClusterPolicy>>)>;

fn two() -> List {
    NAMES[..2].iter().map(|name| (PolicyConfig::new((*name).into()), None)).collect()
}

fn work(p: &mut Placement) -> Vec<PolicyWork> {
    let mut work = Vec::new();
    p.take_policy_work(&mut work);
    work
}

/// The one consultation that was asked for, of each policy in order.
fn ticket(p: &mut Placement) -> (Ticket, Vec<WorkerId>) {
    let mut asked = work(p).into_iter().filter_map(|w| match w {
        PolicyWork::Consult { ticket, policy, query } => Some((ticket, policy, query)),
        _ => None,
    });
    let (Some(one), Some(two), None) = (asked.next(), asked.next(), asked.next()) else { panic!("not one") };
    assert_eq!((one.1.as_str(), two.1.as_str(), one.0), ("first", "second", two.0));
    (one.0, one.2.rows.iter().map(|r| r.worker.clone()).collect())
}

fn answer(
    p: &mut Placement,
    now: Time,
    ticket: Ticket,
    policy: &str,
    opinion: Opinion,
) -> Vec<PlacementEffect> {
    let mut fx = Vec::new();
    p.opinion(now, ticket, &policy.into(), opinion, Span::from_micros(7), &mut fx);
    p.check().unwrap();
    fx
}

#[test]
fn a_request_waits_for_all_opinions() {
    let mut p = elsewhere(3, 9);
    assert_eq!(place(&mut p, ask(1)), None);
    let (t, rows) = ticket(&mut p);
    assert_eq!(rows, [id(0, 1), id(1, 1), id(2, 1)]);
    assert_eq!((p.consulting(), p.booked(), p.queued()), (1, 0, 0));
    assert!(p.is_booked(RequestId::new(1, 1)), "its owner is not to be forgotten");
    assert_eq!(place(&mut p, ask(1)), None, "asked again: it is being thought about");
    assert!(work(&mut p).is_empty());
    assert!(answer(&mut p, T, t, "second", pins(2, false)).is_empty());
    assert!(answer(&mut p, T, t, "second", pins(1, false)).is_empty(), "the first word counts");
    assert!(answer(&mut p, T, t, "stranger", pins(1, false)).is_empty());
    let mut fx = answer(&mut p, T, t, "first", Opinion::none("nothing", ""));
    let plan = plan(fx.pop());
    assert_eq!((&plan.worker, plan.why, plan.stages[1].took), (&id(2, 1), "pinned", Span::from_micros(7)));
    assert!(fx.is_empty() && answer(&mut p, T, t, "first", pins(0, false)).is_empty(), "it is over");
    let at = PlacedAt {
        request: RequestId::new(1, 1),
        attempt: Attempt(0),
        session: None,
        pages: Arc::default(),
        worker: id(2, 1),
    };
    assert_eq!(work(&mut p), [PolicyWork::Observe(PolicyEvent::Placed(at))]);
}

/// Two requests are asked about at once, while the pool has nothing to do; what the first is sent there for counts when the
/// second is placed.
#[test]
fn what_was_booked_at_a_pool_meanwhile_counts() {
    let mut p = elsewhere(2, 9);
    let pool = WorkerId::new("p".into(), 1);
    let hardware = crate::cost::HardwareProfile::default();
    p.pool_joined(PoolInfo { id: pool.clone(), address: "p:1".to_owned(), hardware });
    let fetch = || Fetch {
        to: id(1, 1),
        from: pool.clone(),
        pool: true,
        tokens: 96,
        sending: Span::from_millis(60),
        occupies: Span::from_millis(50),
        computing: Some(Span::from_millis(100)),
        why: "it holds more".to_owned(),
        numbers: Vec::new(),
    };
    let tickets: Vec<Ticket> = (1..=3)
        .map(|number| {
            assert_eq!(place(&mut p, ask(number)), None);
            ticket(&mut p).0
        })
        .collect();
    let mut placed = |ticket: Ticket, ms: u64| {
        let now = T + Span::from_millis(ms);
        answer(&mut p, now, ticket, "first", pins(1, true));
        let said = Opinion { fetches: vec![fetch()].into(), ..Opinion::none("nothing", "") };
        let plan = plan(answer(&mut p, now, ticket, "second", said).pop());
        (plan.fetch.is_some(), plan.stages[1].clone())
    };
    let (fetches, stage) = placed(tickets[0], 0);
    assert!(fetches && stage.action == "fetch", "{stage:?}");
    let (fetches, stage) = placed(tickets[1], 5);
    assert!(!fetches && stage.action == "nothing", "{stage:?}");
    assert!(
        stage.why.contains("p#1 would give its pages only after 45.000ms, so they are computed"),
        "{stage:?}"
    );
    assert!(placed(tickets[2], 11).0);
}

#[test]
fn what_is_late_or_failed_is_left_out_and_counted() {
    let mut p = elsewhere(3, 9);
    place(&mut p, ask(1));
    let (t, _) = ticket(&mut p);
    let mut fx = Vec::new();
    p.opinion_failed(T, t, &"second".into(), "it panicked".into(), Span::ZERO, &mut fx);
    assert_eq!(p.next_deadline(), Some(T + OPINION_DEADLINE));
    p.tick(T + Span(OPINION_DEADLINE.0 - 1), &mut fx);
    assert!(fx.is_empty());
    p.tick(T + OPINION_DEADLINE, &mut fx);
    let plan = plan(fx.pop());
    assert_eq!(plan.why, "least-loaded");
    let said: Vec<(&str, &str)> = plan.stages.iter().map(|s| (&*s.action, s.why.as_str())).collect();
    assert_eq!(said[0], ("skipped", "late: no opinion within 20.000ms"));
    assert_eq!(said[1], ("skipped", "failed: it panicked"));
    assert!(answer(&mut p, T, t, "first", pins(0, false)).is_empty(), "too late");
    let counts: Vec<_> = p.policies().iter().map(|v| (v.asked, v.late, v.failed)).collect();
    assert_eq!(counts, [(1, 1, 0), (1, 0, 1)]);
    assert_eq!((p.next_deadline(), p.booked()), (None, 1));
}

#[test]
fn what_happens_meanwhile_counts() {
    // The worker of choice is gone; another has come, of which nobody thought.
    let mut p = elsewhere(2, 9);
    place(&mut p, ask(1));
    let (t, _) = ticket(&mut p);
    p.worker_left(T, &id(1, 1), &mut Vec::new());
    p.worker_joined(T, info(2, 1, 9), &mut Vec::new());
    answer(&mut p, T, t, "first", pins(1, false));
    let fx = answer(&mut p, T, t, "second", costs(&[(0, 5), (1, 1)]));
    assert_eq!(chosen(fx.first()), &id(0, 1));
    // All of whom it was asked are gone: another will do.
    let mut p = elsewhere(1, 9);
    place(&mut p, ask(1));
    let (t, _) = ticket(&mut p);
    p.worker_joined(T, info(2, 1, 9), &mut Vec::new());
    p.worker_left(T, &id(0, 1), &mut Vec::new());
    answer(&mut p, T, t, "first", pins(0, true));
    assert_eq!(chosen(answer(&mut p, T, t, "second", excludes(&[0])).first()), &id(2, 1));
    // Nobody is left: it waits for the next.
    let mut p = elsewhere(1, 9);
    place(&mut p, ask(1));
    let (t, _) = ticket(&mut p);
    p.worker_left(T, &id(0, 1), &mut Vec::new());
    answer(&mut p, T, t, "first", pins(0, true));
    assert!(answer(&mut p, T, t, "second", excludes(&[0])).is_empty());
    assert_eq!((p.queued(), p.consulting()), (1, 0));
}

#[test]
fn no_more_are_asked_about_than_there_are_places() {
    let mut p = elsewhere(1, 2);
    for n in 1..=4 {
        assert_eq!(place(&mut p, ask(n)), None);
    }
    assert_eq!((p.consulting(), p.queued()), (2, 2));
    let tickets: Vec<(Ticket, PolicyName)> = work(&mut p)
        .into_iter()
        .filter_map(|w| match w {
            PolicyWork::Consult { ticket, policy, .. } => Some((ticket, policy)),
            _ => None,
        })
        .collect();
    let mut placed = Vec::new();
    for (t, policy) in tickets {
        placed.extend(answer(&mut p, T, t, policy.as_str(), Opinion::none("nothing", "")));
    }
    assert_eq!((placed.len(), p.consulting(), p.queued(), p.booked()), (2, 0, 2, 2));
    // One ends: the first that waits is asked about, before one that comes later.
    p.release(T, RequestId::new(1, 1), Attempt(0), &mut Vec::new());
    place(&mut p, ask(5));
    let (t, _) = ticket(&mut p);
    answer(&mut p, T, t, "first", Opinion::default());
    let fx = answer(&mut p, T, t, "second", Opinion::default());
    assert!(matches!(&fx[..], [PlacementEffect::Placed { request, .. }] if request.number == 3), "{fx:?}");
}

#[test]
fn who_gives_up_is_asked_about_no_more() {
    let mut p = elsewhere(1, 1);
    place(&mut p, ask(1));
    place(&mut p, ask(2));
    let (t, _) = ticket(&mut p);
    p.release(T, RequestId::new(1, 1), Attempt(0), &mut Vec::new());
    assert!(answer(&mut p, T, t, "first", Opinion::default()).is_empty());
    let (t, _) = ticket(&mut p);
    p.gateway_left(T, 1, &mut Vec::new());
    assert!(answer(&mut p, T, t, "first", Opinion::default()).is_empty());
    assert_eq!((p.consulting(), p.queued(), p.booked(), p.next_deadline()), (0, 0, 0, None));
}

#[test]
fn a_swap_loses_nothing() {
    let mut p = elsewhere(2, 2);
    for n in 1..=6 {
        place(&mut p, ask(n));
    }
    assert_eq!((p.consulting(), p.queued()), (4, 2));
    let old: Vec<PolicyWork> = work(&mut p);
    // To another list: those that were being thought about are asked about again, the others stay where they are.
    let mut fx = Vec::new();
    p.set_policies(T, two(), &mut fx);
    p.check().unwrap();
    assert!(fx.is_empty());
    assert_eq!((p.consulting(), p.queued()), (4, 2));
    let new = work(&mut p);
    let joined = |n| PolicyWork::Observe(PolicyEvent::WorkerJoined(id(n, 1)));
    assert_eq!(new[..2], [joined(0), joined(1)], "the new ones know who is there");
    let asked = |work: &[PolicyWork]| -> Vec<Ticket> {
        let tickets = work.iter().filter_map(|w| match w {
            PolicyWork::Consult { ticket, .. } => Some(*ticket),
            _ => None,
        });
        tickets.collect()
    };
    assert_eq!((asked(&old).len(), asked(&new).len()), (8, 8));
    for t in asked(&old) {
        assert!(answer(&mut p, T, t, "first", pins(0, false)).is_empty(), "the former ones have no say");
    }
    // To none: all that were being thought about go by load.
    p.set_policies(T, Vec::new(), &mut fx);
    p.check().unwrap();
    assert_eq!((fx.len(), p.consulting(), p.queued(), p.booked()), (4, 0, 2, 4));
    assert!(work(&mut p).is_empty());
    // To some again: bookings are told, and what waits is asked about when there is room.
    p.accepted(T, RequestId::new(1, 1), Attempt(0));
    p.set_policies(T, two(), &mut fx);
    let told = work(&mut p);
    let count = |f: fn(&PolicyEvent) -> bool| {
        told.iter().filter(|w| matches!(w, PolicyWork::Observe(event) if f(event))).count()
    };
    assert_eq!(count(|e| matches!(e, PolicyEvent::Placed(_))), 4);
    assert_eq!(count(|e| matches!(e, PolicyEvent::Accepted(_))), 1);
    p.release(T, RequestId::new(1, 1), Attempt(0), &mut fx);
    assert_eq!((p.consulting(), p.queued()), (1, 1));
}

#[test]
fn policies_hear_of_every_turn() {
    let mut p = elsewhere(2, 9);
    let request = PlaceRequest { session: Some("s".into()), ..ask(1) };
    place(&mut p, request);
    let (t, _) = ticket(&mut p);
    answer(&mut p, T, t, "first", pins(1, false));
    answer(&mut p, T, t, "second", Opinion::default());
    let at = PlacedAt {
        request: RequestId::new(1, 1),
        attempt: Attempt(0),
        session: Some("s".into()),
        pages: Arc::default(),
        worker: id(1, 1),
    };
    p.accepted(T, at.request, at.attempt);
    p.accepted(T, at.request, at.attempt);
    p.accepted(T, at.request, Attempt(7));
    p.worker_left(T, &id(1, 1), &mut Vec::new());
    p.release(T, at.request, at.attempt, &mut Vec::new());
    let told: Vec<PolicyEvent> = work(&mut p)
        .into_iter()
        .map(|w| match w {
            PolicyWork::Observe(event) => event,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        told,
        [
            PolicyEvent::Placed(at.clone()),
            PolicyEvent::Accepted(at.clone()),
            PolicyEvent::Failed(at.clone()),
            PolicyEvent::WorkerLeft(at.worker),
        ]
    );
}
