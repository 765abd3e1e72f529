//! The text side of a Hugging Face directory.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tokenizers::Tokenizer;

use super::from_gguf::END_OF_TURN;
use super::{NamedTemplate, TextDescriptor, TextError};

pub(super) fn descriptor(dir: &Path) -> Result<TextDescriptor, TextError> {
    let path = dir.join("tokenizer.json");
    let tokenizer_json = std::fs::read_to_string(&path).map_err(|error| {
        let what = format!("{error}; a model directory needs its tokenizer in this form");
        TextError::File { path: path.clone(), what }
    })?;
    let tokenizer: Tokenizer = tokenizer_json.parse().map_err(|error| TextError::Tokenizer {
        origin: format!("`{}`", path.display()),
        what: format!("{error}"),
    })?;
    let mut warnings = Vec::new();
    let mut read = |name: &str| optional_json(&dir.join(name), &mut warnings);
    let config = read("config.json");
    let generation = read("generation_config.json");
    let tokenizer_config = read("tokenizer_config.json");

    let named = |key: &str| {
        let value = &tokenizer_config[key];
        let text = value.as_str().or_else(|| value["content"].as_str())?;
        tokenizer.token_to_id(text)
    };
    let bos = named("bos_token").or_else(|| ids(&config["bos_token_id"]).first().copied());
    let mut ends: BTreeSet<u32> =
        [&generation, &config].iter().flat_map(|file| ids(&file["eos_token_id"])).collect();
    let eos = named("eos_token").or_else(|| ends.first().copied());
    ends.extend(eos);
    let added = tokenizer.get_added_tokens_decoder();
    ends.extend(
        END_OF_TURN.iter().filter_map(|text| tokenizer.token_to_id(text)).filter(|id| added.contains_key(id)),
    );
    let vocab_size = tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
    ends.retain(|id| (*id as usize) < vocab_size);

    let mut special: BTreeSet<u32> =
        added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
    special.extend(bos);
    special.extend(&ends);
    // What the tokenizer itself puts in front of a text says more than `add_bos_token`, which is often absent or null.
    let first =
        tokenizer.encode_fast("a", true).ok().and_then(|encoding| encoding.get_ids().first().copied());
    let mut templates = templates(&tokenizer_config);
    if let Ok(source) = std::fs::read_to_string(dir.join("chat_template.jinja")) {
        templates.retain(|template| template.name != "default");
        templates.push(NamedTemplate { name: "default".to_owned(), source });
    }
    Ok(TextDescriptor {
        tokenizer_json,
        templates,
        bos,
        eos,
        end_ids: ends.into_iter().collect(),
        add_bos: bos.is_some() && first == bos,
        special_ids: special.into_iter().collect(),
        vocab_size,
        warnings,
    }
    .checked())
}

/// A file that may be absent; one that is not JSON is a warning.
fn optional_json(path: &Path, warnings: &mut Vec<String>) -> Value {
    match std::fs::read_to_string(path) {
        Err(_) => Value::Null,
        Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| {
            warnings.push(format!("`{}` is not JSON and is ignored: {error}", path.display()));
            Value::Null
        }),
    }
}

/// A token id or a list of them.
fn ids(value: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(values) => values.iter().filter_map(id).collect(),
        value => id(value).into_iter().collect(),
    }
}

/// A template, or a list of named ones.
fn templates(config: &Value) -> Vec<NamedTemplate> {
    let named = |name: &Value, source: &Value| {
        Some(NamedTemplate { name: name.as_str()?.to_owned(), source: source.as_str()?.to_owned() })
    };
    match &config["chat_template"] {
        Value::String(source) => vec![NamedTemplate { name: "default".to_owned(), source: source.clone() }],
        Value::Array(list) => {
            list.iter().filter_map(|entry| named(&entry["name"], &entry["template"])).collect()
        }
        _ => Vec::new(),
    }
}
