//! What a hand-off would take, and what it would spare: predicted from the machines, for the stage.

use crate::placement::PlaceRequest;
use crate::policy::CandidateRow;
use crate::time::Span;

/// Figures of a stage.
type Numbers = Vec<(&'static str, f64)>;

/// The sizes that the decision goes by.
pub(super) fn sizes(request: &PlaceRequest, decode: &CandidateRow) -> Numbers {
    vec![
        ("uncached-tokens", decode.uncached(request) as f64),
        ("prompt-tokens", request.prompt_tokens.into()),
        ("hit-tokens", decode.hit_tokens.into()),
    ]
}

/// Adds the sizes and times of `prefill` computing the prompt for `decode`, as far as they are known:
///
/// - `prefill-queue-tokens`, `prefill-queue-ms`: prompt tokens before it, and the time for them;
/// - `prefill-ms`: the time of its own, those that the worker holds left out;
/// - `local-prefill-ms`: the same on the decode worker;
/// - `transfer-bytes`, `transfer-ms`: of the pages that the decode worker does not hold, at the slower link of the two, as
///   if all were sent after the last is computed;
/// - `decode-stall-ms`: by how much the streams of the decode worker together are delayed if it computes the prompt itself.
pub(super) fn times(
    request: &PlaceRequest,
    prefill: &CandidateRow,
    decode: &CandidateRow,
    numbers: &mut Numbers,
) {
    let prompt = request.prompt_tokens;
    let takes = |row: &CandidateRow, cached: u32, tokens: u32| {
        let shape = row.info.shape.as_ref()?;
        row.info.hardware.figures.prefill(shape, cached, tokens).map(milliseconds)
    };
    let own = |row: &CandidateRow| takes(row, row.hit_tokens, prompt.saturating_sub(row.hit_tokens));
    let queue = prefill.prefill_tokens;
    numbers.push(("prefill-queue-tokens", queue as f64));
    let queued = u32::try_from(queue).unwrap_or(u32::MAX);
    numbers.extend(takes(prefill, 0, queued).map(|ms| ("prefill-queue-ms", ms)));
    numbers.extend(own(prefill).map(|ms| ("prefill-ms", ms)));
    let local = own(decode);
    numbers.extend(local.map(|ms| ("local-prefill-ms", ms)));
    if let Some(kv) = decode.info.kv.as_ref().filter(|kv| kv.layout.page_tokens > 0) {
        let layout = &kv.layout;
        let pages = layout.pages_for(prompt).saturating_sub(decode.hit_tokens / layout.page_tokens);
        // As a fraction: what a worker says of itself is not to overflow here.
        let sizes =
            [layout.layers, layout.page_tokens, layout.kv_heads, layout.head_dim, layout.element_bytes];
        let bytes = sizes.iter().fold(2.0 * f64::from(pages), |bytes, n| bytes * f64::from(*n));
        let (from, to) = (&prefill.info.hardware.figures, &decode.info.hardware.figures);
        numbers.push(("transfer-bytes", bytes));
        numbers.push(("transfer-ms", milliseconds(from.send(to, bytes as u64))));
    }
    // Each chunk of the prompt is a step longer for every stream there.
    let streams = decode.requests.saturating_sub(decode.handoffs);
    numbers.extend(local.map(|ms| ("decode-stall-ms", ms * f64::from(streams))));
}

fn milliseconds(span: Span) -> f64 {
    span.0 as f64 / 1e6
}
