//! Requests whose prompts another worker computes: what is booked where, who is taken, and what is said about it.

use config::PrefillFallback;

use super::*;
use crate::kv::{Fingerprint, PageLayout};
use crate::policy::disaggregate::{Disaggregate, DisaggregateOptions};
use crate::policy::{ClusterPolicy, Opinion, PolicyConfig, PolicyMode, Prompt, Stage, Verdict};

mod fallback;

const UNIFIED: WorkerRole = WorkerRole::Unified;
const PREFILL: WorkerRole = WorkerRole::Prefill;
const DECODE: WorkerRole = WorkerRole::Decode;
/// Tokens that a request of these tests is expected to generate.
const OUTPUT: u64 = 10;

pub(super) fn peer(n: u64, incarnation: u64, role: WorkerRole) -> WorkerInfo {
    let layout = PageLayout { page_tokens: 16, layers: 2, kv_heads: 1, head_dim: 8, element_bytes: 2 };
    let kv = KvPeer { address: format!("h:{n}"), fingerprint: Fingerprint([7; 32]), layout };
    WorkerInfo { role, kv: Some(kv), ..info(n, incarnation, 9) }
}

fn options(fallback: PrefillFallback) -> DisaggregateOptions {
    DisaggregateOptions { fallback, max_outstanding: Some(3), ..DisaggregateOptions::default() }
}

fn placement(mode: PolicyMode, fallback: PrefillFallback) -> Placement {
    let policy: Box<dyn ClusterPolicy> = Box::new(Disaggregate::new(options(fallback)));
    let config = PlacementConfig { directory: true, ..config() };
    Placement::new(config)
        .with_policies(vec![(PolicyConfig { mode, ..PolicyConfig::new(policy.name()) }, policy)])
}

fn cluster_of(fallback: PrefillFallback, workers: &[(u64, WorkerRole)]) -> Placement {
    let mut p = placement(PolicyMode::Prod, fallback);
    for (n, role) in workers {
        p.worker_joined(T, peer(*n, 1, *role), &mut Vec::new());
    }
    p
}

/// A request that is worth a prefill worker.
fn long(number: u64) -> PlaceRequest {
    PlaceRequest { prompt_tokens: 600, context_tokens: 600, ..ask(number) }
}

fn planned(p: &mut Placement, request: PlaceRequest) -> Plan {
    match place(p, request) {
        Some(PlacementEffect::Placed { plan, .. }) => plan,
        other => panic!("not placed: {other:?}"),
    }
}

/// Where a request goes, and who computes its prompt, by number.
fn pair(p: &mut Placement, request: PlaceRequest) -> (u64, Option<u64>) {
    let number = |id: &WorkerId| id.node.as_str()[1..].parse().unwrap();
    let plan = planned(p, request);
    (number(&plan.worker), plan.prefill.as_ref().map(number))
}

/// Requests, tokens, hand-offs and their tokens that are booked on a worker.
fn booked(p: &Placement, n: u64) -> (u32, u64, u32, u64) {
    let view = p.workers().into_iter().find(|w| w.info.id.node == id(n, 1).node).unwrap();
    (view.booked, view.booked_tokens, view.handoffs, view.handoff_tokens)
}

fn notes(p: &mut Placement) -> Vec<RouteNote> {
    let mut work = Vec::new();
    p.take_policy_work(&mut work);
    let note = |work| match work {
        PolicyWork::Note(note) => Some(note),
        _ => None,
    };
    work.into_iter().filter_map(note).collect()
}

/// Way, reason, and whether that is new.
fn told(p: &mut Placement) -> Vec<(Route, Option<&'static str>, bool)> {
    notes(p).into_iter().map(|n| (n.route, n.reason, n.changed)).collect()
}

pub(super) fn stage<'a>(plan: &'a Plan, policy: &str) -> &'a Stage {
    plan.stages.iter().find(|s| s.policy.as_str() == policy).unwrap_or_else(|| panic!("{:?}", plan.stages))
}

const KEY: (RequestId, Attempt) = (RequestId { gateway: 1, number: 1 }, Attempt(0));

/// A decode worker 0 and a prefill worker 9 with the long request 1.
fn paired() -> Placement {
    let mut p = cluster_of(PrefillFallback::Unified, &[(0, DECODE), (9, PREFILL)]);
    assert_eq!(pair(&mut p, long(1)), (0, Some(9)));
    assert_eq!((booked(&p, 0), booked(&p, 9)), ((1, OUTPUT, 0, 0), (0, 0, 1, 600)));
    p
}

fn plan_of(effect: Option<PlacementEffect>) -> (u64, Option<u64>) {
    let number = |id: &WorkerId| id.node.as_str()[1..].parse().unwrap();
    match effect {
        Some(PlacementEffect::Placed { plan, .. }) => {
            (number(&plan.worker), plan.prefill.as_ref().map(number))
        }
        other => panic!("not placed: {other:?}"),
    }
}

fn nothing_is_left(p: &Placement) {
    p.check().unwrap();
    for w in p.workers() {
        assert_eq!((w.booked, w.booked_tokens, w.handoffs, w.handoff_tokens), (0, 0, 0, 0), "{w:?}");
    }
    assert_eq!(p.booked(), 0);
}

#[test]
fn the_prompt_is_booked_where_it_is_computed_until_it_is() {
    let mut p = paired();
    let mut fx = Vec::new();
    p.accepted(T, KEY.0, KEY.1);
    assert_eq!(booked(&p, 9), (0, 0, 1, 600), "taken is not computed");
    for _ in 0..2 {
        p.prefilled(T, KEY.0, KEY.1, &mut fx);
        p.check().unwrap();
        assert_eq!((booked(&p, 0), booked(&p, 9)), ((1, OUTPUT, 0, 0), (0, 0, 0, 0)));
    }
    // Of an attempt that is not there, or not here, it is nothing.
    p.prefilled(T, KEY.0, Attempt(1), &mut fx);
    p.prefilled(T, RequestId::new(1, 99), Attempt(0), &mut fx);
    p.release(T, KEY.0, KEY.1, &mut fx);
    assert_eq!(fx, []);
    nothing_is_left(&p);
}

#[test]
fn every_way_out_releases_both() {
    type Way = fn(&mut Placement, &mut Vec<PlacementEffect>);
    let ways: [(&str, Way, bool); 8] = [
        ("release", |p, fx| p.release(T, KEY.0, KEY.1, fx), false),
        (
            "taken and released",
            |p, fx| (p.accepted(T, KEY.0, KEY.1), p.release(T, KEY.0, KEY.1, fx)).1,
            false,
        ),
        ("gateway left", |p, fx| p.gateway_left(T, 1, fx), false),
        ("decode worker left", |p, fx| p.worker_left(T, &id(0, 1), fx), true),
        ("decode worker came back", |p, fx| p.worker_joined(T, peer(0, 2, DECODE), fx), true),
        (
            "prefill worker left, released",
            |p, fx| (p.worker_left(T, &id(9, 1), fx), p.release(T, KEY.0, KEY.1, fx)).1,
            false,
        ),
        (
            "prefill worker came back, released",
            |p, fx| (p.worker_joined(T, peer(9, 2, PREFILL), fx), p.release(T, KEY.0, KEY.1, fx)).1,
            false,
        ),
        ("both left", |p, fx| (p.worker_left(T, &id(9, 1), fx), p.worker_left(T, &id(0, 1), fx)).1, true),
    ];
    for (name, way, lost) in ways {
        let (mut p, mut fx) = (paired(), Vec::new());
        way(&mut p, &mut fx);
        let (request, attempt) = KEY;
        let expected = lost.then(|| PlacementEffect::Lost { request, attempt, worker: id(0, 1) });
        assert_eq!(fx, Vec::from_iter(expected), "{name}");
        nothing_is_left(&p);
        // Late words about it are nothing.
        fx.clear();
        p.prefilled(T, request, attempt, &mut fx);
        p.release(T, request, attempt, &mut fx);
        assert_eq!(fx, [], "{name}");
        nothing_is_left(&p);
    }
}

#[test]
fn b44_what_a_lost_prefill_worker_had_to_compute_is_the_decode_worker_s() {
    for taken in [false, true] {
        let (mut p, mut fx) = (paired(), Vec::new());
        if taken {
            p.accepted(T, KEY.0, KEY.1);
        }
        p.worker_left(T, &id(9, 1), &mut fx);
        assert_eq!(fx, [], "the request stays where it is");
        p.check().unwrap();
        assert_eq!(booked(&p, 0), (1, 600 + OUTPUT, 0, 0));
        // Asked again, the answer is the same: the session has it already.
        assert_eq!(planned(&mut p, long(1)).prefill, Some(id(9, 1)));
        p.prefilled(T, KEY.0, KEY.1, &mut fx);
        p.accepted(T, KEY.0, KEY.1);
        p.release(T, KEY.0, KEY.1, &mut fx);
        nothing_is_left(&p);
    }
    // One whose part was done leaves nothing behind.
    let (mut p, mut fx) = (paired(), Vec::new());
    p.prefilled(T, KEY.0, KEY.1, &mut fx);
    p.worker_left(T, &id(9, 1), &mut fx);
    assert_eq!(booked(&p, 0), (1, OUTPUT, 0, 0));
}

#[test]
fn b62_words_about_an_old_attempt_touch_no_new_one() {
    let (mut p, mut fx) = (paired(), Vec::new());
    let again = PlaceRequest { attempt: Attempt(1), ..long(1) };
    assert_eq!(pair(&mut p, again), (0, Some(9)));
    p.release(T, KEY.0, KEY.1, &mut fx);
    p.prefilled(T, KEY.0, KEY.1, &mut fx);
    p.release(T, KEY.0, KEY.1, &mut fx);
    p.check().unwrap();
    assert_eq!((booked(&p, 0), booked(&p, 9)), ((1, OUTPUT, 0, 0), (0, 0, 1, 600)));
}

#[test]
fn a_report_of_what_was_handed_over_is_not_counted_twice() {
    let (mut p, mut fx) = (paired(), Vec::new());
    let load = BatchLoad {
        requests: 2,
        outstanding_tokens: 900,
        queued_prefill_tokens: 850,
        ..BatchLoad::default()
    };
    p.worker_load(T, &id(9, 1), load, &mut fx);
    let view = p.workers().into_iter().find(|w| w.info.id == id(9, 1)).unwrap();
    assert_eq!((view.foreign, view.handoffs), (1, 1));
    // Another of the same length waits behind the 850 that it has reported, and the idle one is taken.
    p.worker_joined(T, peer(8, 1, PREFILL), &mut fx);
    assert_eq!(pair(&mut p, long(2)), (0, Some(8)));
    // 8 has 600 booked and 100 more, 9 reports less than was booked: that counts until it is done.
    let few = BatchLoad { requests: 1, queued_prefill_tokens: 100, ..BatchLoad::default() };
    p.worker_load(T, &id(9, 1), few, &mut fx);
    let more = BatchLoad { requests: 1, queued_prefill_tokens: 700, ..BatchLoad::default() };
    p.worker_load(T, &id(8, 1), more, &mut fx);
    assert_eq!(pair(&mut p, long(3)), (0, Some(9)));
}

#[test]
fn b31_a_burst_spreads_over_prefill_workers_up_to_their_limit() {
    let mut p = cluster_of(PrefillFallback::Decode, &[(0, DECODE), (8, PREFILL), (9, PREFILL)]);
    let pairs: Vec<_> = (0..7).map(|n| pair(&mut p, long(n)).1).collect();
    assert_eq!(pairs, [Some(8), Some(9), Some(8), Some(9), Some(8), Some(9), None]);
    assert_eq!(told(&mut p), [(Route::Decode, Some("prefill_full"), false)]);
    // Room again.
    p.prefilled(T, RequestId::new(1, 3), Attempt(0), &mut Vec::new());
    assert_eq!(pair(&mut p, long(7)).1, Some(9));
    assert_eq!(told(&mut p), []);
    // A pool with long queues is left alone: nobody is missing.
    for n in [8, 9] {
        let load = BatchLoad { requests: 3, queued_prefill_tokens: 4097, ..BatchLoad::default() };
        p.worker_load(T, &id(n, 1), load, &mut Vec::new());
        for number in 0..8 {
            p.prefilled(T, RequestId::new(1, number), Attempt(0), &mut Vec::new());
        }
    }
    let plan = planned(&mut p, long(8));
    assert_eq!((plan.prefill.as_ref(), told(&mut p)), (None, vec![]));
    assert!(stage(&plan, "pd_disaggregation").why.starts_with("prefill_busy: "));
}

#[test]
fn short_prompts_stay_and_prefill_workers_get_no_requests() {
    let mut p = cluster_of(PrefillFallback::Unified, &[(0, DECODE), (1, UNIFIED), (9, PREFILL)]);
    for n in 0..18 {
        let (worker, prefill) = pair(&mut p, ask(n));
        assert!(worker < 2 && prefill.is_none());
    }
    assert_eq!(place(&mut p, ask(18)), None, "those are full, and it waits");
    assert_eq!(told(&mut p), []);
    let mut fx = Vec::new();
    p.release(T, RequestId::new(1, 0), Attempt(0), &mut fx);
    assert!(matches!(&fx[..], [PlacementEffect::Placed { .. }]), "{fx:?}");
}

/// A policy that wants worker 9 to compute every prompt, whatever that is.
fn insisting(strict: bool) -> Opinion {
    let verdict = |n| Verdict {
        worker: id(n, 1),
        prompt: Prompt::By { pool: vec![(id(9, 1), 600)].into(), limit: 2, strict },
        action: "remote",
        would: "would_disaggregate",
        why: "it insists".to_owned(),
        numbers: Vec::new(),
        fallback: None,
    };
    Opinion { verdicts: vec![verdict(0), verdict(9)], ..Opinion::none("local", "") }
}

/// Asks about a long request, lets `meanwhile` happen, and answers by [`insisting`].
fn answered(
    strict: bool,
    request: PlaceRequest,
    meanwhile: impl FnOnce(&mut Placement),
) -> (Placement, PlacementEffect) {
    let mut p = Placement::new(config());
    let mut fx = Vec::new();
    p.set_policies(T, vec![(PolicyConfig::new("insists".into()), None)], &mut fx);
    for (n, role) in [(0, DECODE), (9, PREFILL)] {
        p.worker_joined(T, peer(n, 1, role), &mut fx);
    }
    p.place(T, request, &mut fx);
    let mut work = Vec::new();
    p.take_policy_work(&mut work);
    let ticket = work.iter().find_map(|w| match w {
        PolicyWork::Consult { ticket, .. } => Some(*ticket),
        _ => None,
    });
    meanwhile(&mut p);
    fx.clear();
    p.opinion(T, ticket.unwrap(), &"insists".into(), insisting(strict), Span::ZERO, &mut fx);
    p.check().unwrap();
    assert_eq!(fx.len(), 1, "{fx:?}");
    (p, fx.remove(0))
}

#[test]
fn whoever_is_no_pair_by_the_time_of_placing_is_passed_over() {
    type Change = fn(&mut Placement);
    type Meanwhile = Box<dyn Fn(&mut Placement)>;
    let rejoin: fn(&mut Placement, fn(&mut WorkerInfo)) = |p, change| {
        let mut info = peer(9, 1, PREFILL);
        change(&mut info);
        p.worker_joined(T, info, &mut Vec::new());
    };
    let full: Change = |p| {
        let load = BatchLoad { requests: 9, ..BatchLoad::default() };
        p.worker_load(T, &id(9, 1), load, &mut Vec::new());
    };
    let (fine, request) = answered(false, long(1), |_| {});
    assert_eq!(plan_of(Some(request)), (0, Some(9)));
    assert_eq!(booked(&fine, 9).2, 1);
    let cases: Vec<(&str, Meanwhile)> = vec![
        ("w9#1 is gone", Box::new(|p| p.worker_left(T, &id(9, 1), &mut Vec::new()))),
        ("w9#1 is gone", Box::new(|p| p.worker_joined(T, peer(9, 2, PREFILL), &mut Vec::new()))),
        ("w9#1 is draining", Box::new(|p| p.worker_draining(&id(9, 1)))),
        ("w9#1 is full", Box::new(full)),
        ("w9#1 has a window of 600 tokens", Box::new(move |p| rejoin(p, |i| i.max_context = 600))),
        ("w9#1 exchanges no KV pages", Box::new(move |p| rejoin(p, |i| i.kv = None))),
        (
            "page-tokens is 32 at w9#1 and 16 at w0#1",
            Box::new(move |p| rejoin(p, |i| i.kv.as_mut().unwrap().layout.page_tokens = 32)),
        ),
        (
            "the fingerprint (weights",
            Box::new(move |p| rejoin(p, |i| i.kv.as_mut().unwrap().fingerprint = Fingerprint([1; 32]))),
        ),
    ];
    for (why, meanwhile) in &cases {
        let (mut p, effect) = answered(false, long(1), meanwhile);
        let PlacementEffect::Placed { plan, .. } = effect else { panic!("{effect:?}") };
        assert_eq!((plan.worker.clone(), plan.prefill.clone()), (id(0, 1), None), "{why}");
        let said = stage(&plan, "insists");
        assert!(said.action == "local" && said.why.contains(why), "{} lacks {why}", said.why);
        assert_eq!(booked(&p, 0), (1, 600 + OUTPUT, 0, 0));
        assert_eq!(told(&mut p), [(Route::Decode, Some("prefill_gone"), true)]);
        // Where nobody else shall compute it, it is turned away.
        let (mut p, effect) = answered(true, long(1), meanwhile);
        assert_eq!(reason(Some(effect)), Rejection::NoPrefill("m".into()), "{why}");
        assert_eq!(told(&mut p), [(Route::Refused, Some("prefill_gone"), true)]);
        nothing_is_left(&p);
    }
    let failed = PlaceRequest { avoid: vec![id(9, 1)], ..long(1) };
    assert_eq!(plan_of(Some(answered(false, failed, |_| {}).1)), (0, None), "it has failed");
    // Its own prompts are its own: only it is left, and is not a pair with itself.
    let (_, alone) = answered(false, long(1), |p| p.worker_draining(&id(0, 1)));
    assert_eq!(plan_of(Some(alone)), (9, None));
}

#[test]
fn only_what_the_decode_worker_lacks_is_booked_on_it_again() {
    let mut p = placement(PolicyMode::Prod, PrefillFallback::Unified);
    for (n, role) in [(0, DECODE), (9, PREFILL)] {
        p.worker_joined(T, peer(n, 1, role), &mut Vec::new());
    }
    let page = |n: u8| PageHash([n; 16]);
    let pages: Vec<PageHash> = (0..40).map(page).collect();
    p.kv_snapshot(&id(0, 1), 0, 0, 1, &pages[..5]);
    p.kv_snapshot(&id(9, 1), 0, 0, 1, &pages[..10]);
    let request = PlaceRequest { prompt_tokens: 700, context_tokens: 700, hashes: pages.into(), ..ask(1) };
    let plan = planned(&mut p, request);
    let numbers = &stage(&plan, "pd_disaggregation").numbers;
    assert!(numbers.contains(&("uncached-tokens".into(), 620.0)), "{numbers:?}");
    assert_eq!((booked(&p, 0), booked(&p, 9)), ((1, OUTPUT, 0, 0), (0, 0, 1, 540)), "each its own");
    p.worker_left(T, &id(9, 1), &mut Vec::new());
    assert_eq!(booked(&p, 0), (1, 620 + OUTPUT, 0, 0));
    p.check().unwrap();
}
