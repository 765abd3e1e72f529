//! Any value of every type that travels, all fields and variants included.

use std::borrow::Cow;
use std::sync::Arc;

use config::WorkerRole;
use config::ids::{Attempt, ModelId, NodeId, RequestId, SessionId, TenantId, WorkerId};
use config::role::RoleSet;
use policies::batch::{BatchEffect, BatchLoad, Refusal, TokenEvent, Usage};
use policies::cost::{Hardware, HardwareProfile, ModelShape};
use policies::kv::events::KvEvent;
use policies::kv::{Fingerprint, PageHash, PageLayout};
use policies::membership::{Member, Peer};
use policies::placement::{
    KvPeer, PlaceRequest, PlacementEffect, Plan, Prefix, Rejection, SwitchCause, WorkerInfo,
};
use policies::policy::{PolicyMode, Stage};
use policies::request::{Finish, Logprobs, Prop, Props, RequestSpec, ResumedChoice, Sampling};
use policies::step::{Drawn, SeqKey};
use policies::time::{Span, Time};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::SENT;
use crate::wire::{Beat, ModelAd, ToController, ToGateway, ToNode, ToPool, ToWorker, TraceContext, WorkerAd};

mod placement;

use placement::{place_request, placement_effect, pool_ad, prefix, worker_ad, worker_role};

pub(super) fn trace() -> impl Strategy<Value = Option<TraceContext>> {
    option::of(
        (any::<u128>(), any::<u64>()).prop_map(|(trace_id, span_id)| TraceContext { trace_id, span_id }),
    )
}

pub(super) fn to_node() -> impl Strategy<Value = ToNode> {
    prop_oneof![
        (member(), option::of(worker_ad()), option::of(pool_ad()), vec(peer(), 0..4), any::<u32>()).prop_map(
            |(member, worker, pool, peers, sessions)| {
                ToNode::Beat(Box::new(Beat { member, worker, pool, peers, sessions }))
            }
        ),
        (node(), any::<u64>(), text()).prop_map(|(id, incarnation, reason)| ToNode::Goodbye {
            id,
            incarnation,
            reason
        }),
    ]
}

pub(super) fn to_gateway() -> impl Strategy<Value = ToGateway> {
    let result = prop_oneof![Just(Ok(())), refusal().prop_map(Err)];
    prop_oneof![
        placement_effect().prop_map(ToGateway::Placement),
        (worker(), request(), attempt(), result).prop_map(|(worker, request, attempt, result)| {
            ToGateway::Admission { worker, request, attempt, result }
        }),
        (worker(), vec(batch_effect(), 0..6)).prop_map(|(worker, events)| ToGateway::Step { worker, events }),
        worker().prop_map(ToGateway::WorkerLost),
        node().prop_map(ToGateway::ControllerStarted),
        (worker(), request(), attempt(), prop_oneof![Just(Ok(())), text().prop_map(Err)]).prop_map(
            |(worker, request, attempt, result)| ToGateway::Fetched { worker, request, attempt, result }
        ),
        (any::<[u8; 32]>(), any::<u32>(), any::<u32>(), vec(any::<u8>(), 0..40)).prop_map(
            |(descriptor, part, parts, bytes)| ToGateway::ModelPart { descriptor, part, parts, bytes }
        ),
    ]
}

pub(super) fn to_controller() -> impl Strategy<Value = ToController> {
    prop_oneof![
        (node(), place_request()).prop_map(|(gateway, request)| ToController::Place { gateway, request }),
        (request(), attempt()).prop_map(|(request, attempt)| ToController::Release { request, attempt }),
        (request(), attempt()).prop_map(|(request, attempt)| ToController::Accepted { request, attempt }),
        (request(), attempt()).prop_map(|(request, attempt)| ToController::Prefilled { request, attempt }),
        (worker(), load()).prop_map(|(worker, load)| ToController::WorkerLoad { worker, load }),
        (worker(), any::<u64>(), vec(kv_event(), 0..4))
            .prop_map(|(worker, seq, events)| ToController::KvEvents { worker, seq, events }),
        (worker(), any::<u64>(), any::<[u32; 2]>(), pages()).prop_map(
            |(worker, seq, [part, parts], pages)| {
                ToController::KvSnapshot { worker, seq, part, parts, pages }
            }
        ),
        (worker(), any::<u64>(), vec(kv_event(), 0..4))
            .prop_map(|(pool, seq, events)| ToController::PoolEvents { pool, seq, events }),
        (worker(), any::<u64>(), any::<[u32; 2]>(), pages()).prop_map(|(pool, seq, [part, parts], pages)| {
            ToController::PoolSnapshot { pool, seq, part, parts, pages }
        }),
    ]
}

pub(super) fn to_pool() -> impl Strategy<Value = ToPool> {
    prop_oneof![
        4 => (worker(), worker(), spec()).prop_map(|(to, from, spec)| ToPool::Store {
            to,
            from,
            spec: Box::new(spec.prompt_to_store()),
        }),
        1 => node().prop_map(|controller| ToPool::KvResync { controller }),
    ]
}

pub(super) fn to_worker() -> impl Strategy<Value = ToWorker> {
    prop_oneof![
        4 => (worker(), node(), spec(), option::of(worker()), option::of(prefix())).prop_map(
            |(to, gateway, spec, prefill, fetch)| {
                ToWorker::Submit { to, gateway, spec: Box::new(spec), prefill, fetch }
            }
        ),
        2 => (worker(), worker(), node(), spec()).prop_map(|(to, from, gateway, spec)| {
            ToWorker::Fetch { to, from, gateway, spec: Box::new(spec) }
        }),
        2 => (worker(), worker(), attempt(), node(), spec()).prop_map(|(to, from, takes, gateway, spec)| {
            ToWorker::Take { to, from, takes, gateway, spec: Box::new(spec) }
        }),
        1 => (request(), attempt()).prop_map(|(request, attempt)| ToWorker::Cancel { request, attempt }),
        1 => (request(), attempt(), any::<u32>()).prop_map(|(request, attempt, choice)| {
            ToWorker::CancelChoice { request, attempt, choice }
        }),
        1 => (request(), attempt(), any::<u32>(), any::<u32>()).prop_map(|(request, attempt, choice, upto)| {
            ToWorker::Grant { request, attempt, choice, upto }
        }),
        1 => (node(), any::<[u8; 32]>()).prop_map(|(gateway, descriptor)| {
            ToWorker::DescribeModel { gateway, descriptor }
        }),
        1 => node().prop_map(|controller| ToWorker::KvResync { controller }),
        1 => (worker_role(), any::<bool>()).prop_map(|(role, admin)| {
            let cause = if admin { SwitchCause::Admin } else { SwitchCause::Policy };
            ToWorker::SetRole { role, cause }
        }),
    ]
}

fn pages() -> impl Strategy<Value = Vec<PageHash>> {
    vec(any::<[u8; 16]>().prop_map(PageHash), 0..6)
}

fn kv_event() -> impl Strategy<Value = KvEvent> {
    let parent = option::of(any::<[u8; 16]>().prop_map(PageHash));
    prop_oneof![
        (parent, pages(), vec(any::<u32>(), 0..9)).prop_map(|(parent, pages, tokens)| KvEvent::Stored {
            parent,
            pages,
            tokens
        }),
        pages().prop_map(|pages| KvEvent::Removed { pages }),
        Just(KvEvent::Cleared),
    ]
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,12}"
}

fn node() -> impl Strategy<Value = NodeId> {
    text().prop_map(NodeId::from)
}

fn model() -> impl Strategy<Value = ModelId> {
    text().prop_map(ModelId::from)
}

fn worker() -> impl Strategy<Value = WorkerId> {
    (node(), any::<u64>()).prop_map(|(node, incarnation)| WorkerId { node, incarnation })
}

fn request() -> impl Strategy<Value = RequestId> {
    (any::<u64>(), any::<u64>()).prop_map(|(gateway, number)| RequestId { gateway, number })
}

fn attempt() -> impl Strategy<Value = Attempt> {
    any::<u32>().prop_map(Attempt)
}

fn seq() -> impl Strategy<Value = SeqKey> {
    (request(), attempt(), any::<u32>()).prop_map(|(request, attempt, choice)| SeqKey {
        request,
        attempt,
        choice,
    })
}

fn roles() -> impl Strategy<Value = RoleSet> {
    proptest::sample::subsequence(vec!["gateway", "controller", "worker", "pool"], 1..=4)
        .prop_map(|names| names.join(",").parse().unwrap())
}

/// A deadline on the sender's clock.
fn deadline() -> impl Strategy<Value = Time> {
    prop_oneof![Just(Time::NEVER), any::<u64>().prop_map(Time), (0..1_000_u64).prop_map(|s| SENT + Span(s))]
}

/// A number that is one: log-probabilities may be infinite.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![4 => any::<f32>(), 1 => Just(f32::NEG_INFINITY)]
}

fn member() -> impl Strategy<Value = Member> {
    (node(), any::<u64>(), text(), roles(), any::<bool>(), any::<bool>(), option::of(text())).prop_map(
        |(id, incarnation, address, roles, ready, draining, http)| Member {
            id,
            incarnation,
            address,
            roles,
            ready,
            draining,
            http,
        },
    )
}

fn peer() -> impl Strategy<Value = Peer> {
    (node(), any::<u64>(), text()).prop_map(|(id, incarnation, address)| Peer { id, incarnation, address })
}

fn load() -> impl Strategy<Value = BatchLoad> {
    (any::<[u32; 7]>(), any::<[u64; 7]>()).prop_map(|(a, b)| BatchLoad {
        requests: a[6],
        outstanding_tokens: b[6],
        running: a[0],
        waiting: a[1],
        paused: a[2],
        pages_used: a[3],
        pages_cached: a[4],
        pages_total: a[5],
        queued_prefill_tokens: b[0],
        prefix_queries: b[1],
        prefix_hits: b[2],
        prefilled_tokens: b[3],
        drawn_tokens: b[4],
        preemptions: b[5],
    })
}

fn logprobs() -> impl Strategy<Value = Logprobs> {
    (number(), vec((any::<u32>(), number()), 0..4)).prop_map(|(own, top)| Logprobs { own, top })
}

fn finish() -> impl Strategy<Value = Finish> {
    prop_oneof![Just(Finish::EndToken), Just(Finish::Length), Just(Finish::StopString)]
}

fn batch_effect() -> impl Strategy<Value = BatchEffect> {
    let token = (seq(), any::<[u32; 3]>(), option::of(logprobs()), option::of(finish())).prop_map(
        |(seq, [index, token, cached_tokens], logprobs, finish)| TokenEvent {
            seq,
            index,
            token,
            logprobs,
            finish,
            cached_tokens,
        },
    );
    let usage = any::<[u32; 4]>().prop_map(|u| Usage {
        cached_tokens: u[0],
        prefilled_tokens: u[1],
        drawn_tokens: u[2],
        preemptions: u[3],
    });
    prop_oneof![
        token.prop_map(BatchEffect::Token),
        (request(), attempt(), any::<u32>(), vec(logprobs(), 0..4)).prop_map(
            |(request, attempt, first, tokens)| BatchEffect::PromptLogprobs {
                request,
                attempt,
                first,
                tokens
            }
        ),
        (request(), attempt(), usage).prop_map(|(request, attempt, usage)| BatchEffect::Done {
            request,
            attempt,
            usage
        }),
        (request(), attempt(), text()).prop_map(|(request, attempt, reason)| BatchEffect::Failed {
            request,
            attempt,
            reason
        }),
        (seq(), any::<u32>()).prop_map(|(seq, dropped)| BatchEffect::Preempted { seq, dropped }),
        (request(), attempt()).prop_map(|(request, attempt)| BatchEffect::TakenOver { request, attempt }),
        (request(), attempt(), text()).prop_map(|(request, attempt, reason)| BatchEffect::Late {
            request,
            attempt,
            reason
        }),
    ]
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        any::<[u32; 3]>().prop_map(|[needed, pages, page_tokens]| Refusal::NeverFits {
            needed,
            pages,
            page_tokens
        }),
        any::<[u32; 2]>().prop_map(|[prompt, window]| Refusal::TooLong { prompt, window }),
        any::<u32>().prop_map(|waiting| Refusal::QueueFull { waiting }),
        any::<[u64; 2]>()
            .prop_map(|[needed, left]| Refusal::Hopeless { needed: Span(needed), left: Span(left) }),
        prop_oneof![
            Just("the prompt has no tokens"),
            Just("no choice is asked for"),
            Just("this attempt of the request is here already"),
            Just("a token is outside of the model's vocabulary"),
        ]
        .prop_map(Refusal::Malformed),
        Just(Refusal::Draining),
    ]
}

fn hashes() -> impl Strategy<Value = Vec<PageHash>> {
    vec(any::<[u8; 16]>().prop_map(PageHash), 0..4)
}

fn props() -> impl Strategy<Value = Props> {
    let prop = prop_oneof![
        any::<i64>().prop_map(Prop::Int),
        any::<f64>().prop_map(Prop::Float),
        any::<bool>().prop_map(Prop::Bool),
        text().prop_map(Prop::Text),
        any::<u64>().prop_map(|ns| Prop::Duration(Span(ns))),
    ];
    btree_map(text(), prop, 0..4)
}

pub(super) fn drawn() -> impl Strategy<Value = Drawn> {
    let seq = (request(), attempt(), any::<u32>());
    (seq, any::<u32>(), option::of(logprobs())).prop_map(|((request, attempt, choice), token, logprobs)| {
        Drawn { seq: SeqKey { request, attempt, choice }, token, logprobs }
    })
}

pub(super) fn spec() -> impl Strategy<Value = RequestSpec> {
    let tokens = || vec(any::<u32>(), 0..20);
    let resumed = (tokens(), any::<bool>(), any::<u32>()).prop_map(|(tokens, ended, unread)| ResumedChoice {
        tokens,
        ended,
        unread,
    });
    let ids = (request(), attempt(), model(), deadline());
    let lists = (tokens(), hashes(), vec(resumed, 0..3), tokens());
    let session = option::of(text().prop_map(SessionId::from));
    let tenant = option::of(text().prop_map(TenantId::from));
    let rest = (sampling(), props(), (session, tenant), any::<[u32; 3]>(), any::<[bool; 2]>());
    (ids, lists, rest).prop_map(
        |(
            (id, attempt, model, deadline),
            (prompt, hashes, resumed, end),
            (sampling, props, (session, tenant), n, flags),
        )| {
            RequestSpec {
                id,
                attempt,
                model,
                prompt: prompt.into(),
                hashes: hashes.into(),
                resumed,
                max_tokens: n[0],
                end_tokens: end.into(),
                ignore_end: flags[0],
                sampling: Arc::new(sampling),
                prompt_logprobs: flags[1],
                props: Arc::new(props),
                credit: n[1],
                session,
                tenant,
                weight: n[2],
                deadline,
            }
        },
    )
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let floats = [number(), number(), number(), number(), number(), number()];
    let bias = vec((any::<u32>(), number()), 0..4);
    (floats, any::<u32>(), bias, any::<u64>(), option::of(any::<u8>())).prop_map(
        |(f, top_k, logit_bias, seed, logprobs)| Sampling {
            temperature: f[0],
            top_p: f[1],
            top_k,
            min_p: f[2],
            repetition_penalty: f[3],
            presence_penalty: f[4],
            frequency_penalty: f[5],
            logit_bias,
            seed,
            logprobs,
        },
    )
}
