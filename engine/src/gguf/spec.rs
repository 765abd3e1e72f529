//! What the engine needs to know of a model's shape.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{GgufError, GgufFile, RopeSpec};

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

impl ModelSpec {
    /// Reads the spec of an open GGUF model; refuses what the engine does not compute, naming the key.
    pub fn from_gguf(_file: &GgufFile) -> Result<Self, GgufError> {
        todo!()
    }

    /// Reads a Hugging Face `config.json`.
    pub fn from_hf_config(_config: &Path) -> Result<Self, GgufError> {
        todo!()
    }
}
