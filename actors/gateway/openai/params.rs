//! The fields that chat and completions share: what each may be, and what it becomes.

use axum::http::HeaderMap;
use config::ids::SessionId;
use config::{Dur, GatewayConfig};
use policies::order::{deadline, keep_session, priority};
use policies::request::{Prop, Props, Sampling};
use policies::time::Span;

use super::body::{Body, Field, Scalar};
use crate::gateway::error::{ApiError, plain};

/// Hints that a request may carry.
const MAX_PROPS: usize = 32;
/// Bytes of a hint's name or text.
const MAX_PROP_BYTES: usize = 256;
/// Bytes of one stop string.
const MAX_STOP_BYTES: usize = 1024;
/// Headers that name a conversation, ours first, then Dynamo's and SGLang's.
const SESSION_HEADERS: [&str; 3] = ["x-session-id", "x-dynamo-session-id", "x-smg-routing-key"];
/// Bytes of a conversation's name that are kept as they are.
const MAX_SESSION_BYTES: usize = 256;
/// Headers that begin with this are hints.
const PROP_HEADER: &str = "x-prop-";
/// Headers that stand for a hint, ours first, then what clients of other servers send; `x-prop-…` wins over them.
const PROP_ALIASES: [(&str, &str); 3] = [
    ("x-slo-ttft-ms", deadline::TTFT_PROP),
    ("x-session-final", keep_session::FINAL_PROP),
    ("x-dynamo-session-final", keep_session::FINAL_PROP),
];

/// Fields that change nothing here, whatever they hold: accounting, storage and routing hints of OpenAI's own service.
const IGNORED: [&str; 6] = [
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
    "verbosity",
    "prompt_cache_retention",
    "prediction",
];

/// Switches of other servers that routers in front of us write into every request (sglang-router does): the value that
/// means what we do anyway. Answers end before a stop string and have no control tokens.
const SWITCHES: [(&str, bool); 3] =
    [("no_stop_trim", false), ("skip_special_tokens", true), ("return_hidden_states", false)];
/// The like that change nothing here either way: no answer has a part that is split off as reasoning.
const WITHOUT_EFFECT: [&str; 2] = ["separate_reasoning", "stream_reasoning"];

/// What both kinds of request have.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) model: String,
    /// `logprobs` is left to the caller: its form differs.
    pub(super) sampling: Sampling,
    pub(super) stop: Vec<String>,
    pub(super) n: u32,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) ignore_end: bool,
    pub(super) props: Props,
    pub(super) session: Option<SessionId>,
    pub(super) stages: bool,
}

/// Takes the shared fields out of `body`; `seed` is used where the client sets none.
///
/// # Errors
/// 400 with the first field that is not allowed.
pub(super) fn common(
    body: &mut Body,
    headers: &HeaderMap,
    limits: &GatewayConfig,
    seed: u64,
) -> Result<Common, ApiError> {
    let model = match text(body, "model")? {
        Some(name) if !name.is_empty() => name,
        Some(_) => return Err(ApiError::field("model", "`model` is empty; name a model or `default`")),
        None => return Err(ApiError::field("model", "`model` is missing; name a model or `default`")),
    };
    let n = int(body, "n", 1, limits.max_n as i64, "gateway.max-n")?.unwrap_or(1) as u32;
    let stream = flag(body, "stream")?.unwrap_or(false);
    let sampling = sampling(body, limits, seed)?;
    let common = Common {
        model,
        stop: stop(body, limits.max_stop)?,
        n,
        stream,
        include_usage: stream_options(body, stream)?,
        ignore_end: flag(body, "ignore_eos")?.unwrap_or(false),
        props: props(body, headers)?,
        session: session(body, headers)?,
        stages: flag(body, "include_stages")?.unwrap_or(false),
        sampling,
    };
    for name in IGNORED {
        body.take(name);
    }
    only(body, "service_tier", &["auto", "default"], "there is one tier")?;
    if flag(body, "store")?.unwrap_or(false) {
        return Err(ApiError::unsupported("store", "answers are not stored"));
    }
    for (name, ours) in SWITCHES {
        if flag(body, name)?.is_some_and(|asked| asked != ours) {
            return Err(ApiError::unsupported(name, &format!("only {ours} can be asked for")));
        }
    }
    for name in WITHOUT_EFFECT {
        flag(body, name)?;
    }
    Ok(common)
}

/// The conversation: `x-session-id` or what other routers call it, else `session_id`, else `user`. What cannot be a name
/// (empty, or not plain text) is none rather than an error: it is a hint. A long one is known by its hash, so that the
/// sessions that are remembered have a bounded size.
fn session(body: &mut Body, headers: &HeaderMap) -> Result<Option<SessionId>, ApiError> {
    let named =
        SESSION_HEADERS.iter().filter_map(|name| headers.get(*name)?.to_str().ok().map(str::to_owned));
    let said = text(body, "session_id")?;
    let user = text(body, "user")?;
    let mut all = named.chain(said).chain(user);
    let name = all.find(|name| !name.trim().is_empty());
    Ok(name.map(|name| match name.trim() {
        short if short.len() <= MAX_SESSION_BYTES => short.into(),
        long => blake3::hash(long.as_bytes()).to_hex().as_str().into(),
    }))
}

/// Refuses what is left: a field that nobody took is not known.
pub(super) fn finish(body: Body) -> Result<(), ApiError> {
    let left = [
        ("prompt", body.prompt.is_some()),
        ("messages", body.messages.is_some()),
        ("tokens", body.tokens.is_some()),
    ];
    if let Some((name, _)) = left.iter().find(|(_, there)| *there) {
        let message = format!("`{name}` is not a field of this request");
        return Err(ApiError { code: Some("unknown_parameter"), ..ApiError::field(*name, message) });
    }
    match body.fields.into_iter().find(|(_, field)| *field != Field::Scalar(Scalar::Null)) {
        None => Ok(()),
        Some((name, _)) => {
            let name = plain(&name);
            let message = format!("`{name}` is not a field of this request");
            Err(ApiError { code: Some("unknown_parameter"), ..ApiError::field(name, message) })
        }
    }
}

fn sampling(body: &mut Body, limits: &GatewayConfig, seed: u64) -> Result<Sampling, ApiError> {
    let top_p = number(body, "top_p", 0.0, 1.0)?.unwrap_or(1.0);
    if top_p == 0.0 {
        return Err(ApiError::field("top_p", "`top_p` has to be more than 0 and at most 1"));
    }
    let repetition = number(body, "repetition_penalty", 0.0, 2.0)?.unwrap_or(1.0);
    if repetition == 0.0 {
        return Err(ApiError::field(
            "repetition_penalty",
            "`repetition_penalty` has to be more than 0 and at most 2",
        ));
    }
    // Some clients turn it off with -1.
    let top_k = int(body, "top_k", -1, i64::from(i32::MAX), "")?.unwrap_or(0);
    Ok(Sampling {
        temperature: number(body, "temperature", 0.0, 2.0)?.unwrap_or(1.0) as f32,
        // A value that f32 would round to 0 stays positive.
        top_p: (top_p as f32).max(f32::MIN_POSITIVE),
        top_k: top_k.max(0) as u32,
        min_p: number(body, "min_p", 0.0, 1.0)?.unwrap_or(0.0) as f32,
        repetition_penalty: (repetition as f32).max(f32::MIN_POSITIVE),
        presence_penalty: number(body, "presence_penalty", -2.0, 2.0)?.unwrap_or(0.0) as f32,
        frequency_penalty: number(body, "frequency_penalty", -2.0, 2.0)?.unwrap_or(0.0) as f32,
        logit_bias: logit_bias(body, limits.max_logit_bias)?,
        // Any 64-bit integer names a seed; a negative one by its bits.
        seed: int(body, "seed", i64::MIN, i64::MAX, "")?.map_or(seed, |n| n as u64),
        logprobs: None,
    })
}

fn stop(body: &mut Body, max: usize) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::field("stop", "`stop` has to be a string or a list of strings");
    let stops = match body.take("stop") {
        None => Vec::new(),
        Some(Field::Scalar(Scalar::Text(text))) => vec![text],
        Some(Field::List { count, .. }) if count > max => {
            let message = format!("`stop` has {count} strings; at most {max} are allowed (gateway.max-stop)");
            return Err(ApiError::field("stop", message));
        }
        Some(Field::List { items, .. }) => items
            .into_iter()
            .map(|item| if let Scalar::Text(text) = item { Ok(text) } else { Err(wrong()) })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(wrong()),
    };
    if stops.iter().any(|s| s.len() > MAX_STOP_BYTES) {
        return Err(ApiError::field(
            "stop",
            format!("a string of `stop` is longer than {MAX_STOP_BYTES} bytes"),
        ));
    }
    Ok(stops.into_iter().filter(|s| !s.is_empty()).collect())
}

fn logit_bias(body: &mut Body, max: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let bad = |message: String| ApiError::field("logit_bias", message);
    match body.take("logit_bias") {
        None => Ok(Vec::new()),
        Some(Field::Object { count, .. }) if count > max => Err(bad(format!(
            "`logit_bias` has {count} entries; at most {max} are allowed (gateway.max-logit-bias)"
        ))),
        Some(Field::Object { entries, .. }) => {
            let mut out = Vec::with_capacity(entries.len());
            for (key, value) in entries {
                let token =
                    key.parse::<u32>().map_err(|_| bad("a key of `logit_bias` is not a token id".into()))?;
                let bias = match value {
                    Scalar::Int(n) => n as f64,
                    Scalar::Float(x) => x,
                    _ => f64::NAN,
                };
                if !(-100.0..=100.0).contains(&bias) {
                    return Err(bad(format!(
                        "`logit_bias` of token {token} has to be a number from -100 to 100"
                    )));
                }
                out.push((token, bias as f32));
            }
            out.sort_unstable_by_key(|(token, _)| *token);
            match out.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                Some(pair) => Err(bad(format!("`logit_bias` has token {} twice", pair[0].0))),
                None => Ok(out),
            }
        }
        Some(_) => Err(bad("`logit_bias` has to be an object of token ids and numbers".into())),
    }
}

fn stream_options(body: &mut Body, stream: bool) -> Result<bool, ApiError> {
    let bad = |message: &str| ApiError::field("stream_options", message);
    let Some(field) = body.take("stream_options") else { return Ok(false) };
    let Field::Object { entries, .. } = field else {
        return Err(bad("`stream_options` has to be an object"));
    };
    if !stream {
        return Err(bad("`stream_options` is allowed only with `stream: true`"));
    }
    let mut include = false;
    for (key, value) in entries {
        match (key.as_str(), value) {
            (_, Scalar::Null) => {}
            ("include_usage", Scalar::Bool(value)) => include = value,
            ("include_usage", _) => {
                return Err(bad("`stream_options.include_usage` has to be true or false"));
            }
            // Padding against traffic analysis, which we do not add.
            ("include_obfuscation", Scalar::Bool(false)) => {}
            (other, _) => return Err(bad(&format!("`stream_options.{}` is not supported", plain(other)))),
        }
    }
    Ok(include)
}

/// Hints from `props`, `priority` and the headers; the body wins over a header.
fn props(body: &mut Body, headers: &HeaderMap) -> Result<Props, ApiError> {
    let bad = |message: String| ApiError::field("props", message);
    let mut props = Props::new();
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(PROP_HEADER) else { continue };
        let Ok(value) = value.to_str() else {
            return Err(bad(format!("the header {PROP_HEADER}{} is not plain text", plain(name))));
        };
        props.insert(name.to_owned(), from_header(value));
    }
    for (header, name) in PROP_ALIASES {
        if let Some(value) = headers.get(header).and_then(|value| value.to_str().ok()) {
            props.entry(name.to_owned()).or_insert_with(|| from_header(value));
        }
    }
    match body.take("props") {
        None => {}
        Some(Field::Object { entries, count }) if count <= MAX_PROPS => {
            for (name, value) in entries {
                let value = match value {
                    Scalar::Int(n) => Prop::Int(n),
                    Scalar::Float(x) => Prop::Float(x),
                    Scalar::Bool(b) => Prop::Bool(b),
                    Scalar::Text(text) => from_text(text),
                    Scalar::Null | Scalar::Nested => {
                        let name = plain(&name);
                        return Err(bad(format!(
                            "`props.{name}` has to be a number, a string or true or false"
                        )));
                    }
                };
                props.insert(name, value);
            }
        }
        Some(Field::Object { count, .. }) => {
            return Err(bad(format!("`props` has {count} entries; at most {MAX_PROPS} are allowed")));
        }
        Some(_) => return Err(bad("`props` has to be an object".into())),
    }
    if let Some(priority) = int(body, "priority", i64::MIN, i64::MAX, "")? {
        props.insert("priority".into(), Prop::Int(priority));
    }
    if props.len() > MAX_PROPS {
        return Err(bad(format!("the request has {} hints; at most {MAX_PROPS} are allowed", props.len())));
    }
    for (name, value) in &mut props {
        let size = if let Prop::Text(text) = value { text.len() } else { 0 };
        if name.is_empty() || name.len() > MAX_PROP_BYTES || size > MAX_PROP_BYTES {
            let message = format!("`props.{}` is empty or longer than {MAX_PROP_BYTES} bytes", plain(name));
            return Err(bad(message));
        }
        typed(name, value)?;
    }
    Ok(props)
}

/// The hints whose meaning is known have to have its type. A time may be a duration; it is told on in milliseconds, as
/// its name says.
fn typed(name: &str, value: &mut Prop) -> Result<(), ApiError> {
    let rule = match (name, &*value) {
        (priority::PROP, Prop::Int(_)) | (keep_session::FINAL_PROP, Prop::Bool(_)) => return Ok(()),
        (priority::PROP, _) => "a whole number of 64 bits",
        (keep_session::FINAL_PROP, _) => "true or false",
        (deadline::PROP | deadline::TTFT_PROP | keep_session::PROP, Prop::Int(0..)) => return Ok(()),
        (deadline::PROP | deadline::TTFT_PROP | keep_session::PROP, Prop::Duration(span)) => {
            *value = Prop::Int(i64::try_from(span.0.div_ceil(1_000_000)).unwrap_or(i64::MAX));
            return Ok(());
        }
        (deadline::PROP | deadline::TTFT_PROP | keep_session::PROP, _) => {
            "a whole number of milliseconds, not negative, or a duration such as 800ms"
        }
        _ => return Ok(()),
    };
    Err(ApiError::field(format!("props.{name}"), format!("`props.{name}` has to be {rule}")))
}

fn from_header(value: &str) -> Prop {
    let value = value.trim();
    if let Ok(n) = value.parse() {
        return Prop::Int(n);
    }
    match value.parse::<f64>() {
        Ok(x) if x.is_finite() => Prop::Float(x),
        _ => value.parse().map_or_else(|_| from_text(value.to_owned()), Prop::Bool),
    }
}

/// A text that says a length of time with its unit is one.
fn from_text(text: String) -> Prop {
    text.parse::<Dur>().map_or(Prop::Text(text), |dur| Prop::Duration(Span(dur.as_nanos())))
}

/// A flag.
pub(super) fn flag(body: &mut Body, name: &str) -> Result<Option<bool>, ApiError> {
    match body.take(name) {
        None => Ok(None),
        Some(Field::Scalar(Scalar::Bool(value))) => Ok(Some(value)),
        Some(_) => Err(ApiError::field(name, format!("`{name}` has to be true or false"))),
    }
}

/// A text.
pub(super) fn text(body: &mut Body, name: &str) -> Result<Option<String>, ApiError> {
    match body.take(name) {
        None => Ok(None),
        Some(Field::Scalar(Scalar::Text(value))) => Ok(Some(value)),
        Some(_) => Err(ApiError::field(name, format!("`{name}` has to be a string"))),
    }
}

/// A whole number in a range; `key` is the setting that bounds it, or empty.
pub(super) fn int(
    body: &mut Body,
    name: &str,
    least: i64,
    most: i64,
    key: &str,
) -> Result<Option<i64>, ApiError> {
    let setting = if key.is_empty() { String::new() } else { format!(" ({key})") };
    let range = match (least, most) {
        (i64::MIN, i64::MAX) => " of 64 bits".to_owned(),
        _ => format!(" from {least} to {most}{setting}"),
    };
    match body.take(name) {
        None => Ok(None),
        Some(Field::Scalar(Scalar::Int(n))) if (least..=most).contains(&n) => Ok(Some(n)),
        Some(_) => Err(ApiError::field(name, format!("`{name}` has to be a whole number{range}"))),
    }
}

/// A number in a range.
pub(super) fn number(body: &mut Body, name: &str, least: f64, most: f64) -> Result<Option<f64>, ApiError> {
    let value = match body.take(name) {
        None => return Ok(None),
        Some(Field::Scalar(Scalar::Int(n))) => n as f64,
        Some(Field::Scalar(Scalar::Float(x))) => x,
        Some(_) => f64::NAN,
    };
    if (least..=most).contains(&value) {
        Ok(Some(value))
    } else {
        Err(ApiError::field(name, format!("`{name}` has to be a number from {least} to {most}")))
    }
}

/// A text that may only be one of those that mean what we do anyway.
pub(super) fn only(body: &mut Body, name: &str, allowed: &[&str], hint: &str) -> Result<(), ApiError> {
    match text(body, name)? {
        Some(value) if !allowed.contains(&value.as_str()) => Err(ApiError::unsupported(name, hint)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
