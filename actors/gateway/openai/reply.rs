//! Response objects: what is shared by whole answers and chunks.

use std::sync::Arc;

use engine::text::TextModel;
use policies::request::{Finish, Logprobs, Token};
use serde_json::{Map, Value, json};

use super::Output;
use crate::gateway::assemble::{ScoredToken, finite};
use crate::gateway::models::Served;
use crate::gateway::session::SessionUsage;
use crate::gateway::stages::Placed;
use crate::gateway::tokenize::unfinished_bytes;

/// One prompt as the answer shows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PromptView {
    /// Its text, where `echo` is on.
    pub(crate) echo: String,
    pub(crate) tokens: Arc<[Token]>,
}

/// What every object of one answer has in common.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) served: Arc<Served>,
    pub(crate) output: Output,
    pub(crate) prompts: Vec<PromptView>,
    /// Where its prompts were placed so far.
    pub(crate) placements: Vec<Placed>,
}

impl Reply {
    /// Why it went where it went, where the client asked.
    pub(crate) fn stages(&self) -> Option<Value> {
        self.output.stages.then(|| self.placements.iter().map(Placed::to_json).collect())
    }

    /// The object around `choices`.
    pub(crate) fn envelope(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let fingerprint: String =
            self.served.card.fingerprint.0[..6].iter().map(|b| format!("{b:02x}")).collect();
        let mut out = Map::new();
        out.insert("id".into(), self.id.as_str().into());
        out.insert("object".into(), object.into());
        out.insert("created".into(), self.created.into());
        out.insert("model".into(), self.served.card.name.as_str().into());
        out.insert("system_fingerprint".into(), format!("fp_{fingerprint}").into());
        out.insert("choices".into(), choices.into());
        out
    }

    /// The choice's index in the answer.
    pub(crate) fn index(&self, prompt: usize, choice: u32) -> usize {
        prompt * self.output.n as usize + choice as usize
    }

    /// The log-probabilities of a piece of a chat, as `{"content": […]}`.
    pub(crate) fn chat_logprobs(&self, tokens: &[ScoredToken]) -> Value {
        let entry = |token: Token, logprob: f32| {
            let bytes = self.served.text.token_bytes(token);
            json!({"token": chat_name(bytes), "logprob": finite(logprob), "bytes": bytes})
        };
        let content: Vec<Value> = tokens
            .iter()
            .map(|t| {
                let mut own = entry(t.token, t.logprobs.own);
                own["top_logprobs"] = t.logprobs.top.iter().map(|&(token, lp)| entry(token, lp)).collect();
                own
            })
            .collect();
        json!({"content": content, "refusal": null})
    }
}

/// Totals, as `usage`.
pub(crate) fn usage(total: &SessionUsage) -> Value {
    json!({
        "prompt_tokens": total.prompt,
        "completion_tokens": total.completion,
        "total_tokens": total.prompt + total.completion,
        "prompt_tokens_details": {"cached_tokens": total.cached},
    })
}

/// Adds the totals of another prompt.
pub(crate) fn add(total: &mut SessionUsage, more: &SessionUsage) {
    total.prompt += more.prompt;
    total.completion += more.completion;
    total.cached += more.cached;
}

/// OpenAI's word for the end of a choice.
pub(crate) const fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::EndToken | Finish::StopString => "stop",
        Finish::Length => "length",
    }
}

/// Log-probabilities in the form of `/v1/completions`: four lists of equal length.
#[derive(Clone, Debug, Default)]
pub(crate) struct LegacyLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl LegacyLogprobs {
    /// Adds output tokens; `base` is the count of characters before the choice's own text.
    pub(crate) fn push_output(&mut self, text: &TextModel, base: usize, tokens: &[ScoredToken]) {
        for t in tokens {
            self.push(text, t.token, Some(&t.logprobs), base + t.offset);
        }
    }

    /// Adds the prompt's tokens: the first has no log-probability, `scores` are those of the others.
    pub(crate) fn push_prompt(&mut self, text: &TextModel, prompt: &PromptView, scores: &[Logprobs]) {
        for (i, (&token, offset)) in prompt.tokens.iter().zip(offsets(text, prompt)).enumerate() {
            let logprobs = i.checked_sub(1).and_then(|i| scores.get(i));
            self.push(text, token, logprobs, offset);
        }
    }

    fn push(&mut self, text: &TextModel, token: Token, logprobs: Option<&Logprobs>, offset: usize) {
        let name = legacy_name(text.token_bytes(token));
        self.token_logprobs.push(logprobs.map_or(Value::Null, |l| finite(l.own).into()));
        self.top_logprobs.push(logprobs.map_or(Value::Null, |l| {
            // The likeliest, and the token itself where it is not among them.
            let mut top = Map::new();
            for &(other, lp) in &l.top {
                top.entry(legacy_name(text.token_bytes(other))).or_insert_with(|| finite(lp).into());
            }
            top.entry(name.clone()).or_insert_with(|| finite(l.own).into());
            top.into()
        }));
        self.tokens.push(name.into());
        self.text_offset.push(offset.into());
    }

    pub(crate) fn into_json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// Characters of the echoed text before each token of the prompt.
fn offsets(text: &TextModel, prompt: &PromptView) -> Vec<usize> {
    let total: usize = prompt.tokens.iter().map(|&t| text.token_bytes(t).len()).sum();
    // What the tokens have more than the text is at the front (a begin token, or a space that the tokenizer adds), apart
    // from the start of a character at the end.
    let mut hidden = total.saturating_sub(unfinished_bytes(text, &prompt.tokens) + prompt.echo.len());
    let mut chars = 0;
    prompt
        .tokens
        .iter()
        .map(|&token| {
            let offset = chars;
            let bytes = text.token_bytes(token);
            let visible = &bytes[hidden.min(bytes.len())..];
            hidden -= bytes.len() - visible.len();
            // Each character counts once, at its first byte.
            chars += visible.iter().filter(|&&b| b & 0xc0 != 0x80).count();
            offset
        })
        .collect()
}

/// A token's text, or its bytes where they are not whole characters.
fn legacy_name(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| format!("bytes:{}", escaped(bytes)), str::to_owned)
}

fn chat_name(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| escaped(bytes), str::to_owned)
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("\\x{b:02x}")).collect()
}

#[cfg(test)]
mod tests;
