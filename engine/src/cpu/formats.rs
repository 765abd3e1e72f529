//! GGUF tensor types: their codes, block sizes, and how a block is taken apart.
//!
//! The block layouts are those of ggml's `ggml-common.h`; the value of a weight is that of its `dequantize_row_*`
//! functions, to the last bit. That works because every product `scale * quant` (and `super scale * scale * quant`) has
//! at most 24 significant bits and is therefore exact: `fma(d, q, m)` rounds once, as ggml's `d * q + m` does.

use super::CpuError;

/// A tensor type of GGUF that the kernels compute with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are ggml's")]
pub enum GgmlType {
    F32,
    F16,
    Bf16,
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

/// Every supported type with its GGUF code, ggml's name, and the values and bytes of a block.
const TYPES: [(GgmlType, u32, &str, usize, usize); 13] = [
    (GgmlType::F32, 0, "F32", 1, 4),
    (GgmlType::F16, 1, "F16", 1, 2),
    (GgmlType::Bf16, 30, "BF16", 1, 2),
    (GgmlType::Q4_0, 2, "Q4_0", 32, 18),
    (GgmlType::Q4_1, 3, "Q4_1", 32, 20),
    (GgmlType::Q5_0, 6, "Q5_0", 32, 22),
    (GgmlType::Q5_1, 7, "Q5_1", 32, 24),
    (GgmlType::Q8_0, 8, "Q8_0", 32, 34),
    (GgmlType::Q2K, 10, "Q2_K", 256, 84),
    (GgmlType::Q3K, 11, "Q3_K", 256, 110),
    (GgmlType::Q4K, 12, "Q4_K", 256, 144),
    (GgmlType::Q5K, 13, "Q5_K", 256, 176),
    (GgmlType::Q6K, 14, "Q6_K", 256, 210),
];

/// Names of the types that GGUF knows and these kernels do not.
const UNSUPPORTED: [(u32, &str); 22] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

impl GgmlType {
    /// The type with GGUF's `code`.
    ///
    /// # Errors
    /// A code these kernels do not compute with; the error names it, if GGUF does, and lists what is supported.
    pub fn from_code(code: u32) -> Result<Self, CpuError> {
        if let Some(entry) = TYPES.iter().find(|t| t.1 == code) {
            return Ok(entry.0);
        }
        let name = UNSUPPORTED.iter().find(|t| t.0 == code).map_or("unknown", |t| t.1);
        let supported = TYPES.map(|t| t.2).join(", ");
        Err(CpuError::UnsupportedType { code, name, supported })
    }

    /// GGUF's code.
    pub fn code(self) -> u32 {
        self.entry().1
    }

    /// ggml's name.
    pub fn name(self) -> &'static str {
        self.entry().2
    }

    /// Values a block holds; a row is a whole number of blocks.
    pub fn block_values(self) -> usize {
        self.entry().3
    }

    /// Bytes a block takes in a file.
    pub fn block_bytes(self) -> usize {
        self.entry().4
    }

    fn entry(self) -> &'static (GgmlType, u32, &'static str, usize, usize) {
        &TYPES[self as usize]
    }
}

/// One quantised block of one row, taken apart. What a format does not have stays 0.
#[derive(Debug, Clone)]
pub(super) struct Block {
    /// f16 bits of the scale (of the scales' scale in K formats).
    pub(super) scale: u16,
    /// f16 bits of what is added (K formats: of the offsets' scale, negated, since ggml subtracts).
    pub(super) min: u16,
    /// K formats: the integer scale and offset of each group.
    pub(super) scales: [i8; 16],
    pub(super) mins: [i8; 16],
    /// The integers, less the format's zero point.
    pub(super) quants: [i8; 256],
}

impl Block {
    pub(super) fn new() -> Self {
        Block { scale: 0, min: 0, scales: [0; 16], mins: [0; 16], quants: [0; 256] }
    }

    /// Reads one block of `ty` (a quantised type) from its `block_bytes()` bytes.
    pub(super) fn read(&mut self, ty: GgmlType, b: &[u8]) {
        match ty {
            GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16 => {}
            GgmlType::Q4_0 => {
                self.scale = u16_at(b, 0);
                self.nibble_halves(&b[2..18], 0, 8);
            }
            GgmlType::Q4_1 => {
                (self.scale, self.min) = (u16_at(b, 0), u16_at(b, 2));
                self.nibble_halves(&b[4..20], 0, 0);
            }
            GgmlType::Q5_0 => {
                self.scale = u16_at(b, 0);
                self.nibble_halves(&b[6..22], u32_at(b, 2), 16);
            }
            GgmlType::Q5_1 => {
                (self.scale, self.min) = (u16_at(b, 0), u16_at(b, 2));
                self.nibble_halves(&b[8..24], u32_at(b, 4), 0);
            }
            GgmlType::Q8_0 => {
                self.scale = u16_at(b, 0);
                for (q, &byte) in self.quants.iter_mut().zip(&b[2..34]) {
                    *q = byte as i8;
                }
            }
            GgmlType::Q2K => self.read_q2k(b),
            GgmlType::Q3K => self.read_q3k(b),
            GgmlType::Q4K => self.read_q4k(b),
            GgmlType::Q5K => self.read_q5k(b),
            GgmlType::Q6K => self.read_q6k(b),
        }
    }

    /// 32 values: low nibbles are values 0..16, high nibbles 16..32; bit `i` of `fifth` is bit 4 of value `i`.
    fn nibble_halves(&mut self, nibbles: &[u8], fifth: u32, zero: i8) {
        for (i, &byte) in nibbles.iter().enumerate() {
            let low = (byte & 15) | ((fifth >> i) as u8 & 1) << 4;
            let high = (byte >> 4) | ((fifth >> (i + 16)) as u8 & 1) << 4;
            self.quants[i] = low as i8 - zero;
            self.quants[i + 16] = high as i8 - zero;
        }
    }

    fn read_q2k(&mut self, b: &[u8]) {
        let (scales, quants) = (&b[..16], &b[16..80]);
        (self.scale, self.min) = (u16_at(b, 80), negate(u16_at(b, 82)));
        for (g, &byte) in scales.iter().enumerate() {
            self.scales[g] = (byte & 15) as i8;
            self.mins[g] = (byte >> 4) as i8;
        }
        for i in 0..256 {
            let (half, shift, within) = (i / 128, i % 128 / 32 * 2, i % 32);
            self.quants[i] = (quants[half * 32 + within] >> shift & 3) as i8;
        }
    }

    fn read_q3k(&mut self, b: &[u8]) {
        let (high, quants, scales) = (&b[..32], &b[32..96], &b[96..108]);
        self.scale = u16_at(b, 108);
        for g in 0..16 {
            let low = if g < 8 { scales[g] & 15 } else { scales[g - 8] >> 4 };
            let top = scales[8 + g % 4] >> (g / 4 * 2) & 3;
            self.scales[g] = (low | top << 4) as i8 - 32;
        }
        for i in 0..256 {
            let (half, step, within) = (i / 128, i % 128 / 32, i % 32);
            let low = quants[half * 32 + within] >> (step * 2) & 3;
            let set = high[within] >> (half * 4 + step) & 1;
            self.quants[i] = low as i8 - if set == 1 { 0 } else { 4 };
        }
    }

    /// Scales and offsets of Q4_K and Q5_K: 8 groups, 6 bits each, in 12 bytes.
    fn six_bit_scales(&mut self, s: &[u8]) {
        for g in 0..4 {
            self.scales[g] = (s[g] & 63) as i8;
            self.mins[g] = (s[g + 4] & 63) as i8;
            self.scales[g + 4] = (s[g + 8] & 15 | s[g] >> 6 << 4) as i8;
            self.mins[g + 4] = (s[g + 8] >> 4 | s[g + 4] >> 6 << 4) as i8;
        }
    }

    fn read_q4k(&mut self, b: &[u8]) {
        (self.scale, self.min) = (u16_at(b, 0), negate(u16_at(b, 2)));
        self.six_bit_scales(&b[4..16]);
        for (i, &byte) in b[16..144].iter().enumerate() {
            let at = i / 32 * 64 + i % 32;
            self.quants[at] = (byte & 15) as i8;
            self.quants[at + 32] = (byte >> 4) as i8;
        }
    }

    fn read_q5k(&mut self, b: &[u8]) {
        (self.scale, self.min) = (u16_at(b, 0), negate(u16_at(b, 2)));
        self.six_bit_scales(&b[4..16]);
        let high = &b[16..48];
        for (i, &byte) in b[48..176].iter().enumerate() {
            let (pair, within) = (i / 32, i % 32);
            let bits = high[within] >> (pair * 2);
            self.quants[pair * 64 + within] = (byte & 15 | (bits & 1) << 4) as i8;
            self.quants[pair * 64 + within + 32] = (byte >> 4 | (bits >> 1 & 1) << 4) as i8;
        }
    }

    fn read_q6k(&mut self, b: &[u8]) {
        let (low, high) = (&b[..128], &b[128..192]);
        self.scale = u16_at(b, 208);
        for (scale, &byte) in self.scales.iter_mut().zip(&b[192..208]) {
            *scale = byte as i8;
        }
        for i in 0..256 {
            let (half, quarter, within) = (i / 128, i % 128 / 32, i % 32);
            let byte = low[half * 64 + quarter % 2 * 32 + within];
            let nibble = if quarter < 2 { byte & 15 } else { byte >> 4 };
            let top = high[half * 32 + within] >> (quarter * 2) & 3;
            self.quants[i] = (nibble | top << 4) as i8 - 32;
        }
    }
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Flips the sign of an f16.
fn negate(bits: u16) -> u16 {
    bits ^ 0x8000
}
