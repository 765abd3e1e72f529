//! What waits, what mistral.rs holds, and what becomes of each request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use config::ids::{Attempt, RequestId};
use mistralrs_core::{Constraint, MistralRs, NormalRequest, Request, RequestMessage, SamplingParams};
use policies::batch::{BatchEffect, BatchLoad, Refusal, Usage};
use policies::request::{Logprobs, RequestSpec, Token};
use policies::step::SeqKey;
use tokio::sync::mpsc;

use super::EffectSink;
use super::prompt;
use super::stream::{Stream, Tap};

/// Responses that mistral.rs can have under way for one sequence. The tap empties the channel in every step; this leaves
/// room for the last chunk and an error.
const RESPONSES: usize = 16;

/// Limits and constants of an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_running: usize,
    pub(super) max_waiting: usize,
    /// Longest sequence in tokens.
    pub(super) window: u32,
    /// Tokens are `0..vocab`; mistral.rs' rows of logits may be longer.
    pub(super) vocab: u32,
    /// A token of ASCII text, for steps whose token nobody wants (see [`Stream::draw`]).
    pub(super) filler: Token,
}

/// A pass through mistral.rs: one sequence of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pass {
    /// The logits of a prompt. mistral.rs panics where such a sequence shares a step with an ordinary one, so it runs
    /// alone.
    Prompt(RequestId, Attempt),
    /// The tokens of a choice.
    Choice(SeqKey),
}

impl Pass {
    fn attempt(self) -> (RequestId, Attempt) {
        match self {
            Self::Prompt(request, attempt) => (request, attempt),
            Self::Choice(seq) => (seq.request, seq.attempt),
        }
    }
}

/// Requests of one engine. Locks are taken in the order queue, stream, and sinks are called with no queue lock held.
pub(super) struct Queue {
    me: Weak<Self>,
    engine: Arc<MistralRs>,
    limits: Limits,
    state: Mutex<State>,
    prefilled: AtomicU64,
    drawn: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    requests: BTreeMap<(RequestId, Attempt), Entry>,
    waiting: VecDeque<Pass>,
    /// What mistral.rs holds, by the id that it knows it by.
    live: BTreeMap<usize, Arc<Stream>>,
    /// A prompt pass is among them.
    alone: bool,
    /// Somebody is in [`Queue::pump`] already and will see what has changed.
    pumping: bool,
    last_id: usize,
}

struct Entry {
    spec: Arc<RequestSpec>,
    sink: EffectSink,
    /// Choices that go on.
    open: Vec<bool>,
    usage: Usage,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("id", &self.spec.id).field("open", &self.open).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("limits", &self.limits)
            .field("load", &self.load())
            .finish_non_exhaustive()
    }
}

impl Queue {
    pub(super) fn new(engine: Arc<MistralRs>, limits: Limits) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            engine,
            limits,
            state: Mutex::default(),
            prefilled: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
        })
    }

    pub(super) fn submit(&self, spec: RequestSpec, sink: EffectSink) -> Result<(), Refusal> {
        let key = (spec.id, spec.attempt);
        let open: Vec<bool> =
            spec.resumed.iter().map(|c| !c.ended && room(&spec, &self.limits, &c.tokens) > 0).collect();
        {
            let mut state = self.state();
            self.check(&state, &spec)?;
            if spec.prompt_logprobs
                && let Some(reason) = prompt::too_long(spec.prompt.len(), self.limits.vocab)
            {
                drop(state);
                sink(BatchEffect::Failed { request: key.0, attempt: key.1, reason });
                return Ok(());
            }
            if !open.contains(&true) && !spec.prompt_logprobs {
                drop(state);
                sink(BatchEffect::Done { request: key.0, attempt: key.1, usage: Usage::default() });
                return Ok(());
            }
            if spec.prompt_logprobs {
                state.waiting.push_back(Pass::Prompt(key.0, key.1));
            } else {
                state.waiting.extend(choices(key, &open));
            }
            state.requests.insert(key, Entry { spec: Arc::new(spec), sink, open, usage: Usage::default() });
        }
        self.pump();
        Ok(())
    }

    pub(super) fn cancel(&self, request: RequestId, attempt: Attempt) {
        let entry = self.take(request, attempt);
        // Outside of the lock: the sink may own whatever it likes.
        drop(entry);
        self.pump();
    }

    pub(super) fn cancel_choice(&self, seq: SeqKey) {
        {
            let mut state = self.state();
            state.waiting.retain(|pass| *pass != Pass::Choice(seq));
            for stream in state.live.values().filter(|s| s.pass() == Pass::Choice(seq)) {
                stream.stop();
            }
        }
        self.choice_ended(seq, 0, 0);
        self.pump();
    }

    pub(super) fn load(&self) -> BatchLoad {
        let state = self.state();
        let waiting = state.waiting.iter().filter_map(|pass| {
            let spec = &state.requests.get(&pass.attempt())?.spec;
            Some(input_len(spec, *pass) as u64)
        });
        let computing = state.live.values().filter(|s| s.in_prefill()).map(|s| s.input_len() as u64);
        BatchLoad {
            running: state.live.len() as u32,
            waiting: state.waiting.len() as u32,
            requests: state.requests.len() as u32,
            queued_prefill_tokens: waiting.chain(computing).sum(),
            prefilled_tokens: self.prefilled.load(Ordering::Relaxed),
            drawn_tokens: self.drawn.load(Ordering::Relaxed),
            ..BatchLoad::default()
        }
    }

    /// Ends everything, without effects.
    pub(super) fn close(&self) {
        let requests = {
            let mut state = self.state();
            state.waiting.clear();
            for stream in state.live.values() {
                stream.stop();
            }
            std::mem::take(&mut state.requests)
        };
        drop(requests);
    }

    pub(super) fn count(&self, prefilled: u32) {
        self.prefilled.fetch_add(u64::from(prefilled), Ordering::Relaxed);
        self.drawn.fetch_add(1, Ordering::Relaxed);
    }

    /// A choice has ended by itself or by [`Queue::cancel_choice`]; the first to say so counts.
    pub(super) fn choice_ended(&self, seq: SeqKey, prefilled: u32, drawn: u32) {
        let key = (seq.request, seq.attempt);
        let entry = {
            let mut state = self.state();
            let Some(entry) = state.requests.get_mut(&key) else { return };
            entry.usage.prefilled_tokens += prefilled;
            entry.usage.drawn_tokens += drawn;
            if let Some(open) = entry.open.get_mut(seq.choice as usize) {
                *open = false;
            }
            if entry.open.contains(&true) {
                return;
            }
            state.requests.remove(&key)
        };
        if let Some(entry) = entry {
            (entry.sink)(BatchEffect::Done { request: key.0, attempt: key.1, usage: entry.usage });
        }
    }

    /// A request fails as a whole: its other choices end too.
    pub(super) fn fail(&self, pass: Pass, reason: String) {
        let (request, attempt) = pass.attempt();
        if let Some(entry) = self.take(request, attempt) {
            tracing::warn!(%request, %attempt, reason, "request failed in mistral.rs");
            (entry.sink)(BatchEffect::Failed { request, attempt, reason });
        }
    }

    /// The prompt's log-probabilities are there: its choices can run, ahead of what came later.
    pub(super) fn prompt_done(&self, request: RequestId, attempt: Attempt, tokens: Vec<Logprobs>) {
        let key = (request, attempt);
        let sink = {
            let state = self.state();
            let Some(entry) = state.requests.get(&key) else { return };
            entry.sink.clone()
        };
        sink(BatchEffect::PromptLogprobs { request, attempt, first: 1, tokens });
        let done = {
            let mut state = self.state();
            let Some(entry) = state.requests.get_mut(&key) else { return };
            entry.usage.prefilled_tokens += entry.spec.prompt.len() as u32;
            self.prefilled.fetch_add(entry.spec.prompt.len() as u64, Ordering::Relaxed);
            let passes: Vec<Pass> = choices(key, &entry.open).collect();
            for pass in passes.iter().rev() {
                state.waiting.push_front(*pass);
            }
            if passes.is_empty() { state.requests.remove(&key) } else { None }
        };
        if let Some(entry) = done {
            (entry.sink)(BatchEffect::Done { request, attempt, usage: entry.usage });
        }
    }

    /// mistral.rs has dropped a sequence and everything it held for it.
    pub(super) fn released(&self, id: usize) {
        {
            let mut state = self.state();
            if let Some(stream) = state.live.remove(&id)
                && matches!(stream.pass(), Pass::Prompt(..))
            {
                state.alone = false;
            }
        }
        self.pump();
    }

    /// Gives mistral.rs what waits, as far as it may hold it.
    fn pump(&self) {
        {
            let mut state = self.state();
            if state.pumping {
                return;
            }
            state.pumping = true;
        }
        while let Some(request) = self.next() {
            // Where the engine's thread has ended, this starts it again.
            let sent = match self.engine.get_sender(None) {
                Ok(sender) => sender.try_send(request).map_err(|e| e.to_string()),
                Err(e) => Err(e.to_string()),
            };
            // The request was dropped, and with it its tap, which has failed it.
            if let Err(reason) = sent {
                tracing::error!(reason, "mistral.rs takes no requests");
            }
        }
    }

    /// The next sequence to start; where there is none, pumping is over.
    fn next(&self) -> Option<Request> {
        let mut state = self.state();
        while !state.alone {
            let Some(&pass) = state.waiting.front() else { break };
            let fits = match pass {
                Pass::Prompt(..) => state.live.is_empty(),
                Pass::Choice(_) => state.live.len() < self.limits.max_running,
            };
            if !fits {
                break;
            }
            state.waiting.pop_front();
            let Some(entry) = state.requests.get(&pass.attempt()) else { continue };
            let (spec, sink) = (entry.spec.clone(), entry.sink.clone());
            state.alone = matches!(pass, Pass::Prompt(..));
            state.last_id += 1;
            let id = state.last_id;
            let (responses, receiver) = mpsc::channel(RESPONSES);
            let stream =
                Arc::new(Stream::new(id, pass, spec.clone(), sink, self.me.clone(), self.limits, receiver));
            state.live.insert(id, stream.clone());
            return Some(Request::Normal(Box::new(request(id, pass, &spec, responses, stream))));
        }
        state.pumping = false;
        None
    }

    fn check(&self, state: &State, spec: &RequestSpec) -> Result<(), Refusal> {
        if spec.prompt.is_empty() {
            return Err(Refusal::Malformed("the prompt has no tokens"));
        }
        if spec.resumed.is_empty() {
            return Err(Refusal::Malformed("no choices are asked for"));
        }
        let mut tokens = spec.prompt.iter().chain(spec.resumed.iter().flat_map(|c| &c.tokens));
        if tokens.any(|token| *token >= self.limits.vocab) {
            return Err(Refusal::Malformed("a token is outside of the model's vocabulary"));
        }
        if state.requests.contains_key(&(spec.id, spec.attempt)) {
            return Err(Refusal::Malformed("this attempt is here already"));
        }
        let prompt = u32::try_from(spec.prompt.len()).unwrap_or(u32::MAX);
        if prompt >= self.limits.window {
            return Err(Refusal::TooLong { prompt, window: self.limits.window });
        }
        if state.waiting.len() >= self.limits.max_waiting.max(1) {
            return Err(Refusal::QueueFull { waiting: state.waiting.len() as u32 });
        }
        Ok(())
    }

    /// Forgets an attempt and ends all its passes.
    fn take(&self, request: RequestId, attempt: Attempt) -> Option<Entry> {
        let mut state = self.state();
        let entry = state.requests.remove(&(request, attempt));
        state.waiting.retain(|pass| pass.attempt() != (request, attempt));
        for stream in state.live.values().filter(|s| s.pass().attempt() == (request, attempt)) {
            stream.stop();
        }
        entry
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The choices that go on, in order.
fn choices((request, attempt): (RequestId, Attempt), open: &[bool]) -> impl Iterator<Item = Pass> {
    (0..)
        .zip(open)
        .filter(|(_, open)| **open)
        .map(move |(choice, _)| Pass::Choice(SeqKey { request, attempt, choice }))
}

/// How many more tokens a choice with this output may have.
pub(super) fn room(spec: &RequestSpec, limits: &Limits, output: &[Token]) -> usize {
    let most = (limits.window as usize).saturating_sub(spec.prompt.len()).min(spec.max_tokens as usize);
    most.saturating_sub(output.len())
}

/// The tokens that a pass computes before it draws.
fn input(spec: &RequestSpec, pass: Pass) -> Vec<Token> {
    let mut tokens = spec.prompt.to_vec();
    if let Pass::Choice(seq) = pass {
        tokens.extend_from_slice(&spec.resumed[seq.choice as usize].tokens);
    }
    tokens
}

pub(super) fn input_len(spec: &RequestSpec, pass: Pass) -> usize {
    let resumed = match pass {
        Pass::Prompt(..) => 0,
        Pass::Choice(seq) => spec.resumed[seq.choice as usize].tokens.len(),
    };
    spec.prompt.len() + resumed
}

/// A sequence as mistral.rs takes it.
fn request(
    id: usize,
    pass: Pass,
    spec: &RequestSpec,
    response: mpsc::Sender<mistralrs_core::Response>,
    stream: Arc<Stream>,
) -> NormalRequest {
    NormalRequest {
        messages: RequestMessage::CompletionTokens(input(spec, pass)),
        // Greedy over what the tap leaves. `None` would mean a temperature of 1.
        sampling_params: SamplingParams { temperature: Some(0.0), ..SamplingParams::neutral() },
        response,
        return_logprobs: false,
        // A chunk a step: that is how a closed channel is noticed.
        is_streaming: true,
        id,
        constraint: Constraint::None,
        suffix: None,
        tools: None,
        tool_choice: None,
        logits_processors: Some(vec![Arc::new(Tap::new(stream))]),
        return_raw_logits: prompt::wanted(pass),
        web_search_options: None,
        model_id: None,
        truncate_sequence: false,
    }
}
