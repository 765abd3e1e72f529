//! Pools: who is told to fetch from them and to keep what there, and what a controller knows of them.

use super::handoff::{peer, stage};
use super::*;
use crate::cost::HardwareProfile;
use crate::kv::events::KvEvent;
use crate::policy::pool_replicate::{PoolReplicate, PoolReplicateOptions};
use crate::policy::replicate::{Replicate, ReplicateOptions};
use crate::policy::{ClusterPolicy, PolicyConfig, PolicyMode};

const PROMPT: u32 = 640;

fn pool(incarnation: u64) -> PoolInfo {
    PoolInfo { id: pool_id(incarnation), address: "p:1".to_owned(), hardware: HardwareProfile::default() }
}

fn pool_id(incarnation: u64) -> WorkerId {
    WorkerId::new("p".into(), incarnation)
}

/// A unified worker that holds nothing, and another.
fn cluster(mode: PolicyMode) -> Placement {
    let replicate: Box<dyn ClusterPolicy> =
        Box::new(Replicate::new(ReplicateOptions { min_tokens: Some(64) }));
    let pools: Box<dyn ClusterPolicy> =
        Box::new(PoolReplicate::new(PoolReplicateOptions { min_tokens: Some(64) }));
    let list = [(PolicyMode::Prod, replicate), (mode, pools)]
        .into_iter()
        .map(|(mode, policy)| (PolicyConfig { mode, ..PolicyConfig::new(policy.name()) }, policy))
        .collect();
    let mut p = Placement::new(PlacementConfig { directory: true, ..config() }).with_policies(list);
    for n in 0..2 {
        p.worker_joined(T, peer(n, 1, WorkerRole::Unified), &mut Vec::new());
        p.kv_snapshot(&id(n, 1), 0, 0, 1, &[]);
    }
    p.take_policy_work(&mut Vec::new());
    p
}

fn hashes() -> Arc<[PageHash]> {
    (0..PROMPT / 16).map(|n| PageHash([n as u8 + 1; 16])).collect()
}

fn stored(pages: usize) -> Vec<KvEvent> {
    vec![KvEvent::Stored { parent: None, pages: hashes()[..pages].to_vec(), tokens: Vec::new() }]
}

fn plan(p: &mut Placement, number: u64) -> Plan {
    let request =
        PlaceRequest { prompt_tokens: PROMPT, context_tokens: PROMPT, hashes: hashes(), ..ask(number) };
    match place(p, request) {
        Some(PlacementEffect::Placed { plan, .. }) => plan,
        other => panic!("not placed: {other:?}"),
    }
}

fn work(p: &mut Placement) -> Vec<PolicyWork> {
    let mut work = Vec::new();
    p.take_policy_work(&mut work);
    work
}

#[test]
fn a_prompt_is_kept_at_a_pool_and_fetched_from_there_when_that_has_it() {
    let mut p = cluster(PolicyMode::Prod);
    p.pool_joined(pool(1));
    assert_eq!(work(&mut p), [PolicyWork::ResyncPool(pool_id(1))]);
    assert_eq!(p.pool_snapshot(&pool_id(1), 0, 0, 1, &[]), Feed::Applied);
    let first = plan(&mut p, 1);
    assert_eq!((first.fetch.clone(), first.store.clone()), (None, Some(Box::new(pool_id(1)))));
    assert_eq!(stage(&first, PoolReplicate::NAME).action, "store");
    assert_eq!(p.pool_events(&pool_id(1), 1, &stored(30)), Feed::Applied);
    let second = plan(&mut p, 2);
    let prefix = Prefix { from: pool_id(1), pool: true, tokens: 480 };
    assert_eq!(
        (second.fetch.clone(), second.store.clone()),
        (Some(Box::new(prefix)), Some(Box::new(pool_id(1))))
    );
    let stage = stage(&second, PoolReplicate::NAME);
    assert_eq!(stage.action, "fetch");
    let said = |name: &str| stage.numbers.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
    assert_eq!((said("fetch-tokens"), said("store-tokens")), (Some(480.0), Some(160.0)));
    // What is fetched need not be computed.
    let booked = p.workers().into_iter().find(|w| w.info.id == second.worker).unwrap();
    assert_eq!(booked.booked_tokens, u64::from(PROMPT - 480 + 10));
    p.check().unwrap();
}

#[test]
fn who_holds_more_is_asked_be_it_a_worker_or_a_pool() {
    for (at_worker, at_pool, from_pool) in [(20, 10, false), (10, 20, true), (20, 20, false)] {
        let mut p = cluster(PolicyMode::Prod);
        p.pool_joined(pool(1));
        p.pool_snapshot(&pool_id(1), 0, 0, 1, &[]);
        p.kv_events(&id(1, 1), 1, &stored(at_worker));
        p.pool_events(&pool_id(1), 1, &stored(at_pool));
        let plan = plan(&mut p, 1);
        assert_eq!(plan.worker, id(0, 1));
        assert_eq!(plan.fetch.unwrap().pool, from_pool, "{at_worker} pages and {at_pool}");
    }
}

/// A pool that gives a prompt in 100 ms, and workers that compute it in about 140.
#[test]
fn workers_are_sent_to_a_pool_only_as_long_as_it_gives_sooner_than_they_compute() {
    let mut p = cluster(PolicyMode::Prod);
    for n in 0..2 {
        let mut worker = peer(n, 2, WorkerRole::Unified);
        worker.shape = crate::cost::ModelShape::named("smollm2-135m");
        worker.hardware.figures.flops = 1_000_000_000_000;
        p.worker_joined(T, worker, &mut Vec::new());
        p.kv_snapshot(&id(n, 2), 0, 0, 1, &[]);
    }
    let slow = |incarnation| {
        let mut pool = pool(incarnation);
        // 30 pages of 1 KiB.
        pool.hardware.figures.link = 10 * 30 * 1024;
        pool
    };
    p.pool_joined(slow(1));
    p.pool_snapshot(&pool_id(1), 0, 0, 1, &hashes()[..30]);
    let fetches_at = |p: &mut Placement, number: u64, ms: u64| {
        let request =
            PlaceRequest { prompt_tokens: PROMPT, context_tokens: PROMPT, hashes: hashes(), ..ask(number) };
        let mut fx = Vec::new();
        p.place(T + Span::from_millis(ms), request, &mut fx);
        match fx.pop() {
            Some(PlacementEffect::Placed { plan, .. }) => plan.fetch.is_some(),
            other => panic!("not placed: {other:?}"),
        }
    };
    let asked = [(1, 0), (2, 0), (3, 50), (4, 70), (5, 100), (6, 170)];
    let fetched = asked.map(|(number, ms)| fetches_at(&mut p, number, ms));
    assert_eq!(fetched, [true, false, false, true, false, true], "busy to 100 ms, and from 70 to 200 ms");
    // Another life of it has nothing to do yet.
    p.pool_left(&pool_id(1));
    p.pool_joined(slow(2));
    p.pool_snapshot(&pool_id(2), 0, 0, 1, &hashes()[..30]);
    assert!(fetches_at(&mut p, 7, 170));
    p.check().unwrap();
}

#[test]
fn in_shadow_nothing_is_kept_or_fetched_and_what_would_have_been_is_said() {
    let mut p = cluster(PolicyMode::Shadow);
    p.pool_joined(pool(1));
    p.pool_snapshot(&pool_id(1), 0, 0, 1, &[]);
    let first = plan(&mut p, 1);
    assert_eq!((first.fetch.as_ref(), first.store.as_ref()), (None, None));
    assert_eq!(stage(&first, PoolReplicate::NAME).action, "would_store");
    p.pool_events(&pool_id(1), 1, &stored(30));
    let second = plan(&mut p, 2);
    assert_eq!((second.fetch.as_ref(), second.store.as_ref()), (None, None));
    assert_eq!(stage(&second, PoolReplicate::NAME).action, "would_fetch");
}

/// B70, B75: what a pool holds is known of one life of it, and asked for again in the next.
#[test]
fn a_pool_that_is_gone_or_restarted_is_asked_for_nothing_until_it_has_said_what_it_holds() {
    let mut p = cluster(PolicyMode::Prod);
    p.pool_joined(pool(1));
    p.pool_snapshot(&pool_id(1), 0, 0, 1, &hashes());
    assert!(plan(&mut p, 1).fetch.is_some());
    p.pool_joined(pool(2));
    assert_eq!(work(&mut p), [PolicyWork::ResyncPool(pool_id(1)), PolicyWork::ResyncPool(pool_id(2))]);
    assert_eq!(p.pool_events(&pool_id(1), 1, &stored(4)), Feed::Stale, "a life that is over");
    let plan_of = plan(&mut p, 2);
    assert_eq!((plan_of.fetch, plan_of.store), (None, Some(Box::new(pool_id(2)))));
    p.pool_joined(pool(1));
    assert!(!p.knows_pool(&pool_id(1)), "a message from the past");
    p.pool_left(&pool_id(2));
    let plan_of = plan(&mut p, 3);
    assert_eq!((plan_of.fetch, plan_of.store), (None, None));
    assert_eq!(p.pool_directory().workers(), []);
}

#[test]
fn a_gap_in_what_a_pool_tells_asks_for_all_of_it_again_and_so_does_silence() {
    let mut p = cluster(PolicyMode::Prod);
    p.pool_joined(pool(1));
    work(&mut p);
    for seconds in [1, 2, 3] {
        p.tick(Time::ZERO + Span::from_secs(seconds), &mut Vec::new());
    }
    assert!(work(&mut p).contains(&PolicyWork::ResyncPool(pool_id(1))), "it has not answered");
    p.pool_snapshot(&pool_id(1), 4, 0, 1, &[]);
    assert_eq!(p.pool_events(&pool_id(1), 6, &stored(4)), Feed::Gap { expected: 5 });
    assert_eq!(work(&mut p), [PolicyWork::ResyncPool(pool_id(1))]);
}

/// A node that is both is two holders.
#[test]
fn the_pool_of_a_worker_s_node_is_another_holder_than_the_worker() {
    let mut p = cluster(PolicyMode::Prod);
    p.pool_joined(PoolInfo { id: id(0, 1), ..pool(1) });
    p.pool_snapshot(&id(0, 1), 0, 0, 1, &hashes()[..30]);
    assert_eq!((p.directory().pages_of(&id(0, 1)), p.pool_directory().pages_of(&id(0, 1))), (0, 30));
    let plan = plan(&mut p, 1);
    assert_eq!(plan.worker, id(0, 1));
    assert_eq!(*plan.fetch.unwrap(), Prefix { from: id(0, 1), pool: true, tokens: 480 });
    p.pool_left(&id(0, 1));
    assert_eq!(p.worker_count(), 2);
}
