use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{Attempt, RequestId};
use policies::batch::{Batch, BatchConfig, BatchEffect};
use policies::cost::{Hardware, ModelShape};
use policies::invariant::{enforce, panic_on_broken};
use policies::request::{Finish, RequestSpec, ResumedChoice, Sampling, Token};
use policies::rng::Rng;
use policies::step::{SeqKey, Slice};
use policies::time::Time;

use super::*;
use crate::text::{AllowSpecial, TextModel};

const FREE: CostModel = CostModel::Affine(Affine {
    step_overhead: Span::ZERO,
    prefill_per_token: Span::ZERO,
    decode_per_sequence: Span::ZERO,
    attention_per_token: Span::ZERO,
});

fn options(pages: u32, end: Option<u32>) -> FakeOptions {
    let model = FakeModel { end: end.map(|mean| (END_OF_TURN, mean)) };
    FakeOptions { page_tokens: 4, pages, model, cost: FREE, faults: Faults::default() }
}

fn prefill(tokens: &[Token], page: u32) -> StepPlan {
    let seq = SeqKey { request: RequestId::new(1, 1), attempt: Attempt(0), choice: 0 };
    let slice = Slice {
        seq,
        tokens: tokens.to_vec(),
        start: 0,
        block_table: vec![PageId(page)],
        draws: Vec::new(),
        prompt_logprobs: None,
    };
    StepPlan { step: 1, copies: Vec::new(), slices: vec![slice] }
}

#[test]
fn pages_move_between_engines() {
    let mut a = FakeEngine::new(options(4, None));
    let mut b = FakeEngine::new(options(4, None));
    a.step(&prefill(&[1, 2, 3, 4], 3)).unwrap();
    b.step(&prefill(&[1, 2, 3, 4], 0)).unwrap();
    let bytes = a.kv().layout.page_bytes();
    let (mut sent, mut computed) = (vec![0; bytes], vec![0; bytes]);
    a.export(PageId(3), &mut sent).unwrap();
    b.export(PageId(0), &mut computed).unwrap();
    assert_eq!(sent, computed, "the same tokens have the same content in any page of any engine");
    b.import(PageId(2), &sent).unwrap();
    let mut back = vec![0; bytes];
    b.export(PageId(2), &mut back).unwrap();
    assert_eq!(back, sent);

    for (page, length) in [(4, bytes), (3, bytes - 1), (3, bytes + 8), (3, 0)] {
        let mut out = vec![0; length];
        assert!(matches!(a.export(PageId(page), &mut out), Err(EngineError::Page(_))), "{page} {length}");
        assert!(matches!(a.import(PageId(page), &out), Err(EngineError::Page(_))), "{page} {length}");
    }
}

#[test]
fn a_step_takes_at_least_its_modelled_time() {
    let hardware = Hardware::named("h100").unwrap();
    let cost = CostModel::Roofline { model: ModelShape::named("smollm2-135m").unwrap(), hardware };
    let mut engine = FakeEngine::new(FakeOptions { cost, ..options(4, None) });
    let plan = prefill(&[1, 2, 3], 0);
    let outcome = engine.step(&plan).unwrap();
    assert!(outcome.took >= cost.plan(&plan) && cost.plan(&plan) >= hardware.step_overhead);
}

#[test]
fn the_configuration_is_followed() {
    let mut config = EngineConfig::default();
    config.fake.eos_every = 9;
    config.fake.decode_per_sequence = config::Dur::from_millis(3);
    config.kv_memory = Some(config::Size::kib(64));
    let options = FakeOptions::from_config(&config);
    assert_eq!((options.page_tokens, options.pages), (16, 512));
    assert_eq!(options.model.end, Some((END_OF_TURN, 9)));
    let CostModel::Affine(prices) = options.cost else { panic!("{options:?}") };
    assert_eq!(prices.decode_per_sequence, Span::from_millis(3));
    config.fake.panic_at_step = 5;
    config.fake.stall_at_step = 6;
    assert_eq!(options.faults, Faults::default());
    assert_eq!(FakeOptions::from_config(&config).faults, Faults { panic_at: 5, stall_at: 6 });
    config.kv_pages = Some(77);
    config.fake.eos_every = 0;
    let options = FakeOptions::from_config(&config);
    assert_eq!((options.pages, options.model.end), (77, None));
    let info = FakeEngine::new(options).kv();
    assert_eq!((info.pages, info.layout.page_bytes()), (77, 128));
}

#[test]
fn a_fault_comes_in_its_step() {
    let faults = Faults { panic_at: 3, stall_at: 0 };
    let mut engine = FakeEngine::new(FakeOptions { faults, ..options(4, None) });
    for _ in 0..2 {
        engine.step(&prefill(&[1, 2, 3], 0)).unwrap();
    }
    let third =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.step(&prefill(&[1, 2, 3], 0))));
    let message = *third.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("panic-at-step is 3"), "{message}");

    let faults = Faults { panic_at: 0, stall_at: 2 };
    let mut engine = FakeEngine::new(FakeOptions { faults, ..options(4, None) });
    let (tell, told) = std::sync::mpsc::channel();
    // Left behind in its second step; it ends with the test process.
    std::thread::spawn(move || {
        for _ in 0..2 {
            engine.step(&prefill(&[1, 2, 3], 0)).unwrap();
            tell.send(()).unwrap();
        }
    });
    told.recv().unwrap();
    let second = told.recv_timeout(Duration::from_millis(300));
    assert_eq!(second, Err(std::sync::mpsc::RecvTimeoutError::Timeout), "the step ended");
}

#[test]
fn the_card_speaks_bytes_and_chatml() {
    let card = fake_card("fake", 2048, 16);
    let text = TextModel::from_descriptor((*card.text).clone()).unwrap();
    let all: String = (0..0x2ff_u32).filter_map(char::from_u32).collect();
    let ids = text.encode(&all, AllowSpecial::No, true).unwrap();
    assert_eq!(ids, all.bytes().map(Token::from).collect::<Vec<_>>(), "a token is a byte");
    assert_eq!(text.decode(&ids, true), all);
    for (id, content) in [(256, "<|im_start|>"), (257, "<|im_end|>"), (258, "<|endoftext|>")] {
        assert_eq!(text.encode(content, AllowSpecial::Yes, true).unwrap(), [id]);
        assert_eq!(text.encode(content, AllowSpecial::No, true).unwrap().len(), content.len());
        assert!(text.is_special(id));
    }
    assert_eq!(text.end_ids(), [END_OF_TURN, END_OF_TEXT]);
    assert_eq!(text.vocab_size(), VOCAB as usize);
}

/// Requests through the real scheduler, with few pages, shared prefixes and several choices: every answer is the one
/// that the model gives when nothing is shared, chunked, copied or preempted.
#[test]
fn the_scheduler_changes_no_token() {
    panic_on_broken();
    let mut preempted = 0;
    for seed in 0..60 {
        preempted += serve(seed);
    }
    assert!(preempted > 0, "memory was never short");
}

fn serve(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let end = seed.is_multiple_of(3).then_some(12);
    let options = options(24, end);
    let mut engine = FakeEngine::new(options);
    let config = BatchConfig {
        max_batch_tokens: 1 + rng.below(24) as u32,
        max_running: 8,
        ..BatchConfig::sized(4, 24, 60, fake_card("fake", 60, 16).fingerprint)
    };
    let mut batch = Batch::new(config);
    let mut want: BTreeMap<(u64, u32), Vec<Token>> = BTreeMap::new();
    let mut got: BTreeMap<(u64, u32), Vec<Token>> = BTreeMap::new();
    let mut ended = 0;
    let (mut effects, mut finished, mut submitted) = (Vec::new(), 0, 0);
    for turn in 0..5000 {
        if submitted < 20 && (turn % 3 == 0 || finished == submitted) {
            submitted += 1;
            let spec = request(&mut rng, submitted);
            for choice in 0..spec.choices() as u32 {
                let answer = options.model.answer(&spec.prompt, &spec.sampling, choice, spec.max_tokens);
                want.insert((submitted, choice), answer);
            }
            batch.submit(Time(turn), spec).unwrap();
        }
        if let Some(plan) = batch.plan(Time(turn)) {
            let outcome = engine.step(&plan).unwrap();
            assert_eq!(outcome.failed, [], "seed {seed}");
            batch.complete(Time(turn), &outcome, &mut effects);
        }
        batch.take_effects(&mut effects);
        enforce(batch.check());
        for effect in effects.drain(..) {
            match effect {
                BatchEffect::Token(event) => {
                    let tokens = got.entry((event.seq.request.number, event.seq.choice)).or_default();
                    assert_eq!(event.index as usize, tokens.len());
                    tokens.push(event.token);
                    ended += u64::from(event.finish.is_some());
                    if event.finish == Some(Finish::EndToken) {
                        assert_eq!(event.token, END_OF_TURN);
                    }
                }
                BatchEffect::Done { .. } => finished += 1,
                BatchEffect::Failed { reason, .. } | BatchEffect::Late { reason, .. } => {
                    panic!("seed {seed}: {reason}")
                }
                BatchEffect::Preempted { .. }
                | BatchEffect::PromptLogprobs { .. }
                | BatchEffect::TakenOver { .. } => {}
            }
        }
        if finished == 20 {
            break;
        }
    }
    assert_eq!(finished, 20, "seed {seed}: all requests end");
    assert_eq!(got, want, "seed {seed}");
    assert_eq!(ended as usize, want.len());
    let load = batch.load();
    assert_eq!((load.pages_used, load.running, load.waiting), (0, 0, 0));
    load.preemptions
}

/// A prompt that shares its beginning with others.
fn request(rng: &mut Rng, number: u64) -> RequestSpec {
    let (shared, own) = (rng.below(12) as u32, 1 + rng.below(20) as u32);
    let group = rng.below(2) as u32;
    let prompt: Vec<Token> =
        (0..shared).map(|i| group * 40 + i).chain((0..own).map(|_| rng.below(256) as u32)).collect();
    let warm = rng.below(2) as f32;
    RequestSpec {
        resumed: vec![ResumedChoice::default(); 1 + rng.below(3) as usize],
        max_tokens: 1 + rng.below(25) as u32,
        end_tokens: vec![END_OF_TURN, END_OF_TEXT].into(),
        sampling: Arc::new(Sampling { temperature: warm, seed: number, ..Sampling::default() }),
        ..RequestSpec::plain(RequestId::new(1, number), "fake".into(), prompt, 0)
    }
}
