//! Rotary position embedding: base, layout, scaling, and the frequencies that follow from them.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

/// Which two elements of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopeStyle {
    /// Elements `2i` and `2i + 1` (llama GGUF files, whose q and k rows are permuted for it).
    Interleaved,
    /// Elements `i` and `i + dims / 2` (Hugging Face checkpoints; qwen GGUF files).
    HalfSplit,
}

/// How frequencies are stretched for contexts longer than the trained one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The stretch.
        factor: f32,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// The stretch of long wavelengths.
        factor: f32,
        /// Wavelengths over `original_context / low_freq_factor` are stretched in full.
        low_freq_factor: f32,
        /// Wavelengths under `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context of the original training, in tokens.
        original_context: usize,
    },
    /// YaRN (arXiv 2309.00071): a ramp over dimensions between keeping and dividing, and a temperature.
    Yarn {
        /// The stretch.
        factor: f32,
        /// Context of the original training, in tokens.
        original_context: usize,
        /// Rotations over the original context above which a dimension is kept.
        beta_fast: f32,
        /// Rotations over the original context under which a dimension is stretched in full.
        beta_slow: f32,
        /// Multiplies cosine and sine.
        magnitude: f32,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
}

/// Rotary position embedding of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeSpec {
    /// Frequency base (theta).
    pub base: f32,
    /// Leading elements of each head that are rotated; even.
    pub dims: usize,
    /// Which elements turn together.
    pub style: RopeStyle,
    /// Scaling for long contexts.
    pub scaling: RopeScaling,
    /// Divisors of the `dims / 2` frequencies, from the tensor `rope_freqs.weight`.
    pub factors: Option<Vec<f32>>,
}

/// The angles of a [`RopeSpec`]: position `p` turns pair `i` by `p * inv_freq[i]`; cosine and sine are then multiplied
/// by `magnitude`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeFrequencies {
    /// Radians per position, `dims / 2` of them, all scaling and factors applied.
    pub inv_freq: Vec<f64>,
    /// Multiplies cosine and sine; 1 unless the scaling is YaRN.
    pub magnitude: f32,
}

impl RopeScaling {
    /// All that the engine computes, for error messages.
    pub const SUPPORTED: &str = "none, linear, llama3, yarn";

    /// Refuses parameters that make no frequencies: what was found, and what would be right.
    pub(super) fn checked(self) -> Result<Self, (String, String)> {
        let positive = |value: f32| value.is_finite() && value > 0.0;
        let good = match self {
            Self::None => true,
            Self::Linear { factor } => positive(factor),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                positive(factor)
                    && positive(low_freq_factor)
                    && high_freq_factor > low_freq_factor
                    && high_freq_factor.is_finite()
                    && original_context > 0
            }
            Self::Yarn { factor, original_context, beta_fast, beta_slow, magnitude, .. } => {
                positive(factor)
                    && positive(magnitude)
                    && positive(beta_slow)
                    && beta_fast > beta_slow
                    && beta_fast.is_finite()
                    && original_context > 0
            }
        };
        let expected = "positive factors, and a high or fast limit over the low or slow one".to_owned();
        if good { Ok(self) } else { Err((format!("{self:?}"), expected)) }
    }
}

impl RopeSpec {
    /// The frequencies with scaling and factors applied.
    ///
    /// Sources: linear position interpolation (arXiv 2306.15595), the scaling published with Llama 3.1, YaRN (arXiv
    /// 2309.00071) with the ramp over dimensions that its reference code and the common runtimes use.
    pub fn frequencies(&self) -> RopeFrequencies {
        let pairs = self.dims / 2;
        let base = f64::from(self.base);
        let mut inv_freq: Vec<f64> =
            (0..pairs).map(|pair| base.powf(-((2 * pair) as f64) / self.dims as f64)).collect();
        let mut magnitude = 1.0;
        match self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                for freq in &mut inv_freq {
                    *freq /= f64::from(factor);
                }
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let (factor, low, high) =
                    (f64::from(factor), f64::from(low_freq_factor), f64::from(high_freq_factor));
                for freq in &mut inv_freq {
                    // Turns of this pair over the original context: few turns are stretched, many are kept.
                    let turns = original_context as f64 * *freq / TAU;
                    let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    *freq = *freq / factor * (1.0 - keep) + *freq * keep;
                }
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                magnitude: scale,
                truncate,
            } => {
                // The (fractional) dimension pair that makes `turns` turns over the original context.
                let pair_of = |turns: f32| {
                    self.dims as f64 * (original_context as f64 / (f64::from(turns) * TAU)).ln()
                        / (2.0 * base.ln())
                };
                let (mut first, mut last) = (pair_of(beta_fast), pair_of(beta_slow));
                if truncate {
                    (first, last) = (first.floor(), last.ceil());
                }
                let (first, last) = (first.max(0.0), last.min(self.dims as f64 - 1.0));
                for (pair, freq) in inv_freq.iter_mut().enumerate() {
                    let stretch = ((pair as f64 - first) / (last - first).max(1e-3)).clamp(0.0, 1.0);
                    *freq = *freq / f64::from(factor) * stretch + *freq * (1.0 - stretch);
                }
                magnitude = scale;
            }
        }
        if let Some(factors) = &self.factors {
            for (freq, factor) in inv_freq.iter_mut().zip(factors) {
                *freq /= f64::from(*factor);
            }
        }
        RopeFrequencies { inv_freq, magnitude }
    }
}

/// The temperature that YaRN recommends for a stretch of `factor`: `0.1 ln(factor) + 1`.
pub(super) fn yarn_magnitude(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}
