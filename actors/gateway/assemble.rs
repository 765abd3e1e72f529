//! From the tokens of one choice to the text that its client may see. Pure.
//!
//! Bytes wait for the rest of their character, text waits while it may still become a stop string, and a token's
//! log-probability goes out with the text that the token ends in.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::text::{Detokenizer, StopMatcher, StopSet, TextModel};
use policies::request::{Finish, Logprobs, Token};

/// The lowest log-probability that is reported; what is not finite or below becomes this, since JSON has no infinity.
pub(crate) const LOWEST_LOGPROB: f32 = -9999.0;

/// A token of the output with its log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScoredToken {
    pub(crate) token: Token,
    pub(crate) logprobs: Logprobs,
    /// Characters of the choice's text before it.
    pub(crate) offset: usize,
}

/// What one token let out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) tokens: Vec<ScoredToken>,
    /// The choice ends here.
    pub(crate) finish: Option<Finish>,
}

/// The text of one choice.
#[derive(Debug)]
pub(crate) struct Assembler {
    detokenizer: Detokenizer,
    stops: Option<StopMatcher>,
    /// Characters decoded, those withheld included.
    decoded: usize,
    /// Characters let out.
    shown: usize,
    /// Tokens whose text is withheld, with the count of characters decoded after each.
    waiting: VecDeque<(ScoredToken, usize)>,
    ended: bool,
}

impl Assembler {
    /// For a choice that follows `prompt`.
    pub(crate) fn new(text: &Arc<TextModel>, prompt: &[Token], stops: Option<&Arc<StopSet>>) -> Self {
        Self {
            detokenizer: text.detokenizer(prompt),
            stops: stops.map(|set| StopMatcher::new(Arc::clone(set))),
            decoded: 0,
            shown: 0,
            waiting: VecDeque::new(),
            ended: false,
        }
    }

    /// Takes the next token. An end token is counted by others and not shown here. After the end of the choice
    /// nothing more comes out.
    pub(crate) fn push(&mut self, token: Token, logprobs: Option<Logprobs>, finish: Option<Finish>) -> Piece {
        if self.ended {
            return Piece::default();
        }
        let mut decoded = String::new();
        let start = self.decoded;
        if finish != Some(Finish::EndToken) {
            self.detokenizer.push(token, &mut decoded);
            if let Some(logprobs) = logprobs {
                let end = start + decoded.chars().count();
                self.waiting.push_back((ScoredToken { token, logprobs, offset: start }, end));
            }
        }
        if finish.is_some() {
            self.detokenizer.finish(&mut decoded);
        }
        self.decoded += decoded.chars().count();
        let (text, stopped) = self.release(decoded, finish.is_some());
        self.shown += text.chars().count();
        let finish = if stopped { Some(Finish::StopString) } else { finish };
        self.ended = finish.is_some();
        Piece { text, tokens: self.take_tokens(stopped), finish }
    }

    /// What of `decoded` is not a possible beginning of a stop string, and whether one was found.
    fn release(&mut self, decoded: String, last: bool) -> (String, bool) {
        let Some(stops) = &mut self.stops else { return (decoded, false) };
        let mut out = String::new();
        let stopped = stops.push(&decoded, &mut out).is_some();
        if last && !stopped {
            stops.finish(&mut out);
        }
        (out, stopped)
    }

    /// Tokens whose text is out. At a stop string those that begin before it are the last; at another end all are.
    fn take_tokens(&mut self, stopped: bool) -> Vec<ScoredToken> {
        let mut out = Vec::new();
        while let Some((token, end)) = self.waiting.front() {
            let due = if stopped { token.offset < self.shown } else { self.ended || *end <= self.shown };
            if !due {
                break;
            }
            out.extend(self.waiting.pop_front().map(|(token, _)| token));
        }
        if stopped {
            self.waiting.clear();
        }
        out
    }
}

/// A log-probability as JSON can hold it.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob.max(LOWEST_LOGPROB) } else { LOWEST_LOGPROB }
}

#[cfg(test)]
mod tests;
