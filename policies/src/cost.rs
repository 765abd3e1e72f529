//! How long an engine step takes: one model for the fake engine, the simulator and, later, the router.
//!
//! Over the slices of a step, `tokens` is how many are computed and `context(token)` how many each attends to:
//!
//! ```text
//! affine     step = overhead + Σ slice + attention · Σ context(token)
//!            slice = decode for one token, max(decode, prefill · tokens) for more
//! roofline   step = overhead + max(flops / F, bytes / B)
//!            flops = 2 · params · tokens + 4 · layers · heads · head_dim · Σ context(token)
//!            bytes = weights + kv_token · Σ (start + tokens)      KV that each slice reads and writes
//!            kv_token = 2 · layers · kv_heads · head_dim · element bytes of keys and values of one token
//!            transfer = latency + kv_token · tokens / L
//! steps      step = rows(all tokens) + slice · slices + attention of each slice, from a table ([`StepCosts`])
//! curve      step = prefill(prompt tokens) + decode(share of KV in use), two polynomials ([`Curve`]); transfers as above
//! ```
//!
//! Affine and steps are what one measures of an engine, roughly and closely; the roofline (Williams, Waterman and Patterson, CACM 2009) predicts one that
//! is not there: 2 · params is one multiply and one add a weight, 4 · layers · heads · head_dim · context the two products
//! of attention (scores and values) for one token. Everything is integer arithmetic in 128 bits, rounded up, so that a
//! larger step never costs less and a replay is exact.

use crate::step::StepPlan;
use crate::time::Span;

pub mod fake;
pub mod fit;

mod curve;
mod profile;
mod speed;
mod steps;

pub use curve::{Curve, KvUse, Polynomial};
pub use profile::HardwareProfile;
pub use speed::{Speed, SpeedSums};
pub use steps::{SlicePrices, StepCosts};

#[cfg(test)]
mod tests;

/// Size of a model, as far as time depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Weights that take part in a token's computation.
    pub params: u64,
    /// Bytes of those weights in memory; all are read in each step.
    pub weight_bytes: u64,
    /// Transformer layers.
    pub layers: u32,
    /// Query heads a layer.
    pub heads: u32,
    /// KV heads a layer.
    pub kv_heads: u32,
    /// Elements a head.
    pub head_dim: u32,
    /// Bytes of a KV element.
    pub element_bytes: u32,
}

impl ModelShape {
    /// Shapes by name.
    pub const NAMES: &'static [&'static str] = &["smollm2-135m", "llama-3.1-8b", "llama-3.1-70b"];

    /// A shape from [`ModelShape::NAMES`]; the figures are those of the models' published configurations, with weights
    /// of 16 bits (SmolLM2: the Q4_1 file that is the default model).
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let shape = match name {
            "smollm2-135m" => Self {
                params: 134_515_008,
                weight_bytes: 98_000_000,
                layers: 30,
                heads: 9,
                kv_heads: 3,
                head_dim: 64,
                element_bytes: 2,
            },
            "llama-3.1-8b" => Self {
                params: 8_030_261_248,
                weight_bytes: 16_060_522_496,
                layers: 32,
                heads: 32,
                kv_heads: 8,
                head_dim: 128,
                element_bytes: 2,
            },
            "llama-3.1-70b" => Self {
                params: 70_553_706_496,
                weight_bytes: 141_107_412_992,
                layers: 80,
                heads: 64,
                kv_heads: 8,
                head_dim: 128,
                element_bytes: 2,
            },
            _ => return None,
        };
        Some(shape)
    }

    /// Bytes of keys and values of one token.
    #[must_use]
    pub const fn kv_token_bytes(&self) -> u64 {
        2 * self.layers as u64 * self.kv_heads as u64 * self.head_dim as u64 * self.element_bytes as u64
    }
}

/// What a machine reaches in practice. Rates of 0 are infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Floating-point operations a second.
    pub flops: u64,
    /// Bytes a second between memory and compute.
    pub memory: u64,
    /// Bytes a second to another machine.
    pub link: u64,
    /// Fixed cost of a step: launches, scheduling, sampling.
    pub step_overhead: Span,
    /// Fixed cost of a transfer.
    pub link_latency: Span,
}

impl Hardware {
    /// Machines by name.
    pub const NAMES: &'static [&'static str] = &["h100", "h200", "l40s", "cpu", "zero"];

    /// A machine from [`Hardware::NAMES`].
    ///
    /// GPUs: the vendor's data sheets (dense BF16 and memory bandwidth: H100 SXM 989 TFLOP/s and 3.35 TB/s, H200 SXM 989
    /// and 4.8, L40S 362 and 0.864), of which half the FLOP/s and three quarters of the bandwidth are assumed to be
    /// reached; links of 400 Gbit/s (H100, H200) and 100 Gbit/s (L40S) at nine tenths; 2 ms (L40S: 3 ms) a step are an
    /// assumption too. `cpu`: two cores of a Zen 3 machine, as measured with our kernels (160 GFLOP/s at 128 rows,
    /// 10.5 GB/s of weights at one row, 3 GB/s over a loopback link). `zero`: everything at once.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        const G: u64 = 1_000_000_000;
        let gpu = |tflops: u64, gigabytes: u64, link_mb: u64, overhead_us: u64| Self {
            flops: tflops * 1000 * G / 2,
            memory: gigabytes * G * 3 / 4,
            link: link_mb * 1_000_000 * 9 / 10,
            step_overhead: Span::from_micros(overhead_us),
            link_latency: Span::from_micros(50),
        };
        let hardware = match name {
            "h100" => gpu(989, 3350, 50_000, 2000),
            "h200" => gpu(989, 4800, 50_000, 2000),
            "l40s" => gpu(362, 864, 12_500, 3000),
            "cpu" => Self {
                flops: 160 * G,
                memory: 10_500_000_000,
                link: 3 * G,
                step_overhead: Span::from_micros(300),
                link_latency: Span::from_micros(50),
            },
            "zero" => {
                Self { flops: 0, memory: 0, link: 0, step_overhead: Span::ZERO, link_latency: Span::ZERO }
            }
            _ => return None,
        };
        Some(hardware)
    }
}

/// Time of steps and transfers of one model on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostModel {
    /// A price for each part of a step. Transfers take no time.
    Affine(Affine),
    /// A table of what was measured of steps. Transfers take no time.
    Steps(StepCosts),
    /// What a machine's compute and memory allow.
    Roofline {
        /// The model.
        model: ModelShape,
        /// The machine.
        hardware: Hardware,
    },
    /// What was measured of an engine as a whole; transfers are those of the model on the machine's link.
    Curve {
        /// The polynomials of a step.
        curve: Curve,
        /// The model.
        model: ModelShape,
        /// The machine.
        hardware: Hardware,
    },
}

/// Prices of the parts of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Affine {
    /// A step, whatever is in it.
    pub step_overhead: Span,
    /// A token of a slice of several.
    pub prefill_per_token: Span,
    /// A slice of one token.
    pub decode_per_sequence: Span,
    /// A token of context that a token attends to.
    pub attention_per_token: Span,
}

/// Consecutive tokens of one sequence, as far as time depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Tokens before them, whose KV is read.
    pub start: u32,
    /// Tokens computed: 1 for a decode.
    pub tokens: u32,
}

impl CostModel {
    /// Time of a step over these slices; zero when there is nothing to compute. A curve's decodes are those of a worker
    /// without anything else in its pages.
    #[must_use]
    pub fn step(&self, slices: impl IntoIterator<Item = Work>) -> Span {
        self.step_in(slices, KvUse::default())
    }

    /// As [`CostModel::step`], on a worker with these pages.
    #[must_use]
    pub fn step_in(&self, slices: impl IntoIterator<Item = Work>, pages: KvUse) -> Span {
        // Sums of 32-bit numbers, and of products of two of them.
        let (mut decodes, mut all_tokens, mut all_kv) = (0_u64, 0_u64, 0_u64);
        let (mut contexts, mut priced) = (0_u128, 0_u128);
        let mut content = steps::Content::default();
        for Work { start, tokens: n } in slices {
            let (start, n) = (u64::from(start), u64::from(n));
            if n == 0 {
                continue;
            }
            all_tokens += n;
            decodes += u64::from(n == 1);
            // Token i of the slice attends to start + i + 1 tokens.
            let attended = u128::from(n * start) + u128::from(n * (n + 1) / 2);
            contexts += attended;
            all_kv += start + n;
            let (start, n) = (u128::from(start), u128::from(n));
            match self {
                Self::Affine(a) => {
                    let decode = u128::from(a.decode_per_sequence.0);
                    priced += if n == 1 { decode } else { decode.max(n * u128::from(a.prefill_per_token.0)) };
                }
                Self::Steps(costs) => {
                    content.rows += n;
                    content.slices += 1;
                    content.attention += costs.attention(start, n, attended);
                }
                Self::Roofline { .. } | Self::Curve { .. } => {}
            }
        }
        if all_tokens == 0 {
            return Span::ZERO;
        }
        let (tokens, kv) = (u128::from(all_tokens), u128::from(all_kv));
        match self {
            Self::Affine(a) => {
                a.step_overhead + saturated(priced + contexts * u128::from(a.attention_per_token.0))
            }
            Self::Steps(costs) => saturated(costs.step(content)),
            Self::Roofline { model: m, hardware: h } => {
                let attention = 4 * u128::from(m.layers) * u128::from(m.heads) * u128::from(m.head_dim);
                let flops = 2 * u128::from(m.params) * tokens + attention * contexts;
                let bytes = u128::from(m.weight_bytes) + u128::from(m.kv_token_bytes()) * kv;
                h.step_overhead + nanoseconds(flops, h.flops).max(nanoseconds(bytes, h.memory))
            }
            Self::Curve { curve, .. } => {
                let prompt = u32::try_from(all_tokens - decodes).unwrap_or(u32::MAX);
                curve.step(prompt, decodes > 0, pages)
            }
        }
    }

    /// Time of a step over the slices of `plan`.
    #[must_use]
    pub fn plan(&self, plan: &StepPlan) -> Span {
        self.plan_in(plan, KvUse::default())
    }

    /// As [`CostModel::plan`], on a worker with these pages.
    #[must_use]
    pub fn plan_in(&self, plan: &StepPlan, pages: KvUse) -> Span {
        let works = plan.slices.iter().map(|s| Work { start: s.start, tokens: s.tokens.len() as u32 });
        self.step_in(works, pages)
    }

    /// What [`CostModel::step`] has of the time from the end of a step to the beginning of the next, in which the engine
    /// computes nothing.
    #[must_use]
    pub const fn between(&self) -> Span {
        match self {
            Self::Steps(costs) => costs.between(),
            Self::Affine(_) | Self::Roofline { .. } | Self::Curve { .. } => Span::ZERO,
        }
    }

    /// Time to prefill `tokens` tokens after `cached` ones, alone and in one step.
    #[must_use]
    pub fn prefill(&self, cached: u32, tokens: u32) -> Span {
        if let Self::Curve { curve, .. } = self {
            return curve.step(tokens, false, KvUse::default());
        }
        self.step([Work { start: cached, tokens }])
    }

    /// Time to send the KV of `tokens` tokens to another machine.
    #[must_use]
    pub fn transfer(&self, tokens: u32) -> Span {
        match self {
            Self::Affine(_) | Self::Steps(_) => Span::ZERO,
            Self::Roofline { model, hardware } | Self::Curve { model, hardware, .. } => {
                let bytes = u128::from(model.kv_token_bytes()) * u128::from(tokens);
                hardware.link_latency + nanoseconds(bytes, hardware.link)
            }
        }
    }
}

/// Time for `amount` at `rate` a second, rounded up; none at a rate of 0.
fn nanoseconds(amount: u128, rate: u64) -> Span {
    match rate {
        0 => Span::ZERO,
        _ => saturated((amount * 1_000_000_000).div_ceil(u128::from(rate))),
    }
}

fn saturated(ns: u128) -> Span {
    Span(u64::try_from(ns).unwrap_or(u64::MAX))
}
