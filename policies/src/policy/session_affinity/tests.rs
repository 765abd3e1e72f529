use std::sync::Arc;

use super::*;
use crate::policy::testing::{query, row};

const T: Time = Time::ZERO;

fn id(n: u64) -> WorkerId {
    row(n).worker
}

fn rows(n: u64) -> Vec<CandidateRow> {
    (0..n).map(row).collect()
}

fn at(number: u64, attempt: u32, session: &str, worker: &WorkerId) -> PlacedAt {
    PlacedAt {
        request: RequestId::new(1, number),
        attempt: Attempt(attempt),
        session: Some(session.into()),
        pages: Arc::default(),
        worker: worker.clone(),
    }
}

fn policy() -> SessionAffinity {
    SessionAffinity::new(SessionAffinityOptions::default())
}

/// What it does about a request of `session`, and the worker that it wishes for: by a pin where it is bound, by filter
/// and cost where it is not.
fn ask(
    p: &mut SessionAffinity,
    now: Time,
    session: &str,
    rows: Vec<CandidateRow>,
) -> (&'static str, WorkerId) {
    let opinion = p.opinion(now, &query(100, Some(session), rows));
    if let Some(pin) = opinion.pin {
        assert!(!pin.hard && opinion.exclude.is_empty() && opinion.costs.is_empty());
        return (opinion.action, pin.worker);
    }
    let least = opinion.costs.iter().min_by_key(|(_, cost)| *cost).unwrap();
    assert!(opinion.costs.iter().all(|(worker, _)| !opinion.exclude.contains(worker)));
    (opinion.action, least.0.clone())
}

/// A request of `session` that `worker` takes and ends.
fn serve(p: &mut SessionAffinity, now: Time, number: u64, session: &str, worker: &WorkerId) {
    let at = at(number, 0, session, worker);
    for event in
        [PolicyEvent::Placed(at.clone()), PolicyEvent::Accepted(at.clone()), PolicyEvent::Released(at)]
    {
        p.observe(now, &event);
        p.check().unwrap();
    }
}

#[test]
fn without_a_session_there_is_no_opinion() {
    let opinion = policy().opinion(T, &query(100, None, rows(3)));
    let nothing = Opinion::none("no-session", "the request names no session");
    assert_eq!(opinion, nothing);
}

#[test]
fn a_session_stays_with_the_worker_that_took_it() {
    let mut p = policy();
    for n in 0..3 {
        serve(&mut p, T, n, "s", &id(n));
        assert_eq!(ask(&mut p, T, "s", rows(3)), ("bound", id(n)));
    }
    assert_eq!(p.bound(), 1);
}

#[test]
fn only_acceptance_binds() {
    let mut p = policy();
    let first = at(1, 0, "s9", &id(1));
    // Turned away five times: nothing is bound, and the way is free for another worker.
    for attempt in 0..5 {
        let at = PlacedAt { attempt: Attempt(attempt), ..first.clone() };
        p.observe(T, &PolicyEvent::Placed(at.clone()));
        let end = if attempt == 4 { PolicyEvent::Failed(at) } else { PolicyEvent::Released(at) };
        p.observe(T, &end);
        p.check().unwrap();
        assert_eq!((p.bound(), p.sessions.len(), p.placed.len()), (0, 0, 0));
    }
    p.observe(T, &PolicyEvent::Accepted(at(1, 5, "s9", &id(2))));
    assert_eq!(p.worker_of(&"s9".into()), Some(&id(2)));
    p.check().unwrap();
}

#[test]
fn telling_twice_changes_nothing() {
    let mut p = policy();
    let at = at(1, 0, "s", &id(1));
    for _ in 0..2 {
        p.observe(T, &PolicyEvent::Placed(at.clone()));
        p.check().unwrap();
    }
    assert_eq!(p.sessions[&id(1)], 1);
    for _ in 0..2 {
        p.observe(T, &PolicyEvent::Placed(at.clone()));
        p.observe(T, &PolicyEvent::Accepted(at.clone()));
        p.check().unwrap();
    }
    assert_eq!((p.sessions[&id(1)], p.bound()), (1, 1));
}

#[test]
fn a_session_moves_where_its_worker_cannot_have_it() {
    let mut p = policy();
    serve(&mut p, T, 1, "s", &id(1));
    // Gone, draining or full: it is not among the rows.
    let (action, to) = ask(&mut p, T, "s", vec![row(0), row(2)]);
    assert_eq!(action, "rebind");
    assert_ne!(to, id(1));
    // Far busier than the others.
    let busy = |n, requests| CandidateRow { requests, ..row(n) };
    let uneven = vec![busy(0, 2), busy(1, 20), busy(2, 2)];
    let (action, to) = ask(&mut p, T, "s", uneven);
    assert_eq!(action, "rebind");
    assert_ne!(to, id(1));
    // As busy as the others, or the only one.
    assert_eq!(ask(&mut p, T, "s", vec![busy(0, 20), busy(1, 20), busy(2, 20)]), ("bound", id(1)));
    assert_eq!(ask(&mut p, T, "s", vec![busy(1, 20)]).1, id(1));
    // Few requests are never too many.
    assert_eq!(ask(&mut p, T, "s", vec![busy(0, 0), busy(1, 7), busy(2, 0)]), ("bound", id(1)));
    // The wish binds nothing; it is bound until another takes it.
    assert_eq!(p.worker_of(&"s".into()), Some(&id(1)));
}

#[test]
fn an_idle_session_is_forgotten() {
    let mut p = policy();
    let idle = p.options.idle_timeout;
    serve(&mut p, T, 1, "a", &id(1));
    serve(&mut p, T + Span(1), 2, "b", &id(1));
    assert_eq!(ask(&mut p, T + Span(idle.0 - 1), "a", rows(3)), ("bound", id(1)));
    assert_eq!(ask(&mut p, T + idle, "a", rows(3)).0, "hash");
    assert_eq!(p.bound(), 1);
    p.tick(T + idle + Span(1), &[], &mut Vec::new());
    assert_eq!((p.bound(), p.sessions.len()), (0, 0));
    p.check().unwrap();
}

#[test]
fn the_map_is_bounded_and_forgets_the_least_recently_used() {
    let mut p = SessionAffinity::new(SessionAffinityOptions { max_sessions: 1000, ..Default::default() });
    for n in 0..100_000_u64 {
        let at = at(n, 0, &format!("s{n}"), &id(n % 3));
        p.observe(Time(n), &PolicyEvent::Placed(at.clone()));
        p.observe(Time(n), &PolicyEvent::Accepted(at));
        if n >= 100 {
            // One that is used stays.
            p.observe(Time(n), &PolicyEvent::Accepted(self::at(n, 1, "s100", &id(1))));
        }
    }
    p.check().unwrap();
    assert_eq!((p.bound(), p.by_use.len(), p.placed.len()), (1000, 1000, 0));
    assert!(p.worker_of(&"s100".into()).is_some() && p.worker_of(&"s99999".into()).is_some());
    assert!(p.worker_of(&"s50".into()).is_none());
}

#[test]
fn strangers_agree_without_being_told_and_few_move() {
    let first = |n: u64| -> Vec<WorkerId> {
        (0..3000).map(|s| ask(&mut policy(), T, &format!("session {s}"), rows(n)).1).collect()
    };
    let (four, five) = (first(4), first(5));
    assert_eq!(four, first(4), "two controllers");
    let moved = four.iter().zip(&five).filter(|(a, b)| a != b).count();
    assert!(four.iter().zip(&five).all(|(a, b)| a == b || *b == id(4)), "none moves among the old ones");
    assert!((450..750).contains(&moved), "a fifth moves to the new worker: {moved} of 3000");
    for w in 0..4 {
        let share = four.iter().filter(|id| **id == self::id(w)).count();
        assert!((650..850).contains(&share), "w{w} has {share} of 3000");
    }
}

#[test]
fn strangers_never_fill_one_worker() {
    for sessions in [12_u64, 100, 1000] {
        let mut p = policy();
        for s in 0..sessions {
            let session = format!("chat-{s}");
            let (_, to) = ask(&mut p, T, &session, rows(3));
            serve(&mut p, T, s, &session, &to);
        }
        let most = p.sessions.values().copied().max().unwrap();
        assert!(most as f64 <= (1.25 * sessions as f64 / 3.0).ceil(), "{most} of {sessions}");
    }
}

#[test]
fn sessions_on_their_way_take_room() {
    let mut p = policy();
    let mut placed = BTreeMap::<WorkerId, u32>::new();
    for s in 0..12 {
        let session = format!("chat-{s}");
        let (_, to) = ask(&mut p, T, &session, rows(3));
        *placed.entry(to.clone()).or_default() += 1;
        p.observe(T, &PolicyEvent::Placed(at(s, 0, &session, &to)));
        p.check().unwrap();
    }
    assert!(placed.values().all(|n| *n <= 5), "{placed:?}");
}

#[test]
fn any_key_will_do() {
    let mut p = policy();
    for key in ["", "ключ", "\u{0}", &"x".repeat(65_536)] {
        let (action, to) = ask(&mut p, T, key, rows(3));
        assert_eq!(action, "hash");
        serve(&mut p, T, 1, key, &to);
        assert_eq!(ask(&mut p, T, key, rows(3)), ("bound", to));
    }
}
