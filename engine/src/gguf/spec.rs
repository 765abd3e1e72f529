//! What the engine needs to know of a model's shape.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::rope::yarn_magnitude;
use super::{GgufError, GgufFile, Metadata, RopeScaling, RopeSpec, RopeStyle, TensorType};

/// The transformer families the paged engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// Llama 2 and 3.x, Mistral, SmolLM2, TinyLlama.
    Llama,
    /// Qwen2 and Qwen2.5: as llama, with biases on q, k and v.
    Qwen2,
    /// Qwen3: as llama, with an RMS norm over each head of q and k.
    Qwen3,
}

/// Sizes and constants of a model, from GGUF metadata or from `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The family.
    pub architecture: Architecture,
    /// The name in the file, if any.
    pub name: Option<String>,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; `heads * head_dim` may differ from `hidden`.
    pub head_dim: usize,
    /// Width of the gated feed-forward layer.
    pub ffn: usize,
    /// Rows of the embedding matrix.
    pub vocab: usize,
    /// Longest sequence in tokens that the model was made for.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub rms_eps: f64,
    /// Rotary position embedding.
    pub rope: RopeSpec,
    /// The output matrix is the embedding matrix.
    pub tied_embeddings: bool,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// q and k are normalised head by head before RoPE.
    pub qk_norm: bool,
}

impl Architecture {
    /// All that the engine computes, for error messages.
    pub const SUPPORTED: &str = "llama (also Mistral, SmolLM2, TinyLlama), qwen2, qwen3";

    /// The family of an architecture name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            // Mistral's first models are llama with other sizes, and their GGUF files say `llama`.
            "llama" | "mistral" => Some(Self::Llama),
            "qwen2" => Some(Self::Qwen2),
            "qwen3" => Some(Self::Qwen3),
            _ => None,
        }
    }

    /// The name in GGUF metadata.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

impl ModelSpec {
    /// Reads the spec of an open GGUF model.
    ///
    /// # Errors
    /// Absent or senseless keys, and whatever the engine does not compute; each names file and key or tensor.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, GgufError> {
        let meta = file.metadata();
        const ARCHITECTURE: &str = "general.architecture";
        let name = meta.need(ARCHITECTURE, meta.string(ARCHITECTURE)?)?;
        let architecture = Architecture::parse(name)
            .ok_or_else(|| meta.unsupported(ARCHITECTURE, format!("`{name}`"), Architecture::SUPPORTED))?;
        let key = |suffix: &str| format!("{name}.{suffix}");
        refuse(meta, &key)?;

        let hidden = meta.need_size(&key("embedding_length"))?;
        let heads = meta.need_size(&key("attention.head_count"))?;
        let kv_heads = meta.size(&key("attention.head_count_kv"))?.unwrap_or(heads);
        let head_dim = meta.size(&key("attention.key_length"))?.unwrap_or(hidden / heads);
        let value_dim = meta.size(&key("attention.value_length"))?.unwrap_or(head_dim);
        if value_dim != head_dim {
            let supported = format!("the same as attention.key_length, {head_dim}");
            return Err(meta.unsupported(&key("attention.value_length"), value_dim.to_string(), supported));
        }
        let embedding = file.require("token_embd.weight")?;
        let vocab = *embedding.shape.first().unwrap_or(&0);
        if embedding.shape != [vocab, hidden] || vocab == 0 {
            let found =
                format!("{hidden} while tensor `token_embd.weight` has the shape {:?}", embedding.shape);
            return Err(meta.bad(&key("embedding_length"), found, "the width of the embedding"));
        }
        let context = meta.need_size(&key("context_length"))?;
        let spec = Self {
            architecture,
            name: meta.string("general.name")?.map(str::to_owned),
            layers: meta.need_size(&key("block_count"))?,
            hidden,
            heads,
            kv_heads,
            head_dim,
            ffn: meta.need_size(&key("feed_forward_length"))?,
            vocab,
            context,
            rms_eps: meta.need(
                &key("attention.layer_norm_rms_epsilon"),
                meta.number(&key("attention.layer_norm_rms_epsilon"))?,
            )?,
            rope: rope_from_gguf(file, architecture, &key, head_dim, context)?,
            tied_embeddings: file.tensor("output.weight").is_none(),
            qkv_bias: file.tensor("blk.0.attn_q.bias").is_some(),
            qk_norm: file.tensor("blk.0.attn_q_norm.weight").is_some(),
        };
        spec.check().map_err(|(suffix, found, expected)| {
            let suffix = match suffix {
                Size::KvHeads => "attention.head_count_kv",
                Size::HeadDim => "attention.key_length",
                Size::RopeDims => "rope.dimension_count",
            };
            meta.bad(&key(suffix), found, expected)
        })?;
        Ok(spec)
    }

    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    /// As [`from_gguf`](Self::from_gguf).
    pub fn from_hf_config(config: &Path) -> Result<Self, GgufError> {
        super::hf::spec(config)
    }

    /// Checks sizes against each other; both readers turn the result into an error with their own key.
    pub(super) fn check(&self) -> Result<(), (Size, String, String)> {
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of the {} query heads", self.heads);
            return Err((Size::KvHeads, self.kv_heads.to_string(), expected));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return Err((Size::HeadDim, self.head_dim.to_string(), "an even width of a head".to_owned()));
        }
        let dims = self.rope.dims;
        if dims == 0 || !dims.is_multiple_of(2) || dims > self.head_dim {
            let expected = format!("an even number up to the head's width {}", self.head_dim);
            return Err((Size::RopeDims, dims.to_string(), expected));
        }
        Ok(())
    }
}

/// A size that does not fit the others.
#[derive(Debug, Clone, Copy)]
pub(super) enum Size {
    KvHeads,
    HeadDim,
    RopeDims,
}

/// Refuses what would change the result and is not computed.
fn refuse(meta: &Metadata, key: &dyn Fn(&str) -> String) -> Result<(), GgufError> {
    let experts = key("expert_count");
    if let Some(count) = meta.size(&experts)?
        && count > 0
    {
        return Err(meta.unsupported(&experts, format!("{count} experts"), "dense models"));
    }
    let window = key("attention.sliding_window");
    if let Some(size) = meta.size(&window)?
        && size > 0
        && size < meta.need_size(&key("context_length"))?
    {
        return Err(meta.unsupported(
            &window,
            format!("a window of {size}"),
            "no window, or one as long as the context",
        ));
    }
    for suffix in
        ["logit_scale", "residual_scale", "embedding_scale", "attention.scale", "attention.clamp_kqv"]
    {
        let key = key(suffix);
        if let Some(value) = meta.number(&key)?
            && value != 0.0
        {
            return Err(meta.unsupported(&key, value.to_string(), "models without it"));
        }
    }
    Ok(())
}

fn rope_from_gguf(
    file: &GgufFile,
    architecture: Architecture,
    key: &dyn Fn(&str) -> String,
    head_dim: usize,
    context: usize,
) -> Result<RopeSpec, GgufError> {
    let meta = file.metadata();
    let factor_key = key("rope.scaling.factor");
    let factor = match meta.number(&factor_key)? {
        Some(factor) => Some(factor),
        None => meta.number(&key("rope.scale_linear"))?,
    }
    // Converters write 0 for "none".
    .filter(|factor| *factor != 0.0);
    let type_key = key("rope.scaling.type");
    let original_context = meta.size(&key("rope.scaling.original_context_length"))?.unwrap_or(context);
    // Without a type a factor is linear, as in llama.cpp.
    let scaling = match (meta.string(&type_key)?.unwrap_or("linear"), factor) {
        ("none", _) | ("linear", None) => RopeScaling::None,
        ("linear", Some(factor)) => RopeScaling::Linear { factor: factor as f32 },
        ("yarn", factor) => {
            let factor = meta.need(&factor_key, factor)?;
            let number = |suffix: &str, default: f64| -> Result<f32, GgufError> {
                Ok(meta.number(&key(suffix))?.unwrap_or(default) as f32)
            };
            let attn_factor = f64::from(number("rope.scaling.attn_factor", 1.0)?);
            RopeScaling::Yarn {
                factor: factor as f32,
                original_context,
                beta_fast: number("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
                magnitude: (attn_factor * yarn_magnitude(factor, 1.0)) as f32,
                truncate: true,
            }
        }
        (other, _) => return Err(meta.unsupported(&type_key, format!("`{other}`"), RopeScaling::SUPPORTED)),
    };
    let dims = meta.size(&key("rope.dimension_count"))?.unwrap_or(head_dim);
    Ok(RopeSpec {
        base: meta.number(&key("rope.freq_base"))?.unwrap_or(10_000.0) as f32,
        dims,
        style: match architecture {
            Architecture::Llama => RopeStyle::Interleaved,
            Architecture::Qwen2 | Architecture::Qwen3 => RopeStyle::HalfSplit,
        },
        scaling: scaling.checked().map_err(|(found, expected)| meta.bad(&factor_key, found, expected))?,
        factors: rope_factors(file, dims)?,
    })
}

/// The tensor `rope_freqs.weight`, by which Llama 3.1 files carry their scaling.
fn rope_factors(file: &GgufFile, dims: usize) -> Result<Option<Vec<f32>>, GgufError> {
    for name in ["rope_factors_long.weight", "rope_factors_short.weight"] {
        if file.tensor(name).is_some() {
            return Err(file.metadata().unsupported(name, "the LongRoPE scaling", RopeScaling::SUPPORTED));
        }
    }
    const FACTORS: &str = "rope_freqs.weight";
    let Some(tensor) = file.tensor(FACTORS) else { return Ok(None) };
    if tensor.dtype != TensorType::F32 || tensor.elements() != dims / 2 {
        let found = format!("{} of shape {:?}", tensor.dtype.name(), tensor.shape);
        return Err(file.metadata().bad(FACTORS, found, format!("F32 of shape [{}]", dims / 2)));
    }
    let factors: Vec<f32> = file
        .bytes(tensor)
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    if factors.iter().any(|factor| !factor.is_finite() || *factor <= 0.0) {
        return Err(file.metadata().bad(
            FACTORS,
            "holding a factor that is not positive",
            "positive factors",
        ));
    }
    Ok(Some(factors))
}
