//! A llama-like model in 64-bit arithmetic, written straight from the papers and sharing no code with the engine; and tiny
//! models for it to compute, as GGUF files and as Hugging Face directories.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::path::{Path, PathBuf};

use engine::gguf::GgufFile;
use engine::gguf::write::{GgufWriter, TinyModel};
use policies::rng::Rng;

/// A tensor of a tiny model, by its GGUF name.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A tiny model with random weights, norms and biases included.
#[derive(Clone)]
pub(crate) struct Tiny {
    pub(crate) shape: TinyModel,
    pub(crate) tensors: Tensors,
    pub(crate) writer: GgufWriter,
}

/// Frequencies of rotated pairs and the factor of cosine and sine.
#[derive(Clone)]
pub(crate) struct Rope {
    pub(crate) frequencies: Vec<f64>,
    pub(crate) magnitude: f64,
}

pub(crate) const BASE: f64 = 10_000.0;
const EPSILON: f64 = 1e-5;

impl Tiny {
    /// A model of a shape.
    pub(crate) fn new(shape: TinyModel) -> Self {
        // The vocabulary with its metadata, embedding and last norm.
        let empty = TinyModel { layers: 0, ..shape.clone() }.writer();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("base.gguf");
        empty.write(&path).unwrap();
        let file = GgufFile::open(&path).unwrap();
        let mut tensors: Tensors = file
            .tensors()
            .map(|tensor| {
                let values = file.bytes(tensor).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
                (tensor.name.clone(), (tensor.shape.clone(), values.collect()))
            })
            .collect();
        let key = format!("{}.block_count", shape.architecture);
        let mut writer = empty.u32(&key, shape.layers as u32);
        let mut rng = Rng::new(shape.seed ^ 0x7117);
        let (hidden, ffn, dim) = (shape.hidden, shape.ffn, shape.hidden / shape.heads);
        let kv = shape.kv_heads * dim;
        for layer in 0..shape.layers {
            let mut add = |name: &str, size: &[usize], centre: f64, width: f64| {
                let name = format!("blk.{layer}.{name}");
                let count = size.iter().product::<usize>();
                let values: Vec<f32> =
                    (0..count).map(|_| (centre + width * (2.0 * rng.unit() - 1.0)) as f32).collect();
                writer = std::mem::take(&mut writer).tensor_f32(&name, size, &values);
                tensors.insert(name, (size.to_vec(), values));
            };
            for (name, outputs, inputs) in [
                ("attn_q.weight", hidden, hidden),
                ("attn_k.weight", kv, hidden),
                ("attn_v.weight", kv, hidden),
                ("attn_output.weight", hidden, hidden),
                ("ffn_gate.weight", ffn, hidden),
                ("ffn_up.weight", ffn, hidden),
                ("ffn_down.weight", hidden, ffn),
            ] {
                add(name, &[outputs, inputs], 0.0, (6.0 / inputs as f64).sqrt());
            }
            add("attn_norm.weight", &[hidden], 1.0, 0.5);
            add("ffn_norm.weight", &[hidden], 1.0, 0.5);
            if shape.architecture == "qwen2" {
                add("attn_q.bias", &[hidden], 0.0, 0.5);
                add("attn_k.bias", &[kv], 0.0, 0.5);
                add("attn_v.bias", &[kv], 0.0, 0.5);
            }
            if shape.architecture == "qwen3" {
                add("attn_q_norm.weight", &[dim], 1.0, 0.5);
                add("attn_k_norm.weight", &[dim], 1.0, 0.5);
            }
        }
        Self { shape, tensors, writer }
    }

    pub(crate) fn head_dim(&self) -> usize {
        self.shape.hidden / self.shape.heads
    }

    pub(crate) fn vocab(&self) -> u32 {
        self.tensors["token_embd.weight"].0[0] as u32
    }

    /// Writes the model as a GGUF file.
    pub(crate) fn write(&self, dir: &Path) -> PathBuf {
        let path = dir.join("tiny.gguf");
        self.writer.write(&path).unwrap();
        path
    }

    /// The same model as a Hugging Face directory in a float type; `rope_scaling` is the object of `config.json`.
    pub(crate) fn write_hugging_face(
        &self,
        dir: &Path,
        dtype: safetensors::Dtype,
        rope_scaling: serde_json::Value,
    ) {
        let shape = &self.shape;
        let config = serde_json::json!({
            "model_type": shape.architecture,
            "hidden_size": shape.hidden,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "num_hidden_layers": shape.layers,
            "intermediate_size": shape.ffn,
            "max_position_embeddings": shape.context,
            "vocab_size": self.vocab(),
            "rms_norm_eps": EPSILON,
            "rope_theta": BASE,
            "rope_scaling": rope_scaling,
            "tie_word_embeddings": shape.tied,
        });
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        let gguf = self.write(dir);
        let text = engine::text::TextDescriptor::from_gguf(&GgufFile::open(&gguf).unwrap()).unwrap();
        std::fs::write(dir.join("tokenizer.json"), text.tokenizer_json).unwrap();
        std::fs::remove_file(gguf).unwrap();
        let encoded: BTreeMap<String, (Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|(name, (size, values))| {
                let unpermuted = self.without_permutation(name, size, values);
                let bytes = match dtype {
                    safetensors::Dtype::F32 => unpermuted.iter().flat_map(|x| x.to_le_bytes()).collect(),
                    safetensors::Dtype::BF16 => {
                        unpermuted.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
                    }
                    _ => unpermuted.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
                };
                (hugging_face_name(name), (size.clone(), bytes))
            })
            .collect();
        let views = encoded.iter().map(|(name, (size, bytes))| {
            (name, safetensors::tensor::TensorView::new(dtype, size.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
    }

    /// Rows of q and k in Hugging Face's order: converters interleave the halves of each head for llama.
    fn without_permutation(&self, name: &str, size: &[usize], values: &[f32]) -> Vec<f32> {
        let permuted = name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight");
        if self.shape.architecture != "llama" || !permuted {
            return values.to_vec();
        }
        let (dim, inputs) = (self.head_dim(), size[1]);
        let half = dim / 2;
        let mut out = vec![0.0; values.len()];
        for row in 0..size[0] {
            let (head, within) = (row / dim, row % dim);
            let to = head * dim + (within % 2) * half + within / 2;
            out[to * inputs..(to + 1) * inputs].copy_from_slice(&values[row * inputs..(row + 1) * inputs]);
        }
        out
    }

    /// Unscaled rotation.
    pub(crate) fn rope(&self) -> Rope {
        let dim = self.head_dim();
        let frequencies = (0..dim / 2).map(|pair| 1.0 / BASE.powf(2.0 * pair as f64 / dim as f64)).collect();
        Rope { frequencies, magnitude: 1.0 }
    }

    /// Logits after the positions `wanted` (ascending) of `tokens`.
    pub(crate) fn logits(&self, tokens: &[u32], rope: &Rope, wanted: &[usize]) -> Vec<Vec<f64>> {
        let shape = &self.shape;
        let (dim, layers) = (self.head_dim(), shape.layers);
        let mut x: Vec<Vec<f64>> =
            tokens.iter().map(|token| self.row("token_embd.weight", *token as usize)).collect();
        for layer in 0..layers {
            let name = |suffix: &str| format!("blk.{layer}.{suffix}");
            let normed: Vec<Vec<f64>> =
                x.iter().map(|row| norm(row, &self.vector(&name("attn_norm.weight")))).collect();
            let heads = |which: &str, rotated: bool, row: usize| -> Vec<f64> {
                let mut out = self.product(&name(&format!("{which}.weight")), &normed[row]);
                if let Some((_, bias)) = self.tensors.get(&name(&format!("{which}.bias"))) {
                    out.iter_mut().zip(bias).for_each(|(y, b)| *y += f64::from(*b));
                }
                if rotated {
                    for head in out.chunks_mut(dim) {
                        if self.tensors.contains_key(&name(&format!("{which}_norm.weight"))) {
                            let weight = self.vector(&name(&format!("{which}_norm.weight")));
                            head.copy_from_slice(&norm(head, &weight));
                        }
                        self.rotate(head, row, rope);
                    }
                }
                out
            };
            let keys: Vec<_> = (0..tokens.len()).map(|row| heads("attn_k", true, row)).collect();
            let values: Vec<_> = (0..tokens.len()).map(|row| heads("attn_v", false, row)).collect();
            // Rows that no later layer attends to and nobody wants may stay behind.
            let rows: Vec<usize> =
                if layer + 1 == layers { wanted.to_vec() } else { (0..tokens.len()).collect() };
            for &row in &rows {
                let q = heads("attn_q", true, row);
                let mut attended = Vec::new();
                for (head, q) in q.chunks(dim).enumerate() {
                    let kv = head / (shape.heads / shape.kv_heads) * dim;
                    let scores: Vec<f64> =
                        keys[..=row].iter().map(|k| dot(q, &k[kv..kv + dim]) / (dim as f64).sqrt()).collect();
                    let max = scores.iter().copied().fold(f64::MIN, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    attended.extend((0..dim).map(|i| {
                        weights.iter().zip(&values).map(|(w, v)| w * v[kv + i]).sum::<f64>() / total
                    }));
                }
                let delta = self.product(&name("attn_output.weight"), &attended);
                x[row].iter_mut().zip(delta).for_each(|(x, d)| *x += d);
                let normed = norm(&x[row], &self.vector(&name("ffn_norm.weight")));
                let gate = self.product(&name("ffn_gate.weight"), &normed);
                let up = self.product(&name("ffn_up.weight"), &normed);
                let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                let delta = self.product(&name("ffn_down.weight"), &inner);
                x[row].iter_mut().zip(delta).for_each(|(x, d)| *x += d);
            }
        }
        let head = if shape.tied { "token_embd.weight" } else { "output.weight" };
        let last = self.vector("output_norm.weight");
        wanted.iter().map(|row| self.product(head, &norm(&x[*row], &last))).collect()
    }

    fn rotate(&self, head: &mut [f64], position: usize, rope: &Rope) {
        for (pair, frequency) in rope.frequencies.iter().enumerate() {
            let (a, b) = match self.shape.architecture {
                "llama" => (2 * pair, 2 * pair + 1),
                _ => (pair, pair + head.len() / 2),
            };
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (x, y) = (head[a], head[b]);
            head[a] = (x * cos - y * sin) * rope.magnitude;
            head[b] = (x * sin + y * cos) * rope.magnitude;
        }
    }

    fn vector(&self, name: &str) -> Vec<f64> {
        self.tensors[name].1.iter().map(|x| f64::from(*x)).collect()
    }

    fn row(&self, name: &str, row: usize) -> Vec<f64> {
        let (size, values) = &self.tensors[name];
        values[row * size[1]..(row + 1) * size[1]].iter().map(|x| f64::from(*x)).collect()
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (size, values) = &self.tensors[name];
        values.chunks(size[1]).map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
    }
}

impl Rope {
    /// Positions interpolated: stretched by `factor`.
    pub(crate) fn linear(mut self, factor: f64) -> Self {
        self.frequencies.iter_mut().for_each(|f| *f /= factor);
        self
    }

    /// Each frequency divided by a factor of its own.
    pub(crate) fn divided(mut self, factors: &[f32]) -> Self {
        self.frequencies.iter_mut().zip(factors).for_each(|(f, by)| *f /= f64::from(*by));
        self
    }

    /// Llama 3.1, by wavelengths.
    pub(crate) fn llama3(mut self, factor: f64, low: f64, high: f64, original: f64) -> Self {
        for f in &mut self.frequencies {
            let wavelength = TAU / *f;
            if wavelength > original / low {
                *f /= factor;
            } else if wavelength > original / high {
                let smooth = (original / wavelength - low) / (high - low);
                *f = (1.0 - smooth) * *f / factor + smooth * *f;
            }
        }
        self
    }

    /// YaRN with its recommended temperature, betas 32 and 1.
    pub(crate) fn yarn(mut self, factor: f64, original: f64) -> Self {
        let dim = 2.0 * self.frequencies.len() as f64;
        let bound = |turns: f64| dim * (original / (turns * TAU)).ln() / (2.0 * BASE.ln());
        let low = bound(32.0).floor().max(0.0);
        let high = bound(1.0).ceil().min(dim - 1.0);
        for (pair, f) in self.frequencies.iter_mut().enumerate() {
            let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            *f = *f / factor * ramp + *f * (1.0 - ramp);
        }
        self.magnitude = 0.1 * factor.ln() + 1.0;
        self
    }
}

fn hugging_face_name(gguf: &str) -> String {
    let mut name = gguf.replace("blk.", "model.layers.");
    for (from, to) in [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_q.", "self_attn.q_proj."),
        ("attn_k.", "self_attn.k_proj."),
        ("attn_v.", "self_attn.v_proj."),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ] {
        name = name.replace(from, to);
    }
    if name == "output.weight" { "lm_head.weight".to_owned() } else { name }
}

fn norm(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, w)| x / (mean + EPSILON).sqrt() * w).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
