//! `config.json` of a Hugging Face directory.

use std::path::Path;

use serde_json::Value;

use super::rope::yarn_magnitude;
use super::spec::Size;
use super::{Architecture, GgufError, ModelSpec, RopeScaling, RopeSpec, RopeStyle};

pub(super) fn spec(path: &Path) -> Result<ModelSpec, GgufError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| GgufError::Io { path: path.to_owned(), source })?;
    let json: Value = serde_json::from_str(&text)
        .map_err(|error| GgufError::Corrupt { path: path.to_owned(), what: format!("not JSON: {error}") })?;
    let config = Config { path, json: &json, prefix: "" };
    let name = config.need("model_type", config.string("model_type")?)?;
    let architecture = Architecture::parse(name)
        .ok_or_else(|| config.unsupported("model_type", format!("`{name}`"), Architecture::SUPPORTED))?;
    config.refuse(architecture)?;

    let hidden = config.need_size("hidden_size")?;
    let heads = config.need_size("num_attention_heads")?;
    let head_dim = config.size("head_dim")?.unwrap_or(hidden / heads);
    let context = config.need_size("max_position_embeddings")?;
    let rotary = config.number("partial_rotary_factor")?.unwrap_or(1.0);
    let dims = (head_dim as f64 * rotary) as usize;
    let spec = ModelSpec {
        architecture,
        name: config.string("_name_or_path")?.filter(|name| !name.is_empty()).map(str::to_owned),
        layers: config.need_size("num_hidden_layers")?,
        hidden,
        heads,
        kv_heads: config.size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        ffn: config.need_size("intermediate_size")?,
        vocab: config.need_size("vocab_size")?,
        context,
        rms_eps: config.number("rms_norm_eps")?.unwrap_or(1e-6),
        rope: config.rope(dims, context)?,
        tied_embeddings: config.bool("tie_word_embeddings")?.unwrap_or(false),
        qkv_bias: architecture == Architecture::Qwen2,
        qk_norm: architecture == Architecture::Qwen3,
    };
    spec.check().map_err(|(size, found, expected)| {
        let key = match size {
            Size::KvHeads => "num_key_value_heads",
            Size::HeadDim => "head_dim",
            Size::RopeDims => "partial_rotary_factor",
        };
        config.bad(key, found, &expected)
    })?;
    Ok(spec)
}

/// A JSON object with typed getters whose errors name file and key.
#[derive(Clone, Copy)]
struct Config<'a> {
    path: &'a Path,
    json: &'a Value,
    /// Where the object lies in the file, for errors.
    prefix: &'static str,
}

impl<'a> Config<'a> {
    /// A value that is neither absent nor null.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.json.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = || value.to_string().chars().take(80).collect::<String>();
        read(value).map(Some).ok_or_else(|| self.bad(key, found(), expected))
    }

    fn string(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.typed(key, "text", Value::as_str)
    }

    fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a number", Value::as_f64)
    }

    fn size(&self, key: &str) -> Result<Option<usize>, GgufError> {
        self.typed(key, "a count", |value| value.as_u64().and_then(|value| usize::try_from(value).ok()))
    }

    fn need<T>(&self, key: &str, value: Option<T>) -> Result<T, GgufError> {
        value.ok_or_else(|| GgufError::MissingKey {
            path: self.path.to_owned(),
            key: format!("{}{key}", self.prefix),
        })
    }

    fn need_size(&self, key: &str) -> Result<usize, GgufError> {
        match self.need(key, self.size(key)?)? {
            0 => Err(self.bad(key, "0".to_owned(), "a count of at least 1")),
            size => Ok(size),
        }
    }

    fn bad(&self, key: &str, found: String, expected: &str) -> GgufError {
        let key = format!("{}{key}", self.prefix);
        GgufError::BadKey { path: self.path.to_owned(), key, found, expected: expected.to_owned() }
    }

    fn unsupported(&self, key: &str, found: String, supported: &str) -> GgufError {
        let key = format!("{}{key}", self.prefix);
        GgufError::Unsupported { path: self.path.to_owned(), key, found, supported: supported.to_owned() }
    }

    /// Refuses what would change the result and is not computed.
    fn refuse(&self, architecture: Architecture) -> Result<(), GgufError> {
        if let Some(activation) = self.string("hidden_act")?
            && activation != "silu"
        {
            return Err(self.unsupported("hidden_act", format!("`{activation}`"), "silu"));
        }
        for key in ["attention_bias", "mlp_bias"] {
            // Qwen2 has its biases by definition and needs no key for them.
            if architecture != Architecture::Qwen2 && self.bool(key)? == Some(true) {
                return Err(self.unsupported(key, "biases".to_owned(), "false"));
            }
        }
        if self.get("quantization_config").is_some() {
            let supported = "f32, f16 and bf16 weights, quantised while loading";
            return Err(self.unsupported("quantization_config", "quantised weights".to_owned(), supported));
        }
        // Qwen2 writes a window and switches it off with another key.
        let used = self.bool("use_sliding_window")?.unwrap_or(architecture == Architecture::Llama);
        if let Some(window) = self.size("sliding_window")?
            && used
            && window < self.need_size("max_position_embeddings")?
        {
            let supported = "null, or a window as long as max_position_embeddings";
            return Err(self.unsupported("sliding_window", format!("a window of {window}"), supported));
        }
        Ok(())
    }

    fn rope(&self, dims: usize, context: usize) -> Result<RopeSpec, GgufError> {
        // Newer files keep base and scaling together in `rope_parameters`.
        let parameters =
            self.get("rope_parameters").map(|json| Config { json, prefix: "rope_parameters.", ..*self });
        let scaling = self.get("rope_scaling").map(|json| Config { json, prefix: "rope_scaling.", ..*self });
        let base = match parameters {
            Some(parameters) => parameters.number("rope_theta")?,
            None => None,
        };
        let base = base.or(self.number("rope_theta")?).unwrap_or(10_000.0);
        let scaling = match scaling.or(parameters) {
            Some(object) => object.scaling(context)?,
            None => RopeScaling::None,
        };
        Ok(RopeSpec { base: base as f32, dims, style: RopeStyle::HalfSplit, scaling, factors: None })
    }

    /// Called on the object that holds `rope_type`.
    fn scaling(&self, context: usize) -> Result<RopeScaling, GgufError> {
        let key = if self.get("rope_type").is_some() { "rope_type" } else { "type" };
        let number = |key: &str| Ok::<_, GgufError>(self.need(key, self.number(key)?)? as f32);
        let original = self.size("original_max_position_embeddings")?;
        let scaling = match self.string(key)? {
            None | Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: number("factor")? },
            Some("llama3") => RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_context: self.need("original_max_position_embeddings", original)?,
            },
            Some("yarn") => {
                let factor = f64::from(number("factor")?);
                let magnitude = match (
                    self.number("attention_factor")?,
                    self.number("mscale")?,
                    self.number("mscale_all_dim")?,
                ) {
                    (Some(given), ..) => given,
                    (None, Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => {
                        yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all)
                    }
                    _ => yarn_magnitude(factor, 1.0),
                };
                RopeScaling::Yarn {
                    factor: factor as f32,
                    original_context: original.unwrap_or(context),
                    beta_fast: self.number("beta_fast")?.unwrap_or(32.0) as f32,
                    beta_slow: self.number("beta_slow")?.unwrap_or(1.0) as f32,
                    magnitude: magnitude as f32,
                    truncate: self.bool("truncate")?.unwrap_or(true),
                }
            }
            Some(other) => return Err(self.unsupported(key, format!("`{other}`"), RopeScaling::SUPPORTED)),
        };
        scaling.checked().map_err(|(found, expected)| self.bad(key, found, &expected))
    }
}
