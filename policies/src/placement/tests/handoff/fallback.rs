//! Where prompts go for want of prefill workers, which kinds of worker take what, and what each mode does.

use super::*;

#[test]
fn b55_for_want_of_prefill_workers_the_configured_fallback_holds_and_is_said_once() {
    use PrefillFallback as F;
    for (fallback, expected, route) in [
        (F::Unified, Some((0, Some(5))), Route::Unified),
        (F::Decode, Some((0, None)), Route::Decode),
        (F::None, None, Route::Refused),
    ] {
        let mut p = cluster_of(fallback, &[(0, DECODE), (5, UNIFIED), (9, PREFILL)]);
        // The unified one has enough to do to be no choice for requests.
        let busy = BatchLoad { outstanding_tokens: 1_000_000, ..BatchLoad::default() };
        p.worker_load(T, &id(5, 1), busy, &mut Vec::new());
        let mut number = 0;
        let mut next = |p: &mut Placement| {
            number += 1;
            let effect = place(p, long(number));
            p.release(T, RequestId::new(1, number), Attempt(0), &mut Vec::new());
            effect
        };
        for round in 0..3 {
            assert_eq!(plan_of(next(&mut p)).1, Some(9));
            let back = (round > 0).then_some((Route::Prefill, None, true));
            assert_eq!(told(&mut p), Vec::from_iter(back), "once, when they are back");
            p.worker_left(T, &id(9, round + 1), &mut Vec::new());
            for n in 0..10 {
                let effect = next(&mut p);
                match expected {
                    Some(pair) => assert_eq!(plan_of(effect), pair, "{fallback:?}"),
                    None => assert_eq!(reason(effect), Rejection::NoPrefill("m".into())),
                }
                assert_eq!(told(&mut p), [(route, Some("no_prefill_worker"), n == 0)], "{fallback:?} {n}");
            }
            p.worker_joined(T, peer(9, round + 2, PREFILL), &mut Vec::new());
        }
        nothing_is_left(&p);
    }
}

#[test]
fn the_chain_is_other_prefill_worker_then_unified_then_decode() {
    let mut p =
        cluster_of(PrefillFallback::Unified, &[(0, DECODE), (5, UNIFIED), (8, PREFILL), (9, PREFILL)]);
    let busy = BatchLoad { outstanding_tokens: 1_000_000, ..BatchLoad::default() };
    p.worker_load(T, &id(5, 1), busy, &mut Vec::new());
    let failed = |number, avoid: &[u64]| PlaceRequest {
        avoid: avoid.iter().map(|n| id(*n, 1)).collect(),
        ..long(number)
    };
    assert_eq!(pair(&mut p, failed(1, &[8])), (0, Some(9)));
    assert_eq!(pair(&mut p, failed(2, &[9])), (0, Some(8)));
    assert_eq!(told(&mut p), []);
    assert_eq!(pair(&mut p, failed(3, &[8, 9])), (0, Some(5)));
    assert_eq!(told(&mut p), [(Route::Unified, Some("prefill_failed"), true)]);
    assert_eq!(pair(&mut p, failed(4, &[8, 9, 5])), (0, None));
    assert_eq!(told(&mut p), [(Route::Decode, Some("prefill_failed"), true)]);
    assert_eq!(booked(&p, 5), (0, 0, 1, 600));
    assert_eq!(pair(&mut p, long(5)).1, Some(9), "the less recently used of two with the same to do");
    assert_eq!(told(&mut p), [(Route::Prefill, None, true)]);
    // A unified worker that computes prompts for others has the less room for requests of its own.
    for n in 1..6 {
        p.release(T, RequestId::new(1, n), Attempt(0), &mut Vec::new());
    }
    nothing_is_left(&p);
}

#[test]
fn unified_workers_alone_miss_nothing() {
    let mut p = cluster_of(PrefillFallback::None, &[(0, UNIFIED), (1, UNIFIED)]);
    for n in 0..4 {
        let plan = planned(&mut p, long(n));
        let said = stage(&plan, "pd_disaggregation");
        assert_eq!((plan.prefill.as_ref(), &*said.action), (None, "local"));
        assert!(said.why.starts_with("no_prefill_worker: "), "{}", said.why);
    }
    assert_eq!(told(&mut p), []);
    // With a prefill worker they use it, and then its loss is something to say.
    p.worker_joined(T, peer(9, 1, PREFILL), &mut Vec::new());
    assert_eq!(pair(&mut p, long(4)).1, Some(9));
    p.worker_left(T, &id(9, 1), &mut Vec::new());
    assert_eq!(pair(&mut p, long(5)).1, None);
    assert_eq!(told(&mut p), [(Route::Decode, Some("no_prefill_worker"), true)]);
}

#[test]
fn a_prefill_worker_takes_whole_requests_only_where_nobody_else_serves_the_model() {
    let mut p = cluster_of(PrefillFallback::None, &[(9, PREFILL)]);
    let plan = planned(&mut p, long(1));
    assert_eq!((plan.worker.clone(), plan.prefill.clone()), (id(9, 1), None));
    assert_eq!(booked(&p, 9), (1, 600 + OUTPUT, 0, 0));
    let choice = stage(&plan, Stage::PLACEMENT);
    assert!(choice.why.contains("none but prefill workers serve the model"), "{}", choice.why);
    assert!(stage(&plan, "pd_disaggregation").why.starts_with("no_decode_worker: "));
    planned(&mut p, ask(2));
    let whole = |new| (Route::Whole, Some("no_decode_worker"), new);
    assert_eq!(told(&mut p), [whole(true), whole(false)]);
    // Another model's workers are none of this one's.
    let other = WorkerInfo { models: vec!["n".into()], ..peer(3, 1, DECODE) };
    p.worker_joined(T, other, &mut Vec::new());
    assert_eq!(pair(&mut p, long(3)), (9, None));
    p.worker_joined(T, peer(0, 1, DECODE), &mut Vec::new());
    notes(&mut p);
    assert_eq!(pair(&mut p, long(4)), (0, Some(9)));
    let back = notes(&mut p);
    assert!(back.iter().all(|n| n.reason.is_none()), "{back:?}");
    assert_eq!(back.iter().filter(|n| n.before == Some(Route::Whole) && n.changed).count(), 1, "{back:?}");
    // One that drains does not serve.
    p.worker_draining(&id(0, 1));
    assert_eq!(pair(&mut p, long(5)), (9, None));
    assert_eq!(told(&mut p), [whole(true)]);
    p.check().unwrap();
    // It needs no policy.
    let mut p = cluster(0, 0);
    p.worker_joined(T, peer(9, 1, PREFILL), &mut Vec::new());
    assert_eq!(pair(&mut p, long(1)), (9, None));
    assert_eq!(told(&mut p), [whole(true)]);
}

#[test]
fn shadow_books_nothing_and_off_says_nothing() {
    let workers = [(0, DECODE), (9, PREFILL)];
    let plans = |mode: Option<PolicyMode>, fallback| {
        let mut p = match mode {
            Some(mode) => placement(mode, fallback),
            None => Placement::new(config()),
        };
        for (n, role) in workers {
            p.worker_joined(T, peer(n, 1, role), &mut Vec::new());
        }
        let plan = planned(&mut p, long(1));
        assert_eq!((booked(&p, 0), booked(&p, 9)), ((1, 600 + OUTPUT, 0, 0), (0, 0, 0, 0)));
        p.worker_left(T, &id(9, 1), &mut Vec::new());
        let second = planned(&mut p, long(2));
        assert_eq!((plan.prefill.as_ref(), second.prefill.as_ref(), told(&mut p)), (None, None, vec![]));
        [plan, second]
    };
    let of = |plan: &Plan| plan.stages.iter().map(|s| s.policy.to_string()).collect::<Vec<_>>();
    for plan in plans(Some(PolicyMode::Off), PrefillFallback::None) {
        assert_eq!(of(&plan), ["placement"]);
    }
    plans(None, PrefillFallback::None);
    let [paired, alone] = plans(Some(PolicyMode::Shadow), PrefillFallback::None);
    let would = stage(&paired, "pd_disaggregation");
    assert_eq!((&*would.action, would.mode), ("would_disaggregate", PolicyMode::Shadow));
    assert!(would.why.ends_with("w9#1 computes it"), "{}", would.why);
    assert!(would.numbers.iter().any(|(name, ms)| name == "transfer-ms" && *ms > 0.0), "{:?}", would.numbers);
    assert_eq!(stage(&alone, "pd_disaggregation").action, "would_refused");
}

#[test]
fn a_pair_is_said_in_the_stages() {
    let mut p = cluster_of(PrefillFallback::Unified, &[(0, DECODE), (9, PREFILL)]);
    let plan = planned(&mut p, long(1));
    let said = stage(&plan, "pd_disaggregation");
    assert_eq!((&*said.action, said.mode), ("remote", PolicyMode::Prod));
    assert_eq!(said.why, "600 of 600 prompt tokens are not held by w0#1; w9#1 computes it");
    let choice = stage(&plan, Stage::PLACEMENT);
    assert_eq!(choice.why, "attempt 0 goes to w0#1; w9#1 computes its prompt");
}
