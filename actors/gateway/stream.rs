//! A streamed answer: chunks in OpenAI's form, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::mem;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use futures_util::stream::unfold;
use futures_util::{FutureExt, StreamExt};
use policies::request::Logprobs;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::error::ApiError;
use super::http::generate::Merged;
use super::openai::reply::{LegacyLogprobs, Reply, add, finish_reason, usage};
use super::session::{Delta, SessionOut, SessionUsage};

/// Bytes that are gathered from what is ready before they are handed to the connection.
const WRITE_BYTES: usize = 16 * 1024;

/// Turns what sessions send into chunks.
#[derive(Debug)]
pub(crate) struct Chunker {
    reply: Reply,
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
        Self {
            reply,
            echoed,
            prompts: vec![Vec::new(); prompts],
            total: SessionUsage::default(),
            open: prompts,
        }
    }

    /// The chunks before any token: in a chat, one a choice that says who speaks.
    pub(crate) fn opening(&self) -> Vec<Value> {
        if !self.reply.output.chat {
            return Vec::new();
        }
        (0..self.echoed.len())
            .map(|index| self.chat_chunk(index, json!({"role": "assistant", "content": ""}), None, None))
            .collect()
    }

    /// The chunks for what the session of `prompt` sent; after the last session's end also the totals.
    ///
    /// # Errors
    /// When it failed: the whole request then has.
    pub(crate) fn take(&mut self, prompt: usize, out: SessionOut) -> Result<Vec<Value>, ApiError> {
        match out {
            SessionOut::Accepted(_) => Ok(Vec::new()),
            SessionOut::Prompt { tokens, .. } => {
                self.prompts[prompt].extend(tokens);
                Ok(Vec::new())
            }
            SessionOut::Delta(delta) if self.reply.output.chat => Ok(self.chat(prompt, &delta)),
            SessionOut::Delta(delta) => Ok(vec![self.completion(prompt, &delta)]),
            SessionOut::Finished(part) => {
                add(&mut self.total, &part);
                self.open -= 1;
                let last = self.open == 0 && self.reply.output.include_usage;
                Ok(if last { vec![self.totals()] } else { Vec::new() })
            }
            SessionOut::Failed(failure) => Err(ApiError::from(&failure)),
        }
    }

    /// All sessions have ended.
    pub(crate) const fn is_done(&self) -> bool {
        self.open == 0
    }

    fn chat(&self, prompt: usize, delta: &Delta) -> Vec<Value> {
        let index = self.reply.index(prompt, delta.choice);
        let mut chunks = Vec::new();
        if !delta.text.is_empty() || !delta.tokens.is_empty() {
            let logprobs = self.reply.output.logprobs.then(|| self.reply.chat_logprobs(&delta.tokens));
            chunks.push(self.chat_chunk(index, json!({"content": delta.text}), logprobs, None));
        }
        if let Some(finish) = delta.finish {
            chunks.push(self.chat_chunk(index, json!({}), None, Some(finish_reason(finish))));
        }
        chunks
    }

    fn chat_chunk(&self, index: usize, delta: Value, logprobs: Option<Value>, reason: Option<&str>) -> Value {
        let mut choice = json!({"index": index});
        choice["delta"] = delta;
        choice["logprobs"] = logprobs.unwrap_or(Value::Null);
        choice["finish_reason"] = reason.into();
        self.chunk(vec![choice])
    }

    fn completion(&mut self, prompt: usize, delta: &Delta) -> Value {
        let index = self.reply.index(prompt, delta.choice);
        let output = self.reply.output;
        let view = &self.reply.prompts[prompt];
        let first = !mem::replace(&mut self.echoed[index], true);
        let text = if first { format!("{}{}", view.echo, delta.text) } else { delta.text.clone() };
        let logprobs = output.logprobs.then(|| {
            let model = &self.reply.served.text;
            let mut legacy = LegacyLogprobs::default();
            if first {
                legacy.push_prompt(model, view, &self.prompts[prompt]);
            }
            legacy.push_output(model, view.echo.chars().count(), &delta.tokens);
            legacy.into_json()
        });
        let reason = delta.finish.map(finish_reason);
        self.chunk(vec![json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason})])
    }

    fn totals(&self) -> Value {
        let mut chunk = self.reply.envelope(self.object(), Vec::new());
        chunk.insert("usage".into(), usage(&self.total));
        chunk.into()
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = self.reply.envelope(self.object(), choices);
        if self.reply.output.include_usage {
            chunk.insert("usage".into(), Value::Null);
        }
        chunk.into()
    }

    const fn object(&self) -> &'static str {
        if self.reply.output.chat { "chat.completion.chunk" } else { "text_completion" }
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
        let mut out = String::new();
        if !mem::replace(&mut self.opened, true) {
            for chunk in self.chunker.opening() {
                event(&mut out, &chunk);
            }
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

    fn take(&mut self, next: Option<(usize, SessionOut)>, out: &mut String) {
        let taken = match next {
            Some((prompt, session_out)) => self.chunker.take(prompt, session_out),
            // Every session ends with a last message, so this is a defect; the client is told all the same.
            None => Err(ApiError::internal("the stream ended early")),
        };
        match taken {
            Ok(chunks) => {
                for chunk in chunks {
                    event(out, &chunk);
                }
                self.ended = self.chunker.is_done();
            }
            Err(error) => {
                event(out, &error.to_json());
                self.ended = true;
                // The other sessions have nobody to talk to any more.
                self.sessions.clear();
            }
        }
        if self.ended {
            out.push_str("data: [DONE]\n\n");
        }
    }
}

fn event(out: &mut String, data: &Value) {
    // Writing to a string does not fail.
    let _ = write!(out, "data: {data}\n\n");
}
