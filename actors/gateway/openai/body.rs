//! A request body as it came: every field by name, bounded in size, before anything is judged.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::PromptItem;
use super::messages::{Messages, MessagesSeed};
use crate::gateway::error::{ApiError, plain};

/// Fields that a body may have; OpenAI's and ours together are under 100.
const MAX_FIELDS: usize = 256;

/// A value that is not a list or an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// Fractions, and integers beyond 64 bits.
    Float(f64),
    Text(String),
    /// A list or an object where none can be.
    Nested,
}

/// A value one level deep. Lists and objects keep as many entries as the reader asked for and count the rest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Field {
    Scalar(Scalar),
    List { items: Vec<Scalar>, count: usize },
    Object { entries: Vec<(String, Scalar)>, count: usize },
}

/// `prompt`, or the reason why it is not one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Prompts, with how many there were.
    Items {
        items: Vec<PromptItem>,
        count: usize,
    },
    Bad(String),
}

/// How much of each part of a body is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// Entries of a list or object field.
    pub(crate) entries: usize,
    /// Prompts.
    pub(crate) prompts: usize,
}

/// A body, not yet judged.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) fields: BTreeMap<String, Field>,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) messages: Option<Messages>,
    /// `tokens` of `/v1/detokenize`.
    pub(crate) tokens: Option<Prompt>,
    /// A name that came twice, or one too many.
    fault: Option<ApiError>,
}

impl Body {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 for what is not a JSON object, with the place of the fault; the body itself is never shown back.
    pub(crate) fn parse(bytes: &[u8], keep: Keep) -> Result<Self, ApiError> {
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err(ApiError::invalid("the request body is empty; send a JSON object"));
        }
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let read = BodySeed { keep }.deserialize(&mut reader).and_then(|body| reader.end().map(|()| body));
        let mut body = read.map_err(|e| {
            let what = if e.is_data() { "a JSON object was expected" } else { "this is not JSON" };
            let hint = if std::str::from_utf8(bytes).is_err() { " (the body has to be UTF-8)" } else { "" };
            let (line, column) = (e.line(), e.column());
            let range = if e.to_string().starts_with("number out of range") {
                ": a number is out of range"
            } else {
                ""
            };
            ApiError::invalid(format!(
                "the request body cannot be read: {what}{hint}{range}, at line {line} column {column}"
            ))
        })?;
        body.fault.take().map_or(Ok(body), Err)
    }

    /// Takes a field; absent and null are the same.
    pub(crate) fn take(&mut self, name: &str) -> Option<Field> {
        self.fields.remove(name).filter(|field| *field != Field::Scalar(Scalar::Null))
    }
}

struct BodySeed {
    keep: Keep,
}

impl<'de> DeserializeSeed<'de> for BodySeed {
    type Value = Body;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Body, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for BodySeed {
    type Value = Body;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body, A::Error> {
        let mut body = Body::default();
        let mut count = 0_usize;
        while let Some(name) = map.next_key::<String>()? {
            count += 1;
            let twice = match name.as_str() {
                "prompt" => {
                    body.prompt.replace(map.next_value_seed(PromptSeed { max: self.keep.prompts })?).is_some()
                }
                "tokens" => body.tokens.replace(map.next_value_seed(PromptSeed { max: 1 })?).is_some(),
                "messages" => body.messages.replace(map.next_value_seed(MessagesSeed)?).is_some(),
                _ if count > MAX_FIELDS => {
                    map.next_value::<IgnoredAny>()?;
                    body.fault.get_or_insert_with(|| {
                        ApiError::invalid(format!("the request has more than {MAX_FIELDS} fields"))
                    });
                    false
                }
                _ => {
                    let value = map.next_value_seed(FieldSeed { keep: self.keep.entries })?;
                    body.fields.insert(name.clone(), value).is_some()
                }
            };
            if twice {
                let name = plain(&name);
                let fault = ApiError::field(name.clone(), format!("`{name}` is there twice"));
                body.fault.get_or_insert(fault);
            }
        }
        Ok(body)
    }
}

/// Reads the scalars for a visitor whose value type can be made from one.
macro_rules! scalar_visits {
    ($from:expr) => {
        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok($from(Scalar::Null))
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
            Ok($from(Scalar::Bool(value)))
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
            Ok($from(Scalar::Int(value)))
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
            Ok($from(i64::try_from(value).map_or(Scalar::Float(value as f64), Scalar::Int)))
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
            Ok($from(Scalar::Float(value)))
        }

        fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
            Ok($from(Scalar::Text(value.to_owned())))
        }

        fn visit_string<E: Error>(self, value: String) -> Result<Self::Value, E> {
            Ok($from(Scalar::Text(value)))
        }
    };
}

struct ScalarSeed;

impl<'de> DeserializeSeed<'de> for ScalarSeed {
    type Value = Scalar;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Scalar, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ScalarSeed {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    scalar_visits!(std::convert::identity);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Nested)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Nested)
    }
}

struct FieldSeed {
    keep: usize,
}

impl<'de> DeserializeSeed<'de> for FieldSeed {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    scalar_visits!(Field::Scalar);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Field, A::Error> {
        let (mut items, mut count) = (Vec::new(), 0);
        loop {
            if count < self.keep {
                let Some(item) = seq.next_element_seed(ScalarSeed)? else { break };
                items.push(item);
            } else if seq.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
            count += 1;
        }
        Ok(Field::List { items, count })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Field, A::Error> {
        let (mut entries, mut count) = (Vec::new(), 0);
        loop {
            if count < self.keep {
                let Some(name) = map.next_key::<String>()? else { break };
                entries.push((name, map.next_value_seed(ScalarSeed)?));
            } else if map.next_entry::<IgnoredAny, IgnoredAny>()?.is_none() {
                break;
            }
            count += 1;
        }
        Ok(Field::Object { entries, count })
    }
}

/// Reads `prompt`: a text, a list of tokens, or a list of either.
struct PromptSeed {
    max: usize,
}

const PROMPT_RULE: &str =
    "`prompt` has to be a string, a list of tokens, or a list of strings or of token lists";

impl<'de> DeserializeSeed<'de> for PromptSeed {
    type Value = Prompt;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Prompt, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PromptSeed {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt")
    }

    scalar_visits!(|scalar| match scalar {
        Scalar::Text(text) => Prompt::Items { items: vec![PromptItem::Text(text)], count: 1 },
        Scalar::Null => Prompt::Bad("`prompt` is missing".into()),
        _ => Prompt::Bad(PROMPT_RULE.into()),
    });

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompt, A::Error> {
        let (mut items, mut count) = (Vec::new(), 0_usize);
        let mut tokens: Option<Vec<u32>> = None;
        let mut bad = None;
        while bad.is_none() && count < self.max {
            match seq.next_element_seed(ElementSeed)? {
                None => break,
                // The first element decides which of the forms this is.
                Some(Element::Token(token)) if count == 0 || tokens.is_some() => {
                    tokens.get_or_insert_default().push(token);
                    continue;
                }
                Some(Element::Item(item)) if tokens.is_none() => items.push(item),
                Some(Element::Bad(why)) => bad = Some(why),
                Some(_) => bad = Some("`prompt` mixes tokens with strings or lists"),
            }
            count += 1;
        }
        // The rest is counted only.
        while seq.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(match (bad, tokens) {
            (Some(why), _) => Prompt::Bad(why.into()),
            (None, Some(tokens)) => Prompt::Items { items: vec![PromptItem::Tokens(tokens)], count: 1 },
            (None, None) => Prompt::Items { items, count },
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Prompt, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Prompt::Bad(PROMPT_RULE.into()))
    }
}

enum Element {
    Token(u32),
    Item(PromptItem),
    Bad(&'static str),
}

struct ElementSeed;

impl<'de> DeserializeSeed<'de> for ElementSeed {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(self)
    }
}

const TOKEN_RULE: &str = "a token in `prompt` has to be a whole number from 0 to the size of the vocabulary";

impl<'de> Visitor<'de> for ElementSeed {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token, a string or a list of tokens")
    }

    scalar_visits!(|scalar| match scalar {
        Scalar::Text(text) => Element::Item(PromptItem::Text(text)),
        Scalar::Int(n) => u32::try_from(n).map_or(Element::Bad(TOKEN_RULE), Element::Token),
        Scalar::Float(_) => Element::Bad(TOKEN_RULE),
        _ => Element::Bad(PROMPT_RULE),
    });

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
        let (mut tokens, mut bad) = (Vec::new(), None);
        while let Some(scalar) = seq.next_element_seed(ScalarSeed)? {
            match scalar {
                Scalar::Int(n) if bad.is_none() => match u32::try_from(n) {
                    Ok(token) => tokens.push(token),
                    Err(_) => bad = Some(TOKEN_RULE),
                },
                _ => bad = Some(TOKEN_RULE),
            }
        }
        Ok(bad.map_or(Element::Item(PromptItem::Tokens(tokens)), Element::Bad))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Element, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Element::Bad(PROMPT_RULE))
    }
}

#[cfg(test)]
mod tests;
