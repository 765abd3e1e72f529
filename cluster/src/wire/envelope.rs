//! The front of every message, and messages to bytes and back.
//!
//! Bytes: version, door, request, remaining, trace, body. The first two never change their form, so that a message of any
//! version is told by its version.

use config::ids::{Attempt, RequestId};
use policies::time::{Span, Time};

use super::codec::{self, Source};
use super::error::WireError;
use super::form::Form;
use super::message::{Door, Message};
use super::version::{SUPPORTED, WIRE_VERSION};

/// What every message carries besides its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The format of what follows.
    pub version: u16,
    /// The request that the message is about, where it is about one.
    pub request: Option<(RequestId, Attempt)>,
    /// Time left, when the message was written, until the sender gives up on the request; none: it never does. Clocks
    /// differ between machines, so no point in time travels; the time on the way is not counted.
    pub remaining: Option<Span>,
    /// The trace that the message belongs to: spans do not cross nodes by themselves.
    pub trace: Option<TraceContext>,
}

/// Where in a trace a message was sent (as in W3C Trace Context).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: u128,
    /// The span that sent it.
    pub span_id: u64,
}

/// `message` as bytes, written at `now` on the clock that its deadline is of.
///
/// # Errors
/// [`WireError::TooLarge`]: the bytes would be more than [`MAX_BYTES`](super::MAX_BYTES).
pub fn seal<M: Message>(now: Time, message: &M, trace: Option<TraceContext>) -> Result<Vec<u8>, WireError> {
    let deadline = message.deadline().filter(|d| *d != Time::NEVER);
    codec::write(|to| {
        WIRE_VERSION.put(to)?;
        M::DOOR.put(to)?;
        message.request().put(to)?;
        deadline.map(|d| d.since(now)).put(to)?;
        trace.put(to)?;
        message.put(to)
    })
}

/// The message that `bytes` are. Its deadline is on the clock of `now`.
///
/// # Errors
/// `bytes` are of a version that this build does not read ([`WireError::Version`]), a message for another door
/// ([`WireError::Door`]), more than [`MAX_BYTES`](super::MAX_BYTES), no message or more than one.
pub fn open<M: Message>(now: Time, bytes: &[u8]) -> Result<(Envelope, M), WireError> {
    let mut source = Source::new(bytes)?;
    let version = source.read(u16::take)?;
    if !SUPPORTED.contains(&version) {
        return Err(WireError::Version { got: version, supported: SUPPORTED });
    }
    let door = source.read(Door::take)?;
    if door != M::DOOR {
        return Err(WireError::Door { got: door, door: M::DOOR });
    }
    let request = source.read(Form::take)?;
    let remaining: Option<Span> = source.read(Form::take)?;
    let trace = source.read(Form::take)?;
    let mut message = source.read(|from| M::take(from))?;
    source.end()?;
    if message.request() != request {
        return Err(WireError::Malformed("the envelope names another request than the body".to_owned()));
    }
    message.set_deadline(remaining.map_or(Time::NEVER, |left| now + left));
    Ok((Envelope { version, request, remaining, trace }, message))
}
