//! Chat templates on minijinja, with what Hugging Face templates expect of Jinja.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::time::SystemTime;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

use super::clock::strftime;
use super::{ChatError, NamedTemplate};

/// Name of the template that is used unless another is asked for.
const DEFAULT: &str = "default";

/// Compiled templates. One that does not compile is kept as the reason, so that only chat fails.
#[derive(Debug, Default)]
pub(super) struct Templates {
    compiled: BTreeMap<String, Result<Environment<'static>, String>>,
}

impl Templates {
    pub(super) fn new(templates: &[NamedTemplate]) -> Self {
        let compiled =
            templates.iter().map(|template| (template.name.clone(), compile(&template.source))).collect();
        Self { compiled }
    }

    /// What is wrong with the templates.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.compiled.iter().filter_map(|(name, template)| {
            let reason = template.as_ref().err()?;
            Some(format!("chat template `{name}` is not valid and chats with it are refused: {reason}"))
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.compiled.is_empty()
    }

    /// Renders with the variables given.
    pub(super) fn render(
        &self,
        name: Option<&str>,
        now: SystemTime,
        context: Value,
    ) -> Result<String, ChatError> {
        let environment = match name {
            Some(name) => self.compiled.get(name).ok_or_else(|| {
                let known: Vec<_> = self.compiled.keys().map(String::as_str).collect();
                ChatError::BadTemplate(format!("there is no template `{name}`; the model has {known:?}"))
            })?,
            // A model with other names only has no obvious template for plain chat.
            None => self.compiled.get(DEFAULT).ok_or(ChatError::NoTemplate)?,
        };
        let environment = environment.as_ref().map_err(|reason| ChatError::BadTemplate(reason.clone()))?;
        let template =
            environment.get_template(DEFAULT).map_err(|error| ChatError::BadTemplate(error.to_string()))?;
        let context = minijinja::context! {
            strftime_now => Value::from_function(move |format: String| strftime(&format, now)),
            ..context
        };
        template.render(context).map_err(|error| refusal(&error))
    }
}

fn compile(source: &str) -> Result<Environment<'static>, String> {
    let mut environment = Environment::new();
    // As `transformers` sets Jinja up.
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    // minijinja iterates over none as over nothing; templates ask in order to know whether there is a list.
    environment.add_test("iterable", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::String)
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        let raised = Raised(message.clone());
        Err(Error::new(ErrorKind::InvalidOperation, message).with_source(raised))
    });
    environment
        .add_template_owned(DEFAULT, without_generation_tags(source))
        .map_err(|error| error.to_string())?;
    Ok(environment)
}

/// What `raise_exception` was called with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn refusal(error: &Error) -> ChatError {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return ChatError::Refused(message.clone());
        }
        source = inner.source();
    }
    ChatError::Failed(error.to_string())
}

/// `{% generation %}` marks the assistant's text for training and renders nothing; minijinja does not know the tag, so
/// it becomes a block that is always entered.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        out.push_str(
            &match tag[2..end].trim_matches(|char: char| char.is_whitespace() || "-+".contains(char)) {
                "generation" => tag.replacen("generation", "if true", 1),
                "endgeneration" => tag.replacen("endgeneration", "endif", 1),
                _ => tag.to_owned(),
            },
        );
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=…)`: no HTML escapes, a space after colons and commas.
#[expect(clippy::needless_pass_by_value, reason = "the form of a minijinja filter")]
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Other arguments of `json.dumps` change the form only in ways that models are not sensitive to.
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        let _: Option<Value> = options.get(ignored)?;
    }
    options.assert_all_used()?;
    let json = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, format!("tojson: {error}")))?;
    let mut out = String::new();
    write_json(&json, indent.filter(|indent| *indent > 0), 0, &mut out);
    Ok(Value::from(out))
}

fn write_json(json: &serde_json::Value, indent: Option<usize>, depth: usize, out: &mut String) {
    use serde_json::Value as Json;
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match json {
        Json::Array(items) if !items.is_empty() => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { comma });
                line(depth + 1, out);
                write_json(item, indent, depth + 1, out);
            }
            line(depth, out);
            out.push(']');
        }
        Json::Object(fields) if !fields.is_empty() => {
            out.push('{');
            for (at, (key, item)) in fields.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { comma });
                line(depth + 1, out);
                out.push_str(&Json::String(key.clone()).to_string());
                out.push_str(": ");
                write_json(item, indent, depth + 1, out);
            }
            line(depth, out);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}
