//! Rotary position embedding: base, layout, scaling, and the frequencies that follow from them.

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

impl RopeSpec {
    /// The frequencies with scaling and factors applied.
    pub fn frequencies(&self) -> RopeFrequencies {
        todo!()
    }
}
