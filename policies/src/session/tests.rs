use std::sync::Arc;

use super::*;
use crate::batch::{Refusal, Usage};
use crate::invariant::{enforce, panic_on_broken};
use crate::placement::{Plan, Rejection};
use crate::request::ResumedChoice;
use crate::rng::Rng;
use crate::step::SeqKey;
use crate::time::Span;

mod credit;
mod handoff;
mod migrate;
mod random;
mod store;

const T: Time = Time(5);
const BACKOFF: Span = Span(10);

fn spec(choices: usize, max_tokens: u32) -> RequestSpec {
    RequestSpec {
        resumed: vec![ResumedChoice::default(); choices],
        deadline: Time::ZERO + Span::from_secs(60),
        ..RequestSpec::plain(RequestId::new(1, 7), "m".into(), [1, 2, 3, 4], max_tokens)
    }
}

fn worker(n: u64) -> WorkerId {
    WorkerId::new(format!("w{n}").as_str().into(), 1)
}

fn plan(n: u64) -> Plan {
    Plan { worker: worker(n), prefill: None, fetch: None, store: None, why: "test", stages: Arc::default() }
}

/// The token that every worker gives to a choice at an index.
fn truth(choice: u32, index: u32) -> Token {
    choice * 1000 + index
}

fn event(attempt: u32, choice: u32, index: u32, finish: Option<Finish>) -> TokenEvent {
    TokenEvent {
        seq: SeqKey { request: RequestId::new(1, 7), attempt: Attempt(attempt), choice },
        index,
        token: truth(choice, index),
        logprobs: None,
        finish,
        cached_tokens: 0,
    }
}

/// Names of the effects, to compare sequences by.
fn names(fx: &[SessionEffect]) -> Vec<String> {
    let name = |effect: &SessionEffect| match effect {
        SessionEffect::Place(p) => format!("place/{}", p.attempt),
        SessionEffect::Submit { worker, spec, .. } => format!("submit/{}@{worker}", spec.attempt),
        SessionEffect::Deliver(e) => format!("deliver/{}.{}", e.seq.choice, e.index),
        SessionEffect::Prefilled { attempt, .. } => format!("prefilled/{attempt}"),
        SessionEffect::Store { pool, from, spec } => {
            format!("store/{}@{pool}<{from}", spec.attempt.0 & 0xff)
        }
        SessionEffect::DeliverPrompt { first, tokens } => format!("prompt/{first}+{}", tokens.len()),
        SessionEffect::CancelAt { worker, attempt, .. } => format!("cancel/{attempt}@{worker}"),
        SessionEffect::CancelChoice { choice, .. } => format!("cancel-choice/{choice}"),
        SessionEffect::Grant { attempt, choice, upto, .. } => format!("grant/{attempt}.{choice}<{upto}"),
        SessionEffect::Release { attempt, .. } => format!("release/{attempt}"),
        SessionEffect::Choose(p) => format!("choose/{}", p.attempt),
        SessionEffect::Unchoose { attempt, .. } => format!("unchoose/{attempt}"),
        SessionEffect::Fetch { to, from, spec } => format!("fetch/{}@{to}<{from}", spec.attempt),
        SessionEffect::Take { to, from, takes, spec } => format!("take/{}@{to}<{takes}@{from}", spec.attempt),
        SessionEffect::Switched { worker, attempt } => format!("switched/{attempt}@{worker}"),
        SessionEffect::Migration(Migrated::Moved { from, to }) => format!("moved/{from}>{to}"),
        SessionEffect::Migration(end) => end.as_str().into(),
        SessionEffect::Finished => "finished".into(),
        SessionEffect::Failed(failure) => format!("failed/{failure:?}"),
    };
    fx.iter().map(name).collect()
}

/// A session at worker 1, with the effects so far dropped.
fn submitted(choices: usize, max_tokens: u32, retry_limit: u32) -> Session {
    let mut s = Session::new(spec(choices, max_tokens), SessionConfig { retry_limit, backoff: BACKOFF });
    let mut fx = Vec::new();
    s.start(T, &mut fx);
    s.placed(T, Attempt(0), plan(1), &mut fx);
    s.accepted(T, Attempt(0), &mut fx);
    assert_eq!(names(&fx), ["place/0", "submit/0@w1#1"]);
    s.check().unwrap();
    s
}

#[test]
fn a_request_runs_to_its_end() {
    let mut s = submitted(1, 3, 2);
    let mut fx = Vec::new();
    for (index, finish) in [(0, None), (1, None), (2, Some(Finish::Length))] {
        s.token(T, &event(0, 0, index, finish), &mut fx);
        s.check().unwrap();
    }
    s.done(T, Attempt(0), Usage::default(), &mut fx);
    assert_eq!(names(&fx), ["deliver/0.0", "deliver/0.1", "deliver/0.2", "release/0", "finished"]);
    assert_eq!((s.phase(), s.next_deadline()), (Phase::Ended, None));
    assert_eq!(s.tokens(0), [0, 1, 2]);
}

#[test]
fn a_lost_worker_is_resumed_without_repeat_or_gap() {
    let mut s = submitted(2, 4, 1);
    let mut fx = Vec::new();
    s.token(T, &event(0, 0, 0, None), &mut fx);
    s.token(T, &event(0, 1, 0, Some(Finish::EndToken)), &mut fx);
    s.token(T, &event(0, 0, 1, None), &mut fx);
    fx.clear();
    s.worker_lost(T, &worker(9), &mut fx);
    assert!(fx.is_empty(), "another worker");
    s.worker_lost(T, &worker(1), &mut fx);
    assert_eq!(names(&fx), ["cancel/0@w1#1", "release/0", "place/1"]);
    let SessionEffect::Place(ask) = &fx[2] else { panic!("{fx:?}") };
    assert_eq!((ask.prompt_tokens, ask.context_tokens, ask.max_tokens, ask.choices), (6, 6, 2, 1));
    assert_eq!(ask.avoid, [worker(1)]);
    s.check().unwrap();

    fx.clear();
    s.placed(T, Attempt(1), plan(2), &mut fx);
    let SessionEffect::Submit { spec, .. } = &fx[0] else { panic!("{fx:?}") };
    let resumed = |tokens: &[Token], ended| ResumedChoice {
        tokens: tokens.to_vec(),
        ended,
        unread: tokens.len() as u32,
    };
    assert_eq!(spec.resumed, [resumed(&[0, 1], false), resumed(&[1000], true)]);

    fx.clear();
    s.token(T, &event(0, 0, 2, None), &mut fx);
    s.token(T, &event(1, 0, 1, None), &mut fx);
    s.token(T, &event(1, 1, 1, None), &mut fx);
    assert!(fx.is_empty(), "an old attempt, a delivered index, an ended choice: {fx:?}");
    s.token(T, &event(1, 0, 2, None), &mut fx);
    s.worker_lost(T, &worker(2), &mut fx);
    assert_eq!(
        names(&fx)[..3],
        ["deliver/0.2".to_string(), "cancel/1@w2#1".into(), "release/1".into()],
        "no retry is left"
    );
    assert!(matches!(fx.last(), Some(SessionEffect::Failed(Failure::WorkerLost(_)))), "{fx:?}");
    s.check().unwrap();
}

#[test]
fn what_cannot_be_done_in_time_is_not_tried_elsewhere() {
    let hopeless = Refusal::Hopeless { needed: Span(9), left: Span(8) };
    let mut s = submitted(1, 9, 4);
    let mut fx = Vec::new();
    s.refused(T, Attempt(0), hopeless, &mut fx);
    assert!(matches!(fx.last(), Some(SessionEffect::Failed(Failure::Hopeless(_)))), "{fx:?}");
    s.check().unwrap();
    let mut s = submitted(1, 9, 4);
    fx.clear();
    s.late_at_worker(Attempt(7), "another attempt's".to_owned(), &mut fx);
    assert!(fx.is_empty());
    s.late_at_worker(Attempt(0), "late".to_owned(), &mut fx);
    assert!(matches!(fx.last(), Some(SessionEffect::Failed(Failure::Hopeless(_)))), "{fx:?}");
    s.check().unwrap();
}

#[test]
fn retries_after_the_first_wait_longer_and_longer() {
    let mut s = submitted(1, 9, 4);
    let mut fx = Vec::new();
    let deadline = s.next_deadline();
    for (attempt, wait) in [(0, None), (1, Some(10)), (2, Some(20)), (3, Some(40))] {
        s.refused(T, Attempt(attempt), Refusal::Draining, &mut fx);
        s.check().unwrap();
        let at = wait.map(|ns| T + Span(ns));
        assert_eq!(s.next_deadline(), at.or(deadline));
        if let Some(at) = at {
            let before = fx.len();
            s.expire(Time(at.0 - 1), &mut fx);
            s.placed(T, Attempt(attempt + 1), plan(1), &mut fx);
            assert_eq!(fx.len(), before, "it was not asked yet");
            s.expire(at, &mut fx);
        }
        assert_eq!(names(&fx).last(), Some(&format!("place/{}", attempt + 1)));
        s.placed(T, Attempt(attempt + 1), plan(1), &mut fx);
        s.check().unwrap();
    }
    let mut s = submitted(1, 9, 4);
    s.refused(T, Attempt(0), Refusal::Draining, &mut fx);
    s.placed(T, Attempt(1), plan(1), &mut fx);
    s.refused(T, Attempt(1), Refusal::Draining, &mut fx);
    fx.clear();
    s.cancel(T, &mut fx);
    assert_eq!(names(&fx), ["failed/Cancelled"], "nothing is held while it waits");
    s.check().unwrap();
}

#[test]
fn refusals_that_pass_elsewhere_are_tried_elsewhere_and_others_are_not() {
    let cases = [
        (Refusal::QueueFull { waiting: 3 }, "place/1"),
        (Refusal::Draining, "place/1"),
        (Refusal::TooLong { prompt: 9, window: 8 }, "failed/Invalid"),
        (Refusal::NeverFits { needed: 9, pages: 8, page_tokens: 16 }, "failed/Invalid"),
        (Refusal::Malformed("no tokens"), "failed/Engine"),
    ];
    for (refusal, last) in cases {
        let mut s = submitted(1, 3, 1);
        let mut fx = Vec::new();
        s.refused(T, Attempt(0), refusal.clone(), &mut fx);
        s.check().unwrap();
        assert_eq!(names(&fx)[0], "release/0");
        assert!(names(&fx)[1].starts_with(last), "{refusal:?}: {fx:?}");
    }
    let mut s = submitted(1, 3, 0);
    let mut fx = Vec::new();
    s.refused(T, Attempt(0), Refusal::Draining, &mut fx);
    assert!(matches!(fx.last(), Some(SessionEffect::Failed(Failure::Overloaded(_)))), "{fx:?}");
}

#[test]
fn rejections_become_failures_and_release_nothing() {
    type Right = fn(&Failure) -> bool;
    let cases: [(Rejection, Right); 5] = [
        (Rejection::UnknownModel("x".into()), |f| *f == Failure::UnknownModel("x".into())),
        (Rejection::NoWorker("x".into()), |f| matches!(f, Failure::Unavailable(_))),
        (Rejection::QueueFull { queued: 1 }, |f| matches!(f, Failure::Overloaded(_))),
        (Rejection::Timeout(Span(1)), |f| matches!(f, Failure::Unavailable(_))),
        (Rejection::TooLong { tokens: 2, window: 1 }, |f| matches!(f, Failure::Invalid(_))),
    ];
    for (reason, right) in cases {
        let mut s = Session::new(spec(1, 3), SessionConfig { retry_limit: 2, backoff: BACKOFF });
        let mut fx = Vec::new();
        s.start(T, &mut fx);
        s.rejected(T, Attempt(3), reason.clone(), &mut fx);
        assert_eq!(fx.len(), 1, "another attempt");
        s.rejected(T, Attempt(0), reason, &mut fx);
        s.check().unwrap();
        let [SessionEffect::Place(_), SessionEffect::Failed(failure)] = &fx[..] else { panic!("{fx:?}") };
        assert!(right(failure), "{failure:?}");
    }
}

/// Two controllers were asked, and the one that does not count any more says no: what the other one books is given back.
#[test]
fn a_rejection_after_another_was_asked_releases_what_that_one_books() {
    let reason = || Rejection::QueueFull { queued: 3 };
    let mut s = Session::new(spec(1, 9), SessionConfig { retry_limit: 2, backoff: Span::ZERO });
    let mut fx = Vec::new();
    s.start(T, &mut fx);
    s.ask_again(T, &mut fx);
    assert!(matches!(fx[..], [SessionEffect::Place(_), SessionEffect::Place(_)]), "{fx:?}");
    fx.clear();
    s.rejected(T, Attempt(0), reason(), &mut fx);
    s.check().unwrap();
    assert!(
        matches!(
            fx[..],
            [
                SessionEffect::Release { attempt: Attempt(0), .. },
                SessionEffect::Failed(Failure::Overloaded(_))
            ]
        ),
        "{fx:?}"
    );
    // The next attempt has asked one.
    let mut s = submitted(1, 9, 2);
    let mut fx = Vec::new();
    s.worker_lost(T, &worker(1), &mut fx);
    s.ask_again(T, &mut fx);
    s.placed(T, Attempt(1), plan(2), &mut fx);
    s.worker_lost(T, &worker(2), &mut fx);
    s.expire(T + Span::from_secs(9), &mut fx);
    fx.clear();
    s.rejected(T, Attempt(2), reason(), &mut fx);
    assert!(matches!(fx[..], [SessionEffect::Failed(_)]), "{fx:?}");
}

#[test]
fn cancel_and_deadline_release_in_every_phase() {
    let start = |phase: Phase| {
        let mut s = Session::new(spec(1, 3), SessionConfig { retry_limit: 2, backoff: BACKOFF });
        let mut fx = Vec::new();
        if phase != Phase::New {
            s.start(T, &mut fx);
        }
        if matches!(phase, Phase::Submitted | Phase::Streaming) {
            s.placed(T, Attempt(0), plan(1), &mut fx);
        }
        if phase == Phase::Streaming {
            s.token(T, &event(0, 0, 0, None), &mut fx);
        }
        assert_eq!(s.phase(), phase);
        s
    };
    let table: [(Phase, &[&str]); 4] = [
        (Phase::New, &[]),
        (Phase::Placing, &["release/0"]),
        (Phase::Submitted, &["cancel/0@w1#1", "release/0"]),
        (Phase::Streaming, &["cancel/0@w1#1", "release/0"]),
    ];
    for (phase, held) in table {
        for (failure, expire) in [(Failure::Cancelled, false), (Failure::Deadline, true)] {
            let mut s = start(phase);
            let mut fx = Vec::new();
            s.expire(T, &mut fx);
            assert!(fx.is_empty(), "too early");
            match expire {
                true => s.expire(s.next_deadline().unwrap(), &mut fx),
                false => s.cancel(T, &mut fx),
            }
            s.cancel(T, &mut fx);
            s.placed(T, Attempt(0), plan(1), &mut fx);
            s.token(T, &event(0, 0, 1, None), &mut fx);
            s.check().unwrap();
            let mut want: Vec<String> = held.iter().map(ToString::to_string).collect();
            want.push(format!("failed/{failure:?}"));
            assert_eq!(names(&fx), want, "{phase:?}");
        }
    }
}

#[test]
fn a_stop_string_ends_its_choice_alone() {
    let mut s = submitted(2, 9, 0);
    let mut fx = Vec::new();
    s.token(T, &event(0, 0, 0, None), &mut fx);
    s.token(T, &event(0, 1, 0, None), &mut fx);
    fx.clear();
    s.stop_choice(T, 0, &mut fx);
    s.stop_choice(T, 0, &mut fx);
    s.stop_choice(T, 5, &mut fx);
    s.token(T, &event(0, 0, 1, None), &mut fx);
    s.token(T, &event(0, 1, 1, None), &mut fx);
    s.check().unwrap();
    s.stop_choice(T, 1, &mut fx);
    s.check().unwrap();
    assert_eq!(names(&fx), ["cancel-choice/0", "deliver/1.1", "cancel/0@w1#1", "release/0", "finished"]);
    assert_eq!(s.finish(0), Some(Finish::StopString));
}

#[test]
fn lost_messages_are_fetched_again_not_skipped() {
    let mut s = submitted(1, 9, 1);
    let mut fx = Vec::new();
    s.token(T, &event(0, 0, 0, None), &mut fx);
    s.token(T, &event(0, 0, 2, None), &mut fx);
    assert_eq!(names(&fx), ["deliver/0.0", "cancel/0@w1#1", "release/0", "place/1"]);
    s.check().unwrap();
    let mut s = submitted(1, 9, 1);
    fx.clear();
    s.done(T, Attempt(0), Usage::default(), &mut fx);
    assert_eq!(names(&fx), ["release/0", "place/1"], "ended without its tokens");
}

#[test]
fn failures_at_the_worker_end_the_request() {
    for (late, want) in [(false, Failure::Engine("bad".into())), (true, Failure::Deadline)] {
        let mut s = submitted(1, 2, 3);
        let mut fx = Vec::new();
        s.failed_at_worker(T, Attempt(1), "another attempt".into(), &mut fx);
        assert!(fx.is_empty());
        let now = if late { s.spec().deadline } else { T };
        s.failed_at_worker(now, Attempt(0), "bad".into(), &mut fx);
        assert_eq!(names(&fx), ["release/0".to_string(), format!("failed/{want:?}")]);
        s.check().unwrap();
    }
}

#[test]
fn a_worker_that_overruns_is_cut() {
    let mut s = submitted(1, 2, 0);
    let mut fx = Vec::new();
    s.token(T, &event(0, 0, 0, None), &mut fx);
    s.token(T, &event(0, 0, 1, None), &mut fx);
    assert_eq!(names(&fx)[2..], ["cancel/0@w1#1".to_string(), "release/0".into(), "finished".into()]);
    assert_eq!(s.finish(0), Some(Finish::Length));
    s.check().unwrap();
}

#[test]
fn prompt_logprobs_are_delivered_once() {
    let mut s = Session::new(
        RequestSpec { prompt_logprobs: true, ..spec(1, 4) },
        SessionConfig { retry_limit: 1, backoff: BACKOFF },
    );
    let mut fx = Vec::new();
    s.start(T, &mut fx);
    s.placed(T, Attempt(0), plan(1), &mut fx);
    fx.clear();
    s.prompt_logprobs(T, Attempt(0), 1, vec![Logprobs::default(); 2], &mut fx);
    s.worker_lost(T, &worker(1), &mut fx);
    s.placed(T, Attempt(1), plan(2), &mut fx);
    s.prompt_logprobs(T, Attempt(0), 3, vec![Logprobs::default(); 1], &mut fx);
    s.prompt_logprobs(T, Attempt(1), 1, vec![Logprobs::default(); 3], &mut fx);
    let prompts: Vec<_> = names(&fx).into_iter().filter(|n| n.starts_with("prompt")).collect();
    assert_eq!(prompts, ["prompt/1+2", "prompt/3+1"]);
    s.worker_lost(T, &worker(2), &mut fx);
    s.check().unwrap();
}
