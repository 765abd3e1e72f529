//! Sessions that are moved.

use super::*;

/// A session of `choices` choices at worker 1 with one token of each, whose effects so far are dropped.
fn streaming(choices: u32) -> Session {
    let mut s = submitted(choices as usize, 9, 1);
    let mut fx = Vec::new();
    for choice in 0..choices {
        s.token(T, &event(0, choice, 0, None), &mut fx);
    }
    s
}

fn migrate(s: &mut Session, to: Option<u64>) -> Vec<String> {
    let mut fx = Vec::new();
    s.migrate(T, to.map(worker), &mut fx).unwrap();
    s.check().unwrap();
    names(&fx)
}

/// What comes of one call.
fn after(s: &mut Session, call: impl FnOnce(&mut Session, &mut Vec<SessionEffect>)) -> Vec<String> {
    let mut fx = Vec::new();
    call(s, &mut fx);
    s.check().unwrap();
    names(&fx)
}

fn pin_of(fx: &[SessionEffect]) -> Option<WorkerId> {
    let place = |e: &SessionEffect| match e {
        SessionEffect::Place(ask) => Some(ask.pin.clone()),
        _ => None,
    };
    fx.iter().find_map(place).expect("a place is asked for")
}

#[test]
fn pages_are_fetched_while_tokens_come_and_then_the_worker_changes() {
    let mut s = streaming(1);
    assert_eq!(migrate(&mut s, Some(2)), ["fetch/1@w2#1<w1#1"]);
    assert_eq!(s.fetching_to(), Some(&worker(2)));
    assert_eq!(after(&mut s, |s, fx| s.token(T, &event(0, 0, 1, None), fx)), ["deliver/0.1"]);
    let mut fx = Vec::new();
    s.fetched(T, Attempt(1), Ok(()), &mut fx);
    assert_eq!(names(&fx), ["cancel/0@w1#1", "release/0", "place/2"]);
    assert_eq!(pin_of(&fx), Some(worker(2)));
    // What the source has drawn since is drawn again.
    assert!(after(&mut s, |s, fx| s.token(T, &event(0, 0, 2, None), fx)).is_empty());
    fx.clear();
    s.placed(T, Attempt(2), plan(2), &mut fx);
    let [SessionEffect::Submit { worker: to, prefill, spec }] = &fx[..] else { panic!("{fx:?}") };
    assert_eq!((to, prefill.as_ref(), spec.attempt), (&worker(2), Some(&worker(1)), Attempt(2)));
    assert_eq!(spec.resumed[0].tokens, [0, 1]);
    assert_eq!(after(&mut s, |s, fx| s.accepted(T, Attempt(2), fx)), ["moved/w1#1>w2#1"]);
    assert_eq!(after(&mut s, |s, fx| s.token(T, &event(2, 0, 2, None), fx)), ["deliver/0.2"]);
    assert_eq!((s.retries(), s.worker()), (0, Some(&worker(2))));
    // And back; the prompt is nobody else's this time.
    assert_eq!(migrate(&mut s, Some(1)), ["fetch/3@w1#1<w2#1"]);
    after(&mut s, |s, fx| s.fetched(T, Attempt(3), Ok(()), fx));
    after(&mut s, |s, fx| s.placed(T, Attempt(4), plan(1), fx));
    let moved = after(&mut s, |s, fx| s.token(T, &event(4, 0, 3, None), fx));
    assert_eq!(moved, ["moved/w2#1>w1#1", "deliver/0.3"], "a token says as much as an acceptance");
    assert_eq!(after(&mut s, |s, fx| s.cancel(T, fx)), ["cancel/4@w1#1", "release/4", "failed/Cancelled"]);
}

#[test]
fn what_is_fetched_is_one_sequence_that_goes_on() {
    let mut s = Session::new(
        RequestSpec { credit: 2, prompt_logprobs: true, ..spec(2, 9) },
        SessionConfig { retry_limit: 1, backoff: BACKOFF },
    );
    let mut fx = Vec::new();
    s.start(T, &mut fx);
    s.placed(T, Attempt(0), plan(1), &mut fx);
    for (choice, index) in [(0, 0), (1, 0), (1, 1)] {
        s.token(T, &event(0, choice, index, None), &mut fx);
    }
    fx.clear();
    s.migrate(T, Some(worker(2)), &mut fx).unwrap();
    let [SessionEffect::Fetch { spec, .. }] = &fx[..] else { panic!("{fx:?}") };
    assert_eq!(spec.resumed, [ResumedChoice { tokens: vec![1000, 1001], ended: false, unread: 0 }]);
    assert!(spec.max_tokens > 3 && spec.credit == 0 && spec.ignore_end && !spec.prompt_logprobs);
    assert_eq!(spec.deadline, T + MIGRATE_WITHIN);
}

#[test]
fn what_fails_before_the_switch_changes_nothing() {
    // The target could not fetch, is lost, or takes too long.
    let mut s = streaming(1);
    migrate(&mut s, Some(2));
    let fetched = |attempt, result: Result<(), String>| {
        move |s: &mut Session, fx: &mut Vec<SessionEffect>| s.fetched(T, Attempt(attempt), result, fx)
    };
    assert!(after(&mut s, fetched(0, Ok(()))).is_empty(), "another attempt's");
    assert_eq!(after(&mut s, fetched(1, Err("no pages".into()))), ["stayed"]);
    assert!(after(&mut s, fetched(1, Ok(()))).is_empty(), "late");
    migrate(&mut s, Some(2));
    assert_eq!(after(&mut s, |s, fx| s.worker_lost(T, &worker(2), fx)), ["cancel/2@w2#1", "stayed"]);
    migrate(&mut s, Some(3));
    assert_eq!(s.next_deadline(), Some(T + MIGRATE_WITHIN));
    assert!(after(&mut s, |s, fx| s.expire(T, fx)).is_empty());
    assert_eq!(after(&mut s, |s, fx| s.expire(T + MIGRATE_WITHIN, fx)), ["cancel/3@w3#1", "stayed"]);
    assert_eq!(after(&mut s, |s, fx| s.token(T, &event(0, 0, 1, None), fx)), ["deliver/0.1"]);
    assert_eq!((s.worker(), s.spec().attempt), (Some(&worker(1)), Attempt(0)));
}

#[test]
fn a_source_that_is_lost_is_a_loss_like_any_other() {
    let mut s = streaming(1);
    migrate(&mut s, Some(2));
    let lost = after(&mut s, |s, fx| s.worker_lost(T, &worker(1), fx));
    assert_eq!(lost, ["cancel/1@w2#1", "elsewhere", "cancel/0@w1#1", "release/0", "place/2"]);
    assert_eq!(s.retries(), 1);
    // The end of the request ends everything.
    let mut s = streaming(1);
    migrate(&mut s, Some(2));
    let gone = after(&mut s, |s, fx| s.cancel(T, fx));
    assert_eq!(gone, ["cancel/1@w2#1", "ended", "cancel/0@w1#1", "release/0", "failed/Cancelled"]);
}

#[test]
fn a_target_that_does_not_take_it_costs_no_retry() {
    let switch = || {
        let mut s = streaming(1);
        migrate(&mut s, Some(2));
        after(&mut s, |s, fx| s.fetched(T, Attempt(1), Ok(()), fx));
        s
    };
    let full = || Rejection::Pinned { worker: worker(2), why: "full".into() };
    let mut s = switch();
    let mut fx = Vec::new();
    s.rejected(T, Attempt(2), full(), &mut fx);
    assert_eq!(names(&fx), ["elsewhere", "place/3"]);
    assert_eq!((pin_of(&fx), s.retries()), (None, 0));
    s.check().unwrap();
    fx.clear();
    s.placed(T, Attempt(3), plan(3), &mut fx);
    let [SessionEffect::Submit { prefill, .. }] = &fx[..] else { panic!("{fx:?}") };
    assert_eq!(prefill, &Some(worker(1)), "the source has its pages all the same");
    // The worker itself says no; not even to come back later.
    let mut s = switch();
    after(&mut s, |s, fx| s.placed(T, Attempt(2), plan(2), fx));
    let mut fx = Vec::new();
    let refusal = Refusal::NeverFits { needed: 9, pages: 8, page_tokens: 16 };
    s.refused(T, Attempt(2), refusal, &mut fx);
    assert_eq!(names(&fx), ["release/2", "elsewhere", "place/3"]);
    let [.., SessionEffect::Place(ask)] = &fx[..] else { panic!("{fx:?}") };
    assert_eq!((&ask.pin, &ask.avoid, s.retries()), (&None, &vec![worker(2)], 0));
    // Lost after the switch: a loss, and the source is still worth asking.
    let mut s = switch();
    after(&mut s, |s, fx| s.placed(T, Attempt(2), plan(2), fx));
    let lost = after(&mut s, |s, fx| s.worker_lost(T, &worker(2), fx));
    assert_eq!(lost, ["elsewhere", "cancel/2@w2#1", "release/2", "place/3"]);
    assert_eq!(s.retries(), 1);
    // A source that died meanwhile is asked for nothing.
    let mut s = switch();
    s.worker_lost(T, &worker(1), &mut Vec::new());
    let mut fx = Vec::new();
    s.placed(T, Attempt(2), plan(2), &mut fx);
    let [SessionEffect::Submit { prefill: None, .. }] = &fx[..] else { panic!("{fx:?}") };
    // A controller that knows no pins.
    let mut s = switch();
    let placed = after(&mut s, |s, fx| s.placed(T, Attempt(2), plan(3), fx));
    assert_eq!(placed, ["elsewhere", "submit/2@w3#1"]);
}

#[test]
fn without_a_name_the_controller_chooses() {
    let mut s = streaming(1);
    let mut fx = Vec::new();
    s.migrate(T, None, &mut fx).unwrap();
    let [SessionEffect::Choose(ask)] = &fx[..] else { panic!("{fx:?}") };
    assert_eq!((ask.attempt, &ask.avoid, &ask.pin), (Attempt(1), &vec![worker(1)], &None));
    let chosen = after(&mut s, |s, fx| s.placed(T, Attempt(1), plan(3), fx));
    assert_eq!(chosen, ["unchoose/1", "fetch/2@w3#1<w1#1"]);
    assert_eq!((s.worker(), s.phase()), (Some(&worker(1)), Phase::Streaming));
    after(&mut s, |s, fx| s.fetched(T, Attempt(2), Err("no".into()), fx));
    // There is no other, or no room.
    assert_eq!(migrate(&mut s, None), ["choose/3"]);
    let alone = after(&mut s, |s, fx| s.placed(T, Attempt(3), plan(1), fx));
    assert_eq!(alone, ["unchoose/3", "stayed"]);
    assert_eq!(migrate(&mut s, None), ["choose/4"]);
    let full = Rejection::QueueFull { queued: 1 };
    assert_eq!(after(&mut s, |s, fx| s.rejected(T, Attempt(4), full, fx)), ["stayed"]);
    // The request ends first.
    assert_eq!(migrate(&mut s, None), ["choose/5"]);
    let gone = after(&mut s, |s, fx| s.cancel(T, fx));
    assert_eq!(gone, ["unchoose/5", "ended", "cancel/0@w1#1", "release/0", "failed/Cancelled"]);
}

#[test]
fn what_cannot_be_moved_says_so() {
    let mut fx = Vec::new();
    let mut s = submitted(1, 9, 1);
    assert_eq!(s.migrate(T, None, &mut fx), Err(MigrateError::NotRunning));
    s.token(T, &event(0, 0, 0, None), &mut fx);
    fx.clear();
    assert_eq!(s.migrate(T, Some(worker(1)), &mut fx), Err(MigrateError::AlreadyThere(worker(1))));
    for attempt in 1..=MAX_MIGRATIONS {
        s.migrate(T, Some(worker(2)), &mut fx).unwrap();
        assert_eq!(s.migrate(T, Some(worker(3)), &mut fx), Err(MigrateError::AlreadyMoving));
        s.fetched(T, Attempt(attempt), Err("no".into()), &mut fx);
        s.check().unwrap();
    }
    assert_eq!(s.migrate(T, Some(worker(2)), &mut fx), Err(MigrateError::TooOften));
    s.cancel(T, &mut fx);
    assert_eq!(s.migrate(T, Some(worker(2)), &mut fx), Err(MigrateError::NotRunning));
}
