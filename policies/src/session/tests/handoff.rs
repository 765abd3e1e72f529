//! Requests whose prompts another worker computes.

use super::*;

fn pair(n: u64, prefill: u64) -> Plan {
    Plan { prefill: Some(worker(prefill)), ..plan(n) }
}

/// A session at worker 1, whose prompt worker 9 computes.
fn handed(taken: bool) -> Session {
    let mut s = Session::new(spec(2, 4), SessionConfig { retry_limit: 3, backoff: BACKOFF });
    let mut fx = Vec::new();
    s.start(T, &mut fx);
    fx.clear();
    s.placed(T, Attempt(0), pair(1, 9), &mut fx);
    let [SessionEffect::Submit { worker: to, prefill, .. }] = &fx[..] else { panic!("{fx:?}") };
    assert_eq!((to, prefill), (&worker(1), &Some(worker(9))));
    if taken {
        s.accepted(T, Attempt(0), &mut fx);
    }
    s.check().unwrap();
    s
}

/// Whom the request is placed without, after what has just happened.
fn avoided(fx: &[SessionEffect]) -> Vec<WorkerId> {
    let place = fx.iter().find_map(|e| match e {
        SessionEffect::Place(ask) => Some(ask.avoid.clone()),
        _ => None,
    });
    place.unwrap_or_else(|| panic!("not placed again: {fx:?}"))
}

#[test]
fn the_first_token_of_an_attempt_says_that_its_prompt_is_computed() {
    let mut s = handed(true);
    let mut fx = Vec::new();
    for (choice, index) in [(1, 0), (0, 0), (0, 1)] {
        s.token(T, &event(0, choice, index, None), &mut fx);
    }
    assert_eq!(names(&fx), ["deliver/1.0", "prefilled/0", "deliver/0.0", "deliver/0.1"]);
    // Another attempt, another hand-off.
    fx.clear();
    s.worker_lost(T, &worker(1), &mut fx);
    s.placed(T, Attempt(1), pair(2, 9), &mut fx);
    fx.clear();
    s.token(T, &event(1, 0, 2, None), &mut fx);
    assert_eq!(names(&fx), ["deliver/0.2", "prefilled/1"]);
    // One without: nobody has to be told.
    s.worker_lost(T, &worker(2), &mut fx);
    s.expire(T + BACKOFF, &mut fx);
    s.placed(T, Attempt(2), plan(3), &mut fx);
    fx.clear();
    s.token(T, &event(2, 1, 1, None), &mut fx);
    assert_eq!(names(&fx), ["deliver/1.1"]);
    s.check().unwrap();
}

#[test]
fn a_prefill_worker_that_may_have_failed_a_request_gets_it_no_more() {
    // Taken, and nothing came: it may be why.
    let mut fx = Vec::new();
    handed(true).worker_lost(T, &worker(1), &mut fx);
    assert_eq!(avoided(&fx), [worker(1), worker(9)]);
    let mut fx = Vec::new();
    handed(true).done(T, Attempt(0), Usage::default(), &mut fx);
    assert_eq!(avoided(&fx), [worker(1), worker(9)]);
    // Not even taken, or its part was done: it is not.
    let mut fx = Vec::new();
    handed(false).refused(T, Attempt(0), Refusal::QueueFull { waiting: 1 }, &mut fx);
    assert_eq!(avoided(&fx), [worker(1)]);
    let mut fx = Vec::new();
    let mut s = handed(true);
    s.token(T, &event(0, 0, 0, None), &mut fx);
    s.worker_lost(T, &worker(1), &mut fx);
    assert_eq!(avoided(&fx), [worker(1)]);
}

#[test]
fn the_loss_of_the_prefill_worker_leaves_the_request_where_it_is() {
    let mut s = handed(true);
    let mut fx = Vec::new();
    s.worker_lost(T, &worker(9), &mut fx);
    assert_eq!((names(&fx).len(), s.phase(), s.retries()), (0, Phase::Submitted, 0));
    s.token(T, &event(0, 0, 0, None), &mut fx);
    assert_eq!(names(&fx), ["deliver/0.0", "prefilled/0"]);
    s.worker_lost(T, &worker(1), &mut fx);
    assert_eq!(avoided(&fx), [worker(9), worker(1)], "it has failed");
    s.check().unwrap();
}

#[test]
fn what_cannot_be_handed_over_is_said_when_a_place_is_asked_for() {
    let ask = |s: &mut Session| {
        let mut fx = Vec::new();
        s.start(T, &mut fx);
        let Some(SessionEffect::Place(ask)) = fx.pop() else { panic!("{fx:?}") };
        (ask.choices, ask.resumed, ask.prompt_logprobs)
    };
    let config = SessionConfig { retry_limit: 1, backoff: BACKOFF };
    assert_eq!(ask(&mut Session::new(spec(2, 4), config)), (2, false, false));
    let scored = RequestSpec { prompt_logprobs: true, ..spec(1, 4) };
    assert_eq!(ask(&mut Session::new(scored, config)), (1, false, true));
    let mut fx = Vec::new();
    let mut s = handed(true);
    s.token(T, &event(0, 1, 0, None), &mut fx);
    s.worker_lost(T, &worker(1), &mut fx);
    let place = fx.iter().find_map(|e| match e {
        SessionEffect::Place(ask) => Some((ask.choices, ask.resumed)),
        _ => None,
    });
    assert_eq!(place, Some((2, true)));
}

#[test]
fn without_a_prefill_worker_where_one_is_demanded_the_client_may_come_again() {
    let mut s = Session::new(spec(1, 4), SessionConfig { retry_limit: 1, backoff: BACKOFF });
    let mut fx = Vec::new();
    s.start(T, &mut fx);
    s.rejected(T, Attempt(0), Rejection::NoPrefill("m".into()), &mut fx);
    let Some(SessionEffect::Failed(Failure::Unavailable(why))) = fx.last() else { panic!("{fx:?}") };
    assert!(why.contains("policy.disaggregate.fallback is none"), "{why}");
    s.check().unwrap();
}
