//! `[runtime]`: how a worker batches.

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::optional;
use crate::worker_policy::WorkerPoliciesConfig;

/// The worker's scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RuntimeConfig {
    /// Tokens computed in one step, prompt chunks and decoded tokens together. Smaller keeps inter-token latency even,
    /// larger makes prefill faster. Default 512.
    pub max_batch_tokens: usize,
    /// Prompt tokens in a step in which sequences decode, which bounds how long a stream waits for its next token while
    /// prompts are computed; a step without decodes takes `max-batch-tokens`. At least a page (`engine.page-tokens`), at
    /// most `max-batch-tokens`. Default `auto`: 128, or `max-batch-tokens` where that is less, on the CPU, where a prompt
    /// loses little by it; `max-batch-tokens` on a GPU and with the `fake` engine.
    #[serde(with = "crate::optional::auto")]
    pub max_mixed_tokens: Option<usize>,
    /// Sequences in work at once; at most `max-batch-tokens`, since each may decode in a step. Default 256.
    pub max_running: usize,
    /// Sequences that wait for a place at a worker; more are refused. Default 1024.
    pub max_waiting: usize,
    /// Whether full KV pages are kept after a request and reused by prompts that begin alike. Default true.
    pub prefix_cache: bool,
    /// The share of pages, 0 to 0.5, that admission leaves free for running sequences to grow into. Default 0.01.
    pub watermark: f64,
    /// Who runs next: one of `fcfs`, `fair`, `priority`, `deadline`; and whether conversations are kept between turns:
    /// `keep-session`; and whether others compute prompts that would wait here: `offload`. One name, a list, or one text
    /// with commas; their options stand under `[worker-policy.NAME]`. Also spelled `worker_policy`. Default `fcfs`.
    #[serde(deserialize_with = "optional::list")]
    pub worker_policy: Vec<String>,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            max_batch_tokens: 512,
            max_mixed_tokens: None,
            max_running: 256,
            max_waiting: 1024,
            prefix_cache: true,
            watermark: 0.01,
            worker_policy: vec!["fcfs".to_owned()],
        }
    }
}

impl RuntimeConfig {
    /// Tokens that `max-mixed-tokens = "auto"` is on the CPU.
    const CPU_MIXED_TOKENS: usize = 128;

    /// Prompt tokens in a step in which sequences decode, on the CPU or elsewhere.
    #[must_use]
    pub fn mixed_tokens(&self, on_cpu: bool) -> usize {
        let auto = if on_cpu { Self::CPU_MIXED_TOKENS } else { usize::MAX };
        self.max_mixed_tokens.unwrap_or(auto).min(self.max_batch_tokens)
    }

    pub(crate) fn validate(&self, page_tokens: usize) -> Result<(), ConfigError> {
        check(
            (16..=65_536).contains(&self.max_batch_tokens),
            "runtime.max-batch-tokens",
            self.max_batch_tokens,
            "use 16 to 65536",
        )?;
        if let Some(tokens) = self.max_mixed_tokens
            && !(page_tokens..=self.max_batch_tokens).contains(&tokens)
        {
            let reason = format!(
                "use auto, or {page_tokens} (engine.page-tokens) to {} (runtime.max-batch-tokens)",
                self.max_batch_tokens
            );
            return Err(ConfigError::invalid("runtime.max-mixed-tokens", tokens, reason));
        }
        if !(1..=self.max_batch_tokens).contains(&self.max_running) {
            let reason = format!("use 1 to runtime.max-batch-tokens (now {})", self.max_batch_tokens);
            return Err(ConfigError::invalid("runtime.max-running", self.max_running, reason));
        }
        check(self.max_waiting > 0, "runtime.max-waiting", self.max_waiting, "use at least 1")?;
        check((0.0..=0.5).contains(&self.watermark), "runtime.watermark", self.watermark, "use 0.0 to 0.5")?;
        if let Some((name, rule)) = WorkerPoliciesConfig::wrong_name(&self.worker_policy) {
            return Err(ConfigError::invalid("runtime.worker-policy", name, rule));
        }
        Ok(())
    }
}
