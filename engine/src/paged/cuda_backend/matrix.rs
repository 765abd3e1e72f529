//! Weight matrices on the device.

use std::sync::{Arc, OnceLock};

use candle_core::quantized::QTensor;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::{DType, Device, Result, Tensor};
use mistralrs_quant::{GgufMatMul, QuantMethod, QuantMethodConfig, UnquantLinear};

use super::super::backend::MatrixData;
use crate::gguf::TensorType;

/// A matrix: blocks stay quantised, floats stay what they are.
#[derive(Debug)]
pub(crate) struct CudaMatrix {
    product: Arc<dyn QuantMethod>,
    /// What the product wants of its input.
    input: DType,
    stored: Stored,
}

#[derive(Debug)]
enum Stored {
    Floats(Tensor),
    Blocks {
        weight: Arc<QTensor>,
        /// The matrix in 16-bit floats, once single rows have been asked for.
        rows: OnceLock<Tensor>,
    },
}

impl CudaMatrix {
    /// Brings a matrix to the device.
    pub(super) fn new(device: &Device, data: &MatrixData<'_>) -> Result<Self> {
        let (outputs, inputs) = (data.outputs, data.inputs);
        let floats = match data.dtype {
            TensorType::F32 => Some(DType::F32),
            TensorType::F16 => Some(DType::F16),
            TensorType::BF16 => Some(DType::BF16),
            _ => None,
        };
        let (product, input, stored): (Arc<dyn QuantMethod>, _, _) = match floats {
            Some(dtype) => {
                let weight = Tensor::from_raw_buffer(data.data, dtype, &[outputs, inputs], device)?;
                let linear = candle_nn::Linear::new(weight.clone(), None);
                let product = UnquantLinear::new(QuantMethodConfig::Unquantized(linear))?;
                (Arc::new(product), dtype, Stored::Floats(weight))
            }
            None => {
                let weight = Arc::new(qtensor_from_ggml(
                    data.dtype.candle(),
                    data.data,
                    vec![outputs, inputs],
                    device,
                )?);
                let config = QuantMethodConfig::Gguf { q_weight: Arc::clone(&weight), b: None };
                let product = GgufMatMul::new(config)?;
                (Arc::new(product), DType::F32, Stored::Blocks { weight, rows: OnceLock::new() })
            }
        };
        Ok(Self { product, input, stored })
    }

    /// `x · selfᵀ` for `x` of `[rows, inputs]`, in 32-bit floats.
    pub(super) fn product(&self, x: &Tensor) -> Result<Tensor> {
        self.product.forward(&x.to_dtype(self.input)?)?.to_dtype(DType::F32)
    }

    /// The matrix as one whose rows can be picked. Blocks are expanded at the first call, and stay so.
    pub(super) fn rows(&self) -> Result<&Tensor> {
        match &self.stored {
            Stored::Floats(weight) => Ok(weight),
            Stored::Blocks { weight, rows } => match rows.get() {
                Some(rows) => Ok(rows),
                None => {
                    let expanded = weight.dequantize_f16(&weight.device())?;
                    Ok(rows.get_or_init(|| expanded))
                }
            },
        }
    }

    /// Bytes that it takes on the device.
    pub(super) fn bytes(&self) -> usize {
        let floats = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        match &self.stored {
            Stored::Floats(weight) => floats(weight),
            Stored::Blocks { weight, rows } => weight.storage_size_in_bytes() + rows.get().map_or(0, floats),
        }
    }
}
