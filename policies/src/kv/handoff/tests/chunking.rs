use crate::kv::handoff::chunking::{ChunkLimits, Chunking, Rates};
use crate::time::Span;

const LIMITS: ChunkLimits =
    ChunkLimits { page_tokens: 16, page_bytes: 360_000, budget_tokens: 512, message_pages: 64 };

/// Measured: a step costs `step` and `token` a token, a message `message` and `byte` a byte (nanoseconds).
fn measured(step: f64, token: f64, message: f64, byte: f64) -> Chunking {
    let mut chunking = Chunking::new(LIMITS, Rates { compute: 100.0, link: 1e6 });
    for i in 0..60 {
        let tokens = 32 * (1 + i % 8);
        let bytes = u64::from(1 + i % 5) * LIMITS.page_bytes;
        chunking.computed(tokens, Span((step + token * f64::from(tokens)) as u64));
        chunking.sent(bytes, Span((message + byte * bytes as f64) as u64));
    }
    chunking
}

/// The chunk count that a search through all gives, for the whole prompt.
fn best(chunking: &Chunking, tokens: u32) -> f64 {
    let span = |k| chunking.makespan(tokens, k);
    (tokens.div_ceil(512)..=tokens.div_ceil(16)).map(span).fold(f64::INFINITY, f64::min)
}

#[test]
fn the_chunk_is_the_best_of_all() {
    for (step, token, message, byte) in [
        (5e6, 2e6, 2e5, 0.3),
        (5e6, 2e6, 2e5, 30.0),
        (1e5, 2e4, 5e5, 10.0),
        (0.0, 1e6, 0.0, 1.0),
        (2e7, 1e5, 1e6, 0.05),
    ] {
        let chunking = measured(step, token, message, byte);
        for tokens in [17, 33, 100, 512, 513, 1024, 5000, 100_000] {
            let chunk = chunking.next_tokens(tokens);
            assert!(chunk.is_multiple_of(16) || chunk == tokens, "whole pages: {chunk}");
            assert!((16..=512).contains(&chunk) && chunk <= tokens);
            // Even chunks are rounded up to whole pages, so that the count is the best one or less.
            let real = |k| chunking.makespan(tokens, k);
            let (fewer, chosen) = (tokens.div_ceil(chunk), tokens.div_ceil((chunk - 15).max(1)));
            let near = (fewer..=chosen).map(real).fold(f64::INFINITY, f64::min);
            assert!(
                near <= best(&chunking, tokens) * 1.02,
                "{tokens} tokens in chunks of {chunk}: {near} s, {} s at best",
                best(&chunking, tokens)
            );
        }
    }
}

#[test]
fn sending_hides_behind_computing_where_the_link_is_faster() {
    let (step, token, message, byte) = (5e6, 2e6, 2e5, 20.0);
    let chunking = measured(step, token, message, byte);
    let chunk = f64::from(chunking.next_tokens(4096));
    let send = message + byte * chunk / 16.0 * 360_000.0;
    assert!(send < step + token * chunk, "sending {chunk} tokens takes {send} ns");
    assert!(chunk < 512.0, "and the last one does not wait for a whole budget");
}

#[test]
fn a_short_prompt_goes_in_one_piece() {
    // A step costs 20 ms, and all of it is sent in less.
    let chunking = measured(2e7, 1e6, 2e5, 0.3);
    for tokens in [1, 15, 16, 17, 64, 200] {
        assert_eq!(chunking.next_tokens(tokens), tokens);
    }
    assert!(chunking.next_tokens(2048) < 2048);
    assert_eq!(chunking.message_pages(200), 13);
}

#[test]
fn a_slow_link_begins_early() {
    let fast = measured(1e6, 1e6, 2e5, 0.1);
    let slow = measured(1e6, 1e6, 2e5, 200.0);
    assert!(slow.next_tokens(512) <= fast.next_tokens(512));
    assert!(slow.next_tokens(512) <= 64, "the link does not rest for long");
}

#[test]
fn messages_are_worth_their_cost() {
    // A page takes 0.36 ms, a message 2 ms: 50 pages for a tenth of overhead.
    let chunking = measured(1e6, 1e6, 2e6, 1.0);
    let pages = chunking.flush_pages();
    assert!((49..=51).contains(&pages), "{pages}");
    assert_eq!(measured(1e6, 1e6, 0.0, 1.0).flush_pages(), 1);
}

#[test]
fn nonsense_changes_nothing_much() {
    let limits = ChunkLimits { page_tokens: 0, page_bytes: 0, budget_tokens: 0, message_pages: 0 };
    let mut chunking = Chunking::new(limits, Rates { compute: f64::NAN, link: -1.0 });
    chunking.computed(0, Span::from_secs(1));
    chunking.computed(5, Span::ZERO);
    chunking.sent(0, Span::ZERO);
    chunking.sent(u64::MAX, Span(u64::MAX));
    chunking.computed(u32::MAX, Span(u64::MAX));
    assert_eq!(chunking.next_tokens(0), 0);
    assert_eq!(chunking.next_tokens(9), 1);
    assert_eq!((chunking.message_pages(9), chunking.flush_pages()), (1, 1));
    // Constant sizes say nothing of the fixed cost, and noise does not turn the line over.
    let mut chunking = Chunking::new(LIMITS, Rates { compute: 500.0, link: 1e9 });
    for i in 0..100 {
        chunking.computed(256, Span::from_millis(400 + i % 7));
        chunking.computed(64, Span::from_millis(450));
    }
    assert!((16..=512).contains(&chunking.next_tokens(10_000)));
}
