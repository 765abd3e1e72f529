//! From the configuration to an engine that is ready to serve. Runs off the async threads and may take minutes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use config::{Config, EngineKind, HttpConfig};
use engine::fake::{FakeEngine, FakeOptions, fake_card};
use engine::paged::{LoadOptions, PagedEngine};
use engine::store::ModelFiles;
use engine::whole::{WholeEngine, WholeOptions};
use engine::{Engine, EngineError, ModelCard};
use policies::batch::BatchConfig;
use policies::cost::ModelShape;
use policies::kv::events::Recording;
use policies::time::Time;
use tracing::{info, warn};

use crate::models;

/// Window of the fake model where `model.max-context` sets none.
const FAKE_WINDOW: u32 = 8192;

/// An engine and what the scheduler has to know about it.
#[derive(Debug)]
pub struct Loaded {
    /// The engine.
    pub executor: Executor,
    /// The model.
    pub card: Arc<ModelCard>,
    /// Limits of the scheduler.
    pub batch: BatchConfig,
    /// Requests that the worker takes at once, running and waiting.
    pub max_requests: u32,
    /// Size of the model, where it is known.
    pub shape: Option<ModelShape>,
}

/// The two ways to drive an engine.
#[derive(Debug)]
pub enum Executor {
    /// By steps over pages that our scheduler plans.
    Steps(Box<dyn Engine>),
    /// By whole requests; the engine schedules for itself.
    Requests(Box<WholeEngine>),
}

/// When the step under way began; 0 when there is none. The scheduler writes, the watchdog reads.
#[derive(Clone, Debug, Default)]
pub struct StepAge(Arc<AtomicU64>);

impl StepAge {
    /// A step begins.
    pub fn set(&self, now: Time) {
        self.0.store(now.0.max(1), Ordering::Relaxed);
    }

    /// The step has ended.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// When the step under way began.
    #[must_use]
    pub fn began(&self) -> Option<Time> {
        let began = self.0.load(Ordering::Relaxed);
        (began != 0).then_some(Time(began))
    }
}

/// Fetches the model if needed and makes the configured engine.
///
/// # Errors
/// [`EngineError::Load`] with what is wrong and what to do.
pub fn load(config: &Config) -> Result<Loaded, EngineError> {
    let loaded = match config.engine.kind {
        EngineKind::Fake => fake(config),
        EngineKind::Paged => paged(config)?,
        EngineKind::Mistralrs => whole(config)?,
    };
    for warning in &loaded.card.text.warnings {
        warn!(model = loaded.card.name, "{warning}");
    }
    let needed = HttpConfig::body_limit_for(loaded.card.max_context as usize);
    if config.http.body_limit < needed {
        warn!(
            body_limit = %config.http.body_limit, needed = %needed,
            "http.body-limit is less than a prompt of the model's whole window may need"
        );
    }
    Ok(loaded)
}

fn fake(config: &Config) -> Loaded {
    let window = config.model.max_context.map_or(FAKE_WINDOW, saturating);
    let card = fake_card(
        config.model.name.as_deref().unwrap_or("fake"),
        window,
        saturating(config.engine.page_tokens),
    );
    steps(config, Box::new(FakeEngine::new(FakeOptions::from_config(&config.engine))), card)
}

fn paged(config: &Config) -> Result<Loaded, EngineError> {
    let mut options = LoadOptions::from_config(fetch(config)?, &config.engine, &config.model);
    if let Some(path) = &config.model.chat_template {
        let text = std::fs::read_to_string(path).map_err(|e| {
            EngineError::Load(format!("model.chat-template = \"{}\" cannot be read: {e}", path.display()))
        })?;
        options.chat_template = Some(text);
    }
    let (engine, card) = PagedEngine::load(&options)?;
    Ok(steps(config, Box::new(engine), card))
}

/// What the scheduler has to know about an engine that runs steps.
fn steps(config: &Config, engine: Box<dyn Engine>, card: ModelCard) -> Loaded {
    let kv = engine.kv();
    let batch = BatchConfig {
        page_tokens: kv.layout.page_tokens,
        pages: kv.pages,
        max_batch_tokens: saturating(config.runtime.max_batch_tokens),
        max_mixed_tokens: saturating(config.runtime.mixed_tokens(engine.computes_on_cpu())),
        max_running: saturating(config.runtime.max_running),
        max_waiting: saturating(config.runtime.max_waiting),
        max_context: card.max_context,
        prefix_cache: config.runtime.prefix_cache,
        watermark: config.runtime.watermark as f32,
        fingerprint: card.fingerprint,
        kv_events: Recording::Off,
    };
    info!(
        model = card.name,
        description = card.description,
        pages = kv.pages,
        kv_tokens = u64::from(kv.pages) * u64::from(kv.layout.page_tokens),
        window = batch.window(),
        full_windows = batch.concurrent(batch.window()),
        step_tokens = batch.max_batch_tokens,
        beside_decodes = batch.max_mixed_tokens,
        "model is ready"
    );
    let max_requests = batch.max_running.saturating_add(batch.max_waiting);
    let shape = engine.shape();
    Loaded { executor: Executor::Steps(engine), card: Arc::new(card), batch, max_requests, shape }
}

fn whole(config: &Config) -> Result<Loaded, EngineError> {
    let files = fetch(config)?;
    let file_name = || files.path().file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let options = WholeOptions {
        name: config.model.name.clone().or_else(file_name).unwrap_or_else(|| "model".to_owned()),
        files: files.clone(),
        device: config.engine.device,
        threads: config.engine.threads,
        max_running: saturating(config.runtime.max_running),
        max_waiting: saturating(config.runtime.max_waiting),
        max_context: config.model.max_context.map(saturating),
    };
    let (engine, card) = WholeEngine::start(&options)?;
    info!(model = card.name, description = card.description, window = card.max_context, "model is ready");
    let max_requests = options.max_running.saturating_add(options.max_waiting);
    // The engine schedules for itself and has no pages of ours.
    let batch =
        BatchConfig::sized(saturating(config.engine.page_tokens), 1, card.max_context, card.fingerprint);
    let executor = Executor::Requests(Box::new(engine));
    Ok(Loaded { executor, card: Arc::new(card), batch, max_requests, shape: None })
}

/// The files of the configured model on this machine; fetched now if they are not.
fn fetch(config: &Config) -> Result<ModelFiles, EngineError> {
    let files = models::store(config).and_then(|store| {
        let source = models::source(config)?;
        info!(source = %source, "model");
        Ok(store.pull(&source)?.files)
    });
    files.map_err(|e| EngineError::Load(format!("{e:#}")))
}

fn saturating(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
