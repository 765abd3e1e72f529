//! Random events, with and without policies: every request is answered once, and nothing is left.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::invariant::{enforce, panic_on_broken};
use crate::kv::{Fingerprint, PageLayout};
use crate::policy::cache_aware::{CacheAware, CacheAwareOptions};
use crate::policy::disaggregate::{Disaggregate, DisaggregateOptions};
use crate::policy::session_affinity::{SessionAffinity, SessionAffinityOptions};
use crate::policy::{ClusterPolicy, Opinion, PolicyConfig, PolicyMode, Stage};
use crate::rng::Rng;

/// Where policies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policies {
    None,
    /// Here, in this mode.
    Here(PolicyMode),
    /// In actors that answer late, not at all, or fail; the list is swapped now and then.
    Elsewhere,
    /// As elsewhere, but they answer at once.
    Prompt,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Where each attempt was placed, in order, and why.
    placed: Vec<(RequestId, Attempt, WorkerId, &'static str)>,
    pairs: u32,
    rejected: u32,
    late: u64,
    failed: u64,
    swaps: u32,
}

fn objects() -> Vec<(PolicyConfig, Box<dyn ClusterPolicy>)> {
    let options = CacheAwareOptions { balance_abs_threshold: 1, ..CacheAwareOptions::default() };
    let pairs = DisaggregateOptions {
        min_remote_tokens: Some(1),
        max_outstanding: Some(2),
        prefill_busy_tokens: Some(1000),
        ..DisaggregateOptions::default()
    };
    let policies: [Box<dyn ClusterPolicy>; 3] = [
        Box::new(Disaggregate::new(pairs)),
        Box::new(CacheAware::new(options)),
        Box::new(SessionAffinity::new(SessionAffinityOptions { min_requests: 1, ..Default::default() })),
    ];
    policies.into_iter().map(|p| (PolicyConfig::new(p.name()), p)).collect()
}

fn start(seed: u64, policies: Policies) -> Placement {
    let choice = if seed.is_multiple_of(2) { Choice::LeastLoaded } else { Choice::PowerOfTwo };
    let p = Placement::new(PlacementConfig { choice, seed, directory: true, ..config() });
    match policies {
        Policies::None | Policies::Elsewhere | Policies::Prompt => p,
        Policies::Here(mode) => {
            let list = objects();
            p.with_policies(list.into_iter().map(|(c, p)| (PolicyConfig { mode, ..c }, p)).collect())
        }
    }
}

/// A worker of one of the three roles, whose pages are mostly those of the others.
fn peer(number: u64, incarnation: u64, max_requests: u32) -> WorkerInfo {
    let role = match number {
        0 => WorkerRole::Prefill,
        1 => WorkerRole::Decode,
        _ => WorkerRole::Unified,
    };
    let layout = PageLayout { page_tokens: 16, layers: 2, kv_heads: 1, head_dim: 8, element_bytes: 2 };
    let fingerprint = Fingerprint([u8::from(incarnation.is_multiple_of(5)); 32]);
    let kv = KvPeer { address: format!("h:{number}"), fingerprint, layout };
    WorkerInfo { role, kv: Some(kv), ..info(number, incarnation, max_requests) }
}

/// Pages of one of three texts.
fn text(which: u64, pages: u64) -> Vec<PageHash> {
    (0..pages)
        .map(|n| PageHash([which as u8, n as u8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]))
        .collect()
}

fn churn(seed: u64, policies: Policies) -> Outcome {
    let mut rng = Rng::new(seed);
    // What policies do is drawn apart, so that the events are the same for all.
    let mut theirs = Rng::new(seed ^ 0xabcd);
    let mut p = start(seed, policies);
    let mut actors = objects();
    let mut now = T;
    let mut incarnation = 0;
    let mut lives: Vec<WorkerId> = Vec::new();
    let mut seqs: BTreeMap<WorkerId, u64> = BTreeMap::new();
    let (mut waiting, mut booked) = (BTreeSet::new(), BTreeSet::new());
    let mut asked: VecDeque<PolicyWork> = VecDeque::new();
    let mut out = Outcome::default();
    let mut number = 0;
    for _ in 0..400 {
        now = now + Span::from_millis(rng.below(100));
        let mut fx = Vec::new();
        match rng.below(14) {
            0 => {
                incarnation += 1;
                let number = rng.below(4);
                let models = if rng.below(4) == 0 { vec!["m".into(), "n".into()] } else { vec!["m".into()] };
                let new = WorkerInfo {
                    models,
                    max_context: 50 + 200 * rng.below(3) as u32,
                    ..peer(number, incarnation, 1 + rng.below(3) as u32)
                };
                lives.push(new.id.clone());
                p.worker_joined(now, new, &mut fx);
            }
            1 if !lives.is_empty() => {
                p.worker_left(now, &lives[rng.below(lives.len() as u64) as usize], &mut fx);
            }
            2 if !lives.is_empty() && rng.below(3) == 0 => {
                p.worker_draining(&lives[rng.below(lives.len() as u64) as usize]);
            }
            3..=7 => {
                number += 1;
                let session = rng.below(8);
                let request = PlaceRequest {
                    request: RequestId::new(1 + number % 2, number),
                    attempt: Attempt(rng.below(2) as u32),
                    model: ["m", "m", "n", "default"][rng.below(4) as usize].into(),
                    avoid: lives.iter().filter(|_| rng.below(3) == 0).cloned().collect(),
                    hashes: text(rng.below(3), rng.below(7)).into(),
                    session: (session < 6).then(|| format!("s{session}").as_str().into()),
                    ..ask(number)
                };
                waiting.insert((request.request, request.attempt));
                p.place(now, request, &mut fx);
            }
            8..=10 => {
                let all: Vec<_> = booked.union(&waiting).copied().collect();
                if let Some(&key) = all.get(rng.below(all.len() as u64) as usize) {
                    booked.remove(&key);
                    waiting.remove(&key);
                    p.release(now, key.0, key.1, &mut fx);
                }
            }
            11 => {
                let all: Vec<(RequestId, Attempt)> = booked.iter().copied().collect();
                if let Some(&(request, attempt)) = all.get(rng.below(all.len() as u64) as usize) {
                    p.accepted(now, request, attempt);
                    if request.number % 2 == 0 {
                        p.prefilled(now, request, attempt, &mut fx);
                    }
                }
            }
            12 if !lives.is_empty() => {
                let worker = &lives[rng.below(lives.len() as u64) as usize];
                let seq = seqs.entry(worker.clone()).or_default();
                *seq += 1;
                let pages = text(rng.below(3), rng.below(7));
                p.kv_snapshot(worker, *seq, 0, 1, &pages);
            }
            _ if rng.below(4) == 0 => {
                // Of two gateways one leaves: nobody hears of its requests again.
                let gateway = 1 + rng.below(2);
                p.gateway_left(now, gateway, &mut fx);
                waiting.retain(|k: &(RequestId, Attempt)| k.0.gateway != gateway);
                booked.retain(|k: &(RequestId, Attempt)| k.0.gateway != gateway);
            }
            _ if !lives.is_empty() && rng.below(2) == 0 => {
                let worker = &lives[rng.below(lives.len() as u64) as usize];
                let load = BatchLoad { requests: rng.below(4) as u32, ..BatchLoad::default() };
                p.worker_load(now, worker, load, &mut fx);
            }
            _ => p.tick(now, &mut fx),
        }
        if matches!(policies, Policies::Elsewhere | Policies::Prompt) && theirs.below(20) == 0 {
            out.swaps += 1;
            let mut list: Vec<_> = objects().into_iter().map(|(config, _)| (config, None)).collect();
            list.truncate(theirs.below(4) as usize);
            p.set_policies(now, list, &mut fx);
        }
        loop {
            let mut work = Vec::new();
            p.take_policy_work(&mut work);
            asked.extend(work);
            let rest = if policies == Policies::Prompt { 0 } else { theirs.below(4) as usize };
            if asked.len() <= rest {
                break;
            }
            let Some(work) = asked.pop_front() else { break };
            match work {
                PolicyWork::Observe(event) => actors.iter_mut().for_each(|(_, p)| p.observe(now, &event)),
                PolicyWork::Resync(_)
                | PolicyWork::ResyncPool(_)
                | PolicyWork::Note(_)
                | PolicyWork::Act { .. } => {}
                PolicyWork::Consult { ticket, policy, query } => {
                    let (_, actor) = actors.iter_mut().find(|(c, _)| c.name == policy).unwrap();
                    let took = Span::from_micros(5);
                    match theirs.below(6) {
                        0 if policies == Policies::Elsewhere => {}
                        1 => p.opinion_failed(now, ticket, &policy, "it panicked".into(), took, &mut fx),
                        2 => {
                            // Nonsense: a worker that is gone, or that cannot take it.
                            let pin = crate::policy::Pin { worker: id(9, 9), hard: true };
                            let opinion = Opinion {
                                pin: Some(pin),
                                exclude: query.rows.iter().map(|r| r.worker.clone()).collect(),
                                costs: vec![(id(9, 9), u64::MAX)],
                                ..Opinion::none("nonsense", "")
                            };
                            p.opinion(now, ticket, &policy, opinion, took, &mut fx);
                        }
                        _ => {
                            let opinion = actor.opinion(now, &query);
                            p.opinion(now, ticket, &policy, opinion, took, &mut fx);
                        }
                    }
                }
            }
        }
        for effect in fx {
            match effect {
                PlacementEffect::Placed { request, attempt, plan } => {
                    assert!(waiting.remove(&(request, attempt)), "answered twice");
                    booked.insert((request, attempt));
                    assert_eq!(plan.stages.last().unwrap().policy.as_str(), Stage::PLACEMENT);
                    if let Some(prefill) = &plan.prefill {
                        let view = |id: &WorkerId| p.workers().into_iter().find(|w| w.info.id == *id);
                        // Either may be gone by now, in the same step.
                        if let (Some(from), Some(to)) = (view(prefill), view(&plan.worker)) {
                            assert!(from.info.id != to.info.id && from.info.pairs_with(&to.info));
                            assert_ne!(from.info.role, WorkerRole::Decode);
                        }
                        out.pairs += 1;
                    }
                    out.placed.push((request, attempt, plan.worker, plan.why));
                }
                PlacementEffect::Rejected { request, attempt, .. } => {
                    assert!(waiting.remove(&(request, attempt)), "answered twice");
                    out.rejected += 1;
                }
                PlacementEffect::Lost { request, attempt, .. } => {
                    assert!(booked.remove(&(request, attempt)), "lost without a booking");
                }
            }
        }
        enforce(p.check());
        let here = (p.booked() as usize, (p.queued() + p.consulting()) as usize);
        assert_eq!(here, (booked.len(), waiting.len()), "seed {seed}");
        assert!(p.workers().iter().all(|w| w.booked <= w.info.max_requests && w.handoffs <= 2));
        if policies == Policies::Prompt {
            assert_eq!(p.consulting(), 0, "all have answered");
        }
    }
    for view in p.policies() {
        out.late += view.late;
        out.failed += view.failed;
    }
    // What is released makes room for what waits, which is released in its turn.
    let mut fx = Vec::new();
    for key in booked {
        p.release(now, key.0, key.1, &mut fx);
    }
    loop {
        while let Some(effect) = fx.pop() {
            if let PlacementEffect::Placed { request, attempt, .. } = effect {
                p.release(now, request, attempt, &mut fx);
            }
        }
        match p.next_deadline() {
            Some(next) => p.tick(next, &mut fx),
            None => break,
        }
    }
    p.tick(Time::NEVER, &mut Vec::new());
    enforce(p.check());
    assert_eq!((p.queued(), p.consulting()), (0, 0), "seed {seed}");
    assert!(p.workers().iter().all(|w| (w.booked, w.handoffs, w.handoff_tokens) == (0, 0, 0)), "seed {seed}");
    out
}

#[test]
fn random_churn_answers_each_request_once() {
    panic_on_broken();
    for policies in [Policies::None, Policies::Here(PolicyMode::Prod), Policies::Elsewhere, Policies::Prompt]
    {
        let (mut placed, mut pairs, mut rejected, mut late, mut failed, mut swaps) = (0, 0, 0, 0, 0, 0);
        for seed in 0..200 {
            let out = churn(seed, policies);
            placed += out.placed.len();
            pairs += out.pairs;
            rejected += out.rejected;
            late += out.late;
            failed += out.failed;
            swaps += out.swaps;
        }
        assert!(placed > 3000 && rejected > 500, "{policies:?}: dull: {placed} placed, {rejected} rejected");
        assert_eq!(pairs > 300, policies != Policies::None, "{policies:?}: {pairs} pairs");
        if policies == Policies::Elsewhere {
            assert!(
                late > 50 && failed > 50 && swaps > 500,
                "dull: {late} late, {failed} failed, {swaps} swaps"
            );
        }
    }
}

proptest! {
    #[test]
    fn shadow_changes_nothing(seed in any::<u64>()) {
        let (with, without) =
            (churn(seed, Policies::Here(PolicyMode::Shadow)), churn(seed, Policies::None));
        prop_assert_eq!(with, without);
    }
}

#[test]
fn in_production_the_same_policies_do_change_something() {
    let differs =
        |seed| churn(seed, Policies::Here(PolicyMode::Prod)).placed != churn(seed, Policies::None).placed;
    let differing = (0..50).filter(|seed| differs(*seed)).count();
    assert!(differing > 25, "{differing} of 50 runs");
}
