//! Workers that change their roles, and policies that want them to.

use config::PrefillFallback;

use super::*;
use crate::batch::BatchLoad;
use crate::kv::{Fingerprint, PageLayout};
use crate::policy::disaggregate::{Disaggregate, DisaggregateOptions, RebalanceOptions};
use crate::policy::{ClusterPolicy, PolicyAction, PolicyConfig, PolicyMode};

const UNIFIED: WorkerRole = WorkerRole::Unified;
const PREFILL: WorkerRole = WorkerRole::Prefill;
const DECODE: WorkerRole = WorkerRole::Decode;

fn peer(n: u64, role: WorkerRole) -> WorkerInfo {
    let layout = PageLayout { page_tokens: 16, layers: 2, kv_heads: 1, head_dim: 8, element_bytes: 2 };
    let kv = KvPeer { address: format!("h:{n}"), fingerprint: Fingerprint([7; 32]), layout };
    WorkerInfo { role, switchable: true, kv: Some(kv), ..info(n, 1, 9) }
}

fn changing(n: u64, role: WorkerRole, to: WorkerRole) -> WorkerInfo {
    WorkerInfo { switching_to: Some(to), ..peer(n, role) }
}

fn with(mode: PolicyMode, workers: &[WorkerInfo]) -> Placement {
    let rebalance =
        RebalanceOptions { high: 1.0, low: 0.0, after: Span(0), pause: Span::from_secs(60), least_tokens: 1 };
    let options = DisaggregateOptions {
        fallback: PrefillFallback::Unified,
        rebalance: Some(rebalance),
        ..DisaggregateOptions::default()
    };
    let policy: Box<dyn ClusterPolicy> = Box::new(Disaggregate::new(options));
    let mut p = Placement::new(config())
        .with_policies(vec![(PolicyConfig { mode, ..PolicyConfig::new(policy.name()) }, policy)]);
    for worker in workers {
        p.worker_joined(T, worker.clone(), &mut Vec::new());
    }
    p
}

fn long(number: u64) -> PlaceRequest {
    PlaceRequest { prompt_tokens: 600, context_tokens: 600, ..ask(number) }
}

/// Worker of the request and of its prompt.
fn pair(p: &mut Placement, request: PlaceRequest) -> (WorkerId, Option<WorkerId>) {
    match place(p, request) {
        Some(PlacementEffect::Placed { plan, .. }) => (plan.worker, plan.prefill),
        other => panic!("not placed: {other:?}"),
    }
}

#[test]
fn who_changes_gets_nothing_new_and_then_what_its_role_says() {
    let mut p = with(PolicyMode::Prod, &[peer(0, UNIFIED), changing(1, UNIFIED, PREFILL)]);
    for number in 1..4 {
        assert_eq!(pair(&mut p, long(number)), (id(0, 1), None));
    }
    p.worker_joined(T, peer(1, PREFILL), &mut Vec::new());
    assert_eq!(pair(&mut p, long(4)), (id(0, 1), Some(id(1, 1))));
    // Prompts are not sent to one that is about to do something else.
    p.worker_joined(T, changing(1, PREFILL, DECODE), &mut Vec::new());
    assert_eq!(pair(&mut p, long(5)), (id(0, 1), None));
    // Called back.
    p.worker_joined(T, peer(1, PREFILL), &mut Vec::new());
    assert_eq!(pair(&mut p, long(6)), (id(0, 1), Some(id(1, 1))));
    p.check().unwrap();
}

#[test]
fn what_only_a_changing_worker_can_take_waits_for_it() {
    let mut p = with(PolicyMode::Prod, &[changing(0, UNIFIED, DECODE)]);
    assert_eq!(place(&mut p, long(1)), None);
    assert_eq!(p.queued(), 1);
    let mut fx = Vec::new();
    p.worker_joined(T, peer(0, DECODE), &mut fx);
    assert!(matches!(&fx[..], [PlacementEffect::Placed { plan, .. }] if plan.worker == id(0, 1)), "{fx:?}");

    // Of two, the one with the window changes.
    let mut p = with(PolicyMode::Prod, &[WorkerInfo { max_context: 100, ..peer(1, DECODE) }]);
    let too_long = |p: &mut Placement, number| match place(p, long(number)) {
        Some(PlacementEffect::Rejected { reason: Rejection::TooLong { window, .. }, .. }) => Some(window),
        None => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(too_long(&mut p, 1), Some(100));
    p.worker_joined(T, changing(0, UNIFIED, DECODE), &mut Vec::new());
    assert_eq!(too_long(&mut p, 2), None);
    p.worker_joined(T, WorkerInfo { max_context: 500, ..changing(0, UNIFIED, DECODE) }, &mut Vec::new());
    assert_eq!(too_long(&mut p, 3), Some(500));

    // One that drains does not come back.
    let mut p = with(PolicyMode::Prod, &[changing(0, UNIFIED, DECODE)]);
    p.worker_draining(&id(0, 1));
    assert!(matches!(place(&mut p, long(1)), Some(PlacementEffect::Rejected { .. })));
}

/// What is to be done after a tick with a long queue at the prefill worker.
fn acts(p: &mut Placement) -> Vec<(PolicyMode, WorkerId, WorkerRole)> {
    let load = BatchLoad { queued_prefill_tokens: 500, outstanding_tokens: 500, ..BatchLoad::default() };
    p.worker_load(T, &id(9, 1), load, &mut Vec::new());
    let now = Time::ZERO + Span::from_secs(5);
    p.place(now, ask(1), &mut Vec::new());
    let mut work = Vec::new();
    p.take_policy_work(&mut work);
    let act = |work| match work {
        PolicyWork::Act { policy, mode, action: PolicyAction::SwitchRole { worker, role, .. } } => {
            assert_eq!(policy.as_str(), "disaggregate");
            Some((mode, worker, role))
        }
        _ => None,
    };
    work.into_iter().filter_map(act).collect()
}

#[test]
fn what_a_policy_proposes_comes_with_its_mode() {
    let workers = [peer(0, UNIFIED), peer(1, UNIFIED), peer(9, PREFILL)];
    for mode in [PolicyMode::Prod, PolicyMode::Shadow] {
        assert_eq!(acts(&mut with(mode, &workers)), [(mode, id(0, 1), PREFILL)]);
    }
    assert_eq!(acts(&mut with(PolicyMode::Off, &workers)), []);
}

#[test]
fn a_proposal_that_is_no_longer_possible_is_dropped() {
    let fixed = WorkerInfo { switchable: false, ..peer(2, UNIFIED) };
    let workers = [peer(0, UNIFIED), changing(1, UNIFIED, DECODE), fixed, peer(9, PREFILL), peer(3, UNIFIED)];
    let mut p = with(PolicyMode::Prod, &workers);
    p.worker_draining(&id(3, 1));
    let to = |n, role| PolicyAction::SwitchRole { worker: id(n, 1), role, why: String::new() };
    let all = [(0, PREFILL), (0, UNIFIED), (1, PREFILL), (2, PREFILL), (3, PREFILL), (7, PREFILL)];
    let all: Vec<_> = all.into_iter().map(|(n, role)| to(n, role)).collect();
    p.take_policy_work(&mut Vec::new());
    p.proposed(&"disaggregate".into(), all.clone());
    p.proposed(&"another".into(), all);
    let mut work = Vec::new();
    p.take_policy_work(&mut work);
    let act =
        PolicyWork::Act { policy: "disaggregate".into(), mode: PolicyMode::Prod, action: to(0, PREFILL) };
    assert_eq!(work, [act]);
}
