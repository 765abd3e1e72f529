//! Tensor table entries and the storage types the engine can read.

use std::ops::Range;

use candle_core::quantized::GgmlDType;

/// One tensor of a [`GgufFile`](super::GgufFile).
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// The tensor's name, e.g. `blk.0.attn_q.weight`.
    pub name: String,
    /// Row-major shape, outermost dimension first: a weight of a linear layer is `[out, in]`. GGUF stores it reversed.
    pub shape: Vec<usize>,
    /// How the elements are stored.
    pub dtype: TensorType,
    /// Index of the split file that holds it.
    pub part: usize,
    /// Byte range inside that file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of bytes as stored.
    pub fn byte_len(&self) -> usize {
        self.range.len()
    }
}

/// A GGUF storage type that the engine reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// Type codes of the format, with the name people know them by; `None` where the engine cannot read it.
/// Source: the `ggml_type` table of the GGUF specification.
const CODES: &[(u32, &str, Option<TensorType>)] = &[
    (0, "F32", Some(TensorType::F32)),
    (1, "F16", Some(TensorType::F16)),
    (2, "Q4_0", Some(TensorType::Q4_0)),
    (3, "Q4_1", Some(TensorType::Q4_1)),
    (4, "Q4_2 (removed)", None),
    (5, "Q4_3 (removed)", None),
    (6, "Q5_0", Some(TensorType::Q5_0)),
    (7, "Q5_1", Some(TensorType::Q5_1)),
    (8, "Q8_0", Some(TensorType::Q8_0)),
    (9, "Q8_1", None),
    (10, "Q2_K", Some(TensorType::Q2K)),
    (11, "Q3_K", Some(TensorType::Q3K)),
    (12, "Q4_K", Some(TensorType::Q4K)),
    (13, "Q5_K", Some(TensorType::Q5K)),
    (14, "Q6_K", Some(TensorType::Q6K)),
    (15, "Q8_K", None),
    (16, "IQ2_XXS", None),
    (17, "IQ2_XS", None),
    (18, "IQ3_XXS", None),
    (19, "IQ1_S", None),
    (20, "IQ4_NL", None),
    (21, "IQ3_S", None),
    (22, "IQ2_S", None),
    (23, "IQ4_XS", None),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", None),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", None),
    (30, "BF16", Some(TensorType::BF16)),
    (31, "Q4_0_4_4 (removed)", None),
    (32, "Q4_0_4_8 (removed)", None),
    (33, "Q4_0_8_8 (removed)", None),
    (34, "TQ1_0", None),
    (35, "TQ2_0", None),
    (36, "IQ4_NL_4_4 (removed)", None),
    (37, "IQ4_NL_4_8 (removed)", None),
    (38, "IQ4_NL_8_8 (removed)", None),
    (39, "MXFP4", None),
    (40, "NVFP4", None),
];

impl TensorType {
    /// The type of a code, or the name that the format gives to a code the engine cannot read.
    pub fn from_code(code: u32) -> Result<Self, &'static str> {
        match CODES.iter().find(|(known, ..)| *known == code) {
            Some((_, _, Some(dtype))) => Ok(*dtype),
            Some((_, name, None)) => Err(name),
            None => Err("not in the format's table"),
        }
    }

    /// The format's code.
    pub fn code(self) -> u32 {
        CODES.iter().find(|(.., dtype)| *dtype == Some(self)).map_or(u32::MAX, |(code, ..)| *code)
    }

    /// The name used in the format's documentation, e.g. `Q4_K`.
    pub fn name(self) -> &'static str {
        CODES.iter().find(|(.., dtype)| *dtype == Some(self)).map_or("?", |(_, name, _)| name)
    }

    /// Names of all types the engine reads, for error messages.
    pub fn supported() -> String {
        let names: Vec<_> =
            CODES.iter().filter(|(.., dtype)| dtype.is_some()).map(|(_, name, _)| *name).collect();
        names.join(", ")
    }

    /// Elements in one block.
    pub fn block_elements(self) -> usize {
        self.candle().block_size()
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.candle().type_size()
    }

    /// The same type in candle's terms.
    pub fn candle(self) -> GgmlDType {
        match self {
            Self::F32 => GgmlDType::F32,
            Self::F16 => GgmlDType::F16,
            Self::BF16 => GgmlDType::BF16,
            Self::Q4_0 => GgmlDType::Q4_0,
            Self::Q4_1 => GgmlDType::Q4_1,
            Self::Q5_0 => GgmlDType::Q5_0,
            Self::Q5_1 => GgmlDType::Q5_1,
            Self::Q8_0 => GgmlDType::Q8_0,
            Self::Q2K => GgmlDType::Q2K,
            Self::Q3K => GgmlDType::Q3K,
            Self::Q4K => GgmlDType::Q4K,
            Self::Q5K => GgmlDType::Q5K,
            Self::Q6K => GgmlDType::Q6K,
        }
    }
}
