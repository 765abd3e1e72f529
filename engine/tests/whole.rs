//! The mistral.rs engine on the default model: agreement with the reference, ends, cancellation, limits.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use config::engine::Device;
use config::ids::{Attempt, RequestId, RequestIds};
use engine::EngineError;
use engine::store::{ModelFiles, default_model_for_tests};
use engine::whole::{Capabilities, WholeEngine, WholeOptions};
use policies::batch::{BatchEffect, Refusal, TokenEvent, Usage};
use policies::request::{Finish, Logprobs, RequestSpec, ResumedChoice, Sampling, Token};
use policies::step::SeqKey;
use serde_json::Value;

/// Long enough for a debugger's worth of slowness, short enough to fail before a test runner gives up.
const LIMIT: Duration = Duration::from_secs(300);

static IDS: LazyLock<RequestIds> = LazyLock::new(|| RequestIds::new(1));
static ENGINE: LazyLock<Mutex<WholeEngine>> = LazyLock::new(|| Mutex::new(start(&options())));
static REFERENCE: LazyLock<Value> = LazyLock::new(|| {
    let text =
        std::fs::read_to_string("../tests/fixtures/smollm2_reference.json").expect("the reference is there");
    serde_json::from_str(&text).expect("the reference is JSON")
});

/// One engine for all tests, one test at a time.
fn engine() -> MutexGuard<'static, WholeEngine> {
    ENGINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(options: &WholeOptions) -> WholeEngine {
    WholeEngine::start(options).expect("the model loads").0
}

fn options() -> WholeOptions {
    WholeOptions {
        name: "smollm2".to_owned(),
        files: ModelFiles::Gguf(default_model_for_tests()),
        device: Device::Cpu,
        threads: 2,
        max_running: 8,
        max_waiting: 64,
        max_context: None,
    }
}

fn tokens_of(value: &Value) -> Vec<Token> {
    value.as_array().expect("an array").iter().map(|id| id.as_u64().expect("an id") as Token).collect()
}

/// The `n`th text of the reference.
fn text(n: usize) -> Vec<Token> {
    tokens_of(&REFERENCE["texts"][n]["ids"])
}

fn spec(prompt: &[Token], max_tokens: u32) -> RequestSpec {
    RequestSpec::plain(IDS.next_id(), "smollm2".into(), prompt, max_tokens)
}

fn submit(engine: &WholeEngine, spec: RequestSpec) -> Receiver<BatchEffect> {
    let (sender, receiver) = channel();
    // A test that has seen enough drops the receiver.
    let sink = Arc::new(move |effect| drop(sender.send(effect)));
    engine.submit(spec, sink).expect("the request is taken");
    receiver
}

/// What a request produced.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    prompt: Vec<Logprobs>,
    events: Vec<TokenEvent>,
    usage: Usage,
}

impl Outcome {
    fn tokens(&self) -> Vec<Token> {
        self.events.iter().map(|e| e.token).collect()
    }
}

/// Waits for a request's end.
fn finish(receiver: &Receiver<BatchEffect>) -> Outcome {
    let mut outcome = Outcome::default();
    loop {
        match receiver.recv_timeout(LIMIT).expect("the request ends in time") {
            BatchEffect::Token(event) => outcome.events.push(event),
            BatchEffect::PromptLogprobs { first, tokens, .. } => {
                assert_eq!((first, outcome.events.len()), (1, 0), "before the first token, from position 1");
                outcome.prompt = tokens;
            }
            BatchEffect::Done { usage, .. } => {
                outcome.usage = usage;
                return outcome;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn run(engine: &WholeEngine, spec: RequestSpec) -> Outcome {
    finish(&submit(engine, spec))
}

/// Waits until mistral.rs holds nothing.
fn idle(engine: &WholeEngine) {
    let end = Instant::now() + LIMIT;
    while engine.load().running > 0 || engine.load().waiting > 0 {
        assert!(Instant::now() < end, "still busy: {:?}", engine.load());
        std::thread::yield_now();
    }
}

#[test]
fn the_top_token_is_the_references() {
    let engine = engine();
    let (mut same, mut all) = (0, 0);
    for text in REFERENCE["texts"].as_array().expect("texts") {
        let ids = tokens_of(&text["ids"]);
        let mut spec = spec(&ids, 1);
        spec.prompt_logprobs = true;
        spec.sampling = Arc::new(Sampling { logprobs: Some(5), ..Sampling::default() });
        let outcome = run(&engine, spec);
        assert_eq!(outcome.prompt.len(), ids.len() - 1);
        let drawn = outcome.events[0].logprobs.as_ref().expect("asked for");
        let tops = text["top5"].as_array().expect("top5");
        assert_eq!(tops.len(), ids.len());
        for (found, reference) in outcome.prompt.iter().chain([drawn]).zip(tops) {
            assert_eq!(found.top.len(), 5);
            assert!(found.top.is_sorted_by(|a, b| a.1 >= b.1) && found.own <= 0.0, "{found:?}");
            all += 1;
            same += usize::from(u64::from(found.top[0].0) == reference[0][0].as_u64().expect("an id"));
        }
        assert_eq!(outcome.events[0].token, drawn.top[0].0, "greedy");
    }
    assert!(all >= 339, "positions: {all}");
    println!("same top token at {same} of {all} positions");
    assert!(same * 100 >= all * 95, "same top token at {same} of {all} positions");
}

#[test]
fn eight_requests_of_different_lengths_finish_together() {
    let engine = engine();
    let ids = text(0);
    let receivers: Vec<_> = (0..8_usize)
        .map(|i| {
            let mut spec = spec(&ids[..8 + 5 * i], 6 + i as u32);
            spec.ignore_end = true;
            submit(&engine, spec)
        })
        .collect();
    for (i, receiver) in receivers.iter().enumerate() {
        let outcome = finish(receiver);
        let indices: Vec<_> = outcome.events.iter().map(|e| e.index).collect();
        assert_eq!(indices, (0..6 + i as u32).collect::<Vec<_>>());
        assert_eq!(outcome.events.last().and_then(|e| e.finish), Some(Finish::Length));
        assert_eq!(outcome.usage.prefilled_tokens, 8 + 5 * i as u32);
        assert_eq!(outcome.usage.drawn_tokens, 6 + i as u32);
    }
    idle(&engine);
}

#[test]
fn what_else_runs_changes_nothing() {
    let engine = engine();
    let ids = text(0);
    let first = run(&engine, spec(&ids[..24], 12));
    for _ in 0..4 {
        assert_eq!(run(&engine, spec(&ids[..24], 12)).tokens(), first.tokens());
    }
    // A strict prefix, an extension, a sibling of the same length: whatever a cache or a batch could mix up.
    let mut sibling = ids[..12].to_vec();
    sibling.extend_from_slice(&ids[30..42]);
    let others = [ids[..16].to_vec(), ids[..30].to_vec(), sibling];
    let alone: Vec<_> = others.iter().map(|prompt| run(&engine, spec(prompt, 8)).tokens()).collect();
    let mut together: Vec<_> = (0..5).map(|_| submit(&engine, spec(&ids[..24], 12))).collect();
    together.extend(others.iter().map(|prompt| submit(&engine, spec(prompt, 8))));
    for (i, receiver) in together.iter().enumerate() {
        let expected = if i < 5 { first.tokens() } else { alone[i - 5].clone() };
        assert_eq!(finish(receiver).tokens(), expected, "request {i}");
    }
}

#[test]
fn ends_are_those_asked_for() {
    let engine = engine();
    let ids = text(0);
    let free = run(&engine, spec(&ids[..20], 10)).tokens();
    assert_eq!(free.len(), 10);
    let one = run(&engine, spec(&ids[..20], 1));
    assert_eq!((one.tokens(), one.events[0].finish), (free[..1].to_vec(), Some(Finish::Length)));

    let end = free[4];
    let at = free.iter().position(|t| *t == end).expect("it is there");
    let mut ending = spec(&ids[..20], 10);
    ending.end_tokens = [end].into();
    let ended = run(&engine, ending.clone());
    assert_eq!(ended.tokens(), free[..=at]);
    assert_eq!(ended.events[at].finish, Some(Finish::EndToken));
    ending.id = IDS.next_id();
    ending.ignore_end = true;
    assert_eq!(run(&engine, ending).tokens(), free);
    idle(&engine);
}

#[test]
fn a_cancelled_request_is_dropped() {
    let engine = engine();
    let mut long = spec(&text(0)[..16], 4000);
    long.ignore_end = true;
    let (id, attempt) = (long.id, long.attempt);
    let receiver = submit(&engine, long);
    for _ in 0..3 {
        assert!(matches!(receiver.recv_timeout(LIMIT), Ok(BatchEffect::Token(_))));
    }
    assert_eq!(engine.load().running, 1);
    engine.cancel(id, attempt);
    let before = receiver.try_iter().count();
    assert!(before < 3990, "it was still running");
    // The sink goes with the sequence: nothing can come any more.
    assert_eq!(receiver.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected));
    idle(&engine);
}

#[test]
fn dropping_the_engine_ends_what_runs() {
    let engine = start(&options());
    let mut long = spec(&text(0)[..16], 4000);
    long.ignore_end = true;
    let receiver = submit(&engine, long);
    assert!(matches!(receiver.recv_timeout(LIMIT), Ok(BatchEffect::Token(_))));
    drop(engine);
    let end = loop {
        match receiver.recv_timeout(LIMIT) {
            Ok(BatchEffect::Token(_)) => {}
            other => break other,
        }
    };
    assert_eq!(end, Err(RecvTimeoutError::Disconnected));
}

/// Prefill and decode of mistral.rs do not agree to the last bit, so a resumed stream follows the undisturbed one as far
/// as no draw falls between the two.
#[test]
fn a_resumed_request_goes_on_where_it_was() {
    let engine = engine();
    let (mut same, mut all) = (0, 0);
    for seed in [1, 2, 3, 4, 7] {
        let mut whole = spec(&text(0)[..20], 10);
        let sampling =
            Sampling { temperature: 0.8, top_p: 0.9, seed, logprobs: Some(0), ..Sampling::default() };
        whole.sampling = Arc::new(sampling);
        let expected = run(&engine, whole.clone());
        assert_eq!(expected.events.len(), 10);
        let mut rest = whole.clone();
        rest.attempt = Attempt(1);
        rest.resumed =
            vec![ResumedChoice { tokens: expected.tokens()[..5].to_vec(), ended: false, unread: 0 }];
        let resumed = run(&engine, rest);
        assert_eq!(resumed.events.iter().map(|e| e.index).collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
        all += 5;
        for (a, b) in expected.events[5..].iter().zip(&resumed.events).take_while(|(a, b)| a.token == b.token)
        {
            let own = |e: &TokenEvent| e.logprobs.as_ref().expect("asked for").own;
            assert!(
                (own(a) - own(b)).abs() < 0.25,
                "seed {seed}, token {}: {} and {}",
                a.index,
                own(a),
                own(b)
            );
            same += 1;
        }

        let mut over = whole;
        over.attempt = Attempt(2);
        over.resumed = vec![ResumedChoice { tokens: expected.tokens(), ended: false, unread: 0 }];
        assert_eq!(run(&engine, over), Outcome::default(), "nothing is left to do");
    }
    println!("{same} of {all} tokens of resumed streams are those of the undisturbed ones");
    assert!(
        same * 10 >= all * 6,
        "{same} of {all} tokens of resumed streams are those of the undisturbed ones"
    );
}

#[test]
fn choices_are_drawn_apart_and_end_apart() {
    let engine = engine();
    let mut three = spec(&text(0)[..20], 10);
    three.resumed = vec![ResumedChoice::default(); 3];
    three.sampling = Arc::new(Sampling { temperature: 1.5, seed: 3, ..Sampling::default() });
    let choice = |outcome: &Outcome, n: u32| -> Vec<Token> {
        outcome.events.iter().filter(|e| e.seq.choice == n).map(|e| e.token).collect()
    };
    let all = run(&engine, three.clone());
    assert_eq!(all.events.len(), 30);
    assert_ne!(choice(&all, 0), choice(&all, 1));

    three.id = IDS.next_id();
    three.max_tokens = 2000;
    three.ignore_end = true;
    let receiver = submit(&engine, three.clone());
    assert!(matches!(receiver.recv_timeout(LIMIT), Ok(BatchEffect::Token(_))));
    for choice in 0..3 {
        engine.cancel_choice(SeqKey { request: three.id, attempt: three.attempt, choice });
    }
    let usage = finish(&receiver).usage;
    assert!(usage.drawn_tokens < 6000);
    idle(&engine);
}

#[test]
fn biases_and_penalties_are_applied() {
    let engine = engine();
    let ids = text(0);
    let with = |sampling: Sampling| {
        let mut spec = spec(&ids[..20], 6);
        spec.sampling = Arc::new(sampling);
        run(&engine, spec)
    };
    let biased = with(Sampling { logit_bias: vec![(42, 1000.0)], logprobs: Some(2), ..Sampling::default() });
    assert_eq!(biased.tokens(), [42; 6]);
    let logprobs = biased.events[0].logprobs.as_ref().expect("asked for");
    assert!(
        logprobs.own < logprobs.top[0].1,
        "the model's own probabilities, without the bias: {logprobs:?}"
    );
    let varied =
        with(Sampling { logit_bias: vec![(42, 1000.0)], frequency_penalty: 2000.0, ..Sampling::default() });
    assert_eq!(varied.tokens().iter().filter(|t| **t == 42).count(), 1, "{:?}", varied.tokens());
}

#[test]
fn what_cannot_be_served_is_refused() {
    let engine = start(&WholeOptions { max_running: 1, max_waiting: 1, max_context: Some(512), ..options() });
    let refused = |spec: RequestSpec| engine.submit(spec, Arc::new(|_| {})).expect_err("it is refused");
    assert!(matches!(refused(spec(&[], 1)), Refusal::Malformed(_)));
    assert!(matches!(refused(spec(&[49_152], 1)), Refusal::Malformed(_)));
    assert!(matches!(refused(RequestSpec { resumed: Vec::new(), ..spec(&[1], 1) }), Refusal::Malformed(_)));
    assert_eq!(refused(spec(&[1; 512], 1)), Refusal::TooLong { prompt: 512, window: 512 });
    let last = run(&engine, RequestSpec { ignore_end: true, ..spec(&[504; 510], 100) });
    assert_eq!(last.events.len(), 2, "as far as the window reaches");
    // mistral.rs drops an ended sequence a step after its last event; until then it holds the only slot.
    idle(&engine);

    let mut long = spec(&text(0)[..8], 400);
    long.ignore_end = true;
    let running = submit(&engine, long.clone());
    let mut next = long.clone();
    next.id = IDS.next_id();
    let waiting = submit(&engine, next.clone());
    assert!(matches!(refused(long.clone()), Refusal::Malformed(_)), "it is here already");
    assert_eq!(
        refused(RequestSpec { id: RequestId::new(9, 9), ..long.clone() }),
        Refusal::QueueFull { waiting: 1 }
    );
    engine.cancel(next.id, next.attempt);
    assert_eq!(
        waiting.recv_timeout(LIMIT),
        Err(RecvTimeoutError::Disconnected),
        "at once: it had not started"
    );
    assert_eq!(engine.load().waiting, 0);
    engine.cancel(long.id, long.attempt);
    while running.recv_timeout(LIMIT).is_ok() {}
    idle(&engine);

    let error = engine.kv().expect_err("it has no pages").to_string();
    assert!(error.contains("mistralrs") && error.contains("paged"), "{error}");
    assert_eq!(WholeEngine::CAPABILITIES, Capabilities { pages: false });
}

#[test]
fn a_missing_file_is_named() {
    let files = ModelFiles::Gguf(PathBuf::from("no/such/model.gguf"));
    let error = WholeEngine::start(&WholeOptions { files, ..options() }).expect_err("there is no such file");
    assert!(matches!(&error, EngineError::Load(text) if text.contains("no/such/model.gguf")), "{error}");
}
