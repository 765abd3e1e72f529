//! Kinds of workers, their machines and their model.

use config::{HardwareConfig, WorkerRole};
use policies::cost::{Hardware, HardwareProfile, ModelShape};
use serde::{Deserialize, Serialize};

use super::{Cluster, invalid, share, within};
use crate::SimError;

/// `[[node]]`: workers that are all alike. What is left out is as `[cluster]`, or the scenario, says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeClass {
    /// For people.
    pub name: String,
    /// How many.
    pub count: u32,
    /// What they do.
    pub role: WorkerRole,
    /// Policies may change that.
    pub role_switch: bool,
    /// Their machine.
    pub hardware: Option<Machine>,
    /// KV pages of each.
    pub pages: Option<u32>,
    /// Tokens that each computes in one step at most.
    pub max_batch_tokens: Option<u32>,
    /// Of those, tokens of prompts in a step in which sequences decode.
    pub max_mixed_tokens: Option<u32>,
    /// Sequences that each has in work at most.
    pub max_running: Option<u32>,
    /// Sequences that wait at each at most.
    pub max_waiting: Option<u32>,
    /// Requests that the controller books on each at once.
    pub max_requests: Option<u32>,
    /// Whether they reuse full pages by content.
    pub prefix_cache: Option<bool>,
    /// Share of the pages that admission leaves free, in `[0, 1)`.
    pub watermark: Option<f32>,
    /// Their policies, as `runtime.worker-policy` lists them.
    pub worker_policy: Option<Vec<String>>,
}

impl Default for NodeClass {
    fn default() -> Self {
        Self {
            name: String::new(),
            count: 1,
            role: WorkerRole::Unified,
            role_switch: false,
            hardware: None,
            pages: None,
            max_batch_tokens: None,
            max_mixed_tokens: None,
            max_running: None,
            max_waiting: None,
            max_requests: None,
            prefix_cache: None,
            watermark: None,
            worker_policy: None,
        }
    }
}

impl NodeClass {
    /// `cluster` with what this class has of its own.
    #[must_use]
    pub fn over(&self, cluster: &Cluster) -> Cluster {
        Cluster {
            workers: self.count,
            pages: self.pages.unwrap_or(cluster.pages),
            max_batch_tokens: self.max_batch_tokens.unwrap_or(cluster.max_batch_tokens),
            max_mixed_tokens: self.max_mixed_tokens.or(cluster.max_mixed_tokens),
            max_running: self.max_running.unwrap_or(cluster.max_running),
            max_waiting: self.max_waiting.unwrap_or(cluster.max_waiting),
            max_requests: self.max_requests.unwrap_or(cluster.max_requests),
            prefix_cache: self.prefix_cache.unwrap_or(cluster.prefix_cache),
            watermark: self.watermark.unwrap_or(cluster.watermark),
            worker_policy: self.worker_policy.clone().unwrap_or_else(|| cluster.worker_policy.clone()),
            ..cluster.clone()
        }
    }

    pub(super) fn validate(&self) -> Result<(), SimError> {
        within("node.count", self.count.into(), 1, 10_000)?;
        if let Some(machine) = &self.hardware {
            machine.profile("node.hardware")?;
        }
        let limits = [
            ("node.pages", self.pages, 10_000_000),
            ("node.max-batch-tokens", self.max_batch_tokens, 1_000_000),
            ("node.max-mixed-tokens", self.max_mixed_tokens, 1_000_000),
            ("node.max-running", self.max_running, 1_000_000),
            ("node.max-waiting", self.max_waiting, 1_000_000),
            ("node.max-requests", self.max_requests, 1_000_000),
        ];
        for (key, value, most) in limits {
            within(key, value.unwrap_or(1).into(), 1, most)?;
        }
        share("node.watermark", self.watermark.unwrap_or(0.0).into())
    }
}

/// A machine: by its name, or by its figures as `[cluster.hardware]` of a node's configuration has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "use a machine's name, or a table of name, flops, memory-bandwidth and link")]
pub enum Machine {
    /// One of [`Hardware::NAMES`].
    Named(String),
    /// A name, if it is one of those, and what is different; or all figures.
    Figures(HardwareConfig),
}

impl From<&str> for Machine {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

impl Machine {
    /// Its figures; `key` names it in errors.
    ///
    /// # Errors
    /// An unknown name without all figures.
    pub fn profile(&self, key: &'static str) -> Result<HardwareProfile, SimError> {
        let wrong = |name: &str, more: &str| {
            invalid(key, &name, format!("use one of {}{more}", Hardware::NAMES.join(", ")))
        };
        match self {
            Self::Named(name) => {
                let figures = Hardware::named(name).ok_or_else(|| wrong(name, ""))?;
                Ok(HardwareProfile { name: name.clone(), figures })
            }
            Self::Figures(config) => {
                let all =
                    config.flops.is_some() && config.memory_bandwidth.is_some() && config.link.is_some();
                if let Some(name) = &config.name
                    && !all
                    && Hardware::named(name).is_none()
                {
                    return Err(wrong(name, ", or set flops, memory-bandwidth and link too"));
                }
                if let Some(flops) = config.flops.filter(|flops| !(1e6..=1e18).contains(flops)) {
                    return Err(invalid(key, &flops, "use 1e6 to 1e18 flops".into()));
                }
                Ok(HardwareProfile::from(config))
            }
        }
    }
}

/// A model: by its name, or by its shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "use a model's name, or a table of name, params, layers, heads, kv-heads, head-dim, dtype and kv-dtype"
)]
pub enum Model {
    /// One of [`ModelShape::NAMES`].
    Named(String),
    /// A shape.
    Shape(Shape),
}

impl From<&str> for Model {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

/// `[model]`: a shape of one's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Shape {
    /// One of [`ModelShape::NAMES`], for what is left out. Without it all but `kv-dtype` is needed.
    pub name: Option<String>,
    /// Weights that take part in a token's computation.
    pub params: Option<u64>,
    /// Transformer layers.
    pub layers: Option<u32>,
    /// Query heads a layer.
    pub heads: Option<u32>,
    /// KV heads a layer.
    pub kv_heads: Option<u32>,
    /// Elements a head.
    pub head_dim: Option<u32>,
    /// Type of the weights.
    pub dtype: Option<Number>,
    /// Type of keys and values; 16 bits where this is left out.
    pub kv_dtype: Option<Number>,
}

/// Type of a number in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Number {
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
    /// 16 bits.
    Bf16,
    /// 8 bits.
    Fp8,
    /// 8 bits.
    Int8,
    /// 4 bits.
    Int4,
}

impl Number {
    const fn bits(self) -> u64 {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::Fp8 | Self::Int8 => 8,
            Self::Int4 => 4,
        }
    }
}

impl Model {
    /// Its shape.
    ///
    /// # Errors
    /// An unknown name, or a shape with something missing.
    pub fn shape(&self) -> Result<ModelShape, SimError> {
        let named = |name: &str| {
            ModelShape::named(name).ok_or_else(|| {
                invalid("model", &name, format!("use one of {}", ModelShape::NAMES.join(", ")))
            })
        };
        match self {
            Self::Named(name) => named(name),
            Self::Shape(shape) => shape.over(shape.name.as_deref().map(named).transpose()?),
        }
    }
}

impl Shape {
    fn over(&self, base: Option<ModelShape>) -> Result<ModelShape, SimError> {
        let needed = |key: &'static str, own: Option<u32>, base: Option<u32>| {
            let value = own.or(base);
            let value = value.ok_or_else(|| invalid(key, &"missing", "set it, or model.name".into()))?;
            within(key, value.into(), 1, (1 << 15) - 1)?;
            Ok::<u32, SimError>(value)
        };
        let params = self.params.or(base.map(|b| b.params));
        let params =
            params.ok_or_else(|| invalid("model.params", &"missing", "set it, or model.name".into()))?;
        within("model.params", params, 1, 1 << 55)?;
        // A model of another size or type has other weights than the one that is named.
        let weight_bytes = match (self.dtype, base) {
            (Some(dtype), _) => params * dtype.bits() / 8,
            (None, Some(base)) if self.params.is_none() => base.weight_bytes,
            (None, Some(base)) => u64::try_from(
                u128::from(base.weight_bytes) * u128::from(params) / u128::from(base.params.max(1)),
            )
            .unwrap_or(u64::MAX),
            (None, None) => return Err(invalid("model.dtype", &"missing", "set it, or model.name".into())),
        };
        let element_bytes = match self.kv_dtype {
            None => base.map_or(2, |b| b.element_bytes),
            Some(Number::Int4) => {
                return Err(invalid("model.kv-dtype", &"int4", "use 8, 16 or 32 bits".into()));
            }
            Some(dtype) => (dtype.bits() / 8) as u32,
        };
        Ok(ModelShape {
            params,
            weight_bytes,
            layers: needed("model.layers", self.layers, base.map(|b| b.layers))?,
            heads: needed("model.heads", self.heads, base.map(|b| b.heads))?,
            kv_heads: needed("model.kv-heads", self.kv_heads, base.map(|b| b.kv_heads))?,
            head_dim: needed("model.head-dim", self.head_dim, base.map(|b| b.head_dim))?,
            element_bytes,
        })
    }
}
