//! What a paged engine is loaded with.

use std::path::PathBuf;

use config::{Device, Dtype, Isq, KvDtype};

use crate::gguf::TensorType;
use crate::store::ModelFiles;

/// Everything that decides how a model is loaded. [`LoadOptions::new`] has the defaults of the configuration.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The model.
    pub files: ModelFiles,
    /// Name that clients ask for; `None`: the file's or directory's.
    pub name: Option<String>,
    /// Source of a chat template that replaces the model's own.
    pub chat_template: Option<String>,
    /// What to compute on.
    pub device: Device,
    /// Compute threads; 0: one a physical core that the process may use.
    pub threads: usize,
    /// What keys and values are stored as.
    pub kv_dtype: KvDtype,
    /// Tokens a page, a multiple of 16.
    pub page_tokens: usize,
    /// How much KV memory there is.
    pub kv: KvBudget,
    /// Longest sequence; `None`: the model's own context. Never more than the KV pages hold.
    pub max_context: Option<usize>,
    /// The type that plain floats are held in.
    pub dtype: Dtype,
    /// The block type that plain floats are quantised to while loading (embeddings and head: to 8 bits).
    pub isq: Option<TensorType>,
}

/// How much memory the KV pages get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvBudget {
    /// A share of the memory that is free after loading, and at least one sequence of the longest context.
    Auto,
    /// As many pages as fit into so many bytes.
    Bytes(u64),
    /// A number of pages.
    Pages(u32),
}

impl LoadOptions {
    /// The defaults for a model.
    pub fn new(files: ModelFiles) -> Self {
        Self {
            files,
            name: None,
            chat_template: None,
            device: Device::Auto,
            threads: 0,
            kv_dtype: KvDtype::F16,
            page_tokens: 16,
            kv: KvBudget::Auto,
            max_context: None,
            dtype: Dtype::Auto,
            isq: None,
        }
    }

    /// The options that a configuration asks for, without its chat template: `engine` is its section `[engine]`, `model`
    /// its section `[model]`.
    pub fn from_config(
        files: ModelFiles,
        engine: &config::EngineConfig,
        model: &config::ModelConfig,
    ) -> Self {
        let kv = match (engine.kv_pages, engine.kv_memory) {
            (Some(pages), _) => KvBudget::Pages(pages),
            (None, Some(size)) => KvBudget::Bytes(size.bytes()),
            (None, None) => KvBudget::Auto,
        };
        Self {
            name: model.name.clone(),
            device: engine.device,
            threads: engine.threads,
            kv_dtype: engine.kv_dtype,
            page_tokens: engine.page_tokens,
            kv,
            max_context: model.max_context,
            dtype: model.dtype,
            isq: model.isq.map(|isq| match isq {
                Isq::Q8_0 => TensorType::Q8_0,
                Isq::Q4_0 => TensorType::Q4_0,
                Isq::Q4_1 => TensorType::Q4_1,
            }),
            ..Self::new(files)
        }
    }

    /// The model's path.
    pub(crate) fn path(&self) -> &PathBuf {
        match &self.files {
            ModelFiles::Gguf(path) | ModelFiles::HfDir(path) => path,
        }
    }
}
