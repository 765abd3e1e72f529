//! From the configuration to an engine that is ready to serve. Runs off the async threads and may take minutes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use config::{Config, EngineKind};
use engine::fake::FakeEngine;
use engine::paged::PagedEngine;
use engine::whole::WholeEngine;
use engine::{Engine, EngineError, ModelCard};
use policies::batch::BatchConfig;
use policies::time::Time;
use tokio::runtime::Handle;
use tracing::info;

use crate::models;

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
