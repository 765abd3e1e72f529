//! What steps report, and what becomes of plans and files that are wrong.

use std::sync::Arc;

use config::Device;
use config::ids::PageId;
use engine::gguf::write::TinyModel;
use engine::paged::{KvBudget, LoadOptions, PagedEngine};
use engine::{Engine, EngineError};
use policies::request::{Logprobs, Sampling};
use policies::step::{PageCopy, PromptTargets, Slice, StepPlan};

use crate::common::{draw, gguf, gguf_f32, key, load, slice, step, table};
use crate::oracle::Tiny;

fn tiny() -> (Tiny, PagedEngine) {
    let dir = tempfile::tempdir().unwrap();
    let model = Tiny::new(TinyModel::default());
    let engine = load(&gguf_f32(&model.write(dir.path())));
    (model, engine)
}

fn text(len: u32) -> Vec<u32> {
    (0..len).map(|i| 3 + i * 13 % 250).collect()
}

fn drawing(number: u64, tokens: &[u32], start: u32, pages: Vec<PageId>) -> Slice {
    let position = start + tokens.len() as u32;
    Slice { draws: vec![draw(&Arc::default(), position)], ..slice(number, tokens, start, pages) }
}

#[test]
fn a_row_that_is_not_finite_fails_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Tiny::new(TinyModel { tied: false, ..TinyModel::default() });
    // Token 50 poisons whoever reads it: its embedding is infinite.
    let (size, values) = model.tensors.get_mut("token_embd.weight").unwrap();
    let width = size[1];
    values[50 * width..51 * width].fill(f32::INFINITY);
    let size = size.clone();
    let values = values.clone();
    let bytes = model.writer.bytes();
    let clean = Tiny::new(model.shape.clone());
    let old: Vec<u8> = clean.tensors["token_embd.weight"].1.iter().flat_map(|x| x.to_le_bytes()).collect();
    let new: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
    let mut poisoned = bytes;
    poisoned[at..at + new.len()].copy_from_slice(&new);
    let path = dir.path().join("poisoned.gguf");
    std::fs::write(&path, poisoned).unwrap();
    assert_eq!(size[0], clean.vocab() as usize);

    let mut engine = load(&gguf_f32(&path));
    let healthy = text(20);
    let alone = step(&mut engine, vec![drawing(1, &healthy, 0, table(0, 2))]);
    let sick = [9, 50, 8];
    let slices = vec![
        drawing(1, &healthy, 0, table(2, 2)),
        drawing(2, &sick, 0, table(4, 1)),
        drawing(3, &healthy, 0, table(6, 2)),
    ];
    let outcome = step(&mut engine, slices);
    assert_eq!(outcome.failed.len(), 1);
    let (seq, why) = &outcome.failed[0];
    assert_eq!(*seq, key(2));
    assert!(why.contains("not finite"), "{why}");
    let drawn: Vec<_> = outcome.drawn.iter().map(|drawn| (drawn.seq, drawn.token)).collect();
    assert_eq!(drawn, [(key(1), alone.drawn[0].token), (key(3), alone.drawn[0].token)]);
}

#[test]
fn malformed_slices_fail_alone() {
    let (model, mut engine) = tiny();
    let vocab = model.vocab();
    let good = text(10);
    let cases: [(&str, Slice); 7] = [
        ("without tokens", slice(1, &[], 0, table(0, 1))),
        ("vocabulary", slice(1, &[3, vocab], 0, table(0, 1))),
        ("1 pages do not hold 17 tokens", slice(1, &text(17), 0, table(0, 1))),
        ("page 64 does not exist", slice(1, &good, 0, table(64, 1))),
        ("outside of the context", slice(1, &good, 510, table(0, 64))),
        ("outside of the context", slice(1, &good, u32::MAX, table(0, 64))),
        (
            "11 log-probabilities asked of 10 tokens",
            Slice {
                prompt_logprobs: Some(PromptTargets { targets: vec![3; 11], top: 0 }),
                ..slice(1, &good, 0, table(0, 1))
            },
        ),
    ];
    for (expected, bad) in cases {
        let outcome = step(&mut engine, vec![bad, drawing(2, &good, 0, table(3, 1))]);
        assert_eq!(outcome.failed.len(), 1, "{expected}");
        assert!(outcome.failed[0].1.contains(expected), "{}", outcome.failed[0].1);
        assert_eq!((outcome.drawn.len(), outcome.drawn[0].seq), (1, key(2)), "{expected}");
    }
}

#[test]
fn plans_that_would_corrupt_pages_are_refused_as_a_whole() {
    let (_, mut engine) = tiny();
    let twice = vec![slice(1, &text(4), 0, table(0, 1)), slice(2, &text(4), 3, table(0, 1))];
    let plan = StepPlan { step: 1, copies: vec![], slices: twice };
    let refused = engine.step(&plan).unwrap_err();
    assert!(matches!(&refused, EngineError::Step(why) if why.contains("written twice")), "{refused}");
    let copies = vec![PageCopy { from: PageId(0), to: PageId(64) }];
    let refused = engine.step(&StepPlan { step: 2, copies, slices: vec![] }).unwrap_err();
    assert!(refused.to_string().contains("page 64"), "{refused}");
    let bytes = engine.kv().layout.page_bytes();
    assert!(matches!(engine.export(PageId(64), &mut vec![0; bytes]), Err(EngineError::Page(_))));
    assert!(matches!(engine.export(PageId(0), &mut vec![0; bytes - 1]), Err(EngineError::Page(_))));
    assert!(matches!(engine.import(PageId(0), &[]), Err(EngineError::Page(_))));
    assert!(engine.step(&StepPlan::default()).unwrap().drawn.is_empty(), "an empty plan is fine");
}

#[test]
fn a_copied_page_is_written_without_harm_to_the_original() {
    let (_, mut engine) = tiny();
    let tokens = text(21);
    step(&mut engine, vec![slice(1, &tokens[..20], 0, table(0, 2))]);
    let bytes = engine.kv().layout.page_bytes();
    let mut before = vec![0; bytes];
    engine.export(PageId(1), &mut before).unwrap();
    let shared = vec![PageId(0), PageId(7)];
    let plan = StepPlan {
        step: 2,
        copies: vec![PageCopy { from: PageId(1), to: PageId(7) }],
        slices: vec![drawing(2, &tokens[20..], 20, shared)],
    };
    let copied = engine.step(&plan).unwrap();
    let mut after = vec![0; bytes];
    engine.export(PageId(1), &mut after).unwrap();
    assert_eq!(before, after);
    let whole = step(&mut engine, vec![drawing(3, &tokens, 0, table(10, 2))]);
    assert_eq!(copied.drawn[0].token, whole.drawn[0].token);
}

#[test]
fn several_choices_draw_from_one_row() {
    let (_, mut engine) = tiny();
    let tokens = text(12);
    let sampling = Arc::new(Sampling { temperature: 2.0, seed: 3, ..Sampling::default() });
    let mut one = slice(1, &tokens, 0, table(0, 1));
    one.draws = (0..20).map(|choice| policies::step::Draw { choice, ..draw(&sampling, 12) }).collect();
    let outcome = step(&mut engine, vec![one.clone()]);
    let choices: Vec<u32> = outcome.drawn.iter().map(|drawn| drawn.seq.choice).collect();
    assert_eq!(choices, (0..20).collect::<Vec<_>>());
    assert!(outcome.drawn.iter().any(|drawn| drawn.token != outcome.drawn[0].token), "choices differ");
    one.draws = vec![one.draws.remove(13)];
    assert_eq!(step(&mut engine, vec![one]).drawn[0], outcome.drawn[13]);
}

#[test]
fn prompt_log_probabilities_do_not_depend_on_chunks() {
    let (_, mut engine) = tiny();
    // More rows than are made into logits at a time.
    let tokens = text(150);
    let ask = |from: usize, to: usize, pages| {
        let targets = tokens[from + 1..tokens.len().min(to + 1)].to_vec();
        let mut one = slice(1, &tokens[from..to], from as u32, pages);
        one.prompt_logprobs = Some(PromptTargets { targets, top: 2 });
        if to == tokens.len() {
            one.draws = vec![draw(&Arc::default(), to as u32)];
        }
        one
    };
    let whole = step(&mut engine, vec![ask(0, 150, table(0, 10))]);
    let mut pieces: Vec<Logprobs> = Vec::new();
    let mut last = None;
    for (from, to) in [(0, 1), (1, 70), (70, 149), (149, 150)] {
        let mut outcome = step(&mut engine, vec![ask(from, to, table(20, 10))]);
        let part = outcome.prompt_logprobs.remove(0);
        assert_eq!(part.first as usize, from + 1);
        pieces.extend(part.tokens);
        last = outcome.drawn.pop();
    }
    assert_eq!(whole.prompt_logprobs[0].tokens, pieces);
    assert_eq!(pieces.len(), 149);
    assert_eq!(last.map(|drawn| drawn.token), Some(whole.drawn[0].token));
    // Against the definition.
    let rows = engine.logits(&[slice(1, &tokens, 0, table(0, 10))]).unwrap();
    for ((row, target), found) in rows.iter().zip(&tokens[1..]).zip(&pieces) {
        let total: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        let right = f64::from(row[*target as usize]) - total.ln();
        assert!((f64::from(found.own) - right).abs() < 1e-5);
        assert!(found.top.len() == 2 && found.top[0].1 >= found.top[1].1 && found.top[0].1 >= found.own);
    }
}

#[test]
fn files_that_do_not_fit_the_architecture_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wrong.gguf");
    let refused = |writer: &engine::gguf::write::GgufWriter| {
        writer.write(&path).unwrap();
        let message = PagedEngine::load(&gguf(&path)).unwrap_err().to_string();
        assert!(message.contains("wrong.gguf"), "{message}");
        message
    };
    let model = Tiny::new(TinyModel::default());
    let message = refused(&model.writer.clone().tensor_f32("blk.0.attn_sinks.weight", &[4], &[0.0; 4]));
    assert!(
        message.contains("`blk.0.attn_sinks.weight`") && message.contains("does not belong"),
        "{message}"
    );
    let message = refused(&model.writer.clone().u32("llama.block_count", 3));
    assert!(message.contains("`blk.2.") && message.contains("is missing"), "{message}");
    let message = refused(&model.writer.clone().u32("llama.feed_forward_length", 96));
    assert!(message.contains("`blk.0.ffn_gate.weight`") && message.contains("[128, 64]"), "{message}");
    assert!(message.contains("expected [96, 64]"), "{message}");
    for (code, name) in [(20, "IQ4_NL"), (23, "IQ4_XS"), (39, "MXFP4"), (255, "255")] {
        let message = refused(&model.writer.clone().with_code("blk.1.ffn_up.weight", code));
        assert!(message.contains("`blk.1.ffn_up.weight`") && message.contains(name), "{message}");
        assert!(message.contains("Q4_K"), "supported types are listed: {message}");
    }
}

#[test]
fn options_that_cannot_be_met_are_refused_by_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = Tiny::new(TinyModel::default()).write(dir.path());
    let refused = |options: &LoadOptions| PagedEngine::load(options).unwrap_err().to_string();
    let message = refused(&LoadOptions { page_tokens: 17, ..gguf(&path) });
    assert!(message.contains("17"), "{message}");
    let message = refused(&LoadOptions { kv: KvBudget::Bytes(100), ..gguf(&path) });
    assert!(message.contains("engine.kv-memory"), "{message}");
    let message = refused(&gguf(&dir.path().join("absent.gguf")));
    assert!(message.contains("absent.gguf"), "{message}");
    if !cfg!(feature = "cuda") {
        let message = refused(&LoadOptions { device: Device::Cuda, ..gguf(&path) });
        assert!(message.contains("engine.device"), "{message}");
    }
}

#[test]
fn the_context_is_what_model_options_and_pages_allow() {
    let dir = tempfile::tempdir().unwrap();
    let path = Tiny::new(TinyModel::default()).write(dir.path());
    let context = |options: &LoadOptions| PagedEngine::load(options).unwrap().1.max_context;
    assert_eq!(context(&gguf(&path)), 512, "the model's own");
    assert_eq!(context(&LoadOptions { max_context: Some(100), ..gguf(&path) }), 100);
    assert_eq!(context(&LoadOptions { max_context: Some(10_000), ..gguf(&path) }), 512);
    assert_eq!(context(&LoadOptions { kv: KvBudget::Pages(4), ..gguf(&path) }), 64);
    let (engine, card) = PagedEngine::load(&LoadOptions { kv: KvBudget::Auto, ..gguf(&path) }).unwrap();
    assert!(engine.kv().pages >= 32 && card.max_context == 512, "auto holds at least one longest sequence");
    assert_eq!(card.name, "tiny");
    assert!(card.description.contains("llama") && card.description.contains("F32"), "{}", card.description);
}
