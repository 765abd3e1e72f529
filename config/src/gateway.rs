//! `[gateway]`: what one request may ask for. Each limit is checked before anything is allocated for it.

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};

/// Limits on a request, and what it gets where it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct GatewayConfig {
    /// Choices (`n`) a prompt. Default 16.
    pub max_n: usize,
    /// Alternatives a token (`top_logprobs`). Default 20.
    pub max_top_logprobs: usize,
    /// Stop strings. Default 16 (OpenAI allows 4).
    pub max_stop: usize,
    /// Entries of `logit_bias`. Default 1024.
    pub max_logit_bias: usize,
    /// Prompts in one completion request. Default 64.
    pub max_prompts: usize,
    /// Tokens that a completion without `max_tokens` generates; a chat without it may fill the context window.
    /// Default 16 (as OpenAI).
    pub default_max_tokens: usize,
    /// Times that a request is placed again after its worker was lost. Default 3.
    pub retry_limit: u32,
    /// Tokens that a worker may produce ahead of what the client has taken, for each choice: a client that stops
    /// reading stops its own generation and nobody else's. 0 is no limit. Default 256.
    pub stream_credit: u32,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            max_n: 16,
            max_top_logprobs: 20,
            max_stop: 16,
            max_logit_bias: 1024,
            max_prompts: 64,
            default_max_tokens: 16,
            retry_limit: 3,
            stream_credit: 256,
        }
    }
}

impl GatewayConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let limits = [
            ("gateway.max-n", self.max_n, 1, 1024),
            ("gateway.max-top-logprobs", self.max_top_logprobs, 0, 1024),
            ("gateway.max-stop", self.max_stop, 0, 1024),
            ("gateway.max-logit-bias", self.max_logit_bias, 0, 1_000_000),
            ("gateway.max-prompts", self.max_prompts, 1, 65_536),
            ("gateway.default-max-tokens", self.default_max_tokens, 1, 10_000_000),
        ];
        for (key, value, least, most) in limits {
            check((least..=most).contains(&value), key, value, &format!("use {least} to {most}"))?;
        }
        check(self.retry_limit <= 100, "gateway.retry-limit", self.retry_limit, "use 0 to 100")
    }
}
