//! One step of an engine: what the scheduler asks for and what comes back.
//!
//! A step is a ragged batch: any mix of prefill chunks and single decode tokens of different sequences, each with its
//! block table. Plans name logical pages; the engine holds their bytes.

use std::sync::Arc;

use config::ids::{Attempt, PageId, RequestId};

use crate::request::{Logprobs, Sampling, Token};
use crate::time::Span;

/// One choice of one attempt of one request: what the engine computes a token for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqKey {
    /// The request.
    pub request: RequestId,
    /// The attempt of it.
    pub attempt: Attempt,
    /// The choice, from 0.
    pub choice: u32,
}

/// A step to run.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// Counts steps from 1; the outcome carries it back.
    pub step: u64,
    /// Pages to copy before anything is computed (copy-on-write of a shared, partly filled page), in order.
    pub copies: Vec<PageCopy>,
    /// The slices to compute. Decodes first, then prefill chunks.
    pub slices: Vec<Slice>,
}

/// Copy the content of page `from` to page `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The page read.
    pub from: PageId,
    /// The page written.
    pub to: PageId,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Whose tokens they are.
    pub seq: SeqKey,
    /// The tokens whose keys and values are computed and stored, at positions `start..start + tokens.len()`.
    pub tokens: Vec<Token>,
    /// Position of the first token; everything before it is in the pages already.
    pub start: u32,
    /// The sequence's pages in order; holds room for `start + tokens.len()` tokens.
    pub block_table: Vec<PageId>,
    /// Draws to make from the logits after the last token: none for a chunk inside the prompt, one for a decode, one a
    /// choice at the end of a prompt.
    pub draws: Vec<Draw>,
    /// Report log-probabilities of the prompt for this slice: for each row `i`, of the token `targets[i]` that follows
    /// it in the prompt (one target a row, except none for the prompt's last row).
    pub prompt_logprobs: Option<PromptTargets>,
}

/// What prompt log-probabilities a slice reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptTargets {
    /// The tokens that follow rows `0..targets.len()` of the slice.
    pub targets: Vec<Token>,
    /// How many of the likeliest tokens to report at each row.
    pub top: u8,
}

/// One token to draw.
#[derive(Clone, Debug)]
pub struct Draw {
    /// The choice that gets the token.
    pub choice: u32,
    /// How to draw.
    pub sampling: Arc<Sampling>,
    /// Position that the drawn token will have in its sequence (prompt length + index in the output): the draw's counter.
    pub position: u32,
    /// The tokens before, where penalties need them.
    pub history: Option<History>,
}

/// The tokens that penalties look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The prompt.
    pub prompt: Arc<[Token]>,
    /// The output so far.
    pub output: Vec<Token>,
}

/// What a step produced.
#[derive(Clone, Debug, Default)]
pub struct StepOutcome {
    /// The plan's number.
    pub step: u64,
    /// One entry a draw, in the plan's order.
    pub drawn: Vec<Drawn>,
    /// Prompt log-probabilities, one entry a slice that asked, in the plan's order.
    pub prompt_logprobs: Vec<PromptLogprobs>,
    /// Slices that failed alone (non-finite logits, say), with a reason for the log. Their batch mates are fine.
    pub failed: Vec<(SeqKey, String)>,
    /// How long the step took.
    pub took: Span,
}

/// A drawn token.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The sequence that the token belongs to (with the draw's own choice).
    pub seq: SeqKey,
    /// The token.
    pub token: Token,
    /// Its log-probabilities where the request asked for them.
    pub logprobs: Option<Logprobs>,
}

/// Log-probabilities of prompt tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptLogprobs {
    /// The sequence.
    pub seq: SeqKey,
    /// Position of the first token reported (the slice's `start + 1`).
    pub first: u32,
    /// One entry a target.
    pub tokens: Vec<Logprobs>,
}
