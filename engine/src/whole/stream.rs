//! One sequence inside mistral.rs, seen from within its sampling.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use candle_core::Tensor;
use mistralrs_core::{CustomLogitsProcessor, Response};
use policies::batch::{BatchEffect, TokenEvent};
use policies::request::{Finish, RequestSpec, Token};
use policies::step::{Draw, History, SeqKey};
use tokio::sync::mpsc::Receiver;

use super::EffectSink;
use super::prompt;
use super::queue::{Limits, Pass, Queue, input_len, room};
use crate::sample::Sampler;

/// A sequence that mistral.rs holds.
pub(super) struct Stream {
    id: usize,
    pass: Pass,
    spec: Arc<RequestSpec>,
    sink: EffectSink,
    queue: Weak<Queue>,
    limits: Limits,
    prefill: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    responses: Receiver<Response>,
    /// Tokens of the choice so far, those of earlier attempts included.
    output: Vec<Token>,
    drawn: u32,
    sampler: Sampler,
    /// Nothing more is to come of it, whatever mistral.rs still computes.
    ended: bool,
    /// What mistral.rs said went wrong.
    fault: Option<String>,
    logits: Option<Vec<Tensor>>,
}

/// How a step of a choice went.
enum Step {
    /// Compute the next token with this one.
    Next(Token),
    /// It was the last.
    Last,
    /// The request cannot go on.
    Fault(String),
}

/// The logits processor of a sequence. mistral.rs drops it together with the sequence, or with the request if it never
/// made a sequence of it; either way nothing is left then.
pub(super) struct Tap(Arc<Stream>);

impl Tap {
    pub(super) fn new(stream: Arc<Stream>) -> Self {
        Self(stream)
    }
}

impl CustomLogitsProcessor for Tap {
    /// `logits` is `[vocab]` in f32 on the CPU, `context` all tokens of the sequence. Never an error where it can be
    /// helped: after one, mistral.rs leaves the other sequences of the step without their token.
    fn apply(&self, logits: &Tensor, context: &[u32]) -> candle_core::Result<Tensor> {
        let token = self.0.draw(logits, context.len());
        let mut row = vec![0.0_f32; logits.elem_count().max(token as usize + 1)];
        row[token as usize] = 1.0;
        let len = row.len();
        Tensor::from_vec(row, len, logits.device())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.0.released();
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).field("pass", &self.pass).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(
        id: usize,
        pass: Pass,
        spec: Arc<RequestSpec>,
        sink: EffectSink,
        queue: Weak<Queue>,
        limits: Limits,
        responses: Receiver<Response>,
    ) -> Self {
        let output = match pass {
            Pass::Prompt(..) => Vec::new(),
            Pass::Choice(seq) => spec.resumed[seq.choice as usize].tokens.clone(),
        };
        let inner = Inner {
            responses,
            output,
            drawn: 0,
            sampler: Sampler::default(),
            ended: false,
            fault: None,
            logits: None,
        };
        Self { id, pass, spec, sink, queue, limits, prefill: AtomicBool::new(true), inner: Mutex::new(inner) }
    }

    pub(super) fn pass(&self) -> Pass {
        self.pass
    }

    /// Whether its first token is still to come.
    pub(super) fn in_prefill(&self) -> bool {
        self.prefill.load(Ordering::Relaxed)
    }

    pub(super) fn input_len(&self) -> usize {
        input_len(&self.spec, self.pass)
    }

    /// Ends it; nothing reaches the sink once this has returned. mistral.rs drops the sequence when it next has a chunk
    /// for it.
    pub(super) fn stop(&self) {
        self.inner().end();
    }

    /// Draws the sequence's next token from its logits and returns the token that mistral.rs shall go on with.
    ///
    /// Once the stream has ended that is the filler. A chunk is sent only when the text so far ends with a whole
    /// character, and only a failing send ends the sequence: ASCII text makes sure that one is tried.
    fn draw(&self, logits: &Tensor, context: usize) -> Token {
        let mut inner = self.inner();
        inner.drain();
        let Pass::Choice(seq) = self.pass else { return self.limits.filler };
        if inner.ended {
            inner.responses.close();
            return self.limits.filler;
        }
        let step = self.step(seq, &mut inner, logits, context);
        let prefill = self.prefill.swap(false, Ordering::Relaxed);
        let prefilled = if prefill { context as u32 } else { 0 };
        let queue = self.queue.upgrade();
        if let (Some(queue), Step::Next(_) | Step::Last) = (&queue, &step) {
            queue.count(prefilled);
        }
        if let Step::Next(token) = step {
            return token;
        }
        inner.end();
        let drawn = inner.drawn;
        // The queue's lock comes before this one.
        drop(inner);
        if let Some(queue) = queue {
            match step {
                Step::Fault(reason) => queue.fail(self.pass, reason),
                _ => queue.choice_ended(seq, self.input_len() as u32, drawn),
            }
        }
        self.limits.filler
    }

    fn step(&self, seq: SeqKey, inner: &mut Inner, logits: &Tensor, context: usize) -> Step {
        let spec = &*self.spec;
        let position = spec.prompt.len() + inner.output.len();
        if context != position {
            let reason =
                format!("mistral.rs is at token {context} of the sequence and should be at {position}");
            return Step::Fault(reason);
        }
        let row = match logits.to_vec1::<f32>() {
            Ok(row) => row,
            Err(e) => return Step::Fault(format!("the logits cannot be read: {e}")),
        };
        // Matrices may be padded to a round number of rows; what they say about tokens that do not exist is noise.
        let row = &row[..row.len().min(self.limits.vocab as usize)];
        let history = || History { prompt: spec.prompt.clone(), output: inner.output.clone() };
        let draw = Draw {
            choice: seq.choice,
            sampling: spec.sampling.clone(),
            position: position as u32,
            history: spec.sampling.needs_history().then(history),
        };
        let sampled = match inner.sampler.draw(row, &draw) {
            Ok(sampled) => sampled,
            Err(e) => return Step::Fault(e.to_string()),
        };
        let index = inner.output.len() as u32;
        inner.output.push(sampled.token);
        inner.drawn += 1;
        let finish = if !spec.ignore_end && spec.end_tokens.contains(&sampled.token) {
            Some(Finish::EndToken)
        } else if room(spec, &self.limits, &inner.output) == 0 {
            Some(Finish::Length)
        } else {
            None
        };
        (self.sink)(BatchEffect::Token(TokenEvent {
            seq,
            index,
            token: sampled.token,
            logprobs: sampled.logprobs,
            finish,
            cached_tokens: 0,
        }));
        if finish.is_some() { Step::Last } else { Step::Next(sampled.token) }
    }

    /// mistral.rs has let go of it.
    fn released(&self) {
        let (ended, fault, logits) = {
            let mut inner = self.inner();
            inner.drain();
            let ended = inner.ended;
            inner.end();
            (ended, inner.fault.take(), inner.logits.take())
        };
        let Some(queue) = self.queue.upgrade() else { return };
        if !ended {
            match (self.pass, logits, fault) {
                (Pass::Prompt(request, attempt), Some(logits), _) => {
                    match prompt::logprobs(&self.spec, self.limits.vocab, &logits) {
                        Ok(tokens) => queue.prompt_done(request, attempt, tokens),
                        Err(reason) => queue.fail(self.pass, reason),
                    }
                }
                (_, _, Some(reason)) => queue.fail(self.pass, reason),
                _ => queue.fail(self.pass, "mistral.rs dropped the sequence; its log says why".to_owned()),
            }
        }
        queue.released(self.id);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn end(&mut self) {
        self.ended = true;
        self.responses.close();
    }

    /// Takes what mistral.rs has sent. Chunks are text, which nobody needs.
    fn drain(&mut self) {
        while let Ok(response) = self.responses.try_recv() {
            match response {
                Response::InternalError(e) | Response::ValidationError(e) => self.fault = Some(e.to_string()),
                Response::ModelError(reason, _) | Response::CompletionModelError(reason, _) => {
                    self.fault = Some(reason);
                }
                Response::Raw { logits_chunks, .. } => self.logits = Some(logits_chunks),
                _ => {}
            }
        }
    }
}
