//! What a request asks of the cluster, as plain data.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{Attempt, ModelId, RequestId, SessionId, TenantId};

use crate::kv::PageHash;
use crate::time::{Span, Time};

/// Weight of a tenant that is configured with none, in thousandths.
pub const WEIGHT_ONE: u32 = 1000;

/// A vocabulary index.
pub type Token = u32;

/// How a token is drawn from the logits. The draw is counter-based: the random number is a function of
/// (`seed`, choice, position) alone, so a resumed or migrated request draws the same tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy; the logits are divided by it otherwise. In `[0, 2]`.
    pub temperature: f32,
    /// Nucleus: the smallest set of tokens whose probability reaches this. 1 is off.
    pub top_p: f32,
    /// Only the `top_k` likeliest tokens; 0 is off.
    pub top_k: u32,
    /// Only tokens at least this fraction as likely as the likeliest; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of every token of prompt and output (CTRL); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token that the output holds (OpenAI); 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each time that the output holds it (OpenAI); 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// Seed of the draw; the gateway draws one where the client set none.
    pub seed: u64,
    /// Report the log-probability of the drawn token and of this many of the likeliest.
    pub logprobs: Option<u8>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// Whether the draw looks at the tokens before it.
    #[must_use]
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// A small typed hint on a request (`priority: 5`), read by policies.
#[derive(Clone, Debug, PartialEq)]
pub enum Prop {
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// A short text.
    Text(String),
    /// A length of time (`800ms`).
    Duration(Span),
}

/// The hints of one request, by name.
pub type Props = BTreeMap<String, Prop>;

/// A hint that says a length of time: a whole number of milliseconds, or a duration. None where it says neither, or less
/// than nothing.
#[must_use]
pub fn prop_millis(props: &Props, name: &str) -> Option<Span> {
    match props.get(name)? {
        Prop::Int(ms) => u64::try_from(*ms).ok().map(Span::from_millis),
        Prop::Duration(span) => Some(*span),
        Prop::Float(_) | Prop::Bool(_) | Prop::Text(_) => None,
    }
}

/// One prompt with one or more choices to generate from it: the unit that is placed and scheduled.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// Unique in the cluster and over restarts; never the client's own id.
    pub id: RequestId,
    /// Counts placements of this request. Whatever a worker sends back carries it, so that leftovers of an earlier
    /// attempt are told apart.
    pub attempt: Attempt,
    /// The model asked for.
    pub model: ModelId,
    /// The prompt's tokens. Not empty.
    pub prompt: Arc<[Token]>,
    /// Hashes of the prompt's full pages, in order ([`crate::kv::page_hashes`]).
    pub hashes: Arc<[PageHash]>,
    /// Tokens that each choice has produced in an earlier attempt (they were or will be delivered already and are not
    /// sampled again); one entry a choice, in choice order. Empty entries on a first attempt.
    pub resumed: Vec<ResumedChoice>,
    /// How many tokens each choice may produce in all, those in `resumed` included.
    pub max_tokens: u32,
    /// How many tokens each choice may produce ahead of what its client has taken, so that nothing is computed for a
    /// client that does not read; 0 is no limit. The client's progress comes as grants ([`crate::batch::Batch::grant`]).
    pub credit: u32,
    /// Tokens that end a choice; they are counted but not shown.
    pub end_tokens: Arc<[Token]>,
    /// Generate past end tokens (benchmarks).
    pub ignore_end: bool,
    /// How tokens are drawn.
    pub sampling: Arc<Sampling>,
    /// Report log-probabilities of the prompt's own tokens too (completions with `echo` and `logprobs`). The prompt is
    /// then computed in full, without reuse of cached pages, since a cached page has no logits.
    pub prompt_logprobs: bool,
    /// Hints for policies.
    pub props: Arc<Props>,
    /// The conversation that it belongs to, where the client named one.
    pub session: Option<SessionId>,
    /// Whose request it is, where clients are told apart. No page is shared between two tenants.
    pub tenant: Option<TenantId>,
    /// The tenant's share of a worker that is short of time, in thousandths ([`WEIGHT_ONE`]).
    pub weight: u32,
    /// When the gateway gives up on the request.
    pub deadline: Time,
}

/// A choice as an earlier attempt left it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumedChoice {
    /// Tokens produced so far, in order.
    pub tokens: Vec<Token>,
    /// The choice had ended; nothing more is generated for it.
    pub ended: bool,
    /// How many of `tokens`, the last ones, the client has not taken yet; they count against the credit.
    pub unread: u32,
}

impl RequestSpec {
    /// A first attempt at one choice of up to `max_tokens` tokens: greedy, without end tokens, hints, limits or page hashes,
    /// of nobody in particular. What else a request is, is set on top.
    #[must_use]
    pub fn plain(id: RequestId, model: ModelId, prompt: impl Into<Arc<[Token]>>, max_tokens: u32) -> Self {
        Self {
            id,
            attempt: Attempt(0),
            model,
            prompt: prompt.into(),
            hashes: Arc::default(),
            resumed: vec![ResumedChoice::default()],
            max_tokens,
            credit: 0,
            end_tokens: Arc::default(),
            ignore_end: false,
            sampling: Arc::default(),
            prompt_logprobs: false,
            props: Arc::default(),
            session: None,
            tenant: None,
            weight: WEIGHT_ONE,
            deadline: Time::NEVER,
        }
    }

    /// How many choices are generated from the prompt.
    #[must_use]
    pub fn choices(&self) -> usize {
        self.resumed.len()
    }

    /// The sequence up to its last full page and one token more, where it is one: what a worker is asked for that a running
    /// request is about to move to. The one that it runs on has to compute that token anew to say what comes next; of the
    /// whole sequence it would compute up to a page, in the middle of the stream that is to move. Where all pages are full
    /// this is the last page but one: what comes after a page is found by computing its last token, and computing begins with
    /// a page. No client gets what is drawn, so that it does not matter which tokens are the prompt's; one stays output, which
    /// tells that the stream goes on.
    #[must_use]
    pub fn up_to_full_pages(mut self, page_tokens: u32) -> Self {
        let (prompt, page) = (self.prompt.len(), page_tokens.max(1) as usize);
        let [choice] = &mut self.resumed[..] else { return self };
        if choice.tokens.is_empty() {
            return self;
        }
        let total = prompt + choice.tokens.len();
        let kept = ((total - 1) / page * page + 1).max(2);
        if kept > prompt {
            choice.tokens.truncate(kept - prompt);
        } else {
            choice.tokens = vec![self.prompt[kept - 1]];
            self.prompt = self.prompt[..kept - 1].into();
            let pages = self.hashes.len().min(self.prompt.len() / page);
            self.hashes = self.hashes[..pages].into();
        }
        self
    }

    /// What is asked of a worker that holds the prompt's start: its full pages within the first `tokens` tokens, as a
    /// request of its own ([`Attempt::fetch`]) of which nothing is to be computed.
    #[must_use]
    pub fn held_prefix(&self, tokens: u32, page_tokens: u32) -> Self {
        let page = page_tokens.max(1) as usize;
        let pages = (tokens as usize).min(self.prompt.len()) / page;
        Self {
            attempt: self.attempt.fetch(),
            hashes: self.hashes[..self.hashes.len().min(pages)].into(),
            tenant: self.tenant.clone(),
            deadline: self.deadline,
            ..Self::plain(self.id, self.model.clone(), &self.prompt[..pages * page], 1)
        }
    }

    /// What a pool is told to keep of a request: its prompt, under a name of its own, and for as long as it takes.
    #[must_use]
    pub fn prompt_to_store(&self) -> Self {
        Self {
            attempt: self.attempt.store(),
            hashes: Arc::clone(&self.hashes),
            tenant: self.tenant.clone(),
            ..Self::plain(self.id, self.model.clone(), Arc::clone(&self.prompt), 1)
        }
    }

    /// How many tokens `choice` may have before anything is granted: those that it has, and what is left of its
    /// credit. [`u32::MAX`] where there is no limit.
    #[must_use]
    pub fn allowance(&self, choice: &ResumedChoice) -> u32 {
        if self.credit == 0 {
            return u32::MAX;
        }
        let has = choice.tokens.len() as u32;
        has.saturating_sub(choice.unread).saturating_add(self.credit).max(has)
    }
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finish {
    /// An end token.
    EndToken,
    /// `max_tokens` or the model's window was reached.
    Length,
    /// A stop string; found by the gateway, which sees text.
    StopString,
}

/// The log-probability of a token and of the likeliest ones at its position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// Natural log-probability of the token itself, under the distribution after penalties and temperature are left
    /// out (the model's own). May be negative infinity.
    pub own: f32,
    /// The likeliest tokens with theirs, likeliest first; ties by lower token.
    pub top: Vec<(Token, f32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever in a page the stream is, before its first output fills one too.
    #[test]
    fn one_token_beyond_full_pages_is_computed_again() {
        for (prompt, generated) in
            (1..70).flat_map(|prompt| (0..70).map(move |generated| (prompt, generated)))
        {
            let tokens: Vec<Token> = (0..prompt).collect();
            let mut spec = RequestSpec::plain(RequestId::new(1, 1), "m".into(), tokens, 100);
            spec.hashes = (0..prompt / 16).map(|page| PageHash([page as u8; 16])).collect();
            let tokens = (prompt..prompt + generated).collect();
            spec.resumed = vec![ResumedChoice { tokens, ..ResumedChoice::default() }];
            let cut = spec.clone().up_to_full_pages(16);
            let kept: Vec<Token> = cut.prompt.iter().chain(&cut.resumed[0].tokens).copied().collect();
            let beginning: Vec<Token> = (0..kept.len() as u32).collect();
            assert_eq!(kept, beginning, "{prompt} + {generated}");
            if generated == 0 {
                assert_eq!(kept.len(), prompt as usize);
                continue;
            }
            // All pages before the last token, and that one; less than a page has no page.
            let pages = (prompt + generated - 1) / 16;
            assert_eq!(kept.len() as u32, (pages * 16 + 1).max(2), "{prompt} + {generated}");
            assert!(!cut.prompt.is_empty() && !cut.resumed[0].tokens.is_empty(), "{prompt} + {generated}");
            assert_eq!(cut.hashes.len(), cut.prompt.len() / 16);
            assert!(spec.hashes.starts_with(&cut.hashes));
        }
    }
}
