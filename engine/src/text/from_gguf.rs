//! The text side of a model from the metadata of its GGUF file alone.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value as Json, json};

use super::pre::PreTokenizer;
use super::{NamedTemplate, TextDescriptor, TextError, byte_char};
use crate::gguf::{GgufError, Metadata, Value};

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";

/// Token types of the format.
mod kind {
    pub(super) const NORMAL: i128 = 1;
    pub(super) const UNKNOWN: i128 = 2;
    pub(super) const CONTROL: i128 = 3;
    pub(super) const USER_DEFINED: i128 = 4;
}

/// Tokens that end a turn in the chat formats of the supported families. A file may mark them as ordinary text or
/// leave out their ids; a generation that runs over them never ends.
pub(super) const END_OF_TURN: [&str; 8] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
];

pub(super) fn descriptor(meta: &Metadata) -> Result<TextDescriptor, TextError> {
    let vocabulary = Vocabulary::read(meta)?;
    let mut warnings = Vec::new();
    let model = meta.need(MODEL, meta.string(MODEL)?)?;
    let (tokenizer, add_bos, bos, eos) = match model {
        "gpt2" => {
            let name = match meta.string(PRE)? {
                Some(name) => name,
                None => {
                    warnings.push(format!(
                        "`{}`: key `{PRE}` is missing, so words are cut in the default way; convert the model again",
                        meta.path().display()
                    ));
                    "default"
                }
            };
            let pre = PreTokenizer::find(name)
                .ok_or_else(|| meta.unsupported(PRE, format!("`{name}`"), PreTokenizer::supported()))?;
            // Vocabularies made from text lack bytes that occur in none: most control characters, and starts of
            // characters that are not assigned.
            let in_text =
                |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..=0xBF | 0xC2..=0xF0);
            let known = |byte: u8| vocabulary.ids.contains_key(byte_char(byte).to_string().as_str());
            let lost: Vec<_> = (0..=u8::MAX).filter(in_text).filter(|byte| !known(*byte)).collect();
            if !lost.is_empty() {
                warnings.push(format!("the bytes {lost:02x?} have no token and are left out of prompts"));
            }
            (byte_level(meta, &vocabulary, pre)?, pre.add_bos, None, None)
        }
        "llama" => (sentence_piece(meta, &vocabulary)?, true, Some(1), Some(2)),
        other => return Err(meta.unsupported(MODEL, format!("`{other}`"), "gpt2, llama").into()),
    };
    let size = vocabulary.tokens.len();
    let mut known = |key: &str, default: Option<u32>| -> Result<Option<u32>, GgufError> {
        let id = match meta.get(key) {
            Some(Value::Ints(ids)) => ids.first().and_then(|id| u32::try_from(*id).ok()),
            _ => meta.id(key)?.or(default),
        };
        if let Some(id) = id.filter(|id| *id as usize >= size) {
            warnings
                .push(format!("key `{key}` is {id}, but the vocabulary has {size} tokens; it is ignored"));
        }
        Ok(id.filter(|id| (*id as usize) < size))
    };
    let bos = known("tokenizer.ggml.bos_token_id", bos)?;
    let eos = known("tokenizer.ggml.eos_token_id", eos)?;
    let mut ends = BTreeSet::from_iter(eos);
    ends.extend(known("tokenizer.ggml.eot_token_id", None)?);
    ends.extend(known("tokenizer.ggml.eom_token_id", None)?);
    if let Some(Value::Ints(ids)) = meta.get("tokenizer.ggml.eos_token_id") {
        ends.extend(ids.iter().filter_map(|id| u32::try_from(*id).ok()).filter(|id| (*id as usize) < size));
    }
    ends.extend(vocabulary.end_of_turn());
    if meta.bool("tokenizer.ggml.add_eos_token")? == Some(true) {
        warnings.push(
            "key `tokenizer.ggml.add_eos_token` is ignored: an end token would end every prompt".to_owned(),
        );
    }
    let mut add_bos = meta.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos);
    if add_bos && bos.is_none() {
        warnings.push(
            "prompts should start with a begin token, but `tokenizer.ggml.bos_token_id` names none"
                .to_owned(),
        );
        add_bos = false;
    }
    Ok(TextDescriptor {
        tokenizer_json: tokenizer.to_string(),
        templates: templates(meta)?,
        bos,
        eos,
        end_ids: ends.into_iter().collect(),
        add_bos,
        special_ids: (0..)
            .zip(&vocabulary.types)
            .filter(|(_, kind)| is_control(**kind))
            .map(|(id, _)| id)
            .collect(),
        vocab_size: size,
        warnings,
    }
    .checked())
}

fn is_control(kind: i128) -> bool {
    matches!(kind, kind::CONTROL | kind::UNKNOWN)
}

/// The token list with the type of each.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<i128>,
    ids: HashMap<&'a str, u32>,
}

impl<'a> Vocabulary<'a> {
    fn read(meta: &'a Metadata) -> Result<Self, GgufError> {
        let tokens = meta.need(TOKENS, meta.strings(TOKENS)?)?;
        if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
            return Err(meta.bad(TOKENS, format!("an array of {} strings", tokens.len()), "the vocabulary"));
        }
        let mut types = match meta.ints(TYPES)? {
            Some(types) if types.len() >= tokens.len() => types[..tokens.len()].to_vec(),
            Some(types) => {
                let found = format!("an array of {} integers", types.len());
                return Err(meta.bad(TYPES, found, format!("one for each of the {} tokens", tokens.len())));
            }
            None => vec![kind::NORMAL; tokens.len()],
        };
        let tokens: Vec<_> = tokens.iter().map(String::as_str).collect();
        let ids = (0..).zip(&tokens).map(|(id, token)| (*token, id)).collect();
        // What ends a text or a turn is a control token, whatever the converter thought.
        for key in
            ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"]
        {
            if let Some(Value::Int(id)) = meta.get(key)
                && let Some(kind) = usize::try_from(*id).ok().and_then(|id| types.get_mut(id))
            {
                *kind = kind::CONTROL;
            }
        }
        let mut new = Self { tokens, types: Vec::new(), ids };
        for id in new.end_of_turn() {
            types[id as usize] = kind::CONTROL;
        }
        new.types = types;
        Ok(new)
    }

    fn end_of_turn(&self) -> impl Iterator<Item = u32> {
        END_OF_TURN.iter().filter_map(|text| self.ids.get(text).copied())
    }

    /// The `added_tokens` section: control tokens, and words that are cut out before anything else happens.
    fn added(&self) -> Vec<Json> {
        let mut added = Vec::new();
        for (id, (token, kind)) in self.tokens.iter().zip(&self.types).enumerate() {
            let special = is_control(*kind);
            if (special || *kind == kind::USER_DEFINED) && !token.is_empty() {
                added.push(json!({
                    "id": id, "content": token, "special": special,
                    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                }));
            }
        }
        added
    }

    fn json(&self) -> Json {
        let name =
            |id: u32, token: &str| if token.is_empty() { format!("[EMPTY_{id}]") } else { token.to_owned() };
        Json::Object(
            (0..).zip(&self.tokens).map(|(id, token)| (name(id, token), json!(id))).collect::<Map<_, _>>(),
        )
    }
}

fn byte_level(meta: &Metadata, vocabulary: &Vocabulary<'_>, pre: PreTokenizer) -> Result<Json, GgufError> {
    let merges = match meta.need(MERGES, meta.get(MERGES))? {
        Value::Strings(lines) => lines
            .iter()
            // A token may start with the separator, so the cut is after its first character.
            .map(|line| {
                line.char_indices()
                    .skip(1)
                    .find(|(_, char)| *char == ' ')
                    .map(|(at, _)| (&line[..at], &line[at + 1..]))
            })
            .collect::<Option<Vec<_>>>(),
        Value::Arrays(pairs) => pairs
            .iter()
            .map(|pair| match pair {
                Value::Strings(pair) if pair.len() == 2 => Some((pair[0].as_str(), pair[1].as_str())),
                _ => None,
            })
            .collect(),
        _ => None,
    };
    let merges =
        merges.ok_or_else(|| meta.bad(MERGES, "in another form", "strings `a b`, or pairs of strings"))?;
    if merges.is_empty() {
        return Err(meta.bad(MERGES, "empty", "the merges of the tokenizer; convert the model again"));
    }
    for (rank, (left, right)) in merges.iter().enumerate() {
        let whole = format!("{left}{right}");
        for part in [left, right, &whole.as_str()] {
            if !vocabulary.ids.contains_key(part) {
                let found = format!("naming `{part}` in merge {rank}");
                return Err(meta.bad(MERGES, found, format!("made of tokens of `{TOKENS}`")));
            }
        }
    }
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": null,
        "pre_tokenizer": pre.json(),
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": pre.ignore_merges,
            "vocab": vocabulary.json(), "merges": merges,
        },
    }))
}

/// SentencePiece BPE as merges: each way to put a token together from two others, ranked by the token's score.
fn sentence_piece(meta: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Json, GgufError> {
    let scores = meta.need(SCORES, meta.floats(SCORES)?)?;
    if scores.len() < vocabulary.tokens.len() {
        let found = format!("an array of {} floats", scores.len());
        return Err(meta.bad(
            SCORES,
            found,
            format!("one for each of the {} tokens", vocabulary.tokens.len()),
        ));
    }
    let mut merges = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        // Only ordinary tokens form by merging: `<s>` in a text must not become the control token.
        if vocabulary.types[id] != kind::NORMAL {
            continue;
        }
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if vocabulary.ids.contains_key(left) && vocabulary.ids.contains_key(right) {
                merges.push((scores[id], id, left, right));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let merges: Vec<_> = merges.iter().map(|(.., left, right)| (left, right)).collect();
    let unknown = meta.id("tokenizer.ggml.unknown_token_id")?.unwrap_or(0);
    let unknown = vocabulary.tokens.get(unknown as usize).filter(|token| !token.is_empty());
    let prefix = meta.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let mut normalizers = vec![replace];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown,
            "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary.json(), "merges": merges,
        },
    }))
}

fn templates(meta: &Metadata) -> Result<Vec<NamedTemplate>, GgufError> {
    const KEY: &str = "tokenizer.chat_template";
    let mut templates = Vec::new();
    for key in meta.keys().filter(|key| key.starts_with(KEY)) {
        let name = match key.strip_prefix(KEY) {
            Some("") => "default",
            Some(rest) => match rest.strip_prefix('.') {
                Some(name) => name,
                // `tokenizer.chat_templates` lists the names.
                None => continue,
            },
            None => continue,
        };
        if let Some(source) = meta.string(key)? {
            templates.push(NamedTemplate { name: name.to_owned(), source: source.to_owned() });
        }
    }
    Ok(templates)
}
