//! The latencies of one request, as the gateway sees them.

use policies::time::{Span, Time};
use serde_json::{Value, json};

use crate::metrics::{E2E, GENERATION_TOKENS, INTER_TOKEN, PD_DECODE_RATE, PD_TAIL, REQUESTS, TTFT};

/// Classes of gaps a doubling: a percentile is found to an eighth at worst.
const STEPS: u32 = 8;
/// Gaps up to 2^6 µs are one class.
const LEAST: u32 = 6;
/// Classes: up to 2^(6 + 24) µs, 18 minutes.
const CLASSES: usize = (24 * STEPS) as usize;

/// When things happened.
#[derive(Debug)]
pub(super) struct Timing {
    started: Time,
    first: Option<Time>,
    /// The last token of each choice.
    last: Vec<Option<Time>>,
    tokens: u64,
    gaps: Gaps,
    /// The prompt is computed on another worker than the answer; none where no policy had a say in that.
    pub(super) remote: Option<bool>,
}

/// Gaps between tokens by class; made with the first.
#[derive(Debug, Default)]
struct Gaps {
    classes: Vec<u32>,
    longest: Span,
    count: u32,
}

impl Gaps {
    fn add(&mut self, gap: Span) {
        self.classes.resize(CLASSES, 0);
        self.classes[class(gap)] += 1;
        self.longest = self.longest.max(gap);
        self.count += 1;
    }

    /// By nearest rank, rounded up to the end of its class.
    fn p99(&self) -> Span {
        let rank = (u64::from(self.count) * 99).div_ceil(100);
        let mut seen = 0;
        let found = self.classes.iter().position(|&count| {
            seen += u64::from(count);
            seen >= rank.max(1)
        });
        found.map_or(Span::ZERO, end).min(self.longest)
    }
}

fn class(gap: Span) -> usize {
    let micros = (gap.0 / 1000).max(1 << LEAST);
    let doubling = micros.ilog2();
    let within = (micros >> (doubling - 3)) as u32 % STEPS;
    (((doubling - LEAST) * STEPS + within) as usize).min(CLASSES - 1)
}

/// The longest gap of a class.
fn end(class: usize) -> Span {
    let (doubling, within) = (class as u32 / STEPS + LEAST, class as u64 % u64::from(STEPS));
    Span::from_micros(((u64::from(STEPS) + within + 1) << doubling) / u64::from(STEPS))
}

impl Timing {
    pub(super) fn new(now: Time, choices: usize) -> Self {
        Self {
            started: now,
            first: None,
            last: vec![None; choices],
            tokens: 0,
            gaps: Gaps::default(),
            remote: None,
        }
    }

    /// A token came.
    pub(super) fn token(&mut self, now: Time, choice: usize) {
        metrics::counter!(GENERATION_TOKENS).increment(1);
        self.tokens += 1;
        if self.first.is_none() {
            self.first = Some(now);
            metrics::histogram!(TTFT).record(now.since(self.started).as_secs_f64());
        }
        if let Some(before) = self.last.get_mut(choice).and_then(|last| last.replace(now)) {
            let gap = now.since(before);
            metrics::histogram!(INTER_TOKEN).record(gap.as_secs_f64());
            self.gaps.add(gap);
        }
    }

    /// The request is over. Gives back what was measured of it.
    pub(super) fn end(&self, now: Time, outcome: &'static str) -> Measured {
        metrics::counter!(REQUESTS, "outcome" => outcome).increment(1);
        let whole = now.since(self.started);
        if outcome == "success" {
            metrics::histogram!(E2E).record(whole.as_secs_f64());
        }
        let decoding = self.first.map_or(0.0, |first| now.since(first).as_secs_f64());
        let decode_rate =
            (self.gaps.count > 0 && decoding > 0.0).then(|| f64::from(self.gaps.count) / decoding);
        let tail = (self.gaps.count > 0).then(|| self.gaps.p99());
        if let (Some(remote), Some(rate), Some(tail)) = (self.remote, decode_rate, tail) {
            let prefill = if remote { "remote" } else { "local" };
            metrics::histogram!(PD_DECODE_RATE, "prefill" => prefill).record(rate);
            metrics::histogram!(PD_TAIL, "prefill" => prefill).record(tail.as_secs_f64());
        }
        Measured {
            started: self.started,
            ttft: self.first.map(|first| first.since(self.started)),
            whole,
            tokens: self.tokens,
            decode_rate,
            tail,
            remote: self.remote,
        }
    }
}

/// What was measured of a request that is over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// When it came.
    pub(crate) started: Time,
    /// To its first token.
    pub(crate) ttft: Option<Span>,
    /// To its end.
    pub(crate) whole: Span,
    /// Of all choices.
    pub(crate) tokens: u64,
    /// Tokens a second after the first.
    pub(crate) decode_rate: Option<f64>,
    /// 99th percentile of the gaps between tokens.
    pub(crate) tail: Option<Span>,
    /// The prompt was computed on another worker than the answer.
    pub(crate) remote: Option<bool>,
}

impl Measured {
    /// As it is shown.
    pub(crate) fn to_json(&self) -> Value {
        let ms = |span: Span| span.0 as f64 / 1e6;
        json!({
            "ttft_ms": self.ttft.map(ms),
            "e2e_ms": ms(self.whole),
            "tokens": self.tokens,
            "decode_tokens_per_second": self.decode_rate,
            "inter_token_p99_ms": self.tail.map(ms),
            "prefill": self.remote.map(|remote| if remote { "remote" } else { "local" }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_of_gaps_is_an_eighth_off_at_most() {
        let mut gaps = Gaps::default();
        (0..99).for_each(|_| gaps.add(Span::from_millis(10)));
        let p99 = gaps.p99().0 as f64 / 1e6;
        assert!((10.0..=11.25).contains(&p99), "{p99}");
        (0..2).for_each(|_| gaps.add(Span::from_millis(700)));
        let p99 = gaps.p99().0 as f64 / 1e6;
        assert!((700.0..=787.5).contains(&p99), "{p99}");
    }

    #[test]
    fn every_gap_has_a_class_that_it_is_not_longer_than() {
        for micros in (0..70).chain((0..40).map(|n| 1 << n)).chain((7..40).map(|n| (1 << n) - 1)) {
            let (gap, class) = (Span::from_micros(micros), class(Span::from_micros(micros)));
            assert!(class == CLASSES - 1 || gap <= end(class), "{micros} {class}");
            assert!(class == 0 || end(class - 1) <= gap, "{micros} {class}");
        }
    }

    #[test]
    fn what_was_measured_of_a_request() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut timing = Timing::new(at(0), 1);
        timing.remote = Some(true);
        [200, 220, 240].into_iter().for_each(|ms| timing.token(at(ms), 0));
        let measured = timing.end(at(240), "success");
        assert_eq!((measured.ttft, measured.tokens), (Some(Span::from_millis(200)), 3));
        assert_eq!(measured.decode_rate, Some(50.0));
        let shown = measured.to_json();
        assert_eq!(
            (shown["prefill"].as_str(), shown["inter_token_p99_ms"].as_f64()),
            (Some("remote"), Some(20.0))
        );
        let nothing = Timing::new(at(0), 1).end(at(5), "cancelled");
        assert_eq!((nothing.ttft, nothing.decode_rate, nothing.tail), (None, None, None));
    }
}
