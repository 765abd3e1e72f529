//! From options to a running engine.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use config::{Device, Dtype, KvDtype};
use policies::cost::ModelShape;
use policies::kv::{Fingerprint, PageLayout};

use super::backend::Backend;
use super::budget::{self, Pages};
use super::cpu_backend::CpuBackend;
#[cfg(feature = "cuda")]
use super::cuda_backend;
use super::forward::Graph;
use super::load::{Conversion, Loaded, load};
use super::options::LoadOptions;
use super::source::{GgufSource, SafetensorsSource, TensorSource};
use super::step::Limits;
use super::weights::Weights;
use super::{PagedEngine, RaggedBatch, fingerprint, resources};
use crate::cpu::{self, Compute, KvStore, RopeTable};
use crate::gguf::{GgufFile, ModelSpec, TensorType};
use crate::store::ModelFiles;
use crate::text::{NamedTemplate, TextDescriptor};
use crate::{EngineError, KvInfo, ModelCard};

/// What a model is loaded onto: the parts of loading that depend on it.
pub(super) trait Target {
    /// How it computes.
    type Backend: Backend + 'static;

    /// Names its arithmetic in the identity of pages.
    const KIND: &'static str;

    /// What weights are brought to.
    fn device(&self) -> &<Self::Backend as Backend>::Device;

    /// Refuses what it cannot compute, before weights are read.
    fn check(&self, spec: &ModelSpec, layout: &PageLayout) -> Result<(), EngineError>;

    /// Bytes that are free for KV pages beside the loaded weights.
    fn free_memory(&self, weights: &Weights<Self::Backend>) -> Result<u64, EngineError>;

    /// Allocates the pages.
    fn backend(
        self,
        spec: &ModelSpec,
        layout: &PageLayout,
        pages: Pages,
    ) -> Result<Self::Backend, EngineError>;
}

/// Loads a model onto the device that the options ask for.
pub(super) fn open(options: &LoadOptions) -> Result<(PagedEngine, ModelCard), EngineError> {
    let start = Instant::now();
    let threads = if options.threads == 0 { resources::physical_cores() } else { options.threads };
    let compute = Arc::new(Compute::new(threads)?);
    #[cfg(feature = "cuda")]
    if let Some(target) = cuda_backend::find_device(options.device)? {
        return open_on(target, compute, options, start);
    }
    if options.device == Device::Cuda {
        return Err(EngineError::Load(
            "engine.device = cuda, but engine `paged` of this build computes on the CPU only; set it to cpu or auto"
                .to_owned(),
        ));
    }
    open_on(CpuTarget(Arc::clone(&compute)), compute, options, start)
}

fn open_on<T: Target>(
    target: T,
    compute: Arc<Compute>,
    options: &LoadOptions,
    start: Instant,
) -> Result<(PagedEngine, ModelCard), EngineError> {
    let conversion = conversion(options);
    let read = |source: &dyn TensorSource, spec: &ModelSpec| {
        target.check(spec, &layout(options, spec)?)?;
        load::<T::Backend>(source, spec, conversion, target.device(), &compute)
    };
    // The files are closed at the end of this statement; all that is kept of them is in the device's form.
    let (spec, mut text, loaded) = match &options.files {
        ModelFiles::Gguf(path) => {
            let file = GgufFile::open(path).map_err(load_error)?;
            let spec = ModelSpec::from_gguf(&file).map_err(load_error)?;
            let text = TextDescriptor::from_gguf(&file).map_err(load_error)?;
            let loaded = read(&GgufSource(&file), &spec)?;
            (spec, text, loaded)
        }
        ModelFiles::HfDir(dir) => {
            let spec = ModelSpec::from_hf_config(&dir.join("config.json")).map_err(load_error)?;
            let text = TextDescriptor::from_hf_dir(dir).map_err(load_error)?;
            let loaded = read(&SafetensorsSource::open(dir)?, &spec)?;
            (spec, text, loaded)
        }
    };
    if let Some(source) = &options.chat_template {
        text.templates = vec![NamedTemplate { name: "default".to_owned(), source: source.clone() }];
    }
    let layout = layout(options, &spec)?;
    let wanted = options.max_context.map_or(spec.context, |limit| limit.min(spec.context));
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
    let pages = budget::pages(options.kv, &layout, wanted, target.free_memory(&loaded.weights)?)?;
    let backend = target.backend(&spec, &layout, pages)?;
    let card = ModelCard {
        name: name(options),
        description: describe(&spec, &loaded),
        text: Arc::new(text),
        fingerprint: identify::<T>(&spec, &loaded, conversion, &layout),
        max_context: pages.context,
        vocab: u32::try_from(spec.vocab).unwrap_or(u32::MAX),
        page_tokens: layout.page_tokens,
    };
    let weight_bytes = loaded.weights.bytes();
    log(&card, &layout, pages, wanted, weight_bytes, (T::KIND, compute.threads()), start);
    let limits = Limits {
        vocab: card.vocab,
        context: pages.context,
        page_tokens: layout.page_tokens,
        pages: pages.count,
    };
    let engine = PagedEngine {
        model: Box::new(Graph::new(backend, loaded.weights, &spec)),
        compute,
        kv: KvInfo { layout, pages: pages.count },
        shape: shape(&spec, &layout, weight_bytes),
        limits,
        weight_bytes,
        on_cpu: T::KIND == CpuTarget::KIND,
        batch: RaggedBatch::default(),
        samplers: Mutex::default(),
    };
    Ok((engine, card))
}

/// The CPU.
struct CpuTarget(Arc<Compute>);

impl Target for CpuTarget {
    type Backend = CpuBackend;

    const KIND: &'static str = "cpu";

    fn device(&self) -> &Compute {
        &self.0
    }

    fn check(&self, _spec: &ModelSpec, _layout: &PageLayout) -> Result<(), EngineError> {
        Ok(())
    }

    fn free_memory(&self, _weights: &Weights<CpuBackend>) -> Result<u64, EngineError> {
        Ok(resources::free_memory())
    }

    fn backend(self, spec: &ModelSpec, layout: &PageLayout, pages: Pages) -> Result<CpuBackend, EngineError> {
        let dtype = if layout.element_bytes == 4 { cpu::KvDtype::F32 } else { cpu::KvDtype::F16 };
        let kv = KvStore::new(
            spec.layers,
            pages.count as usize,
            layout.page_tokens as usize,
            spec.kv_heads,
            spec.head_dim,
            dtype,
        )?;
        let frequencies = spec.rope.frequencies();
        let table =
            RopeTable::new(&frequencies.inv_freq, pages.context as usize, f64::from(frequencies.magnitude));
        Ok(CpuBackend::new(self.0, kv, table, spec.rope.style.into(), spec.heads))
    }
}

fn load_error(error: impl std::fmt::Display) -> EngineError {
    EngineError::Load(error.to_string())
}

fn conversion(options: &LoadOptions) -> Conversion {
    let float = match options.dtype {
        Dtype::Auto => None,
        Dtype::F32 => Some(TensorType::F32),
        Dtype::F16 => Some(TensorType::F16),
        Dtype::Bf16 => Some(TensorType::BF16),
    };
    Conversion { float, isq: options.isq }
}

/// The name that clients ask for: configured, or the file's without its ending and without the number of a part.
fn name(options: &LoadOptions) -> String {
    let from_path = |path: &Path| {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
        // `NAME-00001-of-00003`
        let part = name.len().checked_sub("-00001-of-00003".len()).and_then(|at| name.split_at_checked(at));
        match part {
            Some((stem, part)) if part.starts_with('-') && part.get(6..10) == Some("-of-") => stem.to_owned(),
            _ => name,
        }
    };
    options.name.clone().unwrap_or_else(|| from_path(options.path()))
}

fn describe<B: Backend>(spec: &ModelSpec, loaded: &Loaded<B>) -> String {
    let types: Vec<_> = loaded.types.iter().map(|dtype| dtype.name()).collect();
    format!(
        "{}, {:.1}M parameters, {} layers, {}",
        format!("{:?}", spec.architecture).to_lowercase(),
        loaded.parameters as f64 / 1e6,
        spec.layers,
        types.join(" and "),
    )
}

/// The model's size, as far as time depends on it.
fn shape(spec: &ModelSpec, layout: &PageLayout, weight_bytes: usize) -> ModelShape {
    let (queries, keys) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let layer = spec.hidden * (2 * queries + 2 * keys + 3 * spec.ffn);
    ModelShape {
        params: (spec.layers * layer + spec.vocab * spec.hidden) as u64,
        weight_bytes: weight_bytes as u64,
        layers: layout.layers,
        heads: u32::try_from(spec.heads).unwrap_or(u32::MAX),
        kv_heads: layout.kv_heads,
        head_dim: layout.head_dim,
        element_bytes: layout.element_bytes,
    }
}

fn layout(options: &LoadOptions, spec: &ModelSpec) -> Result<PageLayout, EngineError> {
    let narrow = |value: usize, what: &str| {
        u32::try_from(value).map_err(|_| EngineError::Load(format!("{what} = {value} is too large")))
    };
    Ok(PageLayout {
        page_tokens: narrow(options.page_tokens, "engine.page-tokens")?,
        layers: narrow(spec.layers, "the model's number of layers")?,
        kv_heads: narrow(spec.kv_heads, "the model's number of KV heads")?,
        head_dim: narrow(spec.head_dim, "the model's head dimension")?,
        element_bytes: match options.kv_dtype {
            KvDtype::F16 => 2,
            KvDtype::F32 => 4,
        },
    })
}

/// Everything that the bytes of a page depend on, apart from its tokens.
fn identify<T: Target>(
    spec: &ModelSpec,
    loaded: &Loaded<T::Backend>,
    conversion: Conversion,
    layout: &PageLayout,
) -> Fingerprint {
    let frequencies = spec.rope.frequencies();
    let rope: Vec<u8> = frequencies.inv_freq.iter().flat_map(|f| f.to_bits().to_le_bytes()).collect();
    let rope_form = format!("{:?} {:?}", spec.rope.style, frequencies.magnitude.to_bits());
    let shape = format!("{layout:?} heads {} hidden {} ffn {}", spec.heads, spec.hidden, spec.ffn);
    fingerprint(&[
        ("device", T::KIND.as_bytes()),
        ("architecture", format!("{:?}", spec.architecture).as_bytes()),
        ("weights", &loaded.digest),
        ("conversion", format!("{conversion:?}").as_bytes()),
        ("layout", shape.as_bytes()),
        ("rope frequencies", &rope),
        ("rope form", rope_form.as_bytes()),
        ("norm epsilon", &spec.rms_eps.to_bits().to_le_bytes()),
    ])
}

fn log(
    card: &ModelCard,
    layout: &PageLayout,
    pages: Pages,
    wanted: u32,
    weight_bytes: usize,
    (device, threads): (&str, usize),
    start: Instant,
) {
    let tokens = u64::from(pages.count) * u64::from(layout.page_tokens);
    tracing::info!(
        model = %card.name,
        description = %card.description,
        weight_mb = weight_bytes / 1_000_000,
        device,
        threads,
        seconds = start.elapsed().as_secs_f64(),
        "model loaded"
    );
    tracing::info!(
        pages = pages.count,
        page_tokens = layout.page_tokens,
        tokens,
        max_context = pages.context,
        sequences_of_max_context = tokens / u64::from(pages.context.max(1)),
        kv_mb = u64::from(pages.count) * layout.page_bytes() as u64 / 1_000_000,
        "KV pages"
    );
    if pages.context < wanted {
        tracing::warn!(
            max_context = pages.context,
            wanted,
            "the KV pages do not hold the whole context window; longer requests are refused (give engine.kv-memory more)"
        );
    }
}
