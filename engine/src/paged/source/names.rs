//! What the same tensor is called by converters to GGUF and by Hugging Face.

/// A naming scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// `blk.0.attn_q.weight`.
    Gguf,
    /// `model.layers.0.self_attn.q_proj.weight`.
    HuggingFace,
}

/// A tensor's part in the model, with its layer where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Embed,
    FinalNorm,
    Head,
    AttnNorm,
    Query,
    Key,
    Value,
    QueryNorm,
    KeyNorm,
    AttnOutput,
    FfnNorm,
    Gate,
    Up,
    Down,
}

impl Part {
    /// The name in both schemes, without layer and without `.weight` or `.bias`; and whether it belongs to a layer.
    const fn stems(self) -> (&'static str, &'static str, bool) {
        match self {
            Self::Embed => ("token_embd", "model.embed_tokens", false),
            Self::FinalNorm => ("output_norm", "model.norm", false),
            Self::Head => ("output", "lm_head", false),
            Self::AttnNorm => ("attn_norm", "input_layernorm", true),
            Self::Query => ("attn_q", "self_attn.q_proj", true),
            Self::Key => ("attn_k", "self_attn.k_proj", true),
            Self::Value => ("attn_v", "self_attn.v_proj", true),
            Self::QueryNorm => ("attn_q_norm", "self_attn.q_norm", true),
            Self::KeyNorm => ("attn_k_norm", "self_attn.k_norm", true),
            Self::AttnOutput => ("attn_output", "self_attn.o_proj", true),
            Self::FfnNorm => ("ffn_norm", "post_attention_layernorm", true),
            Self::Gate => ("ffn_gate", "mlp.gate_proj", true),
            Self::Up => ("ffn_up", "mlp.up_proj", true),
            Self::Down => ("ffn_down", "mlp.down_proj", true),
        }
    }
}

impl Names {
    /// The full name of a weight (`kind` is `weight`) or bias (`bias`); `layer` is ignored for parts outside of layers.
    pub(crate) fn of(self, part: Part, layer: usize, kind: &str) -> String {
        let (gguf, hugging_face, in_layer) = part.stems();
        match (self, in_layer) {
            (Self::Gguf, false) => format!("{gguf}.{kind}"),
            (Self::Gguf, true) => format!("blk.{layer}.{gguf}.{kind}"),
            (Self::HuggingFace, false) => format!("{hugging_face}.{kind}"),
            (Self::HuggingFace, true) => format!("model.layers.{layer}.{hugging_face}.{kind}"),
        }
    }

    /// Whether a tensor that the graph does not read may be there all the same.
    pub(crate) fn may_ignore(self, name: &str, tied: bool) -> bool {
        match self {
            // Read with the spec.
            Self::Gguf => name == "rope_freqs.weight",
            // Old checkpoints store what follows from the base; some tied ones store the shared matrix twice.
            Self::HuggingFace => {
                name.ends_with(".rotary_emb.inv_freq") || (tied && name == self.of(Part::Head, 0, "weight"))
            }
        }
    }
}
