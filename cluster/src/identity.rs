//! Incarnations: numbers that tell the lives of a name apart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

static LAST: AtomicU64 = AtomicU64::new(0);

/// A number that no earlier call in this process has given and that grows from process to process: milliseconds since
/// 1970, or one more than the last where the clock has not moved (or has moved back).
pub fn next_incarnation() -> u64 {
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX - 1));
    let next = |last: u64| Some(clock.max(last + 1));
    match LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
        Ok(last) | Err(last) => clock.max(last + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incarnations_grow_even_within_a_millisecond() {
        let numbers: Vec<u64> = (0..1000).map(|_| next_incarnation()).collect();
        assert!(numbers.windows(2).all(|w| w[0] < w[1]));
        assert!(numbers[0] > 1_600_000_000_000, "later than 2020");
    }
}
