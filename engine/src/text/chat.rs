//! From messages to a rendered prompt, with the messages' control strings disarmed.

use minijinja::value::Value;
use serde::Serialize;

use super::segment::{Segmenter, unused_char};
use super::template::Templates;
use super::{ChatEnd, ChatError, ChatMessage, ChatOptions, Content};

/// A rendered chat. `text` may hold `marker` characters: they keep strings of messages from being control tokens, and
/// are to be removed after the text was cut.
pub(super) struct Rendered {
    pub(super) text: String,
    pub(super) marker: char,
}

/// What templates know of the model's tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct TemplateTokens {
    pub(super) bos: Option<String>,
    pub(super) eos: Option<String>,
}

/// A message as templates see it.
#[derive(Debug, Clone, Serialize)]
struct Plain {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

pub(super) fn render(
    templates: &Templates,
    tokens: &TemplateTokens,
    segmenter: &Segmenter,
    messages: &[ChatMessage],
    options: &ChatOptions,
) -> Result<Rendered, ChatError> {
    if templates.is_empty() {
        return Err(ChatError::NoTemplate);
    }
    if messages.is_empty() {
        return Err(ChatError::Empty);
    }
    let mut plain = messages
        .iter()
        .enumerate()
        .map(|(index, message)| plain(index, message))
        .collect::<Result<Vec<_>, _>>()?;
    let marker = unused_char(|| texts(&plain));
    let marker_text = marker.to_string();
    // Another one, so that it is found again even where the first was needed.
    let end_marker = unused_char(|| texts(&plain).chain([marker_text.as_str()]));
    for message in &mut plain {
        message.content = segmenter.disarm(&message.content, marker);
        if let Some(name) = &mut message.name {
            *name = segmenter.disarm(name, marker);
        }
    }
    let continued = match options.end {
        ChatEnd::Continue => true,
        ChatEnd::Auto => plain.last().is_some_and(|last| last.role == "assistant"),
        ChatEnd::Generate | ChatEnd::Closed => false,
    };
    if continued && let Some(last) = plain.last_mut() {
        last.content.push(end_marker);
    }
    let generate = !continued && options.end != ChatEnd::Closed;
    let context = minijinja::context! {
        messages => Value::from_serialize(&plain),
        add_generation_prompt => generate,
        tools => Value::from(()),
        documents => Value::from(()),
        bos_token => tokens.bos.as_ref().map_or(Value::UNDEFINED, Value::from),
        eos_token => tokens.eos.as_ref().map_or(Value::UNDEFINED, Value::from),
        // The client's variables come last: the first of equal names counts.
        ..Value::from_serialize(&options.variables)
    };
    let mut text = templates.render(options.template.as_deref(), options.now, context)?;
    if continued {
        // What the template writes after the last message closes a turn that is to go on.
        let end = text.rfind(end_marker).ok_or_else(|| {
            ChatError::Failed("it leaves out the last message, so that it cannot be continued".to_owned())
        })?;
        text.truncate(end);
    }
    Ok(Rendered { text, marker })
}

fn texts(messages: &[Plain]) -> impl Iterator<Item = &str> {
    messages
        .iter()
        .flat_map(|message| [message.content.as_str(), message.name.as_deref().unwrap_or_default()])
}

fn plain(index: usize, message: &ChatMessage) -> Result<Plain, ChatError> {
    let role = match message.role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        other => {
            return Err(ChatError::UnknownRole { index, role: other.chars().take(40).collect() });
        }
    };
    let content = match &message.content {
        None => return Err(ChatError::NoContent { index }),
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => {
            let mut joined = String::new();
            for (part, content) in parts.iter().enumerate() {
                match (content.kind.as_str(), &content.text) {
                    ("text", Some(text)) => joined.push_str(text),
                    (kind, _) => {
                        let kind = kind.chars().take(40).collect();
                        return Err(ChatError::UnsupportedPart { index, part, kind });
                    }
                }
            }
            joined
        }
    };
    Ok(Plain { role, content, name: message.name.clone() })
}
