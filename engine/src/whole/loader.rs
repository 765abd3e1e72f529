//! Loads a model from local files into mistral.rs.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device};
use mistralrs_core::{
    AdapterPaths, DefaultSchedulerMethod, DeviceMapSetting, GGUFLoaderBuilder, GGUFSpecificConfig,
    IsqOrganization, Loader, LocalModelPaths, MistralRs, MistralRsBuilder, ModelDType, ModelPaths,
    NormalLoaderBuilder, NormalSpecificConfig, SchedulerConfig, TryIntoDType,
};
use policies::kv::Fingerprint;
use policies::request::Token;

use super::{NAME, WholeOptions};
use crate::gguf::GgufFile;
use crate::store::ModelFiles;
use crate::text::{TextDescriptor, TextModel};
use crate::{EngineError, ModelCard};

/// By how many tokens mistral.rs grows a sequence's KV. It refuses to grow beyond the model's window, even where only
/// the rest of a step of growth would lie outside.
const GROWTH: u32 = 512;

/// A model in mistral.rs, ready for requests.
pub(super) struct Loaded {
    pub(super) engine: Arc<MistralRs>,
    pub(super) card: ModelCard,
    /// A token of ASCII text.
    pub(super) filler: Token,
    /// It computes on the CPU.
    pub(super) cpu: bool,
}

/// Loads on a thread of its own: mistral.rs panics on some malformed files, and its asynchronous start must not run
/// within the caller's runtime.
pub(super) fn load(options: &WholeOptions) -> Result<Loaded, EngineError> {
    let options = options.clone();
    let thread =
        std::thread::Builder::new().name("mistralrs-load".to_owned()).spawn(move || load_here(&options));
    let thread =
        thread.map_err(|e| EngineError::Load(format!("cannot start a thread to load the model: {e}")))?;
    thread.join().unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Err(EngineError::Load(format!("mistral.rs panicked while it loaded the model: {text}")))
    })
}

fn load_here(options: &WholeOptions) -> Result<Loaded, EngineError> {
    let source = Source::open(&options.files)?;
    let device = device(options.device)?;
    start_threads(options.threads);
    // On CPU f32 is both the fastest and the only type that all of candle's kernels have.
    let dtype: &dyn TryIntoDType = if device.is_cpu() { &DType::F32 } else { &ModelDType::Auto };
    let failed = |e: &dyn std::fmt::Display| {
        EngineError::Load(format!("mistral.rs cannot load {}: {e:#}", source.origin.display()))
    };
    let pipeline = source
        .loader
        .load_model_from_path(&source.paths, dtype, &device, true, DeviceMapSetting::dummy(), None, None)
        .map_err(|e| failed(&e))?;
    let running = NonZeroUsize::new(options.max_running as usize).unwrap_or(NonZeroUsize::MIN);
    let scheduler = SchedulerConfig::DefaultScheduler { method: DefaultSchedulerMethod::Fixed(running) };
    let builder = MistralRsBuilder::new(pipeline, scheduler, false, None)
        .with_model_id(options.name.as_str())
        .with_no_prefix_cache(true)
        .with_disable_eos_stop(true);
    // On a runtime with one thread mistral.rs leaves its dummy run out.
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|e| failed(&e))?;
    let engine = runtime.block_on(builder.build());

    let config = engine.config(None).map_err(EngineError::Load)?;
    let window = config.max_seq_len.and_then(|tokens| u32::try_from(tokens).ok()).unwrap_or(u32::MAX);
    let window = if window < GROWTH { window } else { window - window % GROWTH };
    let max_context = window.min(options.max_context.unwrap_or(u32::MAX));
    let vocab = source.text.vocab_size as u32;
    let filler = filler(&source.text)?;
    let card = ModelCard {
        name: options.name.clone(),
        description: source.description,
        text: Arc::new(source.text),
        // Nothing is ever looked up by it: there are no pages.
        fingerprint: Fingerprint::of(&[("engine", NAME.as_bytes()), ("model", options.name.as_bytes())]),
        max_context,
        vocab,
        // There are no pages, and nobody asks for hashes of them.
        page_tokens: 16,
    };
    tracing::info!(model = card.name, description = card.description, max_context, "mistral.rs is ready");
    Ok(Loaded { engine, card, filler, cpu: device.is_cpu() })
}

/// A model's files, as mistral.rs and our text handling want them.
struct Source {
    origin: PathBuf,
    description: String,
    text: TextDescriptor,
    loader: Box<dyn Loader>,
    paths: Box<dyn ModelPaths>,
}

impl Source {
    fn open(files: &ModelFiles) -> Result<Self, EngineError> {
        match files {
            ModelFiles::Gguf(path) => Self::gguf(path),
            ModelFiles::HfDir(dir) => Self::hf_dir(dir),
        }
    }

    fn gguf(path: &Path) -> Result<Self, EngineError> {
        let load = |e: &dyn std::fmt::Display| EngineError::Load(e.to_string());
        let file = GgufFile::open(path).map_err(|e| load(&e))?;
        let text = TextDescriptor::from_gguf(&file).map_err(|e| load(&e))?;
        let architecture = file.metadata().string("general.architecture").map_err(|e| load(&e))?;
        let description = format!("{} (GGUF, mistral.rs)", architecture.unwrap_or("unknown architecture"));
        let filenames = file.paths().to_vec();
        let names = filenames.iter().map(|p| p.display().to_string()).collect();
        // With a path of its own for everything, and no tokenizer file, mistral.rs asks no hub and takes the tokenizer
        // from the GGUF metadata.
        let loader = GGUFLoaderBuilder::new(
            None,
            None,
            path.display().to_string(),
            names,
            GGUFSpecificConfig::default(),
            false,
            None,
        );
        let paths = paths(PathBuf::new(), PathBuf::new(), filenames, None, None);
        Ok(Self { origin: path.to_owned(), description, text, loader: loader.build(), paths })
    }

    fn hf_dir(dir: &Path) -> Result<Self, EngineError> {
        let load = |e: &dyn std::fmt::Display| EngineError::Load(format!("{}: {e}", dir.display()));
        let text = TextDescriptor::from_hf_dir(dir).map_err(|e| EngineError::Load(e.to_string()))?;
        let mut weights = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(|e| load(&e))? {
            let path = entry.map_err(|e| load(&e))?.path();
            if path.extension().is_some_and(|e| e == "safetensors") {
                weights.push(path);
            }
        }
        weights.sort();
        if weights.is_empty() {
            return Err(load(
                &"no *.safetensors here; a Hugging Face directory holds config.json, tokenizer.json and weights",
            ));
        }
        let there = |name: &str| Some(dir.join(name)).filter(|p| p.is_file());
        let loader = NormalLoaderBuilder::new(
            NormalSpecificConfig {
                topology: None,
                organization: IsqOrganization::Default,
                write_uqff: None,
                from_uqff: None,
                imatrix: None,
                calibration_file: None,
                hf_cache_path: None,
                matformer_config_path: None,
                matformer_slice_name: None,
            },
            None,
            None,
            Some(dir.display().to_string()),
            false,
            None,
        );
        let paths = paths(
            dir.join("tokenizer.json"),
            dir.join("config.json"),
            weights,
            there("tokenizer_config.json"),
            there("generation_config.json"),
        );
        let loader = loader.build(None).map_err(|e| load(&e))?;
        Ok(Self {
            origin: dir.to_owned(),
            description: "Hugging Face directory (mistral.rs)".to_owned(),
            text,
            loader,
            paths,
        })
    }
}

fn paths(
    tokenizer: PathBuf,
    config: PathBuf,
    weights: Vec<PathBuf>,
    template: Option<PathBuf>,
    generation: Option<PathBuf>,
) -> Box<dyn ModelPaths> {
    Box::new(LocalModelPaths {
        tokenizer_filename: tokenizer,
        config_filename: config,
        template_filename: template,
        filenames: weights,
        adapter_paths: AdapterPaths::None,
        gen_conf: generation,
        preprocessor_config: None,
        processor_config: None,
        chat_template_json_filename: None,
    })
}

fn device(wanted: config::engine::Device) -> Result<Device, EngineError> {
    match wanted {
        config::engine::Device::Cpu => Ok(Device::Cpu),
        config::engine::Device::Auto => Ok(Device::cuda_if_available(0).unwrap_or(Device::Cpu)),
        config::engine::Device::Cuda => Device::new_cuda(0).map_err(|e| {
            EngineError::Load(format!(
                "engine.device = \"cuda\", but no GPU can be used: {e}; use `auto` or `cpu`"
            ))
        }),
    }
}

/// Sizes rayon's global pool, which candle and mistral.rs compute on. What is there already stays.
fn start_threads(threads: usize) {
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        threads => threads,
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("mistralrs-{i}"));
    if pool.build_global().is_err() && rayon::current_num_threads() != threads {
        tracing::warn!(
            threads = rayon::current_num_threads(),
            wanted = threads,
            "the compute threads were started before; engine.threads changes them only at the start of the process"
        );
    }
}

/// The first token of plain ASCII text.
fn filler(text: &TextDescriptor) -> Result<Token, EngineError> {
    let model = TextModel::from_descriptor(text.clone()).map_err(|e| EngineError::Load(e.to_string()))?;
    let ascii = |id: &Token| {
        let bytes = model.token_bytes(*id);
        !bytes.is_empty() && bytes.iter().all(u8::is_ascii_alphanumeric) && !model.is_special(*id)
    };
    let found = (0..model.vocab_size() as Token).find(ascii);
    found.ok_or_else(|| EngineError::Load("the tokenizer has no token of plain ASCII text".to_owned()))
}
