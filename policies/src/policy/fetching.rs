//! Whether what somebody else holds of a prompt is worth fetching: the arithmetic that `replicate` and `pool-replicate` share.

use config::ids::WorkerId;

use super::disaggregate::tokens_in;
use super::{CandidateRow, Fetch, Opinion, PoolRow};
use crate::cost::Hardware;
use crate::kv::PageLayout;
use crate::kv::handoff::LEAST_PAGES;
use crate::placement::PlaceRequest;
use crate::time::Span;

/// Tokens that are worth fetching at most, whatever the machine.
pub(super) const MIN_TOKENS: u32 = 512;
/// What a worker computes in so many seconds is worth fetching, where that is fewer tokens.
const WORTH_SECONDS: f64 = 0.1;

/// Who holds the start of a prompt.
#[derive(Debug)]
pub(super) struct Holder<'a> {
    id: &'a WorkerId,
    /// Pages from the first, the one of the last token included.
    pages: u32,
    figures: &'a Hardware,
    /// Time until it has given what others were sent to it for.
    wait: Span,
    pool: bool,
}

impl<'a> Holder<'a> {
    /// A worker.
    pub(super) fn worker(row: &'a CandidateRow) -> Self {
        let page_tokens = row.info.kv.as_ref().map_or(1, |kv| kv.layout.page_tokens.max(1));
        // The last token is no hit, and its page is there all the same.
        let pages = row.hit_tokens.div_ceil(page_tokens);
        Self { id: &row.worker, pages, figures: &row.info.hardware.figures, wait: Span::ZERO, pool: false }
    }

    /// A pool.
    pub(super) fn pool(row: &'a PoolRow) -> Self {
        let figures = &row.info.hardware.figures;
        Self { id: &row.info.id, pages: row.hit_pages, figures, wait: row.wait, pool: true }
    }
}

/// Fewer tokens than this are computed again by `row`: as configured, or what follows from its machine.
pub(super) fn least(configured: Option<u32>, row: &CandidateRow) -> u32 {
    let by_pace = || match tokens_in(row, WORTH_SECONDS) {
        Some(tokens) => (tokens.min(u64::from(MIN_TOKENS)) as u32).max(LEAST_PAGES * row.info.page_tokens),
        None => MIN_TOKENS,
    };
    configured.unwrap_or_else(by_pace)
}

/// What `row` is to fetch from `holder` if it computes the prompt; none where that is fewer than `least` tokens, or takes
/// longer than computing them.
pub(super) fn fetch(
    request: &PlaceRequest,
    row: &CandidateRow,
    holder: &Holder<'_>,
    least: u32,
) -> Option<Fetch> {
    let layout = &row.info.kv.as_ref()?.layout;
    let tokens = holder.pages.saturating_mul(layout.page_tokens).min(request.prompt_tokens);
    // The last token of a prompt is computed in any case.
    let held = tokens.min(request.prompt_tokens.saturating_sub(1));
    let gain = held.saturating_sub(row.hit_tokens);
    if gain < least {
        return None;
    }
    let (bytes, sending) = sending(row, holder, layout, tokens);
    let figures = &row.info.hardware.figures;
    let computing = row.info.shape.as_ref().and_then(|shape| figures.prefill(shape, row.hit_tokens, gain));
    if computing.is_some_and(|computing| computing <= holder.wait + sending) {
        return None;
    }
    let mut numbers = vec![
        ("fetch-tokens", f64::from(gain)),
        ("holder-tokens", f64::from(held)),
        ("own-tokens", f64::from(row.hit_tokens)),
        ("transfer-bytes", bytes),
        ("transfer-ms", milliseconds(sending)),
    ];
    numbers.extend((holder.wait > Span::ZERO).then(|| ("wait-ms", milliseconds(holder.wait))));
    numbers.extend(computing.map(|took| ("compute-ms", milliseconds(took))));
    let kind = if holder.pool { "the pool " } else { "" };
    let why = format!("{kind}{} holds {gain} more tokens of the prompt than {}", holder.id, row.worker);
    let occupies = holder.figures.send(holder.figures, bytes as u64);
    let (to, from, pool) = (row.worker.clone(), holder.id.clone(), holder.pool);
    Some(Fetch { to, from, pool, tokens, sending, occupies, computing, why, numbers })
}

/// Bytes of the pages that `from` holds of the first `tokens` tokens and `to` does not, and the time that they take on the
/// slower link of the two.
fn sending(to: &CandidateRow, from: &Holder<'_>, layout: &PageLayout, tokens: u32) -> (f64, Span) {
    let pages = layout.pages_for(tokens).saturating_sub(to.hit_tokens / layout.page_tokens.max(1));
    let bytes = bytes_of(layout, pages);
    (bytes, from.figures.send(&to.info.hardware.figures, bytes as u64))
}

/// Bytes of so many pages. As a fraction: what a worker says of itself is not to overflow here.
pub(super) fn bytes_of(layout: &PageLayout, pages: u32) -> f64 {
    let sizes = [layout.layers, layout.page_tokens, layout.kv_heads, layout.head_dim, layout.element_bytes];
    sizes.iter().fold(2.0 * f64::from(pages), |bytes, n| bytes * f64::from(*n))
}

fn milliseconds(span: Span) -> f64 {
    span.0 as f64 / 1e6
}

impl Opinion {
    /// What is fetched where `worker` computes the prompt.
    #[must_use]
    pub fn fetch(&self, worker: &WorkerId) -> Option<&Fetch> {
        self.fetches.iter().find(|fetch| fetch.to == *worker)
    }
}
