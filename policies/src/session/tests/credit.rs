//! Credit: what the client has taken is what grants the worker more.

use super::*;

/// A session at worker 1 with a credit, with the effects so far dropped.
fn with_credit(choices: usize, max_tokens: u32, credit: u32) -> Session {
    let spec = RequestSpec { credit, ..spec(choices, max_tokens) };
    let mut s = Session::new(spec, SessionConfig { retry_limit: 3, backoff: BACKOFF });
    let mut fx = Vec::new();
    s.start(T, &mut fx);
    s.placed(T, Attempt(0), plan(1), &mut fx);
    s
}

#[test]
fn half_of_the_credit_taken_is_granted_again() {
    let mut s = with_credit(2, 20, 5);
    let mut fx = Vec::new();
    (0..5).for_each(|i| s.token(T, &event(0, 0, i, None), &mut fx));
    s.token(T, &event(0, 1, 0, None), &mut fx);
    fx.clear();
    for total in [1, 2, 1] {
        s.consumed(T, 0, total, &mut fx);
    }
    s.consumed(T, 1, 1, &mut fx);
    s.consumed(T, 2, 9, &mut fx);
    assert!(fx.is_empty(), "not yet half: {fx:?}");
    s.consumed(T, 0, 3, &mut fx);
    s.consumed(T, 0, 5, &mut fx);
    s.consumed(T, 0, 99, &mut fx);
    assert_eq!(names(&fx), ["grant/0.0<8"], "no more was delivered than five");
    (5..8).for_each(|i| s.token(T, &event(0, 0, i, None), &mut fx));
    fx.clear();
    s.consumed(T, 0, 6, &mut fx);
    assert_eq!(names(&fx), ["grant/0.0<11"]);
    s.check().unwrap();
}

#[test]
fn nothing_is_granted_without_credit_after_the_end_or_beyond_the_limit() {
    let mut fx = Vec::new();
    let mut s = with_credit(1, 20, 0);
    (0..9).for_each(|i| s.token(T, &event(0, 0, i, None), &mut fx));
    fx.clear();
    s.consumed(T, 0, 9, &mut fx);
    assert!(fx.is_empty());

    let mut s = with_credit(2, 6, 4);
    (0..4).for_each(|i| s.token(T, &event(0, 0, i, None), &mut fx));
    (0..3).for_each(|i| s.token(T, &event(0, 1, i, None), &mut fx));
    s.stop_choice(T, 1, &mut fx);
    fx.clear();
    s.consumed(T, 1, 3, &mut fx);
    s.consumed(T, 0, 2, &mut fx);
    s.consumed(T, 0, 4, &mut fx);
    assert_eq!(names(&fx), ["grant/0.0<6"], "it covers the limit");
    s.check().unwrap();
    s.cancel(T, &mut fx);
    fx.clear();
    s.consumed(T, 0, 4, &mut fx);
    assert!(fx.is_empty());
}

#[test]
fn a_new_attempt_has_the_credit_that_is_due() {
    let mut s = with_credit(2, 20, 4);
    let mut fx = Vec::new();
    (0..4).for_each(|i| s.token(T, &event(0, 0, i, None), &mut fx));
    s.consumed(T, 0, 1, &mut fx);
    s.worker_lost(T, &worker(1), &mut fx);
    fx.clear();
    s.consumed(T, 0, 3, &mut fx);
    assert!(fx.is_empty(), "nobody is there to hear it");
    s.placed(T, Attempt(1), plan(2), &mut fx);
    let SessionEffect::Submit { spec, .. } = &fx[0] else { panic!("{fx:?}") };
    let allowed: Vec<u32> = spec.resumed.iter().map(|r| spec.allowance(r)).collect();
    assert_eq!((spec.resumed[0].unread, &allowed[..]), (1, &[7, 4][..]));
    fx.clear();
    s.consumed(T, 0, 4, &mut fx);
    assert!(fx.is_empty(), "one taken since");
    (4..7).for_each(|i| s.token(T, &event(1, 0, i, None), &mut fx));
    fx.clear();
    s.consumed(T, 0, 5, &mut fx);
    assert_eq!(names(&fx), ["grant/1.0<9"]);
    s.check().unwrap();
}
