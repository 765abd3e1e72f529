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

/// A request that is about pages; gives the reason when the engine has panicked.
type PagesJob = Box<dyn FnOnce(Access<'_>) -> Option<String> + Send>;

/// What a request about pages gets.
enum Access<'a> {
    Granted(&'a mut dyn Engine, &'a Shared),
    Refused(EngineError),
}

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
    Pages(PagesJob),
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Step(plan) => write!(f, "Step({})", plan.step),
            Self::Pages(_) => f.write_str("Pages"),
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

    /// Has the contents of pages written to buffers of a page's length each, in the canonical layout; `done` gets the
    /// buffers back.
    ///
    /// `done` is called in every case, with [`EngineError::Stopped`] after the engine's end; on the caller's thread when
    /// the request could not even be queued.
    pub fn export<B: AsMut<[u8]> + Send + 'static>(
        &self,
        mut pages: Vec<(PageId, B)>,
        done: impl FnOnce(Result<Vec<B>, EngineError>) + Send + 'static,
    ) {
        let work = move |engine: &mut dyn Engine| {
            pages.iter_mut().try_for_each(|(page, out)| engine.export(*page, out.as_mut()))?;
            Ok(pages.into_iter().map(|(_, content)| content).collect())
        };
        self.with_engine(work, done);
    }

    /// Has the contents of pages set; otherwise as [`EngineHost::export`]. After an error some of them may be set.
    pub fn import<B: AsRef<[u8]> + Send + 'static>(
        &self,
        pages: Vec<(PageId, B)>,
        done: impl FnOnce(Result<(), EngineError>) + Send + 'static,
    ) {
        let work = move |engine: &mut dyn Engine| {
            pages.iter().try_for_each(|(page, content)| engine.import(*page, content.as_ref()))
        };
        self.with_engine(work, done);
    }

    fn with_engine<T>(
        &self,
        work: impl FnOnce(&mut dyn Engine) -> Result<T, EngineError> + Send + 'static,
        done: impl FnOnce(Result<T, EngineError>) + Send + 'static,
    ) {
        let job = Box::new(move |access: Access<'_>| match access {
            Access::Granted(engine, shared) => {
                let (result, stopped) = caught(shared, || work(engine));
                done(result);
                stopped
            }
            Access::Refused(error) => {
                done(Err(error));
                None
            }
        });
        if let Err((error, Command::Pages(job))) = self.send(Command::Pages(job)) {
            job(Access::Refused(error));
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
        Command::Pages(job) => job(Access::Granted(engine, shared)),
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
        Command::Pages(job) => _ = job(Access::Refused(error)),
    }
}

#[cfg(test)]
mod tests;
