//! Loading a model onto a GPU.

use candle_core::Device;
use mistralrs_core::MemoryUsage;
use policies::kv::PageLayout;

use super::super::budget::Pages;
use super::super::open::Target;
use super::super::weights::Weights;
use super::ops::CudaBackend;
use super::pages::KvPages;
use crate::EngineError;
use crate::gguf::ModelSpec;

/// Head dimensions that both attention kernels are compiled for.
const HEAD_DIMS: [usize; 7] = [64, 80, 96, 112, 128, 192, 256];

/// Page sizes that paged attention is compiled for, as far as the configuration allows them.
const PAGE_TOKENS: [u32; 2] = [16, 32];

/// A GPU to load a model onto.
#[derive(Debug)]
pub(crate) struct CudaTarget {
    device: Device,
}

/// The GPU to compute on, if `engine.device` asks for one or leaves the choice and there is one.
///
/// # Errors
/// [`EngineError::Load`] when the configuration asks for a GPU and none can be used.
pub(crate) fn find_device(wanted: config::Device) -> Result<Option<CudaTarget>, EngineError> {
    if wanted == config::Device::Cpu {
        return Ok(None);
    }
    match (Device::new_cuda(0), wanted) {
        (Ok(device), _) => Ok(Some(CudaTarget { device })),
        (Err(reason), config::Device::Cuda) => Err(EngineError::Load(format!(
            "engine.device = cuda, but no CUDA device can be used ({reason}); check that `nvidia-smi` lists one, or set \
             engine.device to cpu or auto"
        ))),
        (Err(reason), _) => {
            tracing::warn!(%reason, "no CUDA device can be used; engine.device = auto computes on the CPU");
            Ok(None)
        }
    }
}

impl Target for CudaTarget {
    type Backend = CudaBackend;

    const KIND: &'static str = "cuda";

    fn device(&self) -> &Device {
        &self.device
    }

    fn check(&self, spec: &ModelSpec, layout: &PageLayout) -> Result<(), EngineError> {
        if !HEAD_DIMS.contains(&spec.head_dim) {
            return Err(EngineError::Load(format!(
                "the model's heads have {} elements, but attention on a GPU supports {HEAD_DIMS:?}; set engine.device to \
                 cpu",
                spec.head_dim
            )));
        }
        if !PAGE_TOKENS.contains(&layout.page_tokens) {
            return Err(EngineError::Load(format!(
                "engine.page-tokens = {}, but attention on a GPU supports {PAGE_TOKENS:?}; use one of these, or set \
                 engine.device to cpu",
                layout.page_tokens
            )));
        }
        Ok(())
    }

    /// Free memory of the device, once the embeddings are in the form that rows are picked from.
    fn free_memory(&self, weights: &Weights<CudaBackend>) -> Result<u64, EngineError> {
        weights.embed.rows().map_err(failed)?;
        MemoryUsage.get_memory_available(&self.device).map(|bytes| bytes as u64).map_err(failed)
    }

    fn backend(
        self,
        spec: &ModelSpec,
        layout: &PageLayout,
        pages: Pages,
    ) -> Result<CudaBackend, EngineError> {
        let store = KvPages::new(layout, pages.count as usize, &self.device).map_err(|reason| {
            EngineError::Load(format!(
                "{} KV pages of {} bytes cannot be allocated on the GPU ({reason}); lower engine.kv-memory or \
                 engine.kv-pages",
                pages.count,
                layout.page_bytes()
            ))
        })?;
        let (tokens, context) = (layout.page_tokens as usize, pages.context as usize);
        CudaBackend::new(&self.device, store, tokens, context, spec).map_err(failed)
    }
}

/// What a failure of the device is to loading.
fn failed(reason: impl std::fmt::Display) -> EngineError {
    EngineError::Load(format!("the model cannot be loaded onto the GPU: {reason}"))
}
