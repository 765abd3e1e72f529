use std::sync::Arc;

use config::WorkerRole;

use super::*;
use crate::policy::OPINION_DEADLINE;
use crate::time::Span;

mod asked;
mod churn;
mod directory;
mod handoff;
mod pools;
mod replicate;
mod roles;

const T: Time = Time(0);

fn config() -> PlacementConfig {
    PlacementConfig {
        max_queued: 4,
        queue_timeout: Span::from_secs(1),
        choice: Choice::LeastLoaded,
        seed: 1,
        opinion_deadline: OPINION_DEADLINE,
        directory: false,
    }
}

fn id(n: u64, incarnation: u64) -> WorkerId {
    WorkerId::new(format!("w{n}").as_str().into(), incarnation)
}

fn info(n: u64, incarnation: u64, max_requests: u32) -> WorkerInfo {
    WorkerInfo::unified(id(n, incarnation), "m".into(), 1000, max_requests, 16)
}

fn ask(number: u64) -> PlaceRequest {
    PlaceRequest {
        request: RequestId::new(1, number),
        attempt: Attempt(0),
        model: "m".into(),
        prompt_tokens: 100,
        context_tokens: 100,
        max_tokens: 10,
        choices: 1,
        resumed: false,
        prompt_logprobs: false,
        avoid: Vec::new(),
        pin: None,
        hashes: Arc::default(),
        session: None,
        props: Arc::default(),
        deadline: Time::NEVER,
    }
}

/// A controller with `n` workers of `max_requests` each.
fn cluster(n: u64, max_requests: u32) -> Placement {
    let mut p = Placement::new(config());
    for w in 0..n {
        p.worker_joined(T, info(w, 1, max_requests), &mut Vec::new());
    }
    p
}

/// Places and gives back the one effect.
fn place(p: &mut Placement, request: PlaceRequest) -> Option<PlacementEffect> {
    let mut fx = Vec::new();
    p.place(T, request, &mut fx);
    p.check().unwrap();
    assert!(fx.len() <= 1, "{fx:?}");
    fx.pop()
}

fn chosen(effect: Option<&PlacementEffect>) -> &WorkerId {
    match effect {
        Some(PlacementEffect::Placed { plan, .. }) => &plan.worker,
        other => panic!("not placed: {other:?}"),
    }
}

fn reason(effect: Option<PlacementEffect>) -> Rejection {
    match effect {
        Some(PlacementEffect::Rejected { reason, .. }) => reason,
        other => panic!("not rejected: {other:?}"),
    }
}

#[test]
fn a_burst_spreads_before_anyone_reports() {
    for choice in [Choice::LeastLoaded, Choice::PowerOfTwo] {
        let mut p = Placement::new(PlacementConfig { choice, ..config() });
        for w in 0..2 {
            p.worker_joined(T, info(w, 1, 100), &mut Vec::new());
        }
        for n in 0..30 {
            place(&mut p, PlaceRequest { max_tokens: 1, prompt_tokens: 4000, ..ask(n) });
        }
        let placed: Vec<u64> = p.workers().iter().map(|w| w.placed).collect();
        assert_eq!(placed, [15, 15], "{choice:?}");
    }
}

#[test]
fn ties_go_to_the_least_recently_used() {
    let mut p = cluster(3, 9);
    let mut order = Vec::new();
    for n in 0..6 {
        order.push(chosen(place(&mut p, ask(n)).as_ref()).clone());
        p.release(T, RequestId::new(1, n), Attempt(0), &mut Vec::new());
    }
    assert_eq!(order, [id(0, 1), id(1, 1), id(2, 1), id(0, 1), id(1, 1), id(2, 1)]);
}

#[test]
fn round_robin_and_random_do_not_look_at_load() {
    let places = |choice| {
        let mut p = Placement::new(PlacementConfig { choice, ..config() });
        for w in 0..3 {
            p.worker_joined(T, info(w, 1, 1000), &mut Vec::new());
        }
        let busy = BatchLoad { outstanding_tokens: 50_000, ..BatchLoad::default() };
        p.worker_load(T, &id(0, 1), busy, &mut Vec::new());
        let order: Vec<_> = (0..300).map(|n| chosen(place(&mut p, ask(n)).as_ref()).clone()).collect();
        let counts = [0, 1, 2].map(|w| order.iter().filter(|worker| **worker == id(w, 1)).count());
        (order, counts)
    };
    let (order, counts) = places(Choice::RoundRobin);
    assert_eq!(counts, [100; 3]);
    assert!(order.windows(4).all(|w| w[0] == w[3]), "{order:?}");
    let (order, counts) = places(Choice::Random);
    assert!(counts.iter().all(|n| (70..130).contains(n)), "{counts:?}");
    assert!(order.windows(2).any(|w| w[0] == w[1]), "{order:?}");
}

#[test]
fn reported_work_counts() {
    let mut p = cluster(2, 9);
    let busy = BatchLoad { outstanding_tokens: 5000, ..BatchLoad::default() };
    p.worker_load(T, &id(0, 1), busy, &mut Vec::new());
    p.worker_load(T, &id(7, 1), busy, &mut Vec::new());
    for n in 0..5 {
        assert_eq!(chosen(place(&mut p, ask(n)).as_ref()), &id(1, 1));
    }
}

#[test]
fn what_others_placed_counts_until_it_is_gone() {
    let load =
        |requests, outstanding_tokens| BatchLoad { requests, outstanding_tokens, ..BatchLoad::default() };
    let report = |p: &mut Placement, w: u64, load| {
        let mut fx = Vec::new();
        p.worker_load(T, &id(w, 1), load, &mut fx);
        p.check().unwrap();
        fx
    };
    let mut p = cluster(2, 4);
    // Of ours and as much of others: only the others' is added to what is booked.
    assert_eq!(chosen(place(&mut p, ask(0)).as_ref()), &id(0, 1));
    report(&mut p, 0, load(2, 220));
    assert_eq!(p.workers()[0].foreign, 1);
    for n in 1..=2 {
        assert_eq!(chosen(place(&mut p, ask(n)).as_ref()), &id(1, 1), "110 booked and 110 of others");
    }
    assert_eq!(chosen(place(&mut p, ask(3)).as_ref()), &id(0, 1), "equal; used less recently");
    // Ours that are on their way, or have made progress, are not taken for less.
    report(&mut p, 0, load(0, 0));
    report(&mut p, 1, load(2, 10));
    assert_eq!(p.workers().iter().map(|w| (w.booked, w.foreign)).collect::<Vec<_>>(), [(2, 0), (2, 0)]);
    // A worker that others have filled takes nothing, until it says otherwise.
    report(&mut p, 0, load(4, 0));
    report(&mut p, 1, load(9, 0));
    assert_eq!(place(&mut p, ask(4)), None);
    p.release(T, RequestId::new(1, 0), Attempt(0), &mut Vec::new());
    assert_eq!((p.queued(), p.workers()[0].booked), (0, 2), "what was released here is free at once");
    assert_eq!(place(&mut p, ask(5)), None);
    assert!(report(&mut p, 1, load(9, 0)).is_empty());
    assert_eq!(chosen(report(&mut p, 1, load(2, 0)).first()), &id(1, 1));
}

#[test]
fn a_gateway_that_left_holds_nothing() {
    let mut p = cluster(1, 2);
    let of = |gateway, number| PlaceRequest { request: RequestId::new(gateway, number), ..ask(number) };
    place(&mut p, of(1, 0));
    place(&mut p, of(2, 0));
    assert_eq!((place(&mut p, of(1, 1)), place(&mut p, of(2, 1))), (None, None));
    let mut fx = Vec::new();
    p.gateway_left(T, 3, &mut fx);
    assert_eq!((fx.len(), p.booked(), p.queued()), (0, 2, 2));
    p.gateway_left(T, 1, &mut fx);
    p.check().unwrap();
    assert_eq!((p.booked(), p.queued()), (2, 0), "its place goes to who waits, and it waits no more");
    assert_eq!(chosen(fx.first()), &id(0, 1));
    assert!(fx.len() == 1 && !p.is_booked(RequestId::new(1, 0)) && p.is_booked(RequestId::new(2, 1)));
    p.gateway_left(T, 2, &mut fx);
    assert!(p.workers().iter().all(|w| w.booked == 0 && w.booked_tokens == 0));
}

#[test]
fn models_are_known_unknown_or_without_worker() {
    let mut p = Placement::new(config());
    let default = || PlaceRequest { model: DEFAULT_MODEL.into(), ..ask(1) };
    let other = || PlaceRequest { model: "M".into(), ..ask(1) };
    assert_eq!(reason(place(&mut p, default())), Rejection::NoWorker(DEFAULT_MODEL.into()));
    assert_eq!(reason(place(&mut p, ask(1))), Rejection::UnknownModel("m".into()));
    p.worker_joined(T, info(1, 1, 9), &mut Vec::new());
    assert_eq!(reason(place(&mut p, other())), Rejection::UnknownModel("M".into()));
    assert_eq!(chosen(place(&mut p, default()).as_ref()), &id(1, 1));
    p.worker_draining(&id(1, 1));
    assert_eq!(reason(place(&mut p, ask(2))), Rejection::NoWorker("m".into()));
    p.worker_left(T, &id(1, 1), &mut Vec::new());
    assert_eq!(reason(place(&mut p, ask(2))), Rejection::NoWorker("m".into()));
    assert_eq!(reason(place(&mut p, default())), Rejection::NoWorker("m".into()));
    assert!(p.models().is_empty());
    let resumed = PlaceRequest { attempt: Attempt(1), ..ask(3) };
    assert_eq!(place(&mut p, resumed), None, "a request under way waits for the worker to come back");
    let mut fx = Vec::new();
    p.worker_joined(T, info(1, 2, 9), &mut fx);
    assert_eq!(chosen(fx.first()), &id(1, 2));
}

#[test]
fn windows_decide_who_can() {
    let mut p = cluster(1, 9);
    p.worker_joined(T, WorkerInfo { max_context: 50, ..info(2, 1, 9) }, &mut Vec::new());
    for n in 0..3 {
        assert_eq!(chosen(place(&mut p, ask(n)).as_ref()), &id(0, 1), "the other's window is too short");
    }
    let long = PlaceRequest { context_tokens: 1000, ..ask(9) };
    assert_eq!(reason(place(&mut p, long)), Rejection::TooLong { tokens: 1000, window: 1000 });
}

#[test]
fn a_pinned_request_goes_there_or_nowhere() {
    let mut p = cluster(3, 1);
    p.worker_joined(T, WorkerInfo { role: WorkerRole::Prefill, ..info(5, 1, 9) }, &mut Vec::new());
    p.worker_joined(T, WorkerInfo { models: vec!["other".into()], ..info(6, 1, 9) }, &mut Vec::new());
    p.worker_joined(T, WorkerInfo { max_context: 50, ..info(7, 1, 9) }, &mut Vec::new());
    let to = |n, number| PlaceRequest { pin: Some(id(n, 1)), attempt: Attempt(2), ..ask(number) };
    // Whatever is said against it, and with the place that it has before the move.
    chosen(place(&mut p, PlaceRequest { avoid: vec![id(1, 1), id(2, 1)], ..ask(1) }).as_ref());
    let again = PlaceRequest { avoid: vec![id(2, 1)], ..to(2, 1) };
    let effect = place(&mut p, again.clone());
    assert_eq!(chosen(effect.as_ref()), &id(2, 1));
    assert_eq!(place(&mut p, again), effect, "asked again");
    let why = |p: &mut Placement, n| match reason(place(p, to(n, 9))) {
        Rejection::Pinned { worker, why } if worker == id(n, 1) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(&mut p, 2), "it has 1 requests, its limit");
    assert_eq!(why(&mut p, 4), "it is not there");
    assert_eq!(why(&mut p, 5), "it is a prefill worker");
    assert_eq!(why(&mut p, 6), "it does not serve the model `m`");
    assert_eq!(why(&mut p, 7), "its window is 50 tokens");
    p.worker_draining(&id(1, 1));
    assert_eq!(why(&mut p, 1), "it is draining");
    assert_eq!(p.queued(), 0);
    p.release(T, RequestId::new(1, 1), Attempt(0), &mut Vec::new());
    p.check().unwrap();
    assert!(p.is_booked(RequestId::new(1, 1)), "each attempt is released by itself");
}

#[test]
fn the_queue_is_bounded_first_come_first_served_and_times_out() {
    let mut p = cluster(1, 1);
    chosen(place(&mut p, ask(0)).as_ref());
    for n in 1..=4 {
        assert_eq!(place(&mut p, ask(n)), None);
    }
    assert_eq!(place(&mut p, ask(4)), None, "the same attempt waits once");
    assert_eq!(reason(place(&mut p, ask(5))), Rejection::QueueFull { queued: 4 });
    let mut fx = Vec::new();
    p.release(T, RequestId::new(1, 2), Attempt(0), &mut fx);
    assert!(fx.is_empty(), "left the queue");
    p.release(T, RequestId::new(1, 0), Attempt(0), &mut fx);
    p.check().unwrap();
    let who: Vec<_> = fx
        .iter()
        .map(|e| match e {
            PlacementEffect::Placed { request, .. } => request.number,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(who, [1]);
    fx.clear();
    assert_eq!(p.next_deadline(), Some(T + Span::from_secs(1)));
    p.tick(Time(999_999_999), &mut fx);
    assert!(fx.is_empty());
    p.tick(Time(1_000_000_000), &mut fx);
    assert_eq!((fx.len(), p.queued(), p.next_deadline()), (2, 0, None));
    assert_eq!(reason(fx.pop()), Rejection::Timeout(Span::from_secs(1)));
}

#[test]
fn a_failed_worker_is_avoided_while_there_is_another() {
    let mut p = cluster(2, 1);
    let avoiding = |n: u64, ids: &[WorkerId]| PlaceRequest { avoid: ids.to_vec(), ..ask(n) };
    assert_eq!(chosen(place(&mut p, avoiding(1, &[id(0, 1)])).as_ref()), &id(1, 1));
    assert_eq!(place(&mut p, avoiding(2, &[id(0, 1)])), None, "waits for the other");
    let both = [id(0, 1), id(1, 1)];
    assert_eq!(chosen(place(&mut p, avoiding(3, &both)).as_ref()), &id(0, 1), "nobody else is left");
    let mut fx = Vec::new();
    p.worker_left(T, &id(0, 1), &mut fx);
    p.worker_joined(T, info(0, 2, 1), &mut fx);
    let lost = PlacementEffect::Lost { request: RequestId::new(1, 3), attempt: Attempt(0), worker: id(0, 1) };
    assert_eq!(fx[0], lost);
    assert_eq!(chosen(fx.get(1)), &id(0, 2), "the next life of a worker is another worker");
}

#[test]
fn a_new_life_ends_the_former_one() {
    let mut p = cluster(1, 9);
    place(&mut p, ask(1));
    let mut fx = Vec::new();
    p.worker_joined(T, info(0, 2, 9), &mut fx);
    assert!(matches!(&fx[..], [PlacementEffect::Lost { .. }]), "{fx:?}");
    p.worker_joined(T, info(0, 1, 9), &mut fx);
    p.worker_left(T, &id(0, 1), &mut fx);
    assert_eq!(fx.len(), 1, "messages from the former life change nothing");
    let rows = p.workers();
    assert_eq!((rows.len(), &rows[0].info.id, rows[0].booked), (1, &id(0, 2), 0));
}

#[test]
fn late_releases_of_old_attempts_are_nothing() {
    let mut p = cluster(2, 9);
    place(&mut p, ask(1));
    let second = PlaceRequest { attempt: Attempt(1), ..ask(1) };
    place(&mut p, second);
    let (r, mut fx) = (RequestId::new(1, 1), Vec::new());
    for _ in 0..3 {
        p.release(T, r, Attempt(0), &mut fx);
        p.check().unwrap();
    }
    p.release(T, RequestId::new(1, 11), Attempt(1), &mut fx);
    assert_eq!(p.booked(), 1, "the second attempt's booking stays");
    assert!(p.is_booked(r) && !p.is_booked(RequestId::new(1, 2)));
    p.release(T, r, Attempt(1), &mut fx);
    assert!(p.workers().iter().all(|w| w.booked == 0 && w.booked_tokens == 0));
}

#[test]
fn asking_twice_books_once() {
    let mut p = cluster(1, 9);
    let first = place(&mut p, ask(1));
    assert_eq!(place(&mut p, ask(1)), first);
    assert_eq!(p.booked(), 1);
}

#[test]
fn what_nobody_serves_waits_here_and_is_turned_away_for_another_node() {
    let mut p = cluster(1, 9);
    p.worker_left(T, &id(0, 1), &mut Vec::new());
    let again = |n| PlaceRequest { attempt: Attempt(1), ..ask(n) };
    let mut fx = Vec::new();
    p.place(T, again(1), &mut fx);
    assert!(fx.is_empty() && p.queued() == 1, "its worker may come back");
    p.place_elsewhere(T, again(2), &mut fx);
    let no_worker = |number| PlacementEffect::Rejected {
        request: RequestId::new(1, number),
        attempt: Attempt(1),
        reason: Rejection::NoWorker("m".into()),
    };
    assert_eq!((fx.pop(), p.queued()), (Some(no_worker(2)), 1));
    p.worker_joined(T, info(1, 1, 9), &mut fx);
    p.place_elsewhere(T, again(3), &mut fx);
    assert_eq!((fx.len(), p.booked(), p.queued()), (2, 2, 0), "it is served again");
}
