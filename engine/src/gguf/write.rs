//! Writes small GGUF files, for tests: tiny models, split ones, and files that are wrong on purpose.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::cursor::kind;

const ALIGNMENT: usize = 32;

/// A GGUF file in the making.
#[derive(Debug, Clone, Default)]
pub struct GgufWriter {
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<Tensor>,
}

#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    code: u32,
    bytes: Vec<u8>,
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key to text.
    #[must_use]
    pub fn string(self, key: &str, value: &str) -> Self {
        self.value(key, kind::STRING, &encode_string(value))
    }

    /// Sets a key to a `u32`.
    #[must_use]
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.value(key, kind::U32, &value.to_le_bytes())
    }

    /// Sets a key to a `u16`, as splitters do.
    #[must_use]
    pub fn u16(self, key: &str, value: u16) -> Self {
        self.value(key, kind::U16, &value.to_le_bytes())
    }

    /// Sets a key to an `f32`.
    #[must_use]
    pub fn f32(self, key: &str, value: f32) -> Self {
        self.value(key, kind::F32, &value.to_le_bytes())
    }

    /// Sets a key to a truth value.
    #[must_use]
    pub fn bool(self, key: &str, value: bool) -> Self {
        self.value(key, kind::BOOL, &[u8::from(value)])
    }

    /// Sets a key to an array of strings.
    #[must_use]
    pub fn strings<S: AsRef<str>>(self, key: &str, values: &[S]) -> Self {
        let body = values.iter().flat_map(|value| encode_string(value.as_ref())).collect();
        self.array(key, kind::STRING, values.len(), body)
    }

    /// Sets a key to an array of pairs of strings (arrays in an array).
    #[must_use]
    pub fn pairs<S: AsRef<str>>(self, key: &str, values: &[(S, S)]) -> Self {
        let body = values
            .iter()
            .flat_map(|(left, right)| {
                let mut pair = array_header(kind::STRING, 2);
                pair.extend(encode_string(left.as_ref()));
                pair.extend(encode_string(right.as_ref()));
                pair
            })
            .collect();
        self.array(key, kind::ARRAY, values.len(), body)
    }

    /// Sets a key to an array of `i32`.
    #[must_use]
    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let body = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, kind::I32, values.len(), body)
    }

    /// Sets a key to an array of `f32`.
    #[must_use]
    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        let body = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, kind::F32, values.len(), body)
    }

    /// Removes a key.
    #[must_use]
    pub fn without(mut self, key: &str) -> Self {
        self.keys.retain(|(name, _)| name != key);
        self
    }

    /// Adds an F32 tensor; `shape` is row-major, outermost first.
    #[must_use]
    pub fn tensor_f32(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        self.tensor_raw(name, shape, 0, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Adds a BF16 tensor, truncating.
    #[must_use]
    pub fn tensor_bf16(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect();
        self.tensor_raw(name, shape, 30, bytes)
    }

    /// Adds a tensor with any type code and bytes.
    #[must_use]
    pub fn tensor_raw(mut self, name: &str, shape: &[usize], code: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), code, bytes });
        self
    }

    /// Changes the type code of a tensor that was added.
    #[must_use]
    pub fn with_code(mut self, name: &str, code: u32) -> Self {
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.name == name) {
            tensor.code = code;
        }
        self
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.extend(encode_string(key));
            out.extend(value);
        }
        let mut offset = 0_usize;
        for tensor in &self.tensors {
            out.extend(encode_string(&tensor.name));
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for size in tensor.shape.iter().rev() {
                out.extend((*size as u64).to_le_bytes());
            }
            out.extend(tensor.code.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + tensor.bytes.len()).next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.bytes);
        }
        out
    }

    /// Writes the file.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::File::create(path)?.write_all(&self.bytes())
    }

    /// Writes the model as `parts` files `PREFIX-00001-of-0000N.gguf` in `dir`, as splitters do: all keys in the first
    /// part, `split.*` in each.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write_split(&self, dir: &Path, prefix: &str, parts: u16) -> std::io::Result<Vec<PathBuf>> {
        let per_part = self.tensors.len().div_ceil(usize::from(parts).max(1)).max(1);
        let mut paths = Vec::new();
        for part in 0..parts {
            let first = (usize::from(part) * per_part).min(self.tensors.len());
            let last = (first + per_part).min(self.tensors.len());
            let mut file = Self {
                keys: if part == 0 { self.keys.clone() } else { Vec::new() },
                tensors: self.tensors[first..last].to_vec(),
            };
            file = file.u16("split.no", part).u16("split.count", parts);
            let total = (self.tensors.len() as u32).cast_signed();
            file = file.value("split.tensors.count", kind::I32, &total.to_le_bytes());
            let path = dir.join(format!("{prefix}-{:05}-of-{parts:05}.gguf", part + 1));
            file.write(&path)?;
            paths.push(path);
        }
        Ok(paths)
    }

    fn value(mut self, key: &str, kind: u32, bytes: &[u8]) -> Self {
        self.keys.retain(|(name, _)| name != key);
        let mut value = kind.to_le_bytes().to_vec();
        value.extend(bytes);
        self.keys.push((key.to_owned(), value));
        self
    }

    fn array(self, key: &str, kind: u32, len: usize, body: Vec<u8>) -> Self {
        let mut value = array_header(kind, len);
        value.extend(body);
        self.value(key, kind::ARRAY, &value)
    }
}

fn array_header(kind: u32, len: usize) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend((len as u64).to_le_bytes());
    out
}

fn encode_string(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

/// Sizes of a tiny model for tests.
#[derive(Debug, Clone)]
pub struct TinyModel {
    /// `llama`, `qwen2` or `qwen3`.
    pub architecture: &'static str,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Without an output matrix; otherwise it is written, equal to the embedding.
    pub tied: bool,
    /// Seed of the weights.
    pub seed: u64,
}

impl Default for TinyModel {
    fn default() -> Self {
        Self {
            architecture: "llama",
            layers: 2,
            hidden: 64,
            heads: 4,
            kv_heads: 2,
            ffn: 128,
            context: 512,
            tied: true,
            seed: 1,
        }
    }
}

/// Control tokens of [`TinyModel::writer`], at the start of its vocabulary.
pub const TINY_SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

impl TinyModel {
    /// A complete model of random F32 weights: byte-level BPE over all 256 bytes with a few merges, a ChatML template,
    /// end token `<|im_end|>` (2). Equal seeds give equal weights, whatever `tied` says.
    pub fn writer(&self) -> GgufWriter {
        let arch = self.architecture;
        let key = |suffix: &str| format!("{arch}.{suffix}");
        let head_dim = self.hidden / self.heads;
        let small = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let mut out = tiny_vocabulary(GgufWriter::new().string("general.architecture", arch))
            .string("general.name", "tiny")
            .u32(&key("block_count"), small(self.layers))
            .u32(&key("context_length"), small(self.context))
            .u32(&key("embedding_length"), small(self.hidden))
            .u32(&key("feed_forward_length"), small(self.ffn))
            .u32(&key("attention.head_count"), small(self.heads))
            .u32(&key("attention.head_count_kv"), small(self.kv_heads))
            .u32(&key("rope.dimension_count"), small(head_dim))
            .f32(&key("rope.freq_base"), 10_000.0)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5);
        let mut random = Random(self.seed);
        let (hidden, kv, ffn) = (self.hidden, self.kv_heads * head_dim, self.ffn);
        let vocab = tiny_tokens().len();
        let embedding = random.weights(vocab * hidden, hidden);
        out = out.tensor_f32("token_embd.weight", &[vocab, hidden], &embedding);
        let ones = |len: usize| vec![1.0_f32; len];
        for layer in 0..self.layers {
            let name = |suffix: &str| format!("blk.{layer}.{suffix}");
            for (suffix, rows, columns) in [
                ("attn_q.weight", hidden, hidden),
                ("attn_k.weight", kv, hidden),
                ("attn_v.weight", kv, hidden),
                ("attn_output.weight", hidden, hidden),
                ("ffn_gate.weight", ffn, hidden),
                ("ffn_up.weight", ffn, hidden),
                ("ffn_down.weight", hidden, ffn),
            ] {
                out =
                    out.tensor_f32(&name(suffix), &[rows, columns], &random.weights(rows * columns, columns));
            }
            out = out.tensor_f32(&name("attn_norm.weight"), &[hidden], &ones(hidden));
            out = out.tensor_f32(&name("ffn_norm.weight"), &[hidden], &ones(hidden));
            if arch == "qwen2" {
                for (suffix, len) in [("attn_q.bias", hidden), ("attn_k.bias", kv), ("attn_v.bias", kv)] {
                    out = out.tensor_f32(&name(suffix), &[len], &random.weights(len, len));
                }
            }
            if arch == "qwen3" {
                for suffix in ["attn_q_norm.weight", "attn_k_norm.weight"] {
                    out = out.tensor_f32(&name(suffix), &[head_dim], &ones(head_dim));
                }
            }
        }
        out = out.tensor_f32("output_norm.weight", &[hidden], &ones(hidden));
        if self.tied { out } else { out.tensor_f32("output.weight", &[vocab, hidden], &embedding) }
    }
}

fn tiny_vocabulary(out: GgufWriter) -> GgufWriter {
    let tokens = tiny_tokens();
    let types: Vec<i32> = (0..tokens.len()).map(|id| if id < TINY_SPECIALS.len() { 3 } else { 1 }).collect();
    let template = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + \
                    '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}\
                    {% endif %}";
    out.string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "smollm")
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", &TINY_MERGES.map(|(left, right)| format!("{left} {right}")))
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .bool("tokenizer.ggml.add_bos_token", false)
        .string("tokenizer.chat_template", template)
}

/// Merges of the tiny vocabulary; each result is a token after the 256 bytes.
pub const TINY_MERGES: [(&str, &str); 5] = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("Ġ", "Ġ")];

fn tiny_tokens() -> Vec<String> {
    let mut tokens: Vec<String> = TINY_SPECIALS.iter().map(|token| (*token).to_owned()).collect();
    tokens.extend((0..=u8::MAX).map(|byte| crate::text::byte_char(byte).to_string()));
    tokens.extend(TINY_MERGES.iter().map(|(left, right)| format!("{left}{right}")));
    tokens
}

/// SplitMix64: small, seeded, good enough for weights.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Uniform weights of variance `1 / width`.
    fn weights(&mut self, len: usize, width: usize) -> Vec<f32> {
        let scale = (3.0 / width as f32).sqrt();
        (0..len).map(|_| ((self.next() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * scale).collect()
    }
}
