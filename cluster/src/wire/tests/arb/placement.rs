//! What workers offer, what is asked of the controller, and what it says.

use policies::placement::PoolInfo;

use super::*;
use crate::wire::{PoolAd, PoolLoad};

pub(super) fn worker_role() -> impl Strategy<Value = WorkerRole> {
    prop_oneof![Just(WorkerRole::Unified), Just(WorkerRole::Prefill), Just(WorkerRole::Decode)]
}

pub(super) fn worker_ad() -> impl Strategy<Value = WorkerAd> {
    let ad = (model(), any::<[u8; 32]>(), any::<u64>()).prop_map(|(name, descriptor, bytes)| ModelAd {
        name,
        descriptor,
        bytes,
    });
    let role = (worker_role(), option::of(worker_role()), any::<bool>());
    let class = (role, hardware(), option::of(shape()), option::of(kv_peer()));
    let info = (worker(), vec(model(), 0..3), any::<[u32; 3]>(), class).prop_map(
        |(id, models, [max_context, max_requests, page_tokens], (roles, hardware, shape, kv))| {
            let (role, switching_to, switchable) = roles;
            WorkerInfo {
                id,
                models,
                max_context,
                max_requests,
                page_tokens,
                role,
                switching_to,
                switchable,
                hardware,
                shape,
                kv,
            }
        },
    );
    (info, any::<bool>(), load(), vec(ad, 0..3)).prop_map(|(info, draining, load, models)| WorkerAd {
        info,
        draining,
        load,
        models,
    })
}

pub(super) fn hardware() -> impl Strategy<Value = HardwareProfile> {
    (text(), any::<[u64; 5]>()).prop_map(|(name, n)| HardwareProfile {
        name,
        figures: Hardware {
            flops: n[0],
            memory: n[1],
            link: n[2],
            step_overhead: Span(n[3]),
            link_latency: Span(n[4]),
        },
    })
}

pub(super) fn shape() -> impl Strategy<Value = ModelShape> {
    (any::<[u64; 2]>(), any::<[u32; 5]>()).prop_map(|(a, b)| ModelShape {
        params: a[0],
        weight_bytes: a[1],
        layers: b[0],
        heads: b[1],
        kv_heads: b[2],
        head_dim: b[3],
        element_bytes: b[4],
    })
}

pub(super) fn kv_peer() -> impl Strategy<Value = KvPeer> {
    (text(), any::<[u8; 32]>(), any::<[u32; 5]>()).prop_map(|(address, fingerprint, n)| KvPeer {
        address,
        fingerprint: Fingerprint(fingerprint),
        layout: PageLayout {
            page_tokens: n[0],
            layers: n[1],
            kv_heads: n[2],
            head_dim: n[3],
            element_bytes: n[4],
        },
    })
}

pub(super) fn pool_ad() -> impl Strategy<Value = PoolAd> {
    (worker(), text(), hardware(), any::<[u64; 5]>()).prop_map(|(id, address, hardware, n)| PoolAd {
        info: PoolInfo { id, address, hardware },
        load: PoolLoad { pages: n[0], ram: n[1], ram_capacity: n[2], disk: n[3], disk_capacity: n[4] },
    })
}

pub(super) fn prefix() -> impl Strategy<Value = Box<Prefix>> {
    (worker(), any::<bool>(), any::<u32>())
        .prop_map(|(from, pool, tokens)| Box::new(Prefix { from, pool, tokens }))
}

pub(super) fn placement_effect() -> impl Strategy<Value = PlacementEffect> {
    let why = prop_oneof![
        Just("least-loaded"),
        Just("only-worker"),
        Just("only-free-worker"),
        Just("power-of-two"),
        Just("pinned"),
        Just("least-cost"),
        Just("round-robin"),
        Just("random")
    ];
    let plan =
        (worker(), option::of(worker()), option::of(prefix()), option::of(worker()), why, vec(stage(), 0..3))
            .prop_map(|(worker, prefill, fetch, store, why, stages)| Plan {
                worker,
                prefill,
                fetch,
                store: store.map(Box::new),
                why,
                stages: stages.into(),
            });
    let reason = prop_oneof![
        model().prop_map(Rejection::UnknownModel),
        model().prop_map(Rejection::NoWorker),
        model().prop_map(Rejection::NoPrefill),
        any::<u32>().prop_map(|queued| Rejection::QueueFull { queued }),
        any::<u64>().prop_map(|waited| Rejection::Timeout(Span(waited))),
        (worker(), text()).prop_map(|(worker, why)| Rejection::Pinned { worker, why }),
        any::<[u32; 2]>().prop_map(|[tokens, window]| Rejection::TooLong { tokens, window }),
    ];
    prop_oneof![
        (request(), attempt(), plan).prop_map(|(request, attempt, plan)| PlacementEffect::Placed {
            request,
            attempt,
            plan
        }),
        (request(), attempt(), reason).prop_map(|(request, attempt, reason)| PlacementEffect::Rejected {
            request,
            attempt,
            reason
        }),
        (request(), attempt(), worker()).prop_map(|(request, attempt, worker)| PlacementEffect::Lost {
            request,
            attempt,
            worker
        }),
    ]
}

pub(super) fn stage() -> impl Strategy<Value = Stage> {
    let mode = prop_oneof![Just(PolicyMode::Off), Just(PolicyMode::Shadow), Just(PolicyMode::Prod)];
    let numbers = vec((text().prop_map(Cow::Owned), any::<f64>()), 0..3);
    (text(), mode, text(), text(), numbers, option::of(any::<i64>()), any::<u64>()).prop_map(
        |(policy, mode, action, why, numbers, saved, took)| Stage {
            policy: policy.into(),
            mode,
            action: action.into(),
            why,
            numbers,
            saved,
            took: Span(took),
        },
    )
}

pub(super) fn place_request() -> impl Strategy<Value = PlaceRequest> {
    let hints = (hashes(), option::of(text().prop_map(SessionId::from)), props());
    let flags = any::<[bool; 2]>();
    let workers = (vec(worker(), 0..3), option::of(worker()));
    (request(), attempt(), model(), (any::<[u32; 4]>(), flags), workers, hints, deadline()).prop_map(
        |(request, attempt, model, (n, flags), (avoid, pin), (hashes, session, props), deadline)| {
            PlaceRequest {
                request,
                attempt,
                model,
                prompt_tokens: n[0],
                context_tokens: n[1],
                max_tokens: n[2],
                choices: n[3],
                resumed: flags[0],
                prompt_logprobs: flags[1],
                avoid,
                pin,
                hashes: hashes.into(),
                session,
                props: Arc::new(props),
                deadline,
            }
        },
    )
}
