//! The bytes of one small message of each kind. A test that fails here says that the format has changed: raise
//! `WIRE_VERSION`, and then write the new bytes down.

use std::sync::Arc;

use config::WorkerRole;
use config::ids::{Attempt, NodeId};
use policies::batch::{BatchEffect, BatchLoad, Refusal, Usage};
use policies::cost::{Hardware, HardwareProfile, ModelShape};
use policies::kv::events::KvEvent;
use policies::kv::{Fingerprint, PageHash, PageLayout};
use policies::membership::{Member, Peer};
use policies::placement::{
    KvPeer, PlaceRequest, PlacementEffect, Plan, PoolInfo, Prefix, Rejection, SwitchCause, WorkerInfo,
};
use policies::policy::{PolicyMode, Stage};
use policies::request::{Finish, Logprobs, Prop, RequestSpec, ResumedChoice, Sampling};
use policies::time::Span;

use super::{READ, SENT, as_read, goodbye, print, request_id, token, worker_id};
use crate::wire::*;

/// `message` is these bytes, written as hexadecimal digits with blanks anywhere, and these bytes are `message`.
#[track_caller]
fn pinned<M: Message + Clone + std::fmt::Debug>(message: &M, hex: &str) {
    let trace = Some(TraceContext { trace_id: 1, span_id: 300 });
    let bytes = seal(SENT, message, trace).unwrap();
    let written: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let expected: String = hex.split_whitespace().collect();
    assert_eq!(written, expected, "{message:?}");
    assert_eq!(print(&open::<M>(READ, &bytes).unwrap().1), print(&as_read(message)));
}

fn load() -> BatchLoad {
    BatchLoad {
        requests: 13,
        running: 1,
        waiting: 2,
        paused: 3,
        queued_prefill_tokens: 4,
        outstanding_tokens: 14,
        pages_used: 5,
        pages_cached: 6,
        pages_total: 7,
        prefix_queries: 8,
        prefix_hits: 9,
        prefilled_tokens: 10,
        drawn_tokens: 11,
        preemptions: 12,
    }
}

#[test]
fn to_node() {
    let member = Member {
        id: NodeId::from("n1"),
        incarnation: 300,
        address: "a:1".to_owned(),
        roles: "gateway,worker".parse().unwrap(),
        ready: true,
        draining: false,
        http: Some("a:2".to_owned()),
    };
    let info = WorkerInfo {
        id: worker_id(),
        models: vec!["m".into()],
        max_context: 2048,
        max_requests: 8,
        page_tokens: 16,
        role: WorkerRole::Unified,
        switching_to: None,
        switchable: false,
        hardware: HardwareProfile {
            name: "cpu".to_owned(),
            figures: Hardware {
                flops: 160,
                memory: 10,
                link: 3,
                step_overhead: Span(300),
                link_latency: Span(50),
            },
        },
        shape: None,
        kv: None,
    };
    let prefill = WorkerInfo {
        role: WorkerRole::Prefill,
        switching_to: Some(WorkerRole::Decode),
        switchable: true,
        shape: Some(ModelShape {
            params: 134,
            weight_bytes: 98,
            layers: 30,
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            element_bytes: 2,
        }),
        kv: Some(KvPeer {
            address: "a:3".to_owned(),
            fingerprint: Fingerprint([0xcd; 32]),
            layout: PageLayout { page_tokens: 16, layers: 30, kv_heads: 3, head_dim: 64, element_bytes: 4 },
        }),
        ..info.clone()
    };
    let models = vec![ModelAd { name: "m".into(), descriptor: [0xab; 32], bytes: 70_000 }];
    let worker = Some(WorkerAd { info, draining: true, load: load(), models });
    let load_of_pool = PoolLoad { pages: 1, ram: 2, ram_capacity: 3, disk: 4, disk_capacity: 5 };
    let info_of_pool =
        PoolInfo { id: worker_id(), address: "p:1".to_owned(), hardware: prefill.hardware.clone() };
    let pool = Some(PoolAd { info: info_of_pool, load: load_of_pool });
    let decode =
        WorkerInfo { role: WorkerRole::Decode, switching_to: None, shape: None, kv: None, ..prefill.clone() };
    let peers = vec![Peer { id: NodeId::from("n2"), incarnation: 2, address: "b:1".to_owned() }];
    pinned(
        &ToNode::Beat(Box::new(Beat { member: member.clone(), worker, pool, peers, sessions: 4 })),
        "040000000101fb2c0100026e31fb2c0103613a310501000103613a32010277310901016dfb00080810 00 00 00 03637075a00a03fb2c01320000 010d010203040e05060708 \
         090a0b0c01016dababababababababababababababababababababababababababababababababfc70110100 \
         01 02773109 03703a31 03 637075 a0 0a 03 fb2c01 32 01 02 03 04 05 01 026e320203623a 3104",
    );
    for (info, role) in [(prefill, "01"), (decode, "02")] {
        let ad = WorkerAd { info: info.clone(), draining: false, load: load(), models: Vec::new() };
        let beat =
            Beat { member: member.clone(), worker: Some(ad), pool: None, peers: Vec::new(), sessions: 0 };
        let switch = if role == "01" { "01 02 01" } else { "00 01" };
        let known = if role == "01" {
            "01 86 62 1e 09 03 40 02 01 03613a33 cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd 10 1e 03 40 04"
        } else {
            "00 00"
        };
        pinned(
            &ToNode::Beat(Box::new(beat)),
            &format!(
                "040000000101fb2c0100026e31fb2c0103613a310501000103613a320102773109 01 016d fb0008 08 10 {role} {switch} \
                 03 637075 a0 0a 03 fb2c01 32 {known} 00 0d010203040e0506070809 0a0b0c 00 00 00 00"
            ),
        );
    }
    pinned(&goodbye(), "040000000101fb2c0101027731090e746865206e6f64652073746f7073");
}

#[test]
fn to_gateway() {
    let (worker, request, attempt) = (worker_id(), request_id(), Attempt(1));
    let stage = Stage {
        policy: "cache-aware".into(),
        mode: PolicyMode::Shadow,
        action: "would_hit".into(),
        why: "w".to_owned(),
        numbers: vec![("n".into(), 0.5)],
        saved: Some(-2),
        took: Span(9),
    };
    let plan = Plan {
        worker: worker.clone(),
        prefill: None,
        fetch: None,
        store: None,
        why: "least-loaded",
        stages: vec![stage].into(),
    };
    let pair = Plan { prefill: Some(worker.clone()), stages: Arc::default(), ..plan.clone() };
    pinned(
        &ToGateway::Placement(PlacementEffect::Placed { request, attempt, plan: pair }),
        "040101fd010000000000edfe0701000101fb2c010000fd010000000000edfe0701 02773109 01 02773109 00 00 \
         0c6c656173742d6c6f61646564 00",
    );
    pinned(
        &ToGateway::Placement(PlacementEffect::Rejected {
            request,
            attempt,
            reason: Rejection::NoPrefill("m".into()),
        }),
        "040101fd010000000000edfe0701000101fb2c010001fd010000000000edfe0701 05 016d",
    );
    pinned(
        &ToGateway::Placement(PlacementEffect::Placed { request, attempt, plan }),
        "040101fd010000000000edfe0701000101fb2c010000fd010000000000edfe07010277310900 00 00 0c6c656173742d6c6f61646564010b \
         63616368652d61776172650109776f756c645f686974017701016e000000000000e03f010309",
    );
    let reason = Rejection::Timeout(Span::from_millis(5));
    pinned(
        &ToGateway::Placement(PlacementEffect::Rejected { request, attempt, reason }),
        "040101fd010000000000edfe0701000101fb2c010001fd010000000000edfe070103fc404b4c00",
    );
    pinned(
        &ToGateway::Placement(PlacementEffect::Rejected {
            request,
            attempt,
            reason: Rejection::Pinned { worker: worker.clone(), why: "x".to_owned() },
        }),
        "040101fd010000000000edfe0701000101fb2c010001fd010000000000edfe0701 06 02773109 0178",
    );
    for (result, hex) in [(Ok(()), "01"), (Err("x".to_owned()), "00 0178")] {
        pinned(
            &ToGateway::Fetched { worker: worker.clone(), request, attempt, result },
            &format!("040101fd010000000000edfe0701000101fb2c0106 02773109 fd010000000000edfe0701 {hex}"),
        );
    }
    let lost = PlacementEffect::Lost { request, attempt, worker: worker.clone() };
    pinned(
        &ToGateway::Placement(lost),
        "040101fd010000000000edfe0701000101fb2c010002fd010000000000edfe070102773109",
    );
    let admission = |result| ToGateway::Admission { worker: worker.clone(), request, attempt, result };
    pinned(&admission(Ok(())), "040101fd010000000000edfe0701000101fb2c010102773109fd010000000000edfe070101");
    pinned(
        &admission(Err(Refusal::NeverFits { needed: 9, pages: 8, page_tokens: 16 })),
        "040101fd010000000000edfe0701000101fb2c010102773109fd010000000000edfe07010000090810",
    );
    pinned(
        &admission(Err(Refusal::Hopeless { needed: Span(9), left: Span(8) })),
        "040101fd010000000000edfe0701000101fb2c010102773109fd010000000000edfe070100050908",
    );
    let late = BatchEffect::Late { request, attempt, reason: "x".to_owned() };
    pinned(
        &ToGateway::Step { worker: worker.clone(), events: vec![late] },
        "040100000101fb2c010202773109 0105fd010000000000edfe07010178",
    );
    let taken = BatchEffect::TakenOver { request, attempt };
    pinned(
        &ToGateway::Step { worker: worker.clone(), events: vec![taken] },
        "040100000101fb2c010202773109 0106fd010000000000edfe0701",
    );
    let logprobs = Logprobs { own: f32::NEG_INFINITY, top: vec![(5, -0.5)] };
    let mut last = token(3);
    if let BatchEffect::Token(event) = &mut last {
        event.logprobs = Some(logprobs.clone());
        event.finish = Some(Finish::Length);
    }
    let usage = Usage { cached_tokens: 1, prefilled_tokens: 2, drawn_tokens: 3, preemptions: 4 };
    let events = vec![
        token(2),
        last,
        BatchEffect::PromptLogprobs { request, attempt, first: 1, tokens: vec![logprobs] },
        BatchEffect::Done { request, attempt, usage },
        BatchEffect::Failed { request, attempt, reason: "x".to_owned() },
        BatchEffect::Preempted { seq: policies::step::SeqKey { request, attempt, choice: 2 }, dropped: 32 },
    ];
    pinned(
        &ToGateway::Step { worker: worker.clone(), events },
        "040100000101fb2c0102027731090600fd010000000000edfe07010002fbd20700001000fd010000000000edfe07010003fbd307 \
         01000080ff0105000000bf01011001fd010000000000edfe07010101000080ff0105000000bf02fd010000000000edfe07010102 \
         030403fd010000000000edfe0701017804fd010000000000edfe07010220",
    );
    pinned(&ToGateway::WorkerLost(worker.clone()), "040100000101fb2c010302773109");
    pinned(&ToGateway::ControllerStarted(NodeId::from("c1")), "040100000101fb2c0105026331");
    let (descriptor, bytes) = ([0xcd; 32], vec![1, 2, 255]);
    pinned(
        &ToGateway::ModelPart { descriptor, part: 1, parts: 2, bytes },
        "040100000101fb2c0104cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd0102030102ff",
    );
}

#[test]
fn to_controller() {
    let (request, attempt) = (request_id(), Attempt(1));
    let place = PlaceRequest {
        request,
        attempt,
        model: "m".into(),
        prompt_tokens: 300,
        context_tokens: 301,
        max_tokens: 16,
        choices: 1,
        resumed: true,
        prompt_logprobs: false,
        avoid: vec![worker_id()],
        pin: None,
        hashes: vec![PageHash([0xef; 16])].into(),
        session: Some("s".into()),
        props: Arc::new([("a".to_owned(), Prop::Int(-1))].into()),
        deadline: SENT + Span::from_secs(1),
    };
    for (pin, hex) in [(None, "00"), (Some(worker_id()), "01 02773109")] {
        pinned(
            &ToController::Place {
                gateway: NodeId::from("g1"),
                request: PlaceRequest { pin, ..place.clone() },
            },
            &format!(
                "040201fd010000000000edfe070101fc00ca9a3b0101fb2c0100026731fd010000000000edfe0701016dfb2c01fb2d011001 \
                 0100 0102 77310901efefefefefefefefefefefefefefefef0101730101610001 {hex}"
            ),
        );
    }
    pinned(
        &ToController::Release { request, attempt },
        "040201fd010000000000edfe0701000101fb2c0101fd010000000000edfe0701",
    );
    pinned(
        &ToController::Accepted { request, attempt },
        "040201fd010000000000edfe0701000101fb2c0103fd010000000000edfe0701",
    );
    pinned(
        &ToController::Prefilled { request, attempt },
        "040201fd010000000000edfe0701000101fb2c0106fd010000000000edfe0701",
    );
    pinned(
        &ToController::WorkerLoad { worker: worker_id(), load: load() },
        "040200000101fb2c0102027731090d010203040e05060708090a0b0c",
    );
    let (one, two) = (PageHash([0xef; 16]), PageHash([0xab; 16]));
    let events = vec![
        KvEvent::Stored { parent: Some(one), pages: vec![two], tokens: vec![7] },
        KvEvent::Stored { parent: None, pages: vec![one], tokens: vec![] },
        KvEvent::Removed { pages: vec![two, one] },
        KvEvent::Cleared,
    ];
    pinned(
        &ToController::KvEvents { worker: worker_id(), seq: 300, events },
        "040200000101fb2c0104027731 09 fb2c01 04 \
         00 01 efefefefefefefefefefefefefefefef 01 abababababababababababababababab 01 07 \
         00 00 01 efefefefefefefefefefefefefefefef 00 \
         01 02 abababababababababababababababab efefefefefefefefefefefefefefefef 02",
    );
    pinned(
        &ToController::KvSnapshot { worker: worker_id(), seq: 300, part: 1, parts: 2, pages: vec![two] },
        "040200000101fb2c0105027731 09 fb2c01 01 02 01 abababababababababababababababab",
    );
}

#[test]
fn of_and_to_a_pool() {
    let two = PageHash([0xab; 16]);
    pinned(
        &ToController::PoolEvents { pool: worker_id(), seq: 300, events: vec![KvEvent::Cleared] },
        "040200000101fb2c0107027731 09 fb2c01 01 02",
    );
    pinned(
        &ToController::PoolSnapshot { pool: worker_id(), seq: 300, part: 1, parts: 2, pages: vec![two] },
        "040200000101fb2c0108027731 09 fb2c01 01 02 01 abababababababababababababababab",
    );
    pinned(&ToPool::KvResync { controller: NodeId::from("c") }, "040400000101fb2c01 01 0163");
    let spec = RequestSpec::plain(request_id(), "m".into(), vec![1], 1).prompt_to_store();
    pinned(
        &ToPool::Store { to: worker_id(), from: worker_id(), spec: Box::new(spec) },
        "040401fd010000000000edfe07fc00000040000101fb2c01 00 02773109 02773109 fd010000000000edfe07fc00000040 016d \
         01010001000000010000000000000000803f00000000000000803f00000000000000000000000000000000 fbe803",
    );
}

#[test]
fn to_worker() {
    let (request, attempt, gateway) = (request_id(), Attempt(1), NodeId::from("g1"));
    let props = [
        ("a", Prop::Int(-1)),
        ("b", Prop::Float(0.5)),
        ("c", Prop::Bool(true)),
        ("d", Prop::Text("x".to_owned())),
        ("e", Prop::Duration(Span::from_millis(1))),
    ];
    let sampling = Sampling {
        temperature: 0.5,
        top_k: 40,
        logit_bias: vec![(3, -100.0)],
        seed: u64::MAX,
        logprobs: Some(2),
        ..Sampling::default()
    };
    let spec = RequestSpec {
        id: request,
        attempt,
        model: "m".into(),
        prompt: vec![1, 300, 70_000].into(),
        hashes: vec![PageHash([0xef; 16])].into(),
        resumed: vec![ResumedChoice { tokens: vec![4, 5], ended: true, unread: 1 }],
        max_tokens: 16,
        end_tokens: vec![2].into(),
        ignore_end: false,
        sampling: Arc::new(sampling),
        prompt_logprobs: true,
        props: Arc::new(props.into_iter().map(|(name, prop)| (name.to_owned(), prop)).collect()),
        credit: 64,
        session: Some("s".into()),
        tenant: Some("t".into()),
        weight: 1500,
        deadline: SENT + Span::from_secs(1),
    };
    let to = worker_id();
    let fetched = RequestSpec {
        prompt: vec![1].into(),
        hashes: Arc::default(),
        resumed: vec![ResumedChoice { tokens: vec![4], ended: false, unread: 0 }],
        sampling: Arc::default(),
        props: Arc::default(),
        ..spec.clone()
    };
    let taken = fetched.clone();
    pinned(
        &ToWorker::Fetch {
            to: to.clone(),
            from: to.clone(),
            gateway: gateway.clone(),
            spec: Box::new(fetched),
        },
        "040301fd010000000000edfe070101fc00ca9a3b0101fb2c0106 02773109 02773109 026731 fd010000000000edfe0701 016d \
         0101 00 01 010400 00 10 0102 00 00000000 0000803f 00 00000000 0000803f 00000000 00000000 00 00 00 01 00 40 \
         010173010174fbdc05",
    );
    pinned(
        &ToWorker::Take {
            to: to.clone(),
            from: to.clone(),
            takes: attempt,
            gateway: gateway.clone(),
            spec: Box::new(taken),
        },
        "040301fd010000000000edfe070101fc00ca9a3b0101fb2c0108 02773109 02773109 01 026731 fd010000000000edfe0701 016d \
         0101 00 01 010400 00 10 0102 00 00000000 0000803f 00 00000000 0000803f 00000000 00000000 00 00 00 01 00 40 \
         010173010174fbdc05",
    );
    pinned(
        &ToWorker::Submit {
            to: to.clone(),
            gateway: gateway.clone(),
            spec: Box::new(spec.clone()),
            prefill: None,
            fetch: None,
        },
        "040301fd010000000000edfe070101fc00ca9a3b0101fb2c010002773109026731fd010000000000edfe0701016d0301fb2c01fc \
         7011010001efefefefefefefefefefefefefefefef010204050101100102000000003f0000803f28000000000000803f00000000 \
         0000000001030000c8c2fdffffffffffffffff0102010501610001016201000000000000e03f016302010164030178016504fc40 \
         420f0040010173010174fbdc05 00 00",
    );
    let handed = RequestSpec { prompt: vec![1].into(), hashes: Arc::default(), resumed: vec![], ..spec };
    let handed = RequestSpec { sampling: Arc::default(), props: Arc::default(), ..handed };
    pinned(
        &ToWorker::Submit {
            to: to.clone(),
            gateway: gateway.clone(),
            spec: Box::new(handed),
            prefill: Some(to.clone()),
            fetch: Some(Box::new(Prefix { from: to, pool: true, tokens: 640 })),
        },
        "040301fd010000000000edfe070101fc00ca9a3b0101fb2c010002773109026731fd010000000000edfe0701016d0101000010 \
         010200 00000000 0000803f 00 00000000 0000803f 00000000 00000000 00 00 00 01 00 40 010173 010174 fbdc05 01 02773109 01 02773109 01 fb8002",
    );
    pinned(
        &ToWorker::Cancel { request, attempt },
        "040301fd010000000000edfe0701000101fb2c0101fd010000000000edfe0701",
    );
    pinned(
        &ToWorker::CancelChoice { request, attempt, choice: 1 },
        "040301fd010000000000edfe0701000101fb2c0102fd010000000000edfe070101",
    );
    pinned(
        &ToWorker::Grant { request, attempt, choice: 1, upto: 99 },
        "040301fd010000000000edfe0701000101fb2c0103fd010000000000edfe07010163",
    );
    pinned(
        &ToWorker::DescribeModel { gateway, descriptor: [0xcd; 32] },
        "040300000101fb2c0104026731cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
    );
    pinned(&ToWorker::KvResync { controller: NodeId::from("c1") }, "040300000101fb2c0105026331");
    let role = WorkerRole::Prefill;
    pinned(&ToWorker::SetRole { role, cause: SwitchCause::Admin }, "040300000101fb2c01070100");
    pinned(&ToWorker::SetRole { role, cause: SwitchCause::Policy }, "040300000101fb2c01070101");
}
