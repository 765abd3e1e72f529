//! Chats as clients send them, and how they are to be rendered.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// One message of a chat, as OpenAI's API has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `developer` (same as system), `user` or `assistant`.
    pub role: String,
    /// The text.
    #[serde(default)]
    pub content: Option<Content>,
    /// Optional name of the speaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Message content: a string, or parts that are joined to the same string.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Parts, of which only `text` ones are supported.
    Parts(Vec<ContentPart>),
}

/// A part of message content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentPart {
    /// `text`, or something unsupported.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text` part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// How a rendered chat ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChatEnd {
    /// `Continue` when the last message is the assistant's, else `Generate`.
    #[default]
    Auto,
    /// With the opening of an assistant turn.
    Generate,
    /// Inside the last message, which the model continues.
    Continue,
    /// After the last message.
    Closed,
}

/// How a chat is rendered.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    /// How the prompt ends.
    pub end: ChatEnd,
    /// A named template; `None` is `default`.
    pub template: Option<String>,
    /// Further variables for the template (`enable_thinking`, …).
    pub variables: BTreeMap<String, serde_json::Value>,
    /// The time `strftime_now` sees (UTC).
    pub now: SystemTime,
}

impl ChatOptions {
    /// The defaults at a time.
    pub fn at(now: SystemTime) -> Self {
        Self { end: ChatEnd::default(), template: None, variables: BTreeMap::new(), now }
    }
}

impl ChatMessage {
    /// A message of plain text.
    pub fn text(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: Some(Content::Text(content.to_owned())), name: None }
    }
}
