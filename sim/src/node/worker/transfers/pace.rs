//! How many tokens and pages go at once, by what computing them and the link take.

use policies::kv::PageLayout;
use policies::kv::handoff::HandoffConfig;
use policies::kv::handoff::chunking::{ChunkLimits, Chunking, Rates};
use policies::time::Span;

use super::Transfers;

/// As the live worker's: steps with fewer tokens say nothing about the speed of prefill.
const TELLING_TOKENS: usize = 32;

/// As the live worker assumes until it has measured: prompt tokens a second.
const ASSUMED_COMPUTE: f64 = 500.0;

/// Chunks of a worker with steps of `budget` tokens and a link that takes `link` bytes a second.
pub(super) fn chunking(limits: &HandoffConfig, layout: &PageLayout, budget: u32, link: u64) -> Chunking {
    let chunks = ChunkLimits {
        page_tokens: layout.page_tokens,
        page_bytes: layout.page_bytes() as u64,
        budget_tokens: budget,
        message_pages: limits.pages_per_message,
    };
    let link = if link == 0 { 1e9 } else { link as f64 };
    Chunking::new(chunks, Rates { compute: ASSUMED_COMPUTE, link })
}

impl Transfers {
    /// A step has ended.
    pub(in crate::node::worker) fn stepped(&mut self, tokens: usize, took: Span) {
        if tokens >= TELLING_TOKENS {
            self.chunking.computed(tokens as u32, took);
        }
    }

    /// The link has carried so many pages.
    pub(super) fn carried(&mut self, pages: u32, took: Span) {
        if pages > 0 {
            self.chunking.sent(u64::from(pages) * self.layout.page_bytes() as u64, took);
        }
    }
}
