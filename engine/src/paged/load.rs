//! Builds [`Weights`] from a tensor source: every tensor is there, has its shape, and none is left over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use candle_core::quantized::QTensor;
use candle_core::{Device, Tensor};
use policies::kv::Fingerprint;

use super::backend::{Backend, MatrixData};
use super::source::{Names, Part, StoredTensor, TensorSource, floats};
use super::weights::{Layer, Linear, Weights};
use crate::EngineError;
use crate::cpu::Compute;
use crate::gguf::{ModelSpec, TensorType};

/// Elements that are quantised at a time while loading: bounds the memory that the wide copy takes.
const SLAB: usize = 4 << 20;

/// Bytes that are hashed as one piece, in parallel with others.
const HASH_PIECE: usize = 1 << 20;

/// What weights become while they are loaded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conversion {
    /// The type of plain floats in memory; `None` keeps the stored one.
    pub(crate) float: Option<TensorType>,
    /// Quantises plain floats of the layers to this block type; embeddings and head get 8 bits.
    pub(crate) isq: Option<TensorType>,
}

/// A loaded model.
#[derive(Debug)]
pub(crate) struct Loaded<B: Backend> {
    /// Its weights.
    pub(crate) weights: Weights<B>,
    /// Hash over names, shapes, types and bytes of all tensors as stored.
    pub(crate) digest: [u8; 32],
    /// Elements of all matrices and vectors.
    pub(crate) parameters: u64,
    /// Types of the matrices in memory, the most frequent (by elements) first.
    pub(crate) types: Vec<TensorType>,
}

/// Loads all weights of a model.
///
/// # Errors
/// A tensor is missing, has an unexpected shape or type, or does not belong to the architecture.
pub(crate) fn load<B: Backend>(
    source: &dyn TensorSource,
    spec: &ModelSpec,
    conversion: Conversion,
    device: &B::Device,
    compute: &Compute,
) -> Result<Loaded<B>, EngineError> {
    let mut loader = Loader::<B> {
        source,
        names: source.names(),
        device,
        compute,
        conversion,
        taken: BTreeSet::new(),
        digests: Vec::new(),
        parameters: 0,
        types: BTreeMap::new(),
    };
    let (hidden, ffn, head_dim) = (spec.hidden, spec.ffn, spec.head_dim);
    let (q_width, kv_width) = (spec.heads * head_dim, spec.kv_heads * head_dim);
    let embed = loader.matrix(Part::Embed, 0, spec.vocab, hidden)?;
    let mut layers = Vec::with_capacity(spec.layers.min(1024));
    for i in 0..spec.layers {
        layers.push(Layer {
            attn_norm: loader.vector(Part::AttnNorm, i, "weight", hidden)?,
            q: loader.linear(Part::Query, i, q_width, hidden, spec.qkv_bias)?,
            k: loader.linear(Part::Key, i, kv_width, hidden, spec.qkv_bias)?,
            v: loader.linear(Part::Value, i, kv_width, hidden, spec.qkv_bias)?,
            qk_norm: if spec.qk_norm {
                let q_norm = loader.vector(Part::QueryNorm, i, "weight", head_dim)?;
                Some((q_norm, loader.vector(Part::KeyNorm, i, "weight", head_dim)?))
            } else {
                None
            },
            o: loader.linear(Part::AttnOutput, i, hidden, q_width, false)?,
            ffn_norm: loader.vector(Part::FfnNorm, i, "weight", hidden)?,
            gate: loader.linear(Part::Gate, i, ffn, hidden, false)?,
            up: loader.linear(Part::Up, i, ffn, hidden, false)?,
            down: loader.linear(Part::Down, i, hidden, ffn, false)?,
        });
    }
    let final_norm = loader.vector(Part::FinalNorm, 0, "weight", hidden)?;
    let head = match spec.tied_embeddings {
        true => None,
        false => Some(loader.matrix(Part::Head, 0, spec.vocab, hidden)?),
    };
    loader.check_leftovers(spec)?;
    let digests: Vec<(&str, &[u8])> =
        loader.digests.iter().map(|(name, hash)| (name.as_str(), &hash[..])).collect();
    let mut types: Vec<_> = loader.types.into_iter().collect();
    types.sort_by_key(|(_, elements)| std::cmp::Reverse(*elements));
    Ok(Loaded {
        digest: Fingerprint::of(&digests).0,
        weights: Weights::new(embed, layers, final_norm, head),
        parameters: loader.parameters,
        types: types.into_iter().map(|(dtype, _)| dtype).collect(),
    })
}

struct Loader<'a, B: Backend> {
    source: &'a dyn TensorSource,
    names: Names,
    device: &'a B::Device,
    compute: &'a Compute,
    conversion: Conversion,
    taken: BTreeSet<String>,
    digests: Vec<(String, [u8; 32])>,
    parameters: u64,
    types: BTreeMap<TensorType, u64>,
}

impl<'a, B: Backend> Loader<'a, B> {
    fn linear(
        &mut self,
        part: Part,
        layer: usize,
        outputs: usize,
        inputs: usize,
        bias: bool,
    ) -> Result<Linear<B>, EngineError> {
        let weight = self.matrix(part, layer, outputs, inputs)?;
        let bias = if bias { Some(self.vector(part, layer, "bias", outputs)?) } else { None };
        Ok(Linear { weight, bias })
    }

    fn matrix(
        &mut self,
        part: Part,
        layer: usize,
        outputs: usize,
        inputs: usize,
    ) -> Result<B::Matrix, EngineError> {
        let name = self.names.of(part, layer, "weight");
        let tensor = self.take(name, &[outputs, inputs])?;
        let in_vocab = matches!(part, Part::Embed | Part::Head);
        let target = self.conversion.target(tensor.dtype, inputs, in_vocab);
        let converted;
        let data = if target == tensor.dtype {
            &*tensor.data
        } else {
            converted = convert(&tensor, target, inputs).map_err(|e| refused(&tensor, &e))?;
            &converted
        };
        *self.types.entry(target).or_default() += (outputs * inputs) as u64;
        let data = MatrixData { dtype: target, data, outputs, inputs };
        B::matrix(self.device, &data).map_err(|e| refused(&tensor, &e))
    }

    fn vector(&mut self, part: Part, layer: usize, kind: &str, len: usize) -> Result<B::Vector, EngineError> {
        let name = self.names.of(part, layer, kind);
        let tensor = self.take(name, &[len])?;
        let values = tensor.floats().ok_or_else(|| {
            refused(
                &tensor,
                &format!("it is stored as {}, but has to be F32, F16 or BF16", tensor.dtype.name()),
            )
        })?;
        B::vector(self.device, values).map_err(|e| refused(&tensor, &e))
    }

    /// Reads a tensor that has to be there with a shape, and notes its digest.
    fn take(&mut self, name: String, shape: &[usize]) -> Result<StoredTensor<'a>, EngineError> {
        let source = self.source;
        let tensor = source.read(&name)?.ok_or_else(|| {
            EngineError::Load(format!(
                "`{}`: tensor `{name}` is missing; the file is incomplete or of another architecture",
                source.place().display()
            ))
        })?;
        if tensor.shape != shape {
            return Err(refused(&tensor, &format!("its shape is {:?}, expected {shape:?}", tensor.shape)));
        }
        self.parameters += shape.iter().product::<usize>() as u64;
        self.digests.push((name.clone(), digest(self.compute, &tensor)));
        self.taken.insert(name);
        Ok(tensor)
    }

    /// Refuses tensors that the graph would have left out silently.
    fn check_leftovers(&self, spec: &ModelSpec) -> Result<(), EngineError> {
        let extra: Vec<_> = self
            .source
            .tensors()
            .into_iter()
            .filter(|name| !self.taken.contains(name) && !self.names.may_ignore(name, spec.tied_embeddings))
            .collect();
        let Some(first) = extra.first() else { return Ok(()) };
        Err(EngineError::Load(format!(
            "`{}`: tensor `{first}`{} does not belong to a model of architecture {:?} with {} layers as the engine \
             computes it; leaving it out would give wrong answers",
            self.source.place().display(),
            if extra.len() > 1 { format!(" (and {} more)", extra.len() - 1) } else { String::new() },
            spec.architecture,
            spec.layers,
        )))
    }
}

impl Conversion {
    /// The type that a matrix stored as `stored` is held in.
    fn target(self, stored: TensorType, inputs: usize, in_vocab: bool) -> TensorType {
        if !matches!(stored, TensorType::F32 | TensorType::F16 | TensorType::BF16) {
            return stored;
        }
        let whole = |dtype: &TensorType| inputs.is_multiple_of(dtype.block_elements());
        let wanted = match self.isq {
            Some(_) if in_vocab => Some(TensorType::Q8_0),
            isq => isq,
        };
        // Rows that are not whole blocks of 256 still are whole blocks of 32 in most models.
        let fallback = wanted.map(|_| TensorType::Q8_0);
        wanted.filter(whole).or(fallback.filter(whole)).or(self.float).unwrap_or(stored)
    }
}

/// The tensor's bytes in another type, from plain floats.
fn convert(tensor: &StoredTensor<'_>, target: TensorType, inputs: usize) -> Result<Vec<u8>, String> {
    let element = tensor.dtype.block_bytes();
    let rows = (SLAB / inputs.max(1)).max(1);
    let mut out =
        Vec::with_capacity(tensor.data.len() / element / target.block_elements() * target.block_bytes());
    for slab in tensor.data.chunks(rows * inputs * element) {
        let values = floats(tensor.dtype, slab)
            .ok_or_else(|| format!("{} is not a float type", tensor.dtype.name()))?;
        match target {
            TensorType::F32 => out.extend(values.iter().flat_map(|x| x.to_le_bytes())),
            TensorType::F16 => out.extend(values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes())),
            TensorType::BF16 => {
                out.extend(values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()));
            }
            _ => {
                let quantised =
                    Tensor::from_vec(values, (slab.len() / element / inputs, inputs), &Device::Cpu)
                        .and_then(|tensor| QTensor::quantize(&tensor, target.candle()))
                        .map_err(|e| format!("it cannot be quantised to {}: {e}", target.name()))?;
                out.extend_from_slice(&quantised.data().map_err(|e| e.to_string())?);
            }
        }
    }
    Ok(out)
}

/// Identity of a stored tensor apart from its name.
fn digest(compute: &Compute, tensor: &StoredTensor<'_>) -> [u8; 32] {
    let pieces: Vec<&[u8]> = tensor.data.chunks(HASH_PIECE).collect();
    let hashes: Vec<_> = pieces.iter().map(|_| OnceLock::new()).collect();
    compute.run(pieces.len(), |i| {
        hashes[i].get_or_init(|| Fingerprint::of(&[("piece", pieces[i])]).0);
    });
    let shape: Vec<u8> = tensor.shape.iter().flat_map(|size| (*size as u64).to_le_bytes()).collect();
    let mut fields: Vec<(&str, &[u8])> = vec![("type", tensor.dtype.name().as_bytes()), ("shape", &shape)];
    fields.extend(hashes.iter().filter_map(OnceLock::get).map(|hash| ("piece", &hash[..])));
    Fingerprint::of(&fields).0
}

/// An error about one tensor.
fn refused(tensor: &StoredTensor<'_>, why: &str) -> EngineError {
    EngineError::Load(format!("`{}`: tensor `{}`: {why}", tensor.file.display(), tensor.name))
}
