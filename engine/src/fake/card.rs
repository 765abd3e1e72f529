//! The fake model's card: a byte-level vocabulary and a ChatML template.

use std::sync::Arc;

use policies::kv::Fingerprint;
use policies::request::Token;
use serde_json::{Map, Value, json};

use crate::ModelCard;
use crate::text::{NamedTemplate, TextDescriptor};

/// `<|im_start|>`: opens a turn of a conversation.
pub const START_OF_TURN: Token = 256;
/// `<|im_end|>`: ends a turn; the token that the fake model ends an answer with.
pub const END_OF_TURN: Token = 257;
/// `<|endoftext|>`: ends a text.
pub const END_OF_TEXT: Token = 258;
/// Size of the vocabulary: the bytes, then the control tokens.
pub const VOCAB: u32 = 259;

const CONTROL: [(Token, &str); 3] =
    [(START_OF_TURN, "<|im_start|>"), (END_OF_TURN, "<|im_end|>"), (END_OF_TEXT, "<|endoftext|>")];

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}";

/// The card of the fake model, served as `name` with a window of `max_context` tokens.
#[must_use]
pub fn fake_card(name: &str, max_context: u32, page_tokens: u32) -> ModelCard {
    let text = TextDescriptor {
        tokenizer_json: tokenizer().to_string(),
        templates: vec![NamedTemplate { name: "default".into(), source: TEMPLATE.into() }],
        bos: None,
        eos: Some(END_OF_TURN),
        end_ids: vec![END_OF_TURN, END_OF_TEXT],
        add_bos: false,
        special_ids: CONTROL.iter().map(|(id, _)| *id).collect(),
        vocab_size: VOCAB as usize,
        warnings: Vec::new(),
    };
    ModelCard {
        name: name.into(),
        description: "fake engine: deterministic letters, no model".into(),
        text: Arc::new(text),
        fingerprint: Fingerprint::of(&[("engine", b"fake"), ("version", b"1")]),
        max_context,
        vocab: VOCAB,
        page_tokens,
    }
}

/// A `tokenizer.json` in which the token of a byte is its value: byte-level BPE without merges.
fn tokenizer() -> Value {
    let mut vocab = Map::new();
    for byte in 0..=u8::MAX {
        vocab.insert(symbol(byte).to_string(), json!(byte));
    }
    let added = CONTROL.iter().map(|(id, content)| {
        json!({
            "id": id, "content": content, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        })
    });
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    })
}

/// The character that byte-level tokenizers write a byte as (GPT-2): itself where it is printable Latin-1, and the
/// others, in order, as the characters from U+0100.
fn symbol(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).expect("fewer than 256 bytes are not printable")
}
