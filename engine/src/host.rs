//! The thread that an engine lives on.
//!
//! An [`EngineHost`] owns one named OS thread and the engine in it. Callers (actors) never block: a step's report and
//! the answers to page requests come through callbacks, called on the engine's thread, which should only pass them on.
//! One step is under way at a time; page requests are served between steps, in the order in which they came.
//!
//! A panic inside the engine ends the thread and is reported as [`EngineError::Stopped`], now and to whoever asks later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use config::ids::PageId;
use policies::step::{StepOutcome, StepPlan};

use crate::{Engine, EngineError, KvInfo};

/// Requests that wait for the engine: one step, and page requests of as many transfers as a node runs at a time.
const QUEUE: usize = 256;

/// What became of a step.
#[derive(Debug)]
pub struct StepReport {
    /// The plan's number.
    pub step: u64,
    /// Its outcome. [`EngineError::Stopped`] says that there will be no further step.
    pub result: Result<StepOutcome, EngineError>,
}

/// Receives the reports of all steps, on the engine's thread.
pub type OnReport = Box<dyn Fn(StepReport) + Send>;

/// Receives the contents of exported pages, in the order asked for.
pub type OnExported = Box<dyn FnOnce(Result<Vec<Vec<u8>>, EngineError>) + Send>;

/// Receives the outcome of an import. After an error some of its pages may have been set.
pub type OnImported = Box<dyn FnOnce(Result<(), EngineError>) + Send>;

/// An engine on its own thread. Dropping it waits for the step under way to end; see [`EngineHost::detach`].
#[derive(Debug)]
pub struct EngineHost {
    kv: KvInfo,
    shared: Arc<Shared>,
    commands: Option<SyncSender<Command>>,
    thread: Option<JoinHandle<()>>,
}

/// What both sides see.
#[derive(Debug)]
struct Shared {
    /// Origin of `busy_since`.
    start: Instant,
    /// When the request under way was begun, in nanoseconds since `start`, plus one; 0 while the engine is idle.
    busy_since: AtomicU64,
    /// A step is queued or under way.
    stepping: AtomicBool,
    /// Why the thread has ended.
    stopped: Mutex<Option<String>>,
}

enum Command {
    Step(StepPlan),
    Export(Vec<PageId>, OnExported),
    Import(Vec<(PageId, Vec<u8>)>, OnImported),
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Step(plan) => write!(f, "Step({})", plan.step),
            Self::Export(pages, _) => write!(f, "Export({} pages)", pages.len()),
            Self::Import(pages, _) => write!(f, "Import({} pages)", pages.len()),
        }
    }
}

impl EngineHost {
    /// Starts the thread, named `engine`, and moves the engine there.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(engine: Box<dyn Engine>, on_report: OnReport) -> Result<Self, EngineError> {
        let kv = engine.kv();
        let shared = Arc::new(Shared {
            start: Instant::now(),
            busy_since: AtomicU64::new(0),
            stepping: AtomicBool::new(false),
            stopped: Mutex::new(None),
        });
        let (commands, queue) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || run(engine, &shared, &queue, &on_report)
            })
            .map_err(|e| EngineError::Stopped(format!("its thread cannot be started: {e}")))?;
        Ok(Self { kv, shared, commands: Some(commands), thread: Some(thread) })
    }

    /// Shape and count of the engine's pages.
    pub fn kv(&self) -> KvInfo {
        self.kv
    }

    /// Has a step run; its report goes to the callback given at the start.
    ///
    /// # Errors
    /// [`EngineError::Stopped`] after the engine's end; [`EngineError::Step`] while another step is under way (its
    /// report has not been made yet) or too many page requests wait. There is no report then.
    pub fn submit(&self, plan: StepPlan) -> Result<(), EngineError> {
        if let Some(why) = self.stopped() {
            return Err(EngineError::Stopped(why));
        }
        if self.shared.stepping.swap(true, Ordering::AcqRel) {
            return Err(EngineError::Step(format!(
                "step {} came before the one before it had ended",
                plan.step
            )));
        }
        self.send(Command::Step(plan)).map_err(|(error, _)| {
            self.shared.stepping.store(false, Ordering::Release);
            error
        })
    }

    /// Has the contents of pages read, each in the canonical layout.
    ///
    /// The callback is called in every case, with [`EngineError::Stopped`] after the engine's end; on the caller's
    /// thread when the request could not even be queued.
    pub fn export(&self, pages: Vec<PageId>, done: OnExported) {
        if let Err((error, Command::Export(_, done))) = self.send(Command::Export(pages, done)) {
            done(Err(error));
        }
    }

    /// Has the contents of pages set; otherwise as [`EngineHost::export`].
    pub fn import(&self, pages: Vec<(PageId, Vec<u8>)>, done: OnImported) {
        if let Err((error, Command::Import(_, done))) = self.send(Command::Import(pages, done)) {
            done(Err(error));
        }
    }

    /// For how long the request under way has been running; `None` while the engine is idle. A watchdog compares it
    /// with how long a step may take.
    pub fn age(&self) -> Option<Duration> {
        let since = self.shared.busy_since.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.shared.start.elapsed().saturating_sub(Duration::from_nanos(since)))
    }

    /// Why the engine has ended, if it has.
    pub fn stopped(&self) -> Option<String> {
        self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives the engine up without waiting for it: for a step that will never end.
    pub fn detach(mut self) {
        drop(self.thread.take());
    }

    /// Queues a command, or gives it back.
    fn send(&self, command: Command) -> Result<(), (EngineError, Command)> {
        // The lock is held while sending: what is queued before the engine's thread notes its end, it still answers.
        let stopped = self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &*stopped {
            return Err((EngineError::Stopped(why.clone()), command));
        }
        let Some(commands) = &self.commands else {
            return Err((EngineError::Stopped("it was dropped".to_owned()), command));
        };
        commands.try_send(command).map_err(|refused| match refused {
            TrySendError::Full(command) => {
                (EngineError::Page(format!("{QUEUE} requests wait for the engine; try again later")), command)
            }
            TrySendError::Disconnected(command) => {
                (EngineError::Stopped("its thread has ended".to_owned()), command)
            }
        })
    }
}

impl Drop for EngineHost {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the engine has been caught and reported; one of a callback is the caller's to see in the log.
            if thread.join().is_err() {
                tracing::error!("a callback of the engine's thread panicked");
            }
        }
    }
}

/// The thread: serves commands until the host is dropped or the engine panics.
fn run(mut engine: Box<dyn Engine>, shared: &Shared, queue: &Receiver<Command>, on_report: &OnReport) {
    while let Ok(command) = queue.recv() {
        let now = u64::try_from(shared.start.elapsed().as_nanos()).unwrap_or(u64::MAX - 1);
        shared.busy_since.store(now + 1, Ordering::Release);
        let stopped = serve(engine.as_mut(), shared, command, on_report);
        shared.busy_since.store(0, Ordering::Release);
        if let Some(why) = stopped {
            // What is queued gets an answer too; `stopped` is set, so that nothing is added for long.
            while let Ok(command) = queue.try_recv() {
                refuse(shared, command, on_report, &why);
            }
            // The engine's state is unknown after a panic, and its destructor may panic again.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
            return;
        }
    }
}

/// Serves one command; the reason when the engine has panicked.
fn serve(engine: &mut dyn Engine, shared: &Shared, command: Command, on_report: &OnReport) -> Option<String> {
    match command {
        Command::Step(plan) => {
            let step = plan.step;
            let (result, stopped) = caught(shared, || engine.step(&plan));
            // Whoever gets the report may submit the next step at once.
            shared.stepping.store(false, Ordering::Release);
            shared.busy_since.store(0, Ordering::Release);
            on_report(StepReport { step, result });
            stopped
        }
        Command::Export(pages, done) => {
            let bytes = engine.kv().layout.page_bytes();
            let (result, stopped) = caught(shared, || {
                pages
                    .iter()
                    .map(|page| {
                        let mut content = vec![0; bytes];
                        engine.export(*page, &mut content).map(|()| content)
                    })
                    .collect()
            });
            done(result);
            stopped
        }
        Command::Import(pages, done) => {
            let (result, stopped) =
                caught(shared, || pages.iter().try_for_each(|(page, content)| engine.import(*page, content)));
            done(result);
            stopped
        }
    }
}

/// Runs `work`; a panic becomes an error, and its message is kept for later callers.
fn caught<T>(
    shared: &Shared,
    work: impl FnOnce() -> Result<T, EngineError>,
) -> (Result<T, EngineError>, Option<String>) {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => (result, None),
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned());
            let why = format!("it panicked: {text}");
            *shared.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
            (Err(EngineError::Stopped(why.clone())), Some(why))
        }
    }
}

/// Answers a command that nobody will serve.
fn refuse(shared: &Shared, command: Command, on_report: &OnReport, why: &str) {
    let error = EngineError::Stopped(why.to_owned());
    match command {
        Command::Step(plan) => {
            shared.stepping.store(false, Ordering::Release);
            on_report(StepReport { step: plan.step, result: Err(error) });
        }
        Command::Export(_, done) => done(Err(error)),
        Command::Import(_, done) => done(Err(error)),
    }
}

#[cfg(test)]
mod tests;
