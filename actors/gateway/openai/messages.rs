//! `messages` of a chat.

use std::fmt;

use engine::text::{ChatMessage, Content, ContentPart};
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::gateway::error::{ApiError, plain};

/// `messages`, or what is wrong with the first bad one.
pub(crate) type Messages = Result<Vec<ChatMessage>, ApiError>;

/// Reads `messages`, one message at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessagesSeed;

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::field("messages", message)
}

fn not_a_list() -> Messages {
    Err(bad("`messages` has to be a list of messages"))
}

impl<'de> DeserializeSeed<'de> for MessagesSeed {
    type Value = Messages;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Messages, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MessagesSeed {
    type Value = Messages;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("messages")
    }

    fn visit_unit<E: Error>(self) -> Result<Messages, E> {
        Ok(Err(bad("`messages` is missing")))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Messages, E> {
        Ok(not_a_list())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Messages, E> {
        Ok(not_a_list())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Messages, E> {
        Ok(not_a_list())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Messages, E> {
        Ok(not_a_list())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Messages, E> {
        Ok(not_a_list())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Messages, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(not_a_list())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Messages, A::Error> {
        let mut messages = Vec::new();
        let mut fault = None;
        while fault.is_none() {
            match seq.next_element::<Value>()? {
                None => break,
                Some(value) => match message(messages.len(), value) {
                    Ok(message) => messages.push(message),
                    Err(e) => fault = Some(e),
                },
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(fault.map_or(Ok(messages), Err))
    }
}

/// One message; `index` is its place, for error texts.
fn message(index: usize, value: Value) -> Result<ChatMessage, ApiError> {
    let Value::Object(mut fields) = value else {
        return Err(bad(format!("messages[{index}] has to be an object")));
    };
    let role = match take(&mut fields, "role") {
        Some(Value::String(role)) => role,
        Some(_) => return Err(bad(format!("messages[{index}].role has to be a string"))),
        None => return Err(bad(format!("messages[{index}].role is missing"))),
    };
    if !matches!(role.as_str(), "system" | "developer" | "user" | "assistant") {
        let hint =
            if matches!(role.as_str(), "tool" | "function") { ": tools are not supported yet" } else { "" };
        return Err(bad(format!(
            "messages[{index}].role `{}` is not known{hint}; use system, developer, user or assistant",
            plain(&role)
        )));
    }
    let content = match take(&mut fields, "content") {
        Some(Value::String(text)) => Content::Text(text),
        Some(Value::Array(parts)) => Content::Parts(
            parts.into_iter().enumerate().map(|(i, p)| part(index, i, p)).collect::<Result<_, _>>()?,
        ),
        Some(_) => {
            return Err(bad(format!("messages[{index}].content has to be a string or a list of parts")));
        }
        None if fields.contains_key("tool_calls") => {
            return Err(bad(format!("messages[{index}].tool_calls: tools are not supported yet")));
        }
        None => {
            return Err(bad(format!(
                "messages[{index}].content is missing; give a string or a list of text parts"
            )));
        }
    };
    let name = match take(&mut fields, "name") {
        None => None,
        Some(Value::String(name)) => Some(name),
        Some(_) => return Err(bad(format!("messages[{index}].name has to be a string"))),
    };
    // Absent, null and empty say the same; SDKs send an answer back as they got it.
    fields.retain(|key, value| {
        let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        !(empty
            && matches!(key.as_str(), "tool_calls" | "refusal" | "annotations" | "audio" | "function_call"))
    });
    match fields.keys().next() {
        Some(key) => Err(bad(format!("messages[{index}].{} is not supported", plain(key)))),
        None => Ok(ChatMessage { role, content: Some(content), name }),
    }
}

/// One content part; only text is supported.
fn part(index: usize, part: usize, value: Value) -> Result<ContentPart, ApiError> {
    let at = format!("messages[{index}].content[{part}]");
    let Value::Object(mut fields) = value else {
        return Err(bad(format!("{at} has to be an object")));
    };
    let Some(Value::String(kind)) = take(&mut fields, "type") else {
        return Err(bad(format!("{at}.type has to be a string")));
    };
    if kind != "text" {
        return Err(bad(format!(
            "{at}: `{}` parts are not supported by this model; use `text`",
            plain(&kind)
        )));
    }
    let Some(Value::String(text)) = take(&mut fields, "text") else {
        return Err(bad(format!("{at}.text has to be a string")));
    };
    match fields.keys().find(|key| *key != "annotations") {
        Some(key) => Err(bad(format!("{at}.{} is not supported", plain(key)))),
        None => Ok(ContentPart { kind, text: Some(text) }),
    }
}

/// Takes a value; absent and null are the same.
fn take(fields: &mut Map<String, Value>, key: &str) -> Option<Value> {
    // Swapping keeps removal cheap; the order of fields means nothing.
    fields.swap_remove(key).filter(|value| !value.is_null())
}
