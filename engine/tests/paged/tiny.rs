//! Tiny models against the oracle: architectures, file formats, rotations at large positions.

use std::path::Path;

use engine::Engine;
use engine::gguf::TensorType;
use engine::gguf::write::TinyModel;
use engine::paged::{KvBudget, LoadOptions, PagedEngine};
use engine::store::ModelFiles;
use policies::request::Sampling;
use policies::rng::Rng;
use safetensors::Dtype;
use serde_json::Value;

use crate::common::{generate, gguf, gguf_f32, load, slice, table};
use crate::oracle::{Rope, Tiny};

const ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

fn tiny(architecture: &'static str) -> Tiny {
    Tiny::new(TinyModel { architecture, ..TinyModel::default() })
}

fn hugging_face(dir: &Path) -> LoadOptions {
    LoadOptions { files: ModelFiles::HfDir(dir.to_owned()), ..gguf_f32(dir) }
}

/// Random tokens outside of the control tokens.
fn text(count: usize, vocab: u32, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| 3 + rng.below(u64::from(vocab - 3)) as u32).collect()
}

/// Logits after every position.
fn logits(engine: &mut PagedEngine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let pages = engine.kv().layout.pages_for(tokens.len() as u32);
    engine.logits(&[slice(1, tokens, 0, table(0, pages))]).unwrap()
}

fn difference(found: &[f32], right: &[f64]) -> f64 {
    assert_eq!(found.len(), right.len());
    found.iter().zip(right).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
}

fn cosine(found: &[f32], right: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let found: Vec<f64> = found.iter().map(|x| f64::from(*x)).collect();
    dot(&found, right) / (dot(&found, &found) * dot(right, right)).sqrt()
}

fn wide(rows: &[Vec<f32>]) -> Vec<Vec<f64>> {
    rows.iter().map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect()
}

#[test]
fn every_architecture_computes_what_the_oracle_does() {
    for architecture in ARCHITECTURES {
        let dir = tempfile::tempdir().unwrap();
        let model = tiny(architecture);
        let tokens = text(45, model.vocab(), 4);
        let mut engine = load(&gguf_f32(&model.write(dir.path())));
        let rows = logits(&mut engine, &tokens);
        let positions: Vec<usize> = (0..tokens.len()).collect();
        for (position, (found, right)) in
            rows.iter().zip(model.logits(&tokens, &model.rope(), &positions)).enumerate()
        {
            let off = difference(found, &right);
            assert!(off < 2e-4, "{architecture} at {position}: {off}");
        }
    }
}

#[test]
fn hugging_face_directories_give_the_logits_of_the_gguf_file() {
    for architecture in ARCHITECTURES {
        let (gguf_dir, hf_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let model = tiny(architecture);
        model.write_hugging_face(hf_dir.path(), Dtype::F32, Value::Null);
        let tokens = text(40, model.vocab(), 5);
        let from_gguf = logits(&mut load(&gguf_f32(&model.write(gguf_dir.path()))), &tokens);
        let from_hf = logits(&mut load(&hugging_face(hf_dir.path())), &tokens);
        if architecture == "llama" {
            // The elements of a head are in another order, and so are the sums over them.
            for (a, b) in from_hf.iter().zip(wide(&from_gguf)) {
                assert!(difference(a, &b) < 1e-4);
            }
        } else {
            assert_eq!(from_gguf, from_hf, "{architecture}");
        }
    }
}

#[test]
fn sixteen_bit_checkpoints_and_quantisation_while_loading() {
    let model = tiny("llama");
    let tokens = text(30, model.vocab(), 6);
    let right = model.logits(&tokens, &model.rope(), &[29]).remove(0);
    let mut sizes = Vec::new();
    for (dtype, isq, least) in [
        (Dtype::F32, None, 0.999_999_9),
        (Dtype::F16, None, 0.999_99),
        (Dtype::BF16, None, 0.999),
        (Dtype::F32, Some(TensorType::Q8_0), 0.999),
        (Dtype::BF16, Some(TensorType::Q4_0), 0.9),
        (Dtype::F16, Some(TensorType::Q4_1), 0.9),
        // Rows of 64 are not whole blocks of 256: 8 bits then.
        (Dtype::F32, Some(TensorType::Q6K), 0.999),
    ] {
        let dir = tempfile::tempdir().unwrap();
        model.write_hugging_face(dir.path(), dtype, Value::Null);
        let mut engine = load(&LoadOptions { isq, ..hugging_face(dir.path()) });
        let found = logits(&mut engine, &tokens).pop().unwrap();
        let close = cosine(&found, &right);
        println!("{dtype:?} {isq:?}: {close}, {} bytes", engine.weight_bytes());
        assert!(close > least, "{dtype:?} {isq:?}: {close}");
        sizes.push(engine.weight_bytes());
    }
    assert!(sizes[1] * 2 <= sizes[0] + 64 && sizes[3] * 3 < sizes[0] && sizes[4] < sizes[3], "{sizes:?}");
}

#[test]
fn tied_and_untied_embeddings_give_the_same() {
    for architecture in ARCHITECTURES {
        let shape = TinyModel { architecture, ..TinyModel::default() };
        let mut outcomes = Vec::new();
        for tied in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let model = Tiny::new(TinyModel { tied, ..shape.clone() });
            let mut engine = load(&gguf_f32(&model.write(dir.path())));
            let tokens = text(20, model.vocab(), 8);
            let sampled = generate(&mut engine, &tokens, &Sampling::default(), 12);
            outcomes.push((logits(&mut engine, &tokens), sampled, engine.weight_bytes()));
        }
        assert_eq!(outcomes[0].0, outcomes[1].0, "{architecture}");
        assert_eq!(outcomes[0].1, outcomes[1].1, "{architecture}");
        assert!(outcomes[0].2 < outcomes[1].2, "tied embeddings are held once");
    }
}

#[test]
fn split_files_are_one_model() {
    let (one, many) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = tiny("qwen3");
    let tokens = text(20, model.vocab(), 9);
    let parts = model.writer.write_split(many.path(), "tiny", 3).unwrap();
    let (mut whole, card) = PagedEngine::load(&gguf_f32(&model.write(one.path()))).unwrap();
    let (mut split, split_card) = PagedEngine::load(&gguf_f32(&parts[1])).unwrap();
    assert_eq!(logits(&mut whole, &tokens), logits(&mut split, &tokens));
    assert_eq!(card.fingerprint, split_card.fingerprint);
    assert_eq!((card.name.as_str(), split_card.name.as_str()), ("tiny", "tiny"));
    std::fs::remove_file(&parts[1]).unwrap();
    let message = PagedEngine::load(&gguf_f32(&parts[0])).unwrap_err().to_string();
    assert!(message.contains("part 2 of 3 missing"), "{message}");
}

/// Computes a long text in chunks; the logits after each of the (ascending) positions.
fn long(engine: &mut PagedEngine, tokens: &[u32], positions: &[usize]) -> Vec<Vec<f32>> {
    let pages = engine.kv().layout.pages_for(tokens.len() as u32);
    let mut out = Vec::new();
    let mut start = 0;
    for &position in positions {
        while start < position {
            let end = position.min(start + 1024);
            let chunk = slice(1, &tokens[start..end], start as u32, table(0, pages));
            assert_eq!(crate::common::step(engine, vec![chunk]).failed, []);
            start = end;
        }
        let last = slice(1, &tokens[position..=position], position as u32, table(0, pages));
        out.append(&mut engine.logits(&[last]).unwrap());
        start = position + 1;
    }
    out
}

#[test]
fn scaled_rotations_hold_at_large_positions() {
    const CONTEXT: usize = 32_768;
    const ORIGINAL: u32 = 1024;
    const POSITIONS: [usize; 3] = [10, 8000, 20_000];
    let shape = |architecture| TinyModel {
        architecture,
        layers: 1,
        hidden: 32,
        heads: 2,
        kv_heads: 1,
        ffn: 32,
        context: CONTEXT,
        ..TinyModel::default()
    };
    let llama = Tiny::new(shape("llama"));
    let qwen = Tiny::new(shape("qwen2"));
    let tokens = text(POSITIONS[2] + 1, llama.vocab(), 10);
    let factors: Vec<f32> = (0..8).map(|i| 1.0 + i as f32).collect();
    let yarn = |model: &Tiny| Tiny {
        writer: {
            let arch = model.shape.architecture;
            let writer = model.writer.clone().string(&format!("{arch}.rope.scaling.type"), "yarn");
            let writer = writer.f32(&format!("{arch}.rope.scaling.factor"), 16.0);
            writer.u32(&format!("{arch}.rope.scaling.original_context_length"), ORIGINAL)
        },
        ..model.clone()
    };
    let linear = Tiny {
        writer: {
            let writer = llama.writer.clone().string("llama.rope.scaling.type", "linear");
            writer.f32("llama.rope.scaling.factor", 8.0)
        },
        ..llama.clone()
    };
    let divided = Tiny {
        writer: llama.writer.clone().tensor_f32("rope_freqs.weight", &[factors.len()], &factors),
        ..llama.clone()
    };
    let original = f64::from(ORIGINAL);
    let cases: [(&str, Tiny, Option<Value>, Rope); 8] = [
        ("none", llama.clone(), None, llama.rope()),
        ("linear", linear, None, llama.rope().linear(8.0)),
        ("rope_freqs", divided, None, llama.rope().divided(&factors)),
        ("yarn, interleaved", yarn(&llama), None, llama.rope().yarn(16.0, original)),
        ("yarn, halves", yarn(&qwen), None, qwen.rope().yarn(16.0, original)),
        (
            "linear, config.json",
            llama.clone(),
            Some(serde_json::json!({"type": "linear", "factor": 4.0})),
            llama.rope().linear(4.0),
        ),
        (
            "llama3, config.json",
            llama.clone(),
            Some(serde_json::json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": ORIGINAL})),
            llama.rope().llama3(8.0, 1.0, 4.0, original),
        ),
        (
            "yarn, config.json",
            qwen.clone(),
            Some(serde_json::json!({"rope_type": "yarn", "factor": 16.0,
                "original_max_position_embeddings": ORIGINAL})),
            qwen.rope().yarn(16.0, original),
        ),
    ];
    let mut fingerprints = Vec::new();
    for (name, model, config, rope) in cases {
        let dir = tempfile::tempdir().unwrap();
        let options = match config {
            None => gguf_f32(&model.write(dir.path())),
            Some(scaling) => {
                model.write_hugging_face(dir.path(), Dtype::F32, scaling);
                hugging_face(dir.path())
            }
        };
        let pages = KvBudget::Pages((CONTEXT / 16) as u32);
        let (mut engine, card) = PagedEngine::load(&LoadOptions { kv: pages, ..options }).unwrap();
        assert!(!fingerprints.contains(&card.fingerprint), "{name}: the rotation is part of the fingerprint");
        fingerprints.push(card.fingerprint);
        let right = model.logits(&tokens, &rope, &POSITIONS);
        let unscaled = model.logits(&tokens, &model.rope(), &POSITIONS);
        for ((found, right), position) in
            long(&mut engine, &tokens, &POSITIONS).iter().zip(&right).zip(POSITIONS)
        {
            let (close, off) = (cosine(found, right), difference(found, right));
            println!("{name} at {position}: cosine {close:.7}, largest difference {off:.6}");
            assert!(close > 0.999 && off < 1e-3, "{name} at {position}: {close}, {off}");
        }
        if name != "none" {
            // Without the scaling, these positions would give something else: the comparison above means something.
            let matters = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).any(|(a, b)| (a - b).abs() > 0.02);
            assert!(right.iter().zip(&unscaled).all(matters), "{name}");
        }
    }
}

#[test]
fn fingerprints_tell_everything_apart_that_pages_depend_on() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny("llama");
    let path = model.write(dir.path());
    let of = |options: &LoadOptions| PagedEngine::load(options).unwrap().1.fingerprint;
    let base = of(&gguf(&path));
    assert_eq!(
        base,
        of(&LoadOptions { threads: 1, kv: KvBudget::Pages(9), ..gguf(&path) }),
        "these do not matter"
    );
    let mut bytes = std::fs::read(&path).unwrap();
    let in_some_weight = bytes.len() - 40_000;
    bytes[in_some_weight] ^= 1;
    let changed = dir.path().join("changed.gguf");
    std::fs::write(&changed, bytes).unwrap();
    let eps = dir.path().join("epsilon.gguf");
    model.writer.clone().f32("llama.attention.layer_norm_rms_epsilon", 2e-5).write(&eps).unwrap();
    let base_key = dir.path().join("base.gguf");
    model.writer.clone().f32("llama.rope.freq_base", 20_000.0).write(&base_key).unwrap();
    let others = [
        ("page size", of(&LoadOptions { page_tokens: 32, ..gguf(&path) })),
        ("KV dtype", of(&gguf_f32(&path))),
        ("quantisation", of(&LoadOptions { isq: Some(TensorType::Q8_0), ..gguf(&path) })),
        ("a bit of a weight", of(&gguf(&changed))),
        ("norm epsilon", of(&gguf(&eps))),
        ("rotation base", of(&gguf(&base_key))),
    ];
    for (what, other) in others {
        assert_ne!(base, other, "{what}");
    }
}
