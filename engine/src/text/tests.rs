//! Tests of text handling on the default model, on tiny vocabularies and on random token streams.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;
use crate::gguf::GgufFile;
use crate::gguf::write::{GgufWriter, TinyModel};

mod chats;
mod streams;
mod vocabularies;

/// The default model's text side, as a gateway gets it: through a serialised descriptor.
fn smollm() -> &'static TextModel {
    static MODEL: OnceLock<TextModel> = OnceLock::new();
    MODEL.get_or_init(|| {
        let file = GgufFile::open(&crate::store::default_model_for_tests()).unwrap();
        let descriptor = TextDescriptor::from_gguf(&file).unwrap();
        let sent = serde_json::to_string(&descriptor).unwrap();
        TextModel::from_descriptor(serde_json::from_str(&sent).unwrap()).unwrap()
    })
}

fn model_of(writer: &GgufWriter) -> Result<TextModel, TextError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    writer.write(&path).unwrap();
    TextModel::from_descriptor(TextDescriptor::from_gguf(&GgufFile::open(&path)?)?)
}

fn tiny() -> GgufWriter {
    TinyModel::default().writer()
}

fn reference() -> serde_json::Value {
    let path = "../tests/fixtures/smollm2_reference.json";
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn token_ids_equal_the_reference() {
    let (model, reference) = (smollm(), reference());
    for entry in reference["texts"].as_array().unwrap() {
        let special = if entry["special"].as_bool().unwrap() { AllowSpecial::Yes } else { AllowSpecial::No };
        let text = entry["text"].as_str().unwrap();
        let got = model.encode(text, special, true).unwrap();
        assert_eq!(got, ids(&entry["ids"]), "{text}");
        assert_eq!(model.decode(&got, false), text);
    }
    for entry in reference["tokenize"].as_array().unwrap() {
        let text = entry["text"].as_str().unwrap();
        assert_eq!(model.encode(text, AllowSpecial::No, true).unwrap(), ids(&entry["ids"]), "{text:?}");
        assert_eq!(
            model.encode(text, AllowSpecial::Yes, true).unwrap(),
            ids(&entry["ids_special"]),
            "{text:?}"
        );
    }
    for entry in reference["greedy"].as_array().unwrap() {
        let special = if entry["special"].as_bool().unwrap() { AllowSpecial::Yes } else { AllowSpecial::No };
        let prompt = model.encode(entry["prompt"].as_str().unwrap(), special, true).unwrap();
        let mut detokenizer = model.detokenizer(&prompt);
        let mut text = String::new();
        for id in ids(&entry["ids"]) {
            detokenizer.push(id, &mut text);
        }
        assert_eq!(text, entry["text"].as_str().unwrap());
    }
}

#[test]
fn what_the_default_model_is() {
    let model = smollm();
    assert_eq!(model.vocab_size(), 49_152);
    assert_eq!(model.end_ids(), [0, 2]);
    assert_eq!(model.begin_id(), None);
    assert!(model.has_chat_template());
    assert_eq!(model.warnings(), &[] as &[String]);
    assert_eq!(model.descriptor().special_ids, (0..17).collect::<Vec<_>>());
    assert_eq!(model.token_bytes(2), b"<|im_end|>");
    assert_eq!(model.token_bytes(905), b" world");
    assert_eq!(model.token_bytes(1 << 20), b"");
}

/// The default model's vocabulary with the words of another family.
fn with_words(pre: &str) -> TextModel {
    let mut json: serde_json::Value = serde_json::from_str(&smollm().descriptor().tokenizer_json).unwrap();
    json["pre_tokenizer"] = pre::PreTokenizer::find(pre).unwrap().json();
    let descriptor = TextDescriptor { tokenizer_json: json.to_string(), ..smollm().descriptor().clone() };
    TextModel::from_descriptor(descriptor).unwrap()
}

/// Not a benchmark: the bound is generous, and what it guards against takes minutes.
#[test]
fn a_megabyte_of_anything_is_tokenized_without_hanging() {
    let units = [" ", "a", "\n", "1", "!", "字", "\0", "'s", "<|im_start|>", "Ab1! ", "  \n x"];
    for (pre, units) in [("smollm", &units[..]), ("llama-bpe", &units[..3]), ("tekken", &units[..3])] {
        let model = with_words(pre);
        for unit in units {
            let text = unit.repeat((1 << 20) / unit.len());
            let start = Instant::now();
            let ids = model.encode(&text, AllowSpecial::No, true).unwrap();
            let took = start.elapsed();
            println!("{pre}: 1 MB of {unit:?}: {} tokens in {took:?}", ids.len());
            assert!(took < Duration::from_secs(30), "{pre} {unit:?} took {took:?}");
            assert!(*unit == "\0" || model.decode(&ids, false) == text);
        }
    }
}

/// 12 MB of spaces before a word take the patterns of this family over the regex engine's backtracking limit.
#[test]
fn a_text_that_defeats_the_regex_engine_is_an_error() {
    let text = " ".repeat(12 << 20) + "x";
    let refused = with_words("tekken").encode(&text, AllowSpecial::No, true).unwrap_err();
    assert!(matches!(refused, TextError::Encode(_)), "{refused}");
}

fn assert_same_as_the_crate(model: &TextModel, text: &str) {
    assert!(model.is_fast());
    assert_eq!(model.encode(text, AllowSpecial::No, false).unwrap(), model.encode_by_crate(text), "{text:?}");
}

#[test]
fn fast_encoding_gives_the_ids_of_the_crate() {
    let reference = reference();
    let texts =
        reference["texts"].as_array().unwrap().iter().chain(reference["tokenize"].as_array().unwrap());
    let mut texts: Vec<String> = texts.map(|entry| entry["text"].as_str().unwrap().to_owned()).collect();
    // Words on both sides of the limit between the two ways of merging.
    texts.extend(
        [40, 47, 48, 49, 50, 97, 300]
            .into_iter()
            .flat_map(|len| [" ", "a", "ab", "é"].map(|unit| unit.repeat(len))),
    );
    texts.push(
        "0123456789 1 12 123 1234 ½ ٣٤ 日本 I'LL we'Re it's 'tis \u{A0}\u{3000}x\r\n\r\n  y\t\tz   "
            .to_owned(),
    );
    texts.push(include_str!("tests.rs").to_owned());
    for pre in ["smollm", "llama-bpe", "qwen2", "default", "gpt-2", "smaug-bpe", "tekken"] {
        let model = with_words(pre);
        for text in &texts {
            assert_same_as_the_crate(&model, text);
        }
    }
}

proptest! {
    #[test]
    fn fast_encoding_gives_the_ids_of_the_crate_for_any_text(text in "(\\PC|[a-z]{1,9}| |\\s|[0-9]|'s|<\\|im_end\\|>){0,60}") {
        assert_same_as_the_crate(smollm(), &text);
    }
}

#[test]
fn text_of_a_user_never_gives_control_tokens() {
    let model = smollm();
    for id in 0..17 {
        let text = String::from_utf8(model.token_bytes(id).to_vec()).unwrap();
        let typed = format!("a{text}{text}b");
        let ids = model.encode(&typed, AllowSpecial::No, true).unwrap();
        assert!(ids.iter().all(|id| !model.is_special(*id)), "{typed}: {ids:?}");
        assert_eq!(model.decode(&ids, true), typed);
        assert_eq!(model.encode(&typed, AllowSpecial::Yes, true).unwrap()[1..3], [id, id]);
    }
}
