use config::ids::{Attempt, RequestId};
use proptest::prelude::*;

use super::*;
use crate::kv::{Fingerprint, PageLayout};
use crate::placement::KvPeer;

const SECOND: Span = Span::from_secs(1);

fn options() -> OffloadOptions {
    OffloadOptions { peers: Vec::new(), min_suffix: 100, busy_tokens: 1000, max_outstanding: 2 }
}

fn offload(options: OffloadOptions) -> Offload {
    let mut offload = Offload::default();
    offload.set_options(Some(options));
    offload
}

fn key(number: u64) -> RequestKey {
    RequestKey { request: RequestId::new(1, number), attempt: Attempt(0) }
}

fn prompt(number: u64, missing: u32, ahead: u64) -> WaitingPrompt {
    WaitingPrompt { key: key(number), tokens: missing + 16, missing, ahead }
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name.into(), 1)
}

fn peer(name: &str, queued_tokens: u64) -> Peer {
    Peer {
        worker: worker(name),
        queued_tokens,
        free_requests: 10,
        free_tokens: 100_000,
        max_context: 8192,
        flops: (0, 0),
    }
}

/// Where a prompt goes.
fn goes(offload: &mut Offload, prompt: WaitingPrompt, peers: &[Peer]) -> Option<String> {
    Some(offload.choose(Time(1), &[prompt], peers)?.to.node.to_string())
}

#[test]
fn a_long_prompt_leaves_a_busy_worker() {
    let idle = [peer("b", 0)];
    for (missing, ahead, leaves) in
        [(100, 1001, true), (99, 1001, false), (100, 1000, false), (5000, 0, false)]
    {
        let mut offload = offload(options());
        let to = goes(&mut offload, prompt(1, missing, ahead), &idle);
        assert_eq!(to.is_some(), leaves, "{missing} missing, {ahead} ahead");
        assert_eq!(offload.outstanding(), usize::from(leaves));
    }
    assert_eq!(goes(&mut Offload::default(), prompt(1, 500, 5000), &idle), None, "off");
    assert!(offload(options()).wants(1001).is_some() && offload(options()).wants(1000).is_none());
}

#[test]
fn it_goes_where_least_is_to_do_and_less_than_here() {
    let peers = [peer("b", 1500), peer("c", 700), peer("d", 700)];
    let mut offload = offload(OffloadOptions { max_outstanding: 9, ..options() });
    assert_eq!(goes(&mut offload, prompt(1, 500, 1200), &peers).as_deref(), Some("c"));
    // What went there counts, whether or not the peer has said so.
    assert_eq!(goes(&mut offload, prompt(2, 500, 1200), &peers).as_deref(), Some("d"));
    assert_eq!(goes(&mut offload, prompt(3, 500, 1200), &peers), None, "1200 or more wait everywhere");
    assert_eq!(goes(&mut offload, prompt(3, 500, 1300), &peers).as_deref(), Some("c"));
}

#[test]
fn another_machine_counts_by_its_speed() {
    // 500 tokens take there as long as 5000 here, or as 50.
    let (slow, fast) = ((10, 1), (1, 10));
    for (flops, ahead, leaves) in
        [(slow, 4500, false), (slow, 4501, true), (fast, 1001, true), ((0, 10), 1001, true)]
    {
        let peers = [Peer { flops, ..peer("b", 0) }];
        assert_eq!(
            goes(&mut offload(options()), prompt(1, 500, ahead), &peers).is_some(),
            leaves,
            "{flops:?}"
        );
    }
    let peers =
        [Peer { flops: slow, ..peer("b", 0) }, peer("c", 600), Peer { flops: fast, ..peer("d", 5000) }];
    assert_eq!(goes(&mut offload(options()), prompt(1, 500, 9000), &peers).as_deref(), Some("d"));
}

#[test]
fn a_peer_without_room_is_not_asked() {
    let full = [
        Peer { free_requests: 0, ..peer("b", 0) },
        Peer { free_tokens: 516, ..peer("c", 0) },
        Peer { max_context: 516, ..peer("d", 0) },
    ];
    assert_eq!(goes(&mut offload(options()), prompt(1, 500, 5000), &full), None);
    let named = OffloadOptions { peers: vec!["c".to_owned()], ..options() };
    let both = [peer("b", 0), peer("c", 1)];
    assert_eq!(goes(&mut offload(named), prompt(1, 500, 5000), &both).as_deref(), Some("c"));
}

#[test]
fn a_peer_that_failed_rests_longer_each_time() {
    let (mut offload, idle) = (offload(options()), [peer("b", 0)]);
    let mut now = Time(1);
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert!(offload.choose(now, &[prompt(1, 500, 5000)], &idle).is_some());
        offload.ended(now, key(1), End::Failed);
        let rested = now + Span::from_secs(seconds);
        let before = Time(rested.0 - 1);
        assert!(offload.choose(before, &[prompt(1, 500, 5000)], &idle).is_none(), "{seconds}");
        // Another one is asked meanwhile.
        assert!(offload.choose(before, &[prompt(2, 500, 5000)], &[peer("c", 0)]).is_some());
        assert_eq!(offload.ended(before, key(2), End::Computed).unwrap().missing, 500);
        now = rested;
    }
    assert!(offload.choose(now, &[prompt(1, 500, 5000)], &idle).is_some());
    offload.ended(now, key(1), End::Computed);
    offload.choose(now, &[prompt(1, 500, 5000)], &idle);
    offload.ended(now, key(1), End::Withdrawn);
    assert!(offload.choose(now, &[prompt(1, 500, 5000)], &idle).is_some(), "nobody is blamed");
    offload.ended(now, key(1), End::Failed);
    assert!(offload.choose(now + SECOND, &[prompt(1, 500, 5000)], &idle).is_some(), "it begins anew");
}

#[test]
fn a_reload_changes_what_goes_and_not_what_is_away() {
    let (mut offload, idle) = (offload(options()), [peer("b", 0)]);
    for number in 1..=2 {
        assert!(goes(&mut offload, prompt(number, 500, 5000), &idle).is_some());
    }
    assert_eq!(goes(&mut offload, prompt(3, 500, 5000), &idle), None, "two are away");
    offload.set_options(Some(OffloadOptions { max_outstanding: 1, ..options() }));
    assert_eq!((offload.outstanding(), offload.check()), (2, Ok(())));
    offload.ended(Time(2), key(1), End::Computed);
    assert_eq!(goes(&mut offload, prompt(3, 500, 5000), &idle), None);
    offload.set_options(None);
    assert_eq!(offload.ended(Time(2), key(2), End::Computed).unwrap().at, worker("b"));
    assert_eq!(offload.ended(Time(2), key(2), End::Computed), None, "twice");
    assert_eq!(goes(&mut offload, prompt(3, 500, 5000), &idle), None, "off");
    offload.set_options(Some(options()));
    assert!(goes(&mut offload, prompt(3, 500, 5000), &idle).is_some());
}

fn info(name: &str, role: WorkerRole) -> WorkerInfo {
    let layout = PageLayout { page_tokens: 16, layers: 1, kv_heads: 1, head_dim: 1, element_bytes: 4 };
    let kv = KvPeer { address: format!("{name}:1"), fingerprint: Fingerprint::of(&[]), layout };
    WorkerInfo { role, kv: Some(kv), ..WorkerInfo::unified(worker(name), "m".into(), 4096, 10, 16) }
}

#[test]
fn peers_are_workers_that_compute_prompts_with_our_pages() {
    let load = BatchLoad { pages_total: 100, pages_used: 40, requests: 3, ..BatchLoad::default() };
    let (own, other) = (info("a", WorkerRole::Unified), info("b", WorkerRole::Unified));
    let seen = Peer::of(&own, &other, false, &load).unwrap();
    assert_eq!((seen.free_requests, seen.free_tokens, seen.max_context), (7, 960, 4096));
    assert!(
        Peer::of(&info("a", WorkerRole::Decode), &info("b", WorkerRole::Prefill), false, &load).is_some()
    );
    let not = |own: &WorkerInfo, other: &WorkerInfo, draining| {
        assert_eq!(Peer::of(own, other, draining, &load), None);
    };
    not(&own, &other, true);
    not(&own, &own, false);
    not(&own, &info("b", WorkerRole::Decode), false);
    not(&info("a", WorkerRole::Prefill), &other, false);
    not(&own, &WorkerInfo { switching_to: Some(WorkerRole::Prefill), ..other.clone() }, false);
    not(&own, &WorkerInfo { models: vec!["n".into()], ..other.clone() }, false);
    not(&own, &WorkerInfo { kv: None, ..other.clone() }, false);
    let mut differs = other;
    if let Some(kv) = &mut differs.kv {
        kv.fingerprint = Fingerprint::of(&[("model", b"another")]);
    }
    not(&own, &differs, false);
}

proptest! {
    /// Whatever comes: never more than allowed away, never a short prompt, never from an idle worker, never to a peer that
    /// has no room, rests, is not named or has as much to do.
    #[test]
    fn the_rule_is_kept(
        max_outstanding in 1_u32..5,
        min_suffix in 1_u32..300,
        busy_tokens in 0_u64..2000,
        named in proptest::option::of(0_usize..4),
        rounds in prop::collection::vec(
            (0_u64..6, 0_u32..600, 0_u64..4000, prop::collection::vec((0_u64..4000, 0_u32..3, 0_u64..2000), 4), 0_u8..5, 0_u64..3),
            1..60,
        ),
    ) {
        let name = |i: usize| format!("w{i}");
        let peers = named.map(name).into_iter().collect();
        let mut offload =
            offload(OffloadOptions { peers, min_suffix, busy_tokens, max_outstanding });
        let mut now = Time(1);
        let mut away: BTreeMap<RequestKey, WorkerId> = BTreeMap::new();
        let mut failed: BTreeMap<WorkerId, Time> = BTreeMap::new();
        for (number, missing, ahead, there, then, passed) in rounds {
            now = now + Span::from_millis(passed * 400);
            let asked = prompt(number, missing, ahead);
            let peers: Vec<Peer> = there
                .into_iter()
                .enumerate()
                .map(|(i, (queued, free_requests, free_tokens))| Peer {
                    free_requests,
                    free_tokens,
                    ..peer(&name(i), queued)
                })
                .collect();
            if let Some(choice) = offload.choose(now, &[asked], &peers) {
                prop_assert_eq!(choice.prompt, asked);
                prop_assert!(missing >= min_suffix && ahead > busy_tokens);
                let to = peers.iter().find(|peer| peer.worker == choice.to).unwrap();
                let at = away.values().filter(|at| **at == choice.to).count() as u32;
                prop_assert!(to.free_requests > at && to.free_tokens > u64::from(asked.tokens));
                prop_assert!(to.queued_tokens < ahead && choice.done_there < ahead + u64::from(missing));
                prop_assert!(named.is_none_or(|i| choice.to.node.as_str() == name(i)));
                prop_assert!(failed.get(&choice.to).is_none_or(|at| now.since(*at) >= SECOND));
                prop_assert!(away.insert(asked.key, choice.to).is_none(), "twice");
            }
            prop_assert!(away.len() <= max_outstanding as usize);
            prop_assert_eq!(offload.outstanding(), away.len());
            prop_assert!(offload.wants(u64::MAX).is_some() == (away.len() < max_outstanding as usize));
            prop_assert_eq!(offload.check(), Ok(()));
            let end = [End::Computed, End::Failed, End::Withdrawn].get(usize::from(then)).copied();
            if let (Some(end), Some(key)) = (end, away.keys().next().copied()) {
                let was = offload.ended(now, key, end).unwrap();
                prop_assert_eq!(Some(&was.at), away.get(&key));
                if end == End::Failed {
                    failed.insert(was.at.clone(), now);
                }
                if end == End::Computed {
                    failed.remove(&was.at);
                }
                away.remove(&key);
            }
        }
    }
}
