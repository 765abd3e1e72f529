//! How many tokens to compute before their pages are sent, so that sending hides behind computing.
//!
//! A prompt of `R` tokens, computed and sent in `k` equal chunks of `x = R / k` tokens, is a flow shop of two machines
//! with equal jobs (Johnson, 1954). With the time to compute a chunk `A(x) = s + v·x` (`s` what a step costs in any case,
//! `v` seconds a token) and to send it `C(x) = o + u·x` (`o` what a message costs in any case, `u` seconds for a token's
//! share of a page), the last page is there after
//!
//! ```text
//! T(k) = A(x) + C(x) + (k − 1) · max(A(x), C(x))
//! ```
//!
//! Where computing is the slower one all sends but the last are hidden, `T = k·A + C`: more chunks make that last send
//! shorter, `R·u / k`, and cost a step more each, `s`. Where the link is the slower one it should begin early and never
//! rest, `T = A + k·C`. `T` is a maximum of two convex functions of `k`, so that the best `k` is found by bisection; of
//! (nearly) equally good ones it is the smallest, and a short prompt goes in one piece unless `T(2)` is clearly shorter. `k` is bounded by
//! chunks of one page and of a step's token budget.
//!
//! `s`, `v`, `o` and `u` are measured: each pair is a straight line through what was seen, older sights weighing less.

use crate::time::Span;

/// Weight of all older observations when a new one comes: the last ten or so count.
const MEMORY: f64 = 0.9;
/// Sizes have to differ by this (coefficient of variation, squared) for a slope to be told from an offset.
const SPREAD: f64 = 0.01;
/// One more chunk has to save this part of the whole time. What a step costs in any case shows only where steps differ in
/// size; without this, a link that is far faster than the computing would make every chunk a page, for next to nothing.
const WORTH: f64 = 0.002;
/// A message is worth beginning when its fixed cost is at most this part of it.
const OVERHEAD: f64 = 0.1;

/// What a chunk may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Tokens a page.
    pub page_tokens: u32,
    /// Bytes a page.
    pub page_bytes: u64,
    /// Tokens in one step at most.
    pub budget_tokens: u32,
    /// Pages in one message at most.
    pub message_pages: u32,
}

/// What is assumed before anything is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Prefill, in tokens a second.
    pub compute: f64,
    /// The link, in bytes a second.
    pub link: f64,
}

/// Chooses the size of chunks from what steps and messages took. One for each pair of workers, or one for all links.
#[derive(Clone, Debug)]
pub struct Chunking {
    limits: ChunkLimits,
    /// Seconds of tokens.
    compute: Line,
    /// Seconds of bytes.
    link: Line,
}

impl Chunking {
    /// Before anything is measured. Rates that are not positive numbers are taken as 1 a second.
    #[must_use]
    pub fn new(limits: ChunkLimits, rates: Rates) -> Self {
        let page_tokens = limits.page_tokens.max(1);
        let limits = ChunkLimits {
            page_tokens,
            page_bytes: limits.page_bytes.max(1),
            budget_tokens: limits.budget_tokens.max(page_tokens),
            message_pages: limits.message_pages.max(1),
        };
        Self { limits, compute: Line::guess(rates.compute), link: Line::guess(rates.link) }
    }

    /// A step that computed `tokens` tokens of prompts, and little else, took so long.
    pub fn computed(&mut self, tokens: u32, took: Span) {
        self.compute.see(f64::from(tokens), took.as_secs_f64());
    }

    /// Writing a message with pages of `bytes` bytes in all took so long.
    pub fn sent(&mut self, bytes: u64, took: Span) {
        self.link.see(bytes as f64, took.as_secs_f64());
    }

    /// How many of the `remaining` tokens of a prompt to compute next: whole pages, at least one and at most the budget,
    /// or all that remain.
    #[must_use]
    pub fn next_tokens(&self, remaining: u32) -> u32 {
        let page = self.limits.page_tokens;
        let budget = self.limits.budget_tokens / page * page;
        if remaining <= page {
            return remaining;
        }
        let chunks = self.best_chunks(remaining, remaining.div_ceil(budget), remaining.div_ceil(page));
        let even = remaining.div_ceil(chunks);
        even.div_ceil(page).saturating_mul(page).min(budget).min(remaining)
    }

    /// How many pages to put into one message while `remaining` tokens are left to compute: those of one chunk.
    #[must_use]
    pub fn message_pages(&self, remaining: u32) -> u32 {
        let pages = self.next_tokens(remaining).div_ceil(self.limits.page_tokens);
        pages.clamp(1, self.limits.message_pages)
    }

    /// With how many computed pages a message is worth beginning while more of the prompt is to be computed.
    #[must_use]
    pub fn flush_pages(&self) -> u32 {
        let page = self.link.slope * self.limits.page_bytes as f64;
        let pages = self.link.offset * (1.0 - OVERHEAD) / (OVERHEAD * page);
        (pages.ceil() as u32).clamp(1, self.limits.message_pages)
    }

    /// Seconds from the start until the last page of `tokens` tokens is sent, in `chunks` equal chunks.
    #[must_use]
    pub fn makespan(&self, tokens: u32, chunks: u32) -> f64 {
        let chunks = f64::from(chunks.max(1));
        let size = f64::from(tokens) / chunks;
        let token_bytes = self.limits.page_bytes as f64 / f64::from(self.limits.page_tokens);
        let (compute, send) = (self.compute.at(size), self.link.at(size * token_bytes));
        compute + send + (chunks - 1.0) * compute.max(send)
    }

    /// The smallest number of chunks that one more does not improve by [`WORTH`].
    fn best_chunks(&self, tokens: u32, fewest: u32, most: u32) -> u32 {
        let (mut low, mut high) = (fewest.max(1), most.max(1));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.makespan(tokens, middle + 1) < self.makespan(tokens, middle) * (1.0 - WORTH) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// A straight line `offset + slope · size` through observations: least squares with weights that decay.
#[derive(Clone, Debug)]
struct Line {
    offset: f64,
    slope: f64,
    weight: f64,
    size: f64,
    time: f64,
    size_size: f64,
    size_time: f64,
}

impl Line {
    fn guess(rate: f64) -> Self {
        let rate = if rate.is_finite() && rate > 0.0 { rate } else { 1.0 };
        Self {
            offset: 0.0,
            slope: 1.0 / rate,
            weight: 0.0,
            size: 0.0,
            time: 0.0,
            size_size: 0.0,
            size_time: 0.0,
        }
    }

    fn at(&self, size: f64) -> f64 {
        self.offset + self.slope * size
    }

    fn see(&mut self, size: f64, time: f64) {
        // A clock that did not move measured nothing.
        if size <= 0.0 || time <= 0.0 {
            return;
        }
        let fold = |sum: f64, new: f64| sum * MEMORY + new;
        self.weight = fold(self.weight, 1.0);
        self.size = fold(self.size, size);
        self.time = fold(self.time, time);
        self.size_size = fold(self.size_size, size * size);
        self.size_time = fold(self.size_time, size * time);
        let (size, time) = (self.size / self.weight, self.time / self.weight);
        let variance = self.size_size / self.weight - size * size;
        let covariance = self.size_time / self.weight - size * time;
        if variance > SPREAD * size * size && covariance > 0.0 {
            self.slope = covariance / variance;
            self.offset = time - self.slope * size;
        }
        // The line goes through the mean, with an offset between nothing and almost all of it.
        self.offset = self.offset.clamp(0.0, 0.99 * time);
        self.slope = (time - self.offset) / size;
    }
}
