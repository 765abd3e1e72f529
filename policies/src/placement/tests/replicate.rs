//! What is fetched from other workers: who is told to, what is booked, and what is said about it.

use config::PrefillFallback;

use super::handoff::{peer, stage};
use super::*;
use crate::kv::events::KvEvent;
use crate::policy::disaggregate::{Disaggregate, DisaggregateOptions};
use crate::policy::replicate::{Replicate, ReplicateOptions};
use crate::policy::{ClusterPolicy, PolicyConfig, PolicyMode};

const PROMPT: u32 = 640;

fn cluster(mode: PolicyMode, workers: &[(u64, WorkerRole)]) -> Placement {
    let fallback = PrefillFallback::Unified;
    let options = DisaggregateOptions { fallback, ..DisaggregateOptions::default() };
    let disaggregate: Box<dyn ClusterPolicy> = Box::new(Disaggregate::new(options));
    let replicate: Box<dyn ClusterPolicy> =
        Box::new(Replicate::new(ReplicateOptions { min_tokens: Some(64) }));
    let configs = [(PolicyMode::Prod, disaggregate), (mode, replicate)];
    let list = configs
        .into_iter()
        .map(|(mode, policy)| (PolicyConfig { mode, ..PolicyConfig::new(policy.name()) }, policy))
        .collect();
    let mut p = Placement::new(PlacementConfig { directory: true, ..config() }).with_policies(list);
    for (n, role) in workers {
        p.worker_joined(T, peer(*n, 1, *role), &mut Vec::new());
        p.kv_snapshot(&id(*n, 1), 0, 0, 1, &[]);
    }
    p
}

fn hashes() -> Arc<[PageHash]> {
    (0..PROMPT / 16).map(|n| PageHash([n as u8 + 1; 16])).collect()
}

/// Worker `n` says that it holds the first `pages` pages of the prompt.
fn holds(p: &mut Placement, n: u64, pages: usize) {
    let stored = KvEvent::Stored { parent: None, pages: hashes()[..pages].to_vec(), tokens: Vec::new() };
    p.kv_events(&id(n, 1), 1, &[stored]);
}

fn ask_long(number: u64) -> PlaceRequest {
    PlaceRequest { prompt_tokens: PROMPT, context_tokens: PROMPT, hashes: hashes(), ..ask(number) }
}

fn plan(p: &mut Placement, number: u64) -> Plan {
    match place(p, ask_long(number)) {
        Some(PlacementEffect::Placed { plan, .. }) => plan,
        other => panic!("not placed: {other:?}"),
    }
}

const DECODE: WorkerRole = WorkerRole::Decode;
const PREFILL: WorkerRole = WorkerRole::Prefill;

#[test]
fn a_prefill_worker_fetches_what_the_decode_worker_holds_and_is_booked_the_rest() {
    let mut p = cluster(PolicyMode::Prod, &[(0, DECODE), (9, PREFILL)]);
    holds(&mut p, 0, 5);
    let plan = plan(&mut p, 1);
    assert_eq!((&plan.worker, plan.prefill.as_ref()), (&id(0, 1), Some(&id(9, 1))));
    assert_eq!(plan.fetch, Some(Box::new(Prefix { from: id(0, 1), pool: false, tokens: 80 })));
    let stage = stage(&plan, Replicate::NAME);
    assert_eq!((stage.action.as_ref(), stage.mode), ("fetch", PolicyMode::Prod));
    assert_eq!(stage.why, "w0#1 holds 80 more tokens of the prompt than w9#1");
    let booked = p.workers().into_iter().find(|w| w.info.id == id(9, 1)).unwrap();
    assert_eq!((booked.handoffs, booked.handoff_tokens), (1, u64::from(PROMPT - 80)));
    p.check().unwrap();
    let mut fx = Vec::new();
    p.release(T, RequestId::new(1, 1), Attempt(0), &mut fx);
    p.check().unwrap();
    assert!(p.workers().iter().all(|w| w.handoff_tokens == 0 && w.booked_tokens == 0));
}

#[test]
fn in_shadow_nothing_is_fetched_and_what_would_have_been_is_said() {
    let mut p = cluster(PolicyMode::Shadow, &[(0, DECODE), (9, PREFILL)]);
    holds(&mut p, 0, 5);
    let plan = plan(&mut p, 1);
    assert_eq!(plan.fetch, None);
    assert_eq!(stage(&plan, Replicate::NAME).action, "would_fetch");
    let booked = p.workers().into_iter().find(|w| w.info.id == id(9, 1)).unwrap();
    assert_eq!(booked.handoff_tokens, u64::from(PROMPT));
}

#[test]
fn who_holds_as_much_fetches_nothing() {
    let mut p = cluster(PolicyMode::Prod, &[(0, DECODE), (9, PREFILL)]);
    holds(&mut p, 0, 5);
    holds(&mut p, 9, 5);
    let plan = plan(&mut p, 1);
    assert_eq!((plan.prefill.as_ref(), plan.fetch.clone()), (Some(&id(9, 1)), None));
    assert_eq!(stage(&plan, Replicate::NAME).action, "own");
}

#[test]
fn a_worker_that_computes_its_own_prompt_fetches_what_another_holds() {
    let mut p = cluster(PolicyMode::Prod, &[(0, WorkerRole::Unified), (1, WorkerRole::Unified)]);
    holds(&mut p, 1, 20);
    // Without a policy on where requests go it is the turn of the first.
    let plan = plan(&mut p, 1);
    assert_eq!((&plan.worker, plan.prefill.as_ref()), (&id(0, 1), None));
    assert_eq!(plan.fetch, Some(Box::new(Prefix { from: id(1, 1), pool: false, tokens: 320 })));
    let booked = p.workers().into_iter().find(|w| w.info.id == id(0, 1)).unwrap();
    assert_eq!(booked.booked_tokens, u64::from(PROMPT - 320 + 10));
    p.check().unwrap();
}
