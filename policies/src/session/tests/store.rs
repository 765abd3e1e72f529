//! Prompts that pools are to keep.

use super::*;

fn pool() -> WorkerId {
    WorkerId::new("p".into(), 1)
}

fn placed(plan: Plan) -> Session {
    let mut s = Session::new(spec(2, 4), SessionConfig { retry_limit: 3, backoff: BACKOFF });
    let mut fx = Vec::new();
    s.start(T, &mut fx);
    s.placed(T, Attempt(0), plan, &mut fx);
    s
}

#[test]
fn a_pool_is_told_at_the_first_token_of_an_attempt_and_asks_who_computed_the_prompt() {
    let mut s = placed(Plan { store: Some(Box::new(pool())), prefill: Some(worker(9)), ..plan(1) });
    let mut fx = Vec::new();
    for (choice, index) in [(1, 0), (0, 0), (0, 1)] {
        s.token(T, &event(0, choice, index, None), &mut fx);
    }
    assert_eq!(names(&fx), ["deliver/1.0", "prefilled/0", "store/0@p#1<w9#1", "deliver/0.0", "deliver/0.1"]);
    let Some(SessionEffect::Store { spec: stored, .. }) = fx.get(2) else { panic!("{fx:?}") };
    assert_eq!((&stored.prompt, &stored.hashes), (&s.spec().prompt, &s.spec().hashes));
    assert_eq!((stored.attempt, stored.deadline), (Attempt(0).store(), Time::NEVER));
    assert_ne!(stored.attempt.fetch(), Attempt(0).fetch(), "it is no fetch of the attempt itself");
    s.check().unwrap();
}

#[test]
fn an_attempt_of_which_nothing_came_is_not_kept_and_the_next_one_is() {
    let mut s = placed(Plan { store: Some(Box::new(pool())), ..plan(1) });
    let mut fx = Vec::new();
    s.worker_lost(T, &worker(1), &mut fx);
    s.placed(T, Attempt(1), Plan { store: Some(Box::new(pool())), ..plan(2) }, &mut fx);
    s.token(T, &event(0, 0, 0, None), &mut fx);
    assert!(!names(&fx).iter().any(|name| name.starts_with("store")), "{:?}", names(&fx));
    fx.clear();
    s.token(T, &event(1, 0, 0, None), &mut fx);
    assert_eq!(names(&fx), ["deliver/0.0", "store/1@p#1<w2#1"]);
    // Without a pool: nothing.
    s.worker_lost(T, &worker(2), &mut fx);
    s.expire(T + BACKOFF, &mut fx);
    s.placed(T, Attempt(2), plan(3), &mut fx);
    fx.clear();
    s.token(T, &event(2, 0, 1, None), &mut fx);
    assert_eq!(names(&fx), ["deliver/0.1"]);
}
