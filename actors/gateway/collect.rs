//! A whole answer, from the same pieces that a stream is made of.

use axum::http::StatusCode;
use axum::response::Response;
use policies::request::{Finish, Logprobs};
use serde_json::{Value, json};

use super::assemble::ScoredToken;
use super::error::{ApiError, json_response};
use super::openai::reply::{LegacyLogprobs, Reply, add, finish_reason, usage};
use super::session::{SessionOut, SessionUsage};

/// What has come so far.
#[derive(Debug)]
pub(crate) struct Collector {
    reply: Reply,
    choices: Vec<Choice>,
    /// Log-probabilities of each prompt's tokens from the second on.
    prompts: Vec<Vec<Logprobs>>,
    total: SessionUsage,
    open: usize,
}

#[derive(Clone, Debug, Default)]
struct Choice {
    text: String,
    tokens: Vec<ScoredToken>,
    finish: Option<Finish>,
}

impl Collector {
    pub(crate) fn new(reply: Reply) -> Self {
        let prompts = reply.prompts.len();
        let choices = vec![Choice::default(); prompts * reply.output.n as usize];
        Self {
            reply,
            choices,
            prompts: vec![Vec::new(); prompts],
            total: SessionUsage::default(),
            open: prompts,
        }
    }

    /// Takes what the session of `prompt` sent.
    ///
    /// # Errors
    /// When it failed: the whole request then has.
    pub(crate) fn take(&mut self, prompt: usize, out: SessionOut) -> Result<(), ApiError> {
        match out {
            SessionOut::Accepted(placed) => self.reply.placements.push(placed),
            SessionOut::Prompt { tokens, .. } => self.prompts[prompt].extend(tokens),
            SessionOut::Delta(delta) => {
                let choice = &mut self.choices[self.reply.index(prompt, delta.choice)];
                choice.text.push_str(&delta.text);
                choice.tokens.extend(delta.tokens);
                choice.finish = choice.finish.or(delta.finish);
            }
            SessionOut::Finished(part) => {
                add(&mut self.total, &part);
                self.open -= 1;
            }
            SessionOut::Failed(failure) => return Err(ApiError::from(&failure)),
        }
        Ok(())
    }

    /// All sessions have ended.
    pub(crate) const fn is_done(&self) -> bool {
        self.open == 0
    }

    pub(crate) fn into_response(self) -> Response {
        let output = self.reply.output;
        let choices = self.choices.iter().enumerate().map(|(i, c)| self.choice(i, c)).collect();
        let object = if output.chat { "chat.completion" } else { "text_completion" };
        let mut body = self.reply.envelope(object, choices);
        body.insert("usage".into(), usage(&self.total));
        if let Some(stages) = self.reply.stages() {
            body.insert("stages".into(), stages);
        }
        json_response(StatusCode::OK, &body.into())
    }

    fn choice(&self, index: usize, choice: &Choice) -> Value {
        let reason = choice.finish.map(finish_reason);
        let output = self.reply.output;
        if output.chat {
            let logprobs = output.logprobs.then(|| self.reply.chat_logprobs(&choice.tokens));
            return json!({
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": null},
                "logprobs": logprobs,
                "finish_reason": reason,
            });
        }
        let prompt = index / output.n.max(1) as usize;
        let view = &self.reply.prompts[prompt];
        let logprobs = output.logprobs.then(|| {
            let text = &self.reply.served.text;
            let mut legacy = LegacyLogprobs::default();
            if output.echo {
                legacy.push_prompt(text, view, &self.prompts[prompt]);
            }
            legacy.push_output(text, view.echo.chars().count(), &choice.tokens);
            legacy.into_json()
        });
        let text = format!("{}{}", view.echo, choice.text);
        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason})
    }
}
