//! Everything that is sent is read as it was, and nothing that is read can do harm.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use config::ids::{Attempt, NodeId, RequestId, WorkerId};
use policies::batch::{BatchEffect, Refusal, TokenEvent};
use policies::placement::{
    Choice, PlaceRequest, Placement, PlacementConfig, PlacementEffect, Plan, WorkerInfo,
};
use policies::step::SeqKey;
use policies::time::{Span, Time};
use proptest::prelude::*;

use super::*;

mod arb;
mod golden;
mod handoff;

/// The sender's clock.
const SENT: Time = Time(5_000_000_000);
/// The reader's clock, which has nothing to do with it.
const READ: Time = Time(77);

/// What a reader should get of `message`: the same, with its deadline as far from [`READ`] as it was from [`SENT`].
fn as_read<M: Message + Clone>(message: &M) -> M {
    let mut expected = message.clone();
    if let Some(deadline) = message.deadline().filter(|d| *d != Time::NEVER) {
        expected.set_deadline(READ + deadline.since(SENT));
    }
    expected
}

/// Types without equality are compared as they print, which tells any two floats apart.
fn print(value: &impl Debug) -> String {
    format!("{value:?}")
}

fn comes_back<M: Message + Clone + Debug>(
    message: &M,
    trace: Option<TraceContext>,
) -> Result<(), TestCaseError> {
    let bytes = seal(SENT, message, trace).unwrap();
    let (envelope, read) = open::<M>(READ, &bytes).unwrap();
    prop_assert_eq!(print(&read), print(&as_read(message)));
    prop_assert_eq!(envelope.version, WIRE_VERSION);
    prop_assert_eq!(envelope.request, message.request());
    prop_assert_eq!(envelope.trace, trace);
    let deadline = message.deadline().filter(|d| *d != Time::NEVER);
    prop_assert_eq!(envelope.remaining, deadline.map(|d| d.since(SENT)));
    Ok(())
}

/// Cut anywhere it is an error; with a byte more it is; with a bit flipped it is an error or another message.
fn survives_damage<M: Message + Clone + Debug>(
    message: &M,
    flips: &[(usize, u8)],
) -> Result<(), TestCaseError> {
    let mut bytes = seal(SENT, message, None).unwrap();
    for end in 0..bytes.len() {
        let error = open::<M>(READ, &bytes[..end]).unwrap_err();
        prop_assert!(matches!(error, WireError::Malformed(_)), "cut at {}: {:?}", end, error);
    }
    bytes.push(0);
    prop_assert_eq!(open::<M>(READ, &bytes).unwrap_err(), WireError::Trailing { bytes: 1 });
    bytes.pop();
    for (at, bit) in flips {
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok((envelope, read)) = open::<M>(READ, &bytes) {
            // Whatever it is now, it is a message like any other.
            let again = seal(READ, &read, envelope.trace).unwrap();
            prop_assert_eq!(print(&open::<M>(READ, &again).unwrap().1), print(&read));
        }
        // Every other flip stays, so that damage adds up.
        if at % 2 == 0 {
            bytes[at] ^= 1 << bit;
        }
    }
    Ok(())
}

fn flips() -> impl Strategy<Value = Vec<(usize, u8)>> {
    proptest::collection::vec((any::<usize>(), 0..8_u8), 64)
}

proptest! {
    #[test]
    fn every_message_comes_back(
        node in arb::to_node(),
        gateway in arb::to_gateway(),
        controller in arb::to_controller(),
        worker in arb::to_worker(),
        pool in arb::to_pool(),
        trace in arb::trace(),
    ) {
        comes_back(&node, trace)?;
        comes_back(&gateway, trace)?;
        comes_back(&controller, trace)?;
        comes_back(&worker, trace)?;
        comes_back(&pool, trace)?;
    }

    #[test]
    fn damaged_messages_are_errors_and_never_panics(
        node in arb::to_node(),
        gateway in arb::to_gateway(),
        controller in arb::to_controller(),
        worker in arb::to_worker(),
        pool in arb::to_pool(),
        flips in flips(),
    ) {
        survives_damage(&node, &flips)?;
        survives_damage(&gateway, &flips)?;
        survives_damage(&controller, &flips)?;
        survives_damage(&worker, &flips)?;
        survives_damage(&pool, &flips)?;
    }

    #[test]
    fn noise_is_an_error_and_never_a_panic(
        door in 0..5_u8,
        noise in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        // With a right front, or nearly all noise would be refused at its first byte.
        let bytes: Vec<u8> = [WIRE_VERSION as u8, door, 0, 0, 0].into_iter().chain(noise.iter().copied()).collect();
        for bytes in [&bytes[..], &noise[..]] {
            let _ = (open::<ToNode>(READ, bytes), open::<ToGateway>(READ, bytes));
            let _ = (open::<ToController>(READ, bytes), open::<ToWorker>(READ, bytes));
            let _ = open::<ToPool>(READ, bytes);
        }
    }
}

fn worker_id() -> WorkerId {
    WorkerId::new(NodeId::from("w1"), 9)
}

fn request_id() -> RequestId {
    RequestId::new(0xfeed_0000_0000_0001, 7)
}

fn place_request(number: u64, deadline: Time) -> PlaceRequest {
    PlaceRequest {
        request: RequestId::new(1, number),
        attempt: Attempt(0),
        model: "m".into(),
        prompt_tokens: 1,
        context_tokens: 1,
        max_tokens: 1,
        choices: 1,
        resumed: false,
        prompt_logprobs: false,
        pin: None,
        avoid: Vec::new(),
        hashes: Arc::default(),
        session: None,
        props: Arc::default(),
        deadline,
    }
}

fn goodbye() -> ToNode {
    ToNode::Goodbye { id: NodeId::from("w1"), incarnation: 9, reason: "the node stops".to_owned() }
}

fn token(index: u32) -> BatchEffect {
    BatchEffect::Token(TokenEvent {
        seq: SeqKey { request: request_id(), attempt: Attempt(1), choice: 0 },
        index,
        token: 2000 + index,
        logprobs: None,
        finish: None,
        cached_tokens: 16,
    })
}

#[test]
fn a_foreign_version_is_told_before_anything_else_is_looked_at() {
    for got in [0, 1, 2, 3, 5, 250, 251, u16::MAX] {
        let mut bytes = codec::encode(&got).unwrap();
        bytes.extend([0xff; 3]);
        let error = open::<ToNode>(READ, &bytes).unwrap_err();
        assert_eq!(error, WireError::Version { got, supported: MIN_WIRE_VERSION..=WIRE_VERSION });
        assert!(error.to_string().contains(&got.to_string()), "{error}");
    }
}

#[test]
fn a_message_for_another_door_is_an_error() {
    let bytes = seal(SENT, &goodbye(), None).unwrap();
    let wrong = |door| Some(WireError::Door { got: Door::Node, door });
    assert_eq!(open::<ToGateway>(READ, &bytes).err(), wrong(Door::Gateway));
    assert_eq!(open::<ToController>(READ, &bytes).err(), wrong(Door::Controller));
    assert_eq!(open::<ToWorker>(READ, &bytes).err(), wrong(Door::Worker));
    assert_eq!(open::<ToPool>(READ, &bytes).err(), wrong(Door::Pool));
    let lost = seal(SENT, &ToGateway::WorkerLost(worker_id()), None).unwrap();
    let error = open::<ToNode>(READ, &lost).unwrap_err();
    assert_eq!(error.to_string(), "a message for the gateway came to the node");
}

#[test]
fn an_envelope_about_another_request_is_an_error() {
    let release = |number| ToController::Release { request: RequestId::new(1, number), attempt: Attempt(0) };
    let (one, two) = (seal(SENT, &release(1), None).unwrap(), seal(SENT, &release(2), None).unwrap());
    let at = one.iter().zip(&two).position(|(a, b)| a != b).unwrap();
    let mut mixed = one;
    mixed[at] = two[at];
    assert!(
        matches!(open::<ToController>(READ, &mixed), Err(WireError::Malformed(why)) if why.contains("another"))
    );
}

#[test]
fn the_largest_messages_that_are_sent_are_read() {
    let part = |len| ToGateway::ModelPart { descriptor: [1; 32], part: 0, parts: 1, bytes: vec![7; len] };
    let front = seal(SENT, &part(100_000), None).unwrap().len() - 100_000;
    let fits = part(MAX_BYTES - front);
    let bytes = seal(SENT, &fits, None).unwrap();
    assert_eq!(bytes.len(), MAX_BYTES);
    assert!(open::<ToGateway>(READ, &bytes).unwrap().1 == fits, "it comes back whole");

    let over = seal(SENT, &part(MAX_BYTES - front + 1), None).unwrap_err();
    assert_eq!(over, WireError::TooLarge { bytes: MAX_BYTES + 1, limit: MAX_BYTES });
    let long = vec![WIRE_VERSION as u8; MAX_BYTES + 1];
    assert_eq!(open::<ToGateway>(READ, &long).unwrap_err(), over);

    // Small values take more memory than bytes.
    let events =
        |n| ToGateway::Step { worker: worker_id(), events: (0..n).map(|i| token(i % 200)).collect() };
    let each =
        seal(SENT, &events(1001), None).unwrap().len() - seal(SENT, &events(1000), None).unwrap().len();
    let most = events(((MAX_BYTES - 100) / each) as u32);
    let bytes = seal(SENT, &most, None).unwrap();
    assert!(bytes.len() > MAX_BYTES - 200);
    assert!(open::<ToGateway>(READ, &bytes).unwrap().1 == most, "it comes back whole");
}

#[test]
fn a_length_that_lies_is_refused_whatever_it_says() {
    let step = ToGateway::Step { worker: worker_id(), events: Vec::new() };
    let part = ToGateway::ModelPart { descriptor: [0; 32], part: 0, parts: 0, bytes: Vec::new() };
    for message in [step, part] {
        // The last byte is the length of the empty list.
        let bytes = seal(SENT, &message, None).unwrap();
        let (last, front) = bytes.split_last().unwrap();
        assert_eq!(*last, 0);
        for len in [1, 251, 1 << 16, 1 << 20, 1 << 24, 1 << 40, u64::MAX >> 8, u64::MAX] {
            let mut lies = front.to_vec();
            lies.extend(codec::encode(&len).unwrap());
            let error = open::<ToGateway>(READ, &lies).unwrap_err();
            assert!(matches!(error, WireError::Malformed(_)), "{len}: {error:?}");
        }
    }
}

#[test]
fn values_that_no_sender_writes_are_refused() {
    let beat = |roles: u8| {
        let member = policies::membership::Member {
            id: NodeId::from("n"),
            incarnation: 1,
            address: "h:1".to_owned(),
            roles: "worker".parse().unwrap(),
            ready: true,
            draining: false,
            http: None,
        };
        let beat =
            ToNode::Beat(Box::new(Beat { member, worker: None, pool: None, peers: Vec::new(), sessions: 0 }));
        let mut bytes = seal(SENT, &beat, None).unwrap();
        let at = bytes.windows(2).rposition(|w| w == [b'1', 4]).unwrap() + 1;
        bytes[at] = roles;
        open::<ToNode>(READ, &bytes)
    };
    assert!(beat(4).is_ok() && beat(15).is_ok());
    for roles in [0, 16, 20, 250] {
        assert!(matches!(beat(roles), Err(WireError::Malformed(why)) if why.contains("roles")), "{roles}");
    }
    // Tags of variants and doors that there are not.
    for bytes in [[4, 9, 0, 0, 0, 0], [4, 0, 0, 0, 0, 200]] {
        assert!(
            matches!(open::<ToNode>(READ, &bytes), Err(WireError::Malformed(why)) if why.contains("tag"))
        );
    }
}

#[test]
fn words_that_this_build_does_not_know_are_read_as_others() {
    let plan = Plan {
        worker: worker_id(),
        prefill: None,
        fetch: None,
        store: None,
        why: "a policy of tomorrow",
        stages: Arc::default(),
    };
    let placed = PlacementEffect::Placed { request: request_id(), attempt: Attempt(0), plan };
    let bytes = seal(SENT, &ToGateway::Placement(placed), None).unwrap();
    let (_, read) = open::<ToGateway>(READ, &bytes).unwrap();
    assert!(
        matches!(&read, ToGateway::Placement(PlacementEffect::Placed { plan, .. }) if plan.why == "remote"),
        "{read:?}"
    );
    let refused = ToGateway::Admission {
        worker: worker_id(),
        request: request_id(),
        attempt: Attempt(0),
        result: Err(Refusal::Malformed("too blue")),
    };
    let (_, read) = open::<ToGateway>(READ, &seal(SENT, &refused, None).unwrap()).unwrap();
    let ToGateway::Admission { result: Err(refusal), .. } = read else { panic!("{read:?}") };
    assert!(refusal.to_string().starts_with("malformed request: the worker"), "{refusal}");
}

/// The controller's own words, as it says them.
#[test]
fn what_the_controller_says_keeps_its_words() {
    let mut seen = BTreeSet::new();
    for choice in [Choice::LeastLoaded, Choice::PowerOfTwo, Choice::RoundRobin, Choice::Random] {
        let mut placement = Placement::new(PlacementConfig {
            max_queued: 4,
            queue_timeout: Span::from_secs(1),
            choice,
            seed: 1,
            opinion_deadline: policies::policy::OPINION_DEADLINE,
            directory: false,
        });
        let mut effects = Vec::new();
        for worker in 0..2_u64 {
            let id = WorkerId::new(NodeId::from(format!("w{worker}")), 1);
            let info = WorkerInfo::unified(id, "m".into(), 100, 1, 16);
            placement.worker_joined(SENT, info, &mut effects);
            placement.place(SENT, place_request(worker * 2, Time::NEVER), &mut effects);
        }
        for (number, attempt) in [(0, 0), (2, 0)] {
            placement.release(SENT, RequestId::new(1, number), Attempt(attempt), &mut effects);
        }
        for number in 4..6 {
            placement.place(SENT, place_request(number, Time::NEVER), &mut effects);
        }
        for effect in effects {
            let message = ToGateway::Placement(effect);
            let (_, read) = open::<ToGateway>(READ, &seal(SENT, &message, None).unwrap()).unwrap();
            assert_eq!(read, message);
            if let ToGateway::Placement(PlacementEffect::Placed { plan, .. }) = read {
                seen.insert(plan.why);
            }
        }
    }
    let all = ["least-loaded", "only-free-worker", "only-worker", "power-of-two", "random", "round-robin"];
    let all = BTreeSet::from(all);
    assert_eq!(seen, all);
}

#[test]
fn a_passed_deadline_is_passed_at_the_reader_and_a_far_one_does_not_overflow() {
    let place =
        |deadline| ToController::Place { gateway: NodeId::from("g"), request: place_request(1, deadline) };
    let read = |sent, deadline, read| {
        let bytes = seal(sent, &place(deadline), None).unwrap();
        open::<ToController>(read, &bytes).unwrap().1.deadline().unwrap()
    };
    assert_eq!(read(SENT, SENT - Span(1), READ), READ);
    assert_eq!(read(SENT, SENT + Span(5), READ), READ + Span(5));
    assert_eq!(read(SENT, Time::NEVER, READ), Time::NEVER);
    assert_eq!(read(Time::ZERO, Time(u64::MAX - 1), Time(u64::MAX / 2)), Time::NEVER);
}
