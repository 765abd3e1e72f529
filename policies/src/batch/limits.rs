//! What one worker's scheduler may do.

use crate::kv::Fingerprint;
use crate::kv::events::Recording;

/// Limits of one worker's scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchConfig {
    /// Tokens a page.
    pub page_tokens: u32,
    /// Pages in the engine's KV.
    pub pages: u32,
    /// Tokens computed in one step at most.
    pub max_batch_tokens: u32,
    /// Tokens of prompts in a step in which sequences decode at most: what bounds how long a stream waits for its next
    /// token (the stall-free batches of Sarathi-Serve, OSDI'24). A step without decodes is not bound by it; nor is any by
    /// more than `max_batch_tokens`.
    pub max_mixed_tokens: u32,
    /// Sequences in one step at most; those that wait for credit do not count.
    pub max_running: u32,
    /// Requests waiting at most; the next one is refused.
    pub max_waiting: u32,
    /// Longest sequence, prompt and output together, in tokens.
    pub max_context: u32,
    /// Reuse full pages by content.
    pub prefix_cache: bool,
    /// Share of the pages that a new prompt leaves free for the growth of running ones, in `[0, 1)`.
    pub watermark: f32,
    /// What the engine's pages depend on beside their tokens.
    pub fingerprint: Fingerprint,
    /// Record from the start which pages can be found, for [`Batch::take_kv_events`]; [`Batch::record_kv_events`]
    /// changes it later.
    pub kv_events: Recording,
}

impl BatchConfig {
    /// The defaults for an engine of `pages` pages of `page_tokens` tokens and a model with a window of `max_context`
    /// tokens.
    #[must_use]
    pub const fn sized(page_tokens: u32, pages: u32, max_context: u32, fingerprint: Fingerprint) -> Self {
        Self {
            page_tokens,
            pages,
            max_batch_tokens: 512,
            max_mixed_tokens: u32::MAX,
            max_running: 256,
            max_waiting: 10_000,
            max_context,
            prefix_cache: true,
            watermark: 0.01,
            fingerprint,
            kv_events: Recording::Off,
        }
    }

    /// How many sequences of `tokens` tokens the pages hold at once.
    #[must_use]
    pub fn concurrent(&self, tokens: u32) -> u32 {
        let pages = self.pages - self.watermark_pages().min(self.pages);
        pages / tokens.max(1).div_ceil(self.page_tokens.max(1))
    }

    /// Tokens that one sequence may have: the model's window, or all pages where those hold less.
    #[must_use]
    pub const fn window(&self) -> u32 {
        let capacity = self.pages.saturating_mul(self.page_tokens);
        if capacity < self.max_context { capacity } else { self.max_context }
    }

    pub(super) fn watermark_pages(&self) -> u32 {
        (self.pages as f32 * self.watermark.clamp(0.0, 1.0)).ceil() as u32
    }
}
