//! A streamed answer: chunks in OpenAI's form, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::mem;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use futures_util::stream::unfold;
use futures_util::{FutureExt, StreamExt};
use policies::request::Logprobs;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::error::ApiError;
use super::http::generate::Merged;
use super::openai::reply::{LegacyLogprobs, Reply, add, finish_reason, usage};
use super::session::{Delta, SessionOut, SessionUsage};

/// Bytes that are gathered from what is ready before they are handed to the connection.
const WRITE_BYTES: usize = 16 * 1024;

/// Turns what sessions send into events.
///
/// A stream is mostly small chunks that differ in a few characters, so what is the same in all of them is written once and
/// copied; log-probabilities, which are rare and rich, go through a JSON value.
#[derive(Debug)]
pub(crate) struct Chunker {
    reply: Reply,
    /// A chunk up to its first choice.
    head: Vec<u8>,
    /// The prompt was shown, by choice of the answer.
    echoed: Vec<bool>,
    /// Log-probabilities of each prompt's tokens from the second on.
    prompts: Vec<Vec<Logprobs>>,
    total: SessionUsage,
    open: usize,
}

impl Chunker {
    pub(crate) fn new(reply: Reply) -> Self {
        let prompts = reply.prompts.len();
        let echoed = vec![!reply.output.echo; prompts * reply.output.n as usize];
        let object = if reply.output.chat { "chat.completion.chunk" } else { "text_completion" };
        let mut head = Vec::from(&b"data: "[..]);
        push_json(&mut head, &reply.envelope(object, Vec::new()));
        // The end of the empty list of choices and of the object.
        head.truncate(head.len() - 2);
        let (prompts, open) = (vec![Vec::new(); prompts], prompts);
        Self { reply, head, echoed, prompts, total: SessionUsage::default(), open }
    }

    /// The events before any token: in a chat, one a choice that says who speaks.
    pub(crate) fn opening(&self, out: &mut Vec<u8>) {
        if self.reply.output.chat {
            for index in 0..self.echoed.len() {
                self.chat_chunk(out, index, br#"{"role":"assistant","content":""}"#, None, None);
            }
        }
    }

    /// The events for what the session of `prompt` sent; after the last session's end also the totals.
    ///
    /// # Errors
    /// When it failed: the whole request then has.
    pub(crate) fn take(
        &mut self,
        prompt: usize,
        sent: SessionOut,
        out: &mut Vec<u8>,
    ) -> Result<(), ApiError> {
        match sent {
            SessionOut::Accepted(placed) => self.reply.placements.push(placed),
            SessionOut::Prompt { tokens, .. } => self.prompts[prompt].extend(tokens),
            SessionOut::Delta(delta) if self.reply.output.chat => self.chat(out, prompt, &delta),
            SessionOut::Delta(delta) => self.completion(out, prompt, &delta),
            SessionOut::Finished(part) => {
                add(&mut self.total, &part);
                self.open -= 1;
                if self.open == 0 {
                    if let Some(stages) = self.reply.stages() {
                        self.stages(out, &stages);
                    }
                    if self.reply.output.include_usage {
                        self.totals(out);
                    }
                }
            }
            SessionOut::Failed(failure) => return Err(ApiError::from(&failure)),
        }
        Ok(())
    }

    /// All sessions have ended.
    pub(crate) const fn is_done(&self) -> bool {
        self.open == 0
    }

    fn chat(&self, out: &mut Vec<u8>, prompt: usize, delta: &Delta) {
        let index = self.reply.index(prompt, delta.choice);
        if !delta.text.is_empty() || !delta.tokens.is_empty() {
            let logprobs = self.reply.output.logprobs.then(|| self.reply.chat_logprobs(&delta.tokens));
            let mut content = Vec::from(&br#"{"content":"#[..]);
            push_json(&mut content, &delta.text);
            content.push(b'}');
            self.chat_chunk(out, index, &content, logprobs.as_ref(), None);
        }
        if let Some(finish) = delta.finish {
            self.chat_chunk(out, index, b"{}", None, Some(finish_reason(finish)));
        }
    }

    /// `delta` is a JSON object.
    fn chat_chunk(
        &self,
        out: &mut Vec<u8>,
        index: usize,
        delta: &[u8],
        logprobs: Option<&Value>,
        reason: Option<&str>,
    ) {
        self.begin(out, index, br#","delta":"#);
        out.extend_from_slice(delta);
        self.end(out, logprobs, reason);
    }

    fn completion(&mut self, out: &mut Vec<u8>, prompt: usize, delta: &Delta) {
        let index = self.reply.index(prompt, delta.choice);
        let view = &self.reply.prompts[prompt];
        let first = !mem::replace(&mut self.echoed[index], true);
        let logprobs = self.reply.output.logprobs.then(|| {
            let model = &self.reply.served.text;
            let mut legacy = LegacyLogprobs::default();
            if first {
                legacy.push_prompt(model, view, &self.prompts[prompt]);
            }
            legacy.push_output(model, view.echo.chars().count(), &delta.tokens);
            legacy.into_json()
        });
        self.begin(out, index, br#","text":"#);
        if first {
            push_json(out, &format!("{}{}", view.echo, delta.text));
        } else {
            push_json(out, &delta.text);
        }
        self.end(out, logprobs.as_ref(), delta.finish.map(finish_reason));
    }

    /// The chunk up to the choice's content, which `field` names.
    fn begin(&self, out: &mut Vec<u8>, index: usize, field: &[u8]) {
        out.extend_from_slice(&self.head);
        out.extend_from_slice(br#"{"index":"#);
        push_json(out, &index);
        out.extend_from_slice(field);
    }

    /// What follows the choice's content.
    fn end(&self, out: &mut Vec<u8>, logprobs: Option<&Value>, reason: Option<&str>) {
        out.extend_from_slice(br#","logprobs":"#);
        push_json(out, &logprobs);
        out.extend_from_slice(br#","finish_reason":"#);
        push_json(out, &reason);
        out.extend_from_slice(if self.reply.output.include_usage { br#"}],"usage":null}"# } else { b"}]}" });
        out.extend_from_slice(b"\n\n");
    }

    /// A chunk without choices, as that of the totals.
    fn stages(&self, out: &mut Vec<u8>, stages: &Value) {
        out.extend_from_slice(&self.head);
        out.extend_from_slice(br#"],"stages":"#);
        push_json(out, stages);
        out.extend_from_slice(b"}\n\n");
    }

    fn totals(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        out.extend_from_slice(br#"],"usage":"#);
        push_json(out, &usage(&self.total));
        out.extend_from_slice(b"}\n\n");
    }
}

/// A stream under way. Dropping it (the connection does when the client leaves) cancels its sessions.
struct Live {
    sessions: Merged,
    chunker: Chunker,
    /// Came before the headers were sent.
    early: VecDeque<(usize, SessionOut)>,
    ended: bool,
    opened: bool,
    /// The request counts as in work until the stream is dropped.
    _permit: OwnedSemaphorePermit,
}

/// The response whose body is the stream.
pub(crate) fn respond(
    reply: Reply,
    sessions: Merged,
    early: VecDeque<(usize, SessionOut)>,
    permit: OwnedSemaphorePermit,
) -> Response {
    let chunker = Chunker::new(reply);
    let live = Live { sessions, chunker, early, ended: false, opened: false, _permit: permit };
    let body = unfold(live, |mut live| async move {
        let bytes = live.next().await?;
        Some((Ok::<_, Infallible>(bytes), live))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies of nginx's kind would gather the stream into one answer.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl Live {
    /// The next events: at least one, and those that are ready without waiting.
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut out = Vec::new();
        if !mem::replace(&mut self.opened, true) {
            self.chunker.opening(&mut out);
        }
        while !self.ended && out.len() < WRITE_BYTES {
            let next = match self.early.pop_front() {
                Some(early) => Some(early),
                None if out.is_empty() => self.sessions.next().await,
                None => match self.sessions.next().now_or_never() {
                    Some(next) => next,
                    None => break,
                },
            };
            self.take(next, &mut out);
        }
        Some(Bytes::from(out))
    }

    fn take(&mut self, next: Option<(usize, SessionOut)>, out: &mut Vec<u8>) {
        let taken = match next {
            Some((prompt, sent)) => self.chunker.take(prompt, sent, out),
            // Every session ends with a last message, so this is a defect; the client is told all the same.
            None => Err(ApiError::internal("the stream ended early")),
        };
        match taken {
            Ok(()) => self.ended = self.chunker.is_done(),
            Err(error) => {
                out.extend_from_slice(b"data: ");
                push_json(out, &error.to_json());
                out.extend_from_slice(b"\n\n");
                self.ended = true;
                // The other sessions have nobody to talk to any more.
                self.sessions.clear();
            }
        }
        if self.ended {
            out.extend_from_slice(b"data: [DONE]\n\n");
        }
    }
}

/// Appends `value` as JSON.
fn push_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Neither writing to memory nor the values of chunks can fail.
    let _ = serde_json::to_writer(out, value);
}
