//! Sessions that are moved.

use super::*;
use crate::request::Sampling;

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

#[test]
fn pages_are_fetched_while_tokens_come_and_then_the_worker_changes() {
    let mut s = streaming(1);
    assert_eq!(migrate(&mut s, Some(2)), ["fetch/1@w2#1<w1#1"]);
    assert_eq!(s.moving_to(), Some(&worker(2)));
    assert_eq!(after(&mut s, |s, fx| s.token(T, &event(0, 0, 1, None), fx)), ["deliver/0.1"]);
    let mut fx = Vec::new();
    s.fetched(T, Attempt(1), Ok(()), &mut fx);
    let [SessionEffect::Choose(ask)] = &fx[..] else { panic!("{fx:?}") };
    assert_eq!((ask.attempt, &ask.pin), (Attempt(2), &Some(worker(2))));
    // The source goes on meanwhile, and when the target has the request too.
    assert_eq!(after(&mut s, |s, fx| s.token(T, &event(0, 0, 2, None), fx)), ["deliver/0.2"]);
    fx.clear();
    s.placed(T, Attempt(2), plan(2), &mut fx);
    let [SessionEffect::Take { to, from, takes, spec }] = &fx[..] else { panic!("{fx:?}") };
    assert_eq!((to, from, *takes, spec.attempt), (&worker(2), &worker(1), Attempt(0), Attempt(2)));
    assert_eq!(spec.resumed[0].tokens, [0, 1, 2]);
    assert!(after(&mut s, |s, fx| s.accepted(T, Attempt(2), fx)).is_empty());
    assert_eq!(after(&mut s, |s, fx| s.token(T, &event(0, 0, 3, None), fx)), ["deliver/0.3"]);
    assert_eq!((s.worker(), s.spec().attempt), (Some(&worker(1)), Attempt(0)));
    // What the source has drawn is repeated; that the target speaks is the switch.
    let switch = after(&mut s, |s, fx| s.token(T, &event(2, 0, 3, None), fx));
    assert_eq!(switch, ["cancel/0@w1#1", "release/0", "switched/2@w2#1", "moved/w1#1>w2#1"]);
    assert!(after(&mut s, |s, fx| s.taken_over(T, Attempt(0), fx)).is_empty(), "late");
    assert!(after(&mut s, |s, fx| s.token(T, &event(0, 0, 4, None), fx)).is_empty(), "late");
    assert_eq!(after(&mut s, |s, fx| s.token(T, &event(2, 0, 4, None), fx)), ["deliver/0.4"]);
    assert_eq!((s.retries(), s.worker(), s.phase()), (0, Some(&worker(2)), Phase::Streaming));
    // And back; this time the source says first that it has let go.
    assert_eq!(migrate(&mut s, Some(1)), ["fetch/3@w1#1<w2#1"]);
    assert_eq!(after(&mut s, |s, fx| s.fetched(T, Attempt(3), Ok(()), fx)), ["choose/4"]);
    assert_eq!(after(&mut s, |s, fx| s.placed(T, Attempt(4), plan(1), fx)), ["take/4@w1#1<2@w2#1"]);
    let moved = after(&mut s, |s, fx| s.taken_over(T, Attempt(2), fx));
    assert_eq!(moved, ["cancel/2@w2#1", "release/2", "switched/4@w1#1", "moved/w2#1>w1#1"]);
    assert_eq!(after(&mut s, |s, fx| s.token(T, &event(4, 0, 5, None), fx)), ["deliver/0.5"]);
    assert_eq!(after(&mut s, |s, fx| s.cancel(T, fx)), ["cancel/4@w1#1", "release/4", "failed/Cancelled"]);
}

/// A session that moves from worker 1 to worker 2, which has the request as attempt 2.
fn taking(session: Session) -> Session {
    let mut s = session;
    migrate(&mut s, Some(2));
    after(&mut s, |s, fx| s.fetched(T, Attempt(1), Ok(()), fx));
    assert_eq!(after(&mut s, |s, fx| s.placed(T, Attempt(2), plan(2), fx)), ["take/2@w2#1<0@w1#1"]);
    s
}

/// Where log-probabilities are asked for, those of the source are waited for; without them what the target repeats is as good.
#[test]
fn what_the_target_repeats_comes_without_log_probabilities() {
    let with =
        |event: TokenEvent| TokenEvent { logprobs: Some(Logprobs { own: -1.0, top: vec![] }), ..event };
    let sampling = Arc::new(Sampling { logprobs: Some(0), ..Sampling::default() });
    let config = SessionConfig { retry_limit: 1, backoff: BACKOFF };
    let mut s = Session::new(RequestSpec { sampling, ..spec(1, 9) }, config);
    let mut fx = Vec::new();
    s.start(T, &mut fx);
    s.placed(T, Attempt(0), plan(1), &mut fx);
    s.token(T, &with(event(0, 0, 0, None)), &mut fx);
    let mut s = taking(s);
    // Tokens 1 and 2 are the source's and still on their way; 3 is the target's.
    assert!(after(&mut s, |s, fx| s.token(T, &event(2, 0, 1, None), fx)).is_empty());
    assert!(after(&mut s, |s, fx| s.token(T, &event(2, 0, 2, None), fx)).is_empty());
    assert!(after(&mut s, |s, fx| s.token(T, &with(event(2, 0, 3, None)), fx)).is_empty());
    assert_eq!(after(&mut s, |s, fx| s.token(T, &with(event(0, 0, 1, None)), fx)), ["deliver/0.1"]);
    let last = after(&mut s, |s, fx| s.token(T, &with(event(0, 0, 2, None)), fx));
    assert_eq!(last[..2], ["deliver/0.2", "cancel/0@w1#1"]);
    assert_eq!(last[4..], ["moved/w1#1>w2#1", "deliver/0.3"]);
    // Without: at once.
    let mut s = taking(streaming(1));
    let switch = after(&mut s, |s, fx| s.token(T, &event(2, 0, 1, None), fx));
    assert_eq!(switch[3..], ["moved/w1#1>w2#1", "deliver/0.1"]);
}

/// What the client has read since the target got the request is made known to it, and so is what has ended.
#[test]
fn the_target_hears_what_has_changed_since() {
    let config = SessionConfig { retry_limit: 1, backoff: BACKOFF };
    let mut s = Session::new(RequestSpec { credit: 2, ..spec(2, 9) }, config);
    let mut fx = Vec::new();
    s.start(T, &mut fx);
    s.placed(T, Attempt(0), plan(1), &mut fx);
    for (choice, index) in [(0, 0), (0, 1), (1, 0)] {
        s.token(T, &event(0, choice, index, None), &mut fx);
    }
    let mut s = taking(s);
    assert_eq!(after(&mut s, |s, fx| s.consumed(T, 0, 2, fx)), ["grant/0.0<4"]);
    assert_eq!(after(&mut s, |s, fx| s.stop_choice(T, 1, fx)), ["cancel-choice/1"]);
    let switch = after(&mut s, |s, fx| s.token(T, &event(2, 0, 2, None), fx));
    assert_eq!(switch[2..5], ["switched/2@w2#1", "grant/2.0<4", "cancel-choice/1"]);
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
fn whatever_fails_before_the_switch_leaves_the_session_where_it_was() {
    type Call = fn(&mut Session, &mut Vec<SessionEffect>);
    let booked = || taking(streaming(1));
    let asked = || {
        let mut s = streaming(1);
        migrate(&mut s, Some(2));
        after(&mut s, |s, fx| s.fetched(T, Attempt(1), Ok(()), fx));
        s
    };
    let given_up = &["cancel/2@w2#1", "cancel/2@w1#1", "unchoose/2", "stayed"][..];
    let refused: Call = |s, fx| {
        s.refused(T, Attempt(2), Refusal::NeverFits { needed: 9, pages: 8, page_tokens: 16 }, fx);
    };
    let full: Call = |s, fx| {
        s.rejected(T, Attempt(2), Rejection::Pinned { worker: worker(2), why: "full".into() }, fx);
    };
    for (mut s, call, effects) in [
        (asked(), full, &["stayed"][..]),
        // A controller that knows no pins.
        (asked(), |s, fx| s.placed(T, Attempt(2), plan(3), fx), &["unchoose/2", "stayed"]),
        (asked(), |s, fx| s.worker_lost(T, &worker(2), fx), &["unchoose/2", "stayed"]),
        (booked(), refused, given_up),
        (booked(), |s, fx| s.worker_lost(T, &worker(2), fx), given_up),
        (booked(), |s, fx| s.failed_at_worker(T, Attempt(2), "bad".into(), fx), given_up),
        (booked(), |s, fx| s.late_at_worker(Attempt(2), "late".into(), fx), given_up),
        (booked(), |s, fx| s.done(T, Attempt(2), Usage::default(), fx), given_up),
        (booked(), |s, fx| s.taken_over(T, Attempt(2), fx), given_up),
        (booked(), |s, fx| s.expire(T + MIGRATE_WITHIN, fx), given_up),
    ] {
        assert_eq!(after(&mut s, call), effects);
        let sent = effects.len() == given_up.len();
        assert_eq!((s.worker(), s.spec().attempt, s.retries()), (Some(&worker(1)), Attempt(0), 0));
        assert_eq!(after(&mut s, |s, fx| s.token(T, &event(0, 0, 1, None), fx)), ["deliver/0.1"]);
        assert!(after(&mut s, |s, fx| s.token(T, &event(2, 0, 2, None), fx)).is_empty(), "late");
        // The source let go all the same: that is no retry, unless nobody has asked it to.
        let gone = after(&mut s, |s, fx| s.taken_over(T, Attempt(0), fx));
        assert_eq!(gone, ["release/0", "place/3"]);
        assert_eq!(s.retries(), u32::from(!sent));
    }
    // Let go of before anybody knew, and then the target is lost: a loss like any other.
    let mut s = booked();
    after(&mut s, |s, fx| s.taken_over(T, Attempt(0), fx));
    let lost = after(&mut s, |s, fx| s.worker_lost(T, &worker(2), fx));
    assert_eq!(
        (&lost[..], s.retries()),
        (&["cancel/2@w2#1", "release/2", "place/3"].map(String::from)[..], 1)
    );
    // The source is lost, or the request ends.
    let lost = after(&mut booked(), |s, fx| s.worker_lost(T, &worker(1), fx));
    assert_eq!(lost[..4], ["cancel/2@w2#1", "cancel/2@w1#1", "unchoose/2", "elsewhere"]);
    assert_eq!(lost[4..], ["cancel/0@w1#1", "release/0", "place/3"]);
    let gone = after(&mut booked(), |s, fx| s.cancel(T, fx));
    assert_eq!(gone[..4], ["cancel/2@w2#1", "cancel/2@w1#1", "unchoose/2", "ended"]);
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
