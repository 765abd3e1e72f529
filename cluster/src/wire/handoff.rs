//! What KV messages carry besides pages: a request, and the first tokens drawn for it.

use policies::request::RequestSpec;
use policies::step::Drawn;
use policies::time::{Span, Time};

use super::codec::{self, Source};
use super::error::WireError;
use super::form::Form;
use super::version::{SUPPORTED, WIRE_VERSION};

/// `spec` as bytes, written at `now` on the clock that its deadline is of: what travels is the time left.
///
/// # Errors
/// The bytes would be more than [`MAX_BYTES`](super::MAX_BYTES).
pub fn encode_spec(now: Time, spec: &RequestSpec) -> Result<Vec<u8>, WireError> {
    let remaining = (spec.deadline != Time::NEVER).then(|| spec.deadline.since(now));
    codec::write(|to| {
        WIRE_VERSION.put(to)?;
        remaining.put(to)?;
        spec.put(to)
    })
}

/// The request that `bytes` are, with its deadline on the clock of `now`.
///
/// # Errors
/// `bytes` are of a version that this build does not read, no request, more than one, or more than
/// [`MAX_BYTES`](super::MAX_BYTES).
pub fn decode_spec(now: Time, bytes: &[u8]) -> Result<RequestSpec, WireError> {
    let mut source = begin(bytes)?;
    let remaining: Option<Span> = source.read(Form::take)?;
    let mut spec: RequestSpec = source.read(Form::take)?;
    source.end()?;
    spec.deadline = remaining.map_or(Time::NEVER, |left| now + left);
    Ok(spec)
}

/// The first tokens of a request's choices as bytes.
///
/// # Errors
/// The bytes would be more than [`MAX_BYTES`](super::MAX_BYTES).
pub fn encode_drawn(drawn: &[Drawn]) -> Result<Vec<u8>, WireError> {
    codec::write(|to| {
        WIRE_VERSION.put(to)?;
        (drawn.len() as u64).put(to)?;
        Drawn::put_all(drawn, to)
    })
}

/// The tokens that `bytes` are.
///
/// # Errors
/// `bytes` are of a version that this build does not read, no list of tokens, go on after it, or are more than
/// [`MAX_BYTES`](super::MAX_BYTES).
pub fn decode_drawn(bytes: &[u8]) -> Result<Vec<Drawn>, WireError> {
    let mut source = begin(bytes)?;
    let drawn = source.read(Form::take)?;
    source.end()?;
    Ok(drawn)
}

fn begin(bytes: &[u8]) -> Result<Source<'_>, WireError> {
    let mut source = Source::new(bytes)?;
    let version = source.read(u16::take)?;
    if !SUPPORTED.contains(&version) {
        return Err(WireError::Version { got: version, supported: SUPPORTED });
    }
    Ok(source)
}
