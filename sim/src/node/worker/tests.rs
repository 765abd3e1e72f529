use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{RequestId, TenantId};
use policies::batch::BatchEffect;
use policies::cost::{Hardware, ModelShape};
use policies::kv::{Fingerprint, page_hashes};
use policies::request::{Prop, RequestSpec, Sampling, Token};
use policies::time::{Span, Time};

use super::*;
use crate::event::{Event, GatewayMsg, Outbox, WorkerMsg};
use crate::network::Way;
use crate::queue::Queue;

const PAGE: u32 = 16;

fn print() -> Fingerprint {
    Fingerprint::of(&[("engine", b"simulated")])
}

/// A worker with few slots and these policies.
fn worker(policies: &[&str], pages: u32) -> Worker {
    let shape = ModelShape::named("llama-3.1-8b").unwrap();
    let hardware = Hardware::named("h100").unwrap();
    let layout = PageLayout { page_tokens: PAGE, layers: 32, kv_heads: 8, head_dim: 128, element_bytes: 2 };
    let id = WorkerId::new("w".into(), 1);
    Worker::new(WorkerArgs {
        info: WorkerInfo::unified(id, "simulated".into(), 4096, 1000, PAGE),
        batch: BatchConfig { max_running: 8, ..BatchConfig::sized(PAGE, pages, 4096, print()) },
        model: FakeModel::default(),
        cost: CostModel::Roofline { model: shape, hardware },
        speed: None,
        layout,
        handoff: HandoffConfig::default(),
        orders: Orders {
            list: policies.iter().map(|name| (*name).to_owned()).collect(),
            tables: config::WorkerPoliciesConfig::default(),
        },
        beats: Beats::default(),
    })
}

/// A request whose prompt is no other's.
fn request(number: u64, prompt: u32, output: u32) -> RequestSpec {
    let tokens: Vec<Token> = (0..prompt).map(|i| (number as u32 * 31 + i * 7) % 251).collect();
    RequestSpec {
        hashes: page_hashes(&print(), PAGE, &tokens).into(),
        ignore_end: true,
        ..RequestSpec::plain(RequestId::new(1, number), "simulated".into(), tokens, output)
    }
}

fn with_prop(mut spec: RequestSpec, name: &str, value: Prop) -> RequestSpec {
    spec.props = Arc::new([(name.to_owned(), value)].into_iter().collect());
    spec
}

/// Runs a worker until nothing is left to do; what it produced, with the time.
fn run(mut worker: Worker, arrivals: Vec<(u64, RequestSpec)>) -> Vec<(Time, BatchEffect)> {
    let (mut queue, mut out, mut produced) = (Queue::default(), Outbox::new(), Vec::new());
    for (ms, spec) in arrivals {
        let submit = WorkerMsg::Submit(Box::new(spec), None, None);
        queue.push(Time::ZERO + Span::from_millis(ms), Event::Worker(worker.info.id.clone(), submit));
    }
    while let Some((now, event)) = queue.pop() {
        match event {
            Event::Worker(_, message) => worker.handle(now, message, &mut out).unwrap(),
            Event::StepDone(_, outcome) => worker.step_done(now, outcome, &mut out).unwrap(),
            Event::Gateway(GatewayMsg::Produced(effects)) => {
                produced.extend(effects.into_iter().map(|effect| (now, effect)));
            }
            _ => {}
        }
        for (_, way, event) in out.sent.drain(..) {
            let after = if let Way::After(span) = way { span } else { Span::ZERO };
            queue.push(now + after, event);
        }
    }
    worker.end();
    assert!(worker.core.is_idle() && worker.core.load().pages_used == 0);
    produced
}

/// When each request had its last token.
fn ends(produced: &[(Time, BatchEffect)]) -> BTreeMap<u64, Time> {
    let done = produced.iter().filter_map(|(at, effect)| match effect {
        BatchEffect::Done { request, .. } => Some((request.number, *at)),
        _ => None,
    });
    done.collect()
}

/// Service (a prompt token is 1, a drawn one 2) of the two tenants up to the middle of the time in which both have work.
fn service(policies: &[&str]) -> [u64; 2] {
    let tenants = [TenantId::from("alpha"), TenantId::from("beta")];
    // Each asks for as much in all, in pieces of another shape; the first one's come first.
    let spec = |n: u64| match n <= 30 {
        true => RequestSpec { tenant: Some(tenants[0].clone()), ..request(n, 400, 50) },
        false => RequestSpec { tenant: Some(tenants[1].clone()), ..request(n, 60, 95) },
    };
    let produced = run(worker(policies, 2000), (1..=90).map(|n| (n / 31, spec(n))).collect());
    let ends = ends(&produced);
    assert_eq!(ends.len(), 90);
    let last = |range: std::ops::RangeInclusive<u64>| range.map(|n| ends[&n]).max().unwrap();
    let middle = last(1..=30).min(last(31..=90)).0 / 2;
    let mut service = [0; 2];
    for (_, effect) in produced.iter().filter(|(at, _)| at.0 <= middle) {
        if let BatchEffect::Token(token) = effect {
            let whose = usize::from(token.seq.request.number > 30);
            let prompt = if token.index == 0 { [400, 60][whose] } else { 0 };
            service[whose] += prompt + 2;
        }
    }
    service
}

#[test]
fn fair_gives_two_flooding_tenants_equal_service() {
    let [alpha, beta] = service(&["fair"]);
    // The bound of VTC: twice the larger of a prompt (400) and what a batch holds of drawn tokens, each of which is 2.
    let bound = 2 * (2 * 8 * 95);
    assert!(alpha.abs_diff(beta) <= bound, "{alpha} and {beta}");
    assert!(alpha > 2 * bound && beta > 2 * bound, "too little to tell: {alpha} and {beta}");
    let [alpha, beta] = service(&["fcfs"]);
    assert!(alpha.abs_diff(beta) > bound && beta < alpha / 10, "{alpha} and {beta} by arrival");
}

#[test]
fn priority_and_deadline_say_who_is_next() {
    for (policy, prop, soon) in [("priority", "priority", 5), ("deadline", "slo-ttft-ms", 60_000)] {
        let late = |policy: &str| {
            let mut arrivals: Vec<_> = (1..=40).map(|n| (0, request(n, 300, 60))).collect();
            arrivals.push((1, with_prop(request(41, 300, 60), prop, Prop::Int(soon))));
            let ends = ends(&run(worker(&[policy], 2000), arrivals));
            assert_eq!(ends.len(), 41);
            ends.values().filter(|at| **at < ends[&41]).count()
        };
        assert!(late(policy) <= 16, "{policy}: {} of 40 before", late(policy));
        assert_eq!(late("fcfs"), 40, "{policy}");
    }
}

#[test]
fn pages_of_a_session_are_kept_for_its_next_turn() {
    let cached = |policies: &[&str]| {
        let turn = |number: u64, tokens: Vec<Token>| {
            let spec = with_prop(request(number, 1, 20), "keep-ms", Prop::Int(60_000));
            let hashes = page_hashes(&print(), PAGE, &tokens).into();
            RequestSpec { prompt: tokens.into(), hashes, session: Some("s".into()), ..spec }
        };
        let first = request(1, 320, 20).prompt;
        let mut next = first.to_vec();
        next.extend(FakeModel::default().answer(&first, &Sampling::default(), 0, 20));
        next.extend([9; 40]);
        let mut arrivals = vec![(0, turn(1, first.to_vec()))];
        // Others use all pages in between.
        arrivals.extend((2..=12).map(|n| (1000, request(n, 900, 20))));
        arrivals.push((5000, turn(13, next)));
        let produced = run(worker(policies, 200), arrivals);
        let of_last = produced.iter().find_map(|(_, effect)| match effect {
            BatchEffect::Token(token) if token.seq.request.number == 13 => Some(token.cached_tokens),
            _ => None,
        });
        of_last.unwrap()
    };
    assert!(cached(&["fcfs", "keep-session"]) >= 320);
    assert_eq!(cached(&["fcfs"]), 0);
}
