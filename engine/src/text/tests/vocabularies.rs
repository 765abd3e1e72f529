//! Tokenizers from other files: merges in other forms, SentencePiece, begin and end tokens, Hugging Face directories.

use super::*;

#[test]
fn merges_come_as_strings_or_pairs_and_must_come() {
    let text = "in the  thin theatre";
    let strings = model_of(&tiny()).unwrap();
    let pairs = model_of(&tiny().pairs("tokenizer.ggml.merges", &crate::gguf::write::TINY_MERGES)).unwrap();
    let ids = strings.encode(text, AllowSpecial::No, true).unwrap();
    assert_eq!(pairs.encode(text, AllowSpecial::No, true).unwrap(), ids);
    assert!(ids.len() < text.len(), "some merge should apply");
    for (writer, said) in [
        (tiny().without("tokenizer.ggml.merges"), "key `tokenizer.ggml.merges` is missing"),
        (tiny().strings::<&str>("tokenizer.ggml.merges", &[]), "key `tokenizer.ggml.merges` is"),
        (tiny().strings("tokenizer.ggml.merges", &["ab"]), "key `tokenizer.ggml.merges` is"),
        (tiny().strings("tokenizer.ggml.merges", &["q z"]), "naming `qz` in merge 0"),
        (
            tiny().string("tokenizer.ggml.pre", "martian"),
            "`martian`, which is not supported; supported: default",
        ),
        (tiny().string("tokenizer.ggml.model", "t5"), "`t5`, which is not supported; supported: gpt2, llama"),
        (tiny().without("tokenizer.ggml.tokens"), "key `tokenizer.ggml.tokens` is missing"),
        (tiny().without("tokenizer.ggml.model"), "key `tokenizer.ggml.model` is missing"),
        (tiny().i32s("tokenizer.ggml.token_type", &[1, 1]), "one for each of the 264 tokens"),
    ] {
        let error = model_of(&writer).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("tiny.gguf"), "{error}");
    }
}

#[test]
fn exactly_one_begin_token_on_every_path() {
    let model = model_of(
        &tiny().bool("tokenizer.ggml.add_bos_token", true).u32("tokenizer.ggml.bos_token_id", 0).string(
            "tokenizer.chat_template",
            "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
        ),
    )
    .unwrap();
    let options = ChatOptions::at(UNIX_EPOCH);
    let chat = model.encode_chat(&[ChatMessage::text("user", "hi")], &options).unwrap();
    let rendered = model.render_chat(&[ChatMessage::text("user", "hi")], &options).unwrap();
    assert_eq!(rendered, "<|endoftext|>hi");
    assert_eq!(model.encode(&rendered, AllowSpecial::Yes, true).unwrap(), chat);
    assert_eq!(model.encode("hi", AllowSpecial::Yes, true).unwrap(), chat);
    assert_eq!(model.encode("hi", AllowSpecial::No, true).unwrap(), chat);
    assert_eq!(chat.iter().filter(|id| **id == 0).count(), 1);
    // An empty text is the begin token alone, or nothing.
    assert_eq!(model.encode("", AllowSpecial::No, true).unwrap(), [0]);
    assert_eq!(model_of(&tiny()).unwrap().encode("", AllowSpecial::No, true).unwrap(), [0_u32; 0]);
    // The same without a template that writes it.
    let model = model_of(&tiny().bool("tokenizer.ggml.add_bos_token", true)).unwrap();
    let chat = model.encode_chat(&[ChatMessage::text("user", "hi")], &options).unwrap();
    assert_eq!(model.begin_id(), Some(1));
    assert_eq!(
        chat.iter().filter(|id| **id == 1).count(),
        2,
        "the template's first turn opens with the begin token"
    );
}

#[test]
fn all_end_tokens_are_known_and_none_is_a_warning() {
    let ends = |writer: GgufWriter| model_of(&writer).unwrap().end_ids().to_vec();
    assert_eq!(ends(tiny()), [0, 2]);
    assert_eq!(ends(tiny().u32("tokenizer.ggml.eot_token_id", 7)), [0, 2, 7]);
    assert_eq!(ends(tiny().i32s("tokenizer.ggml.eos_token_id", &[5, 6])), [0, 2, 5, 6]);
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    tokens.push("ab".to_owned());
    let bare = tiny()
        .strings("tokenizer.ggml.tokens", &tokens)
        .without("tokenizer.ggml.token_type")
        .strings("tokenizer.ggml.merges", &["a b"])
        .without("tokenizer.ggml.bos_token_id")
        .u32("tokenizer.ggml.eos_token_id", 9_999);
    let model = model_of(&bare).unwrap();
    assert_eq!(model.end_ids(), [0_u32; 0]);
    let warnings = model.warnings().join("\n");
    assert!(warnings.contains("names no end token") && warnings.contains("is 9999"), "{warnings}");
}

#[test]
fn words_marked_as_text_are_kept_whole_and_may_come_from_users() {
    let mut types = vec![1; 264];
    types[..3].copy_from_slice(&[3, 3, 3]);
    types[260] = 4;
    let model = model_of(&tiny().i32s("tokenizer.ggml.token_type", &types)).unwrap();
    assert_eq!(model.token_bytes(260), "the".as_bytes());
    // Cut out before words are made, so the space before it stays alone.
    let ids = model.encode(" the", AllowSpecial::No, true).unwrap();
    assert_eq!(ids.last(), Some(&260));
    assert_eq!(model.decode(&ids, true), " the");
}

/// A SentencePiece vocabulary: control tokens, bytes, and pieces with scores.
fn sentence_piece() -> GgufWriter {
    let mut tokens: Vec<(String, f32, i32)> =
        vec![("<unk>".into(), 0.0, 2), ("<s>".into(), 0.0, 3), ("</s>".into(), 0.0, 3)];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6)));
    for (rank, piece) in
        ["▁t", "he", "▁the", "er", "s>", "▁▁", "▁", "t", "h", "e", "r", "s", ">", "<", "a"].iter().enumerate()
    {
        tokens.push(((*piece).into(), -(rank as f32), 1));
    }
    tiny()
        .string("tokenizer.ggml.model", "llama")
        .without("tokenizer.ggml.merges")
        .without("tokenizer.ggml.pre")
        .without("tokenizer.ggml.add_bos_token")
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .strings(
            "tokenizer.ggml.tokens",
            &tokens.iter().map(|(token, ..)| token.as_str()).collect::<Vec<_>>(),
        )
        .f32s("tokenizer.ggml.scores", &tokens.iter().map(|(_, score, _)| *score).collect::<Vec<_>>())
        .i32s("tokenizer.ggml.token_type", &tokens.iter().map(|(.., kind)| *kind).collect::<Vec<_>>())
}

#[test]
fn sentence_piece_files_work_from_their_scores() {
    let model = model_of(&sentence_piece()).unwrap();
    let pieces = |text: &str, special| -> Vec<String> {
        let ids = model.encode(text, special, false).unwrap();
        ids.iter().map(|id| String::from_utf8_lossy(model.token_bytes(*id)).into_owned()).collect()
    };
    assert_eq!(pieces("the her", AllowSpecial::No), [" the", " ", "he", "r"]);
    assert_eq!(pieces("é", AllowSpecial::No).len(), 3, "a space and two bytes");
    assert_eq!(model.begin_id(), Some(1), "the default of this kind");
    assert_eq!(model.encode("the", AllowSpecial::No, true).unwrap()[0], 1);
    // No merge makes the control token of the text.
    let typed = model.encode("<s>", AllowSpecial::No, false).unwrap();
    assert!(typed.iter().all(|id| !model.is_special(*id)), "{typed:?}");
    assert_eq!(model.encode("<s>", AllowSpecial::Yes, true).unwrap(), [1], "one begin token");
    // Text after a control token starts with a space of its own, as in llama.cpp.
    assert_eq!(pieces("<s>the</s>a", AllowSpecial::Yes), ["<s>", " the", "</s>", " ", "a"]);
    // The tokenizer's own space is not part of the text; one inside a stream is.
    for text in ["the her", " the", "é 字", ""] {
        assert_eq!(model.decode(&model.encode(text, AllowSpecial::No, false).unwrap(), true), text);
    }
    let mut out = String::new();
    model.detokenizer(&[1]).push(model.encode("the", AllowSpecial::No, false).unwrap()[0], &mut out);
    assert_eq!(out, " the");
    let missing = model_of(&sentence_piece().without("tokenizer.ggml.scores")).unwrap_err().to_string();
    assert!(missing.contains("key `tokenizer.ggml.scores` is missing"), "{missing}");
}

fn hf_dir(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), &smollm().descriptor().tokenizer_json).unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

#[test]
fn a_hugging_face_directory_gives_the_same_ids() {
    let dir = hf_dir(&[
        (
            "tokenizer_config.json",
            r#"{"bos_token":"<|im_start|>","eos_token":{"content":"<|im_end|>"},"chat_template":"old"}"#,
        ),
        ("generation_config.json", r#"{"eos_token_id":[2,5]}"#),
        ("config.json", r#"{"eos_token_id":0}"#),
        ("chat_template.jinja", "{{ messages[0].content }}{{ eos_token }}"),
    ]);
    let descriptor = TextDescriptor::from_hf_dir(dir.path()).unwrap();
    assert_eq!((descriptor.bos, descriptor.eos, descriptor.add_bos), (Some(1), Some(2), false));
    assert_eq!(descriptor.end_ids, [0, 2, 5]);
    assert_eq!(descriptor.special_ids, smollm().descriptor().special_ids);
    let model = TextModel::from_descriptor(descriptor).unwrap();
    assert_eq!(model.vocab_size(), smollm().vocab_size());
    for entry in reference()["tokenize"].as_array().unwrap() {
        let text = entry["text"].as_str().unwrap();
        assert_eq!(model.encode(text, AllowSpecial::No, true).unwrap(), ids(&entry["ids"]));
    }
    let chat = model.render_chat(&[ChatMessage::text("user", "hi")], &ChatOptions::at(UNIX_EPOCH));
    assert_eq!(chat.as_deref(), Ok("hi<|im_end|>"));
}

#[test]
fn damaged_side_files_are_warnings_and_a_missing_tokenizer_is_not() {
    let dir = hf_dir(&[
        ("generation_config.json", "{"),
        (
            "tokenizer_config.json",
            r#"{"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}"#,
        ),
    ]);
    let descriptor = TextDescriptor::from_hf_dir(dir.path()).unwrap();
    assert!(descriptor.warnings[0].contains("generation_config.json"), "{:?}", descriptor.warnings);
    assert_eq!(descriptor.end_ids, [0, 2], "found by their text");
    assert_eq!(descriptor.templates.len(), 2);
    let empty = tempfile::tempdir().unwrap();
    let error = TextDescriptor::from_hf_dir(empty.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
}

/// Metaspace with the scheme `first` treats only the start of a text as a start.
#[test]
fn text_after_a_control_token_is_not_the_start_of_a_text() {
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": 0, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"<s>": 0, "▁": 1, "a": 2, "b": 3}, "merges": []},
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let model = TextModel::from_descriptor(TextDescriptor::from_hf_dir(dir.path()).unwrap()).unwrap();
    assert_eq!(model.encode("a<s>b b", AllowSpecial::Yes, false).unwrap(), [1, 2, 0, 3, 1, 3]);
    assert_eq!(model.decode(&[1, 2, 1, 3], true), "a b");
}
