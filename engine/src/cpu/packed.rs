//! A weight matrix in the layout the kernels stream: panels of 16 outputs, still quantised.
#![expect(unsafe_code, reason = "panels are packed in parallel into disjoint parts of one buffer")]

use half::{bf16, f16};

use super::formats::Block;
use super::kernels::{Dense, Format};
use super::quants::{Quant, nibble_shift};
use super::{Compute, CpuError, GgmlType};

mod buffer;

pub(super) use buffer::{Buffer, SharedMut};

/// Outputs a panel holds.
pub(super) const PANEL: usize = 16;

/// A weight matrix `[outputs, inputs]`, packed; quantised formats stay quantised.
#[derive(Debug)]
pub struct Packed {
    outputs: usize,
    inputs: usize,
    ty: GgmlType,
    panel_bytes: usize,
    data: Buffer,
}

/// Calls `$body` with `$F` standing for the [`Format`] that holds `$ty`.
macro_rules! with_format {
    ($ty:expr, $F:ident => $body:expr) => {{
        use $crate::cpu::GgmlType as T;
        use $crate::cpu::kernels::Dense;
        use $crate::cpu::quants::Quant;
        match $ty {
            T::F32 => {
                type $F = Dense<32>;
                $body
            }
            T::F16 => {
                type $F = Dense<16>;
                $body
            }
            T::Bf16 => {
                type $F = Dense<15>;
                $body
            }
            T::Q4_0 => {
                type $F = Quant<4, 32, false, false>;
                $body
            }
            T::Q4_1 => {
                type $F = Quant<4, 32, false, true>;
                $body
            }
            T::Q5_0 | T::Q8_0 => {
                type $F = Quant<8, 32, false, false>;
                $body
            }
            T::Q5_1 => {
                type $F = Quant<8, 32, false, true>;
                $body
            }
            T::Q2K => {
                type $F = Quant<4, 16, true, true>;
                $body
            }
            T::Q3K => {
                type $F = Quant<4, 16, true, false>;
                $body
            }
            T::Q4K => {
                type $F = Quant<4, 32, true, true>;
                $body
            }
            T::Q5K => {
                type $F = Quant<8, 32, true, true>;
                $body
            }
            T::Q6K => {
                type $F = Quant<8, 16, true, false>;
                $body
            }
        }
    }};
}
pub(super) use with_format;

impl Packed {
    /// Packs the raw little-endian bytes of a GGUF tensor (`outputs` rows of `inputs` values; GGUF lists dimensions
    /// innermost first, so `inputs` is its first). `code` is GGUF's tensor type.
    ///
    /// # Errors
    /// An unsupported type, a row that is not a whole number of blocks, bytes that do not fit the shape.
    pub fn from_ggml(
        compute: &Compute,
        code: u32,
        data: &[u8],
        outputs: usize,
        inputs: usize,
    ) -> Result<Self, CpuError> {
        let ty = GgmlType::from_code(code)?;
        let bad_shape = CpuError::BadShape { outputs, inputs };
        if outputs == 0 || inputs == 0 {
            return Err(bad_shape);
        }
        if !inputs.is_multiple_of(ty.block_values()) {
            return Err(CpuError::PartialBlock { name: ty.name(), block: ty.block_values(), inputs });
        }
        let row_bytes = inputs / ty.block_values() * ty.block_bytes();
        let expected = row_bytes.checked_mul(outputs).ok_or(bad_shape)?;
        if data.len() != expected {
            return Err(CpuError::WrongLength {
                name: ty.name(),
                outputs,
                inputs,
                expected,
                found: data.len(),
            });
        }
        Ok(with_format!(ty, F => Self::pack::<F>(compute, ty, data, outputs, inputs)))
    }

    fn pack<F: PackFormat>(
        compute: &Compute,
        ty: GgmlType,
        data: &[u8],
        outputs: usize,
        inputs: usize,
    ) -> Self {
        let panels = outputs.div_ceil(PANEL);
        let panel_bytes = inputs / F::BLOCK * F::BYTES;
        let mut buffer = Buffer::zeroed(panels * panel_bytes);
        let row_bytes = data.len() / outputs;
        let to = SharedMut::new(buffer.as_mut_slice());
        compute.run(panels, |panel| {
            // SAFETY: each panel is packed once, into its own part of the buffer.
            let panel_data = unsafe { to.part(panel * panel_bytes, panel_bytes) };
            let rows = data[panel * PANEL * row_bytes..].chunks_exact(row_bytes).take(PANEL);
            F::pack_panel(ty, rows, panel_data);
        });
        Packed { outputs, inputs, ty, panel_bytes, data: buffer }
    }

    /// Number of outputs (rows of the matrix as stored).
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of inputs (length of a stored row).
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The format of the source.
    pub fn ggml_type(&self) -> GgmlType {
        self.ty
    }

    /// Bytes this matrix occupies in memory.
    pub fn bytes(&self) -> usize {
        self.data.as_slice().len()
    }

    /// Writes the `row`-th stored row (an embedding, say) to `out` (`[inputs]`), with exactly the values the products
    /// use.
    ///
    /// # Panics
    /// If `row` or the length of `out` does not fit.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.outputs, "row {row} of a matrix of {} rows", self.outputs);
        assert_eq!(out.len(), self.inputs, "values of a row");
        let panel = self.panel(row / PANEL);
        with_format!(self.ty, F => F::read_lane(panel, row % PANEL, out));
    }

    /// Number of panels.
    pub(super) fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// Bytes of a panel.
    pub(super) fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// One panel.
    pub(super) fn panel(&self, panel: usize) -> &[u8] {
        &self.data.as_slice()[panel * self.panel_bytes..][..self.panel_bytes]
    }
}

/// Writing and reading single values of a panel, off the hot path.
pub(super) trait PackFormat: Format {
    /// Packs up to 16 rows, given as their bytes in the file, into a zeroed panel.
    fn pack_panel<'a>(ty: GgmlType, rows: impl Iterator<Item = &'a [u8]>, panel: &mut [u8]);
    /// Reads the weights of one output.
    fn read_lane(panel: &[u8], lane: usize, out: &mut [f32]);
}

impl<const BITS: usize> PackFormat for Dense<BITS> {
    fn pack_panel<'a>(_: GgmlType, rows: impl Iterator<Item = &'a [u8]>, panel: &mut [u8]) {
        let size = Self::BYTES / PANEL;
        for (lane, row) in rows.enumerate() {
            for (value, input) in row.chunks_exact(size).zip(panel.chunks_exact_mut(Self::BYTES)) {
                let native = &mut input[lane * size..][..size];
                native.copy_from_slice(value);
                if cfg!(target_endian = "big") {
                    native.reverse();
                }
            }
        }
    }

    fn read_lane(panel: &[u8], lane: usize, out: &mut [f32]) {
        for (value, input) in out.iter_mut().zip(panel.chunks_exact(Self::BYTES)) {
            *value = match BITS {
                32 => f32::from_bits(u32_lane(input, lane)),
                16 => f16::from_bits(u16_lane(input, lane)).to_f32(),
                _ => bf16::from_bits(u16_lane(input, lane)).to_f32(),
            };
        }
    }
}

impl<const BITS: usize, const LEN: usize, const SUPER: bool, const MIN: bool> PackFormat
    for Quant<BITS, LEN, SUPER, MIN>
where
    Self: Format,
{
    fn pack_panel<'a>(ty: GgmlType, rows: impl Iterator<Item = &'a [u8]>, panel: &mut [u8]) {
        let mut block = Block::new();
        for (lane, row) in rows.enumerate() {
            for (source, target) in
                row.chunks_exact(ty.block_bytes()).zip(panel.chunks_exact_mut(Self::BYTES))
            {
                block.read(ty, source);
                let (header, quants) = target.split_at_mut(Self::HEADER);
                header[lane * 2..][..2].copy_from_slice(&block.scale.to_ne_bytes());
                if MIN {
                    header[32 + lane * 2..][..2].copy_from_slice(&block.min.to_ne_bytes());
                }
                if SUPER {
                    let groups = header[Self::GROUP_SCALES..].chunks_exact_mut(16 * Self::TERMS);
                    for (group, own) in groups.enumerate() {
                        own[lane] = block.scales[group] as u8;
                        if MIN {
                            own[16 + lane] = block.mins[group] as u8;
                        }
                    }
                }
                let values = &block.quants[..Self::BLOCK];
                if BITS == 4 {
                    for (eight, chunk) in values.chunks_exact(8).zip(quants.chunks_exact_mut(4 * PANEL)) {
                        let nibbles = eight.iter().enumerate();
                        let word = nibbles
                            .fold(0_u32, |word, (i, &q)| word | u32::from(q as u8 & 15) << nibble_shift(i));
                        chunk[lane * 4..][..4].copy_from_slice(&word.to_ne_bytes());
                    }
                } else {
                    for (two, chunk) in values.chunks_exact(2).zip(quants.chunks_exact_mut(2 * PANEL)) {
                        (chunk[lane * 2], chunk[lane * 2 + 1]) = (two[0] as u8, two[1] as u8);
                    }
                }
            }
        }
    }

    fn read_lane(panel: &[u8], lane: usize, out: &mut [f32]) {
        for (values, block) in out.chunks_exact_mut(Self::BLOCK).zip(panel.chunks_exact(Self::BYTES)) {
            let (header, quants) = block.split_at(Self::HEADER);
            let scale = f16::from_bits(u16_lane(header, lane)).to_f32();
            let min = if MIN { f16::from_bits(u16_lane(&header[32..], lane)).to_f32() } else { 0.0 };
            for (i, value) in values.iter_mut().enumerate() {
                let (mut scale, mut min) = (scale, min);
                if SUPER {
                    let own = &header[Self::GROUP_SCALES + i / LEN * 16 * Self::TERMS..];
                    scale *= f32::from(own[lane] as i8);
                    if MIN {
                        min *= f32::from(own[16 + lane] as i8);
                    }
                }
                let quant = if BITS == 4 {
                    let nibble = u32_lane(&quants[i / 8 * 4 * PANEL..], lane) >> nibble_shift(i % 8) & 15;
                    if Self::SIGNED { ((nibble << 28) as i32 >> 28) as f32 } else { nibble as f32 }
                } else {
                    f32::from(quants[(i / 2 * PANEL + lane) * 2 + i % 2] as i8)
                };
                *value = if MIN { scale.mul_add(quant, min) } else { scale * quant };
            }
        }
    }
}

fn u16_lane(bytes: &[u8], lane: usize) -> u16 {
    u16::from_ne_bytes([bytes[lane * 2], bytes[lane * 2 + 1]])
}

fn u32_lane(bytes: &[u8], lane: usize) -> u32 {
    let b = &bytes[lane * 4..][..4];
    u32::from_ne_bytes([b[0], b[1], b[2], b[3]])
}

#[cfg(test)]
mod tests;
