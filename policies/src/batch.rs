//! Worker core: who runs in the next step.
//!
//! Continuous batching with chunked prefill under a token budget (Sarathi-Serve, OSDI'24): decodes first, then the
//! prefill that is under way, then new ones. The core owns the page table; pages of a step in flight are fenced until
//! its outcome is reported.

use config::ids::{Attempt, RequestId};

use crate::request::{Finish, Logprobs, RequestSpec, Token};
use crate::step::{SeqKey, StepOutcome, StepPlan};
use crate::time::Time;

/// Limits of one worker's scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchConfig {
    /// Tokens a page.
    pub page_tokens: u32,
    /// Pages in the engine's KV.
    pub pages: u32,
    /// Tokens computed in one step at most.
    pub max_batch_tokens: u32,
    /// Sequences in one step at most.
    pub max_running: u32,
    /// Requests waiting at most; the next one is refused.
    pub max_waiting: u32,
    /// Longest sequence, prompt and output together, in tokens.
    pub max_context: u32,
    /// Reuse full pages by content.
    pub prefix_cache: bool,
    /// Share of the pages that a new prompt leaves free for the growth of running ones, in `[0, 1)`.
    pub watermark: f32,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It can never run here; sending it again does not help.
    #[error("the request needs {needed} KV pages of {page_tokens} tokens and this worker has {pages}; shorten the prompt or max_tokens, or raise engine.kv-memory")]
    NeverFits {
        /// Pages that the prompt and one token need.
        needed: u32,
        /// Pages that there are.
        pages: u32,
        /// Tokens a page.
        page_tokens: u32,
    },
    /// The prompt leaves no room for a token in the model's window.
    #[error("the prompt has {prompt} tokens and the context window has {window}; at least one is needed for the answer")]
    TooLong {
        /// The prompt's tokens.
        prompt: u32,
        /// The window.
        window: u32,
    },
    /// The queue is full; elsewhere or later it may run.
    #[error("{waiting} requests are waiting, the limit of runtime.max-waiting; try again later")]
    QueueFull {
        /// Requests waiting.
        waiting: u32,
    },
    /// The same attempt is here already, or the spec is malformed (no tokens, no choices).
    #[error("malformed request: {0}")]
    Malformed(&'static str),
    /// The worker is draining and takes nothing new.
    #[error("the worker is draining")]
    Draining,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchEffect {
    /// Send a token of a choice to the request's gateway.
    Token(TokenEvent),
    /// Send log-probabilities of prompt tokens; before the request's first token.
    PromptLogprobs {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// Position in the prompt of the first one.
        first: u32,
        /// One entry a token.
        tokens: Vec<Logprobs>,
    },
    /// All choices of the request have ended and its pages are released.
    Done {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// What it cost.
        usage: Usage,
    },
    /// The request failed alone; its pages are released.
    Failed {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// For the log and the client.
        reason: String,
    },
    /// A request lost its pages to others and waits to be computed again.
    Preempted {
        /// The sequence.
        seq: SeqKey,
        /// Tokens whose KV was dropped and that are computed again.
        dropped: u32,
    },
}

/// A token of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// The sequence.
    pub seq: SeqKey,
    /// Index in the choice's output, from 0, those of earlier attempts included. The gateway drops what it has.
    pub index: u32,
    /// The token.
    pub token: Token,
    /// Where asked for.
    pub logprobs: Option<Logprobs>,
    /// The choice ends with this token.
    pub finish: Option<Finish>,
    /// Prompt tokens that were found in the cache; the same in all events of an attempt.
    pub cached_tokens: u32,
}

/// What a request cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens reused from the cache at first admission.
    pub cached_tokens: u32,
    /// Tokens computed in prefill, recomputation after preemption included.
    pub prefilled_tokens: u32,
    /// Tokens drawn.
    pub drawn_tokens: u32,
    /// Times that a choice was preempted.
    pub preemptions: u32,
}

/// Figures of a worker for placement, metrics and tests. All are levels, except those that say "in all".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchLoad {
    /// Sequences that are being computed.
    pub running: u32,
    /// Requests (or preempted sequences) that wait.
    pub waiting: u32,
    /// Tokens still to prefill, waiting ones included.
    pub queued_prefill_tokens: u64,
    /// Pages that a sequence holds.
    pub pages_used: u32,
    /// Pages that hold reusable content and that no sequence holds.
    pub pages_cached: u32,
    /// Pages in all.
    pub pages_total: u32,
    /// Prompt tokens looked up in the prefix cache, in all.
    pub prefix_queries: u64,
    /// Prompt tokens found there, in all.
    pub prefix_hits: u64,
    /// Tokens computed in prefill, in all.
    pub prefilled_tokens: u64,
    /// Tokens drawn, in all.
    pub drawn_tokens: u64,
    /// Preemptions, in all.
    pub preemptions: u64,
}
