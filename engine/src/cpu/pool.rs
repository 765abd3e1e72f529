//! The engine's compute threads.
//!
//! A decode step is some 150 short regions (tens of microseconds each), so what counts is the time between publishing a
//! region and having every thread in it. The pool here publishes with one atomic store; a worker that has just finished
//! spins for [`SPIN`] before it sleeps, so that within a step nobody enters the kernel. A worker that is late (asleep, or
//! preempted) is not waited for: the region closes once its work is claimed, and only threads that joined must leave.
#![expect(
    unsafe_code,
    reason = "a region on the caller's stack is lent to the workers until they have left it"
)]

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{CpuError, SimdLevel};

/// How long an idle worker spins before it sleeps: longer than the serial work between two regions of a step, much
/// shorter than the time between two steps of an idle engine.
const SPIN: Duration = Duration::from_micros(60);

/// The threads that compute: the calling thread and `threads - 1` workers. One for an engine.
#[derive(Debug)]
pub struct Compute {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the thread that runs a region; regions of several callers follow one another.
    turn: Mutex<()>,
    level: SimdLevel,
}

impl Compute {
    /// Starts `threads - 1` workers (`threads` is at least 1: the caller takes part) at the widest SIMD level of this
    /// machine.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn new(threads: usize) -> Result<Self, CpuError> {
        Self::with_level(threads, SimdLevel::detect())
    }

    /// [`new`](Self::new) at a narrower SIMD level, to compare levels; a level the machine lacks falls back to the
    /// widest it has.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_level(threads: usize, level: SimdLevel) -> Result<Self, CpuError> {
        let mut compute = Compute {
            shared: Arc::new(Shared::default()),
            workers: Vec::new(),
            turn: Mutex::new(()),
            level: level.min(SimdLevel::detect()),
        };
        for index in 1..threads.max(1) {
            let shared = Arc::clone(&compute.shared);
            let worker = std::thread::Builder::new()
                .name(format!("compute-{index}"))
                .spawn(move || shared.work())
                .map_err(|error| CpuError::Thread { index, reason: error.to_string() })?;
            compute.workers.push(worker);
        }
        Ok(compute)
    }

    /// Threads that compute, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// SIMD level in use.
    pub fn level(&self) -> SimdLevel {
        self.level
    }

    /// Runs `task(0) … task(tasks - 1)`, each once, on all threads, and returns when all are done. Called from within a
    /// task it runs inline. A task's panic reaches the caller once every thread has left the region.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        self.run_ranges(tasks, |range| range.for_each(&task));
    }

    /// Like [`run`](Self::run), with neighbouring tasks handed out together: large runs first, single tasks at the end,
    /// so that a thread streams contiguous memory and all threads still finish together.
    pub fn run_ranges(&self, tasks: usize, body: impl Fn(Range<usize>) + Sync) {
        if tasks == 0 {
            return;
        }
        if self.workers.is_empty() || tasks == 1 || IN_REGION.get() {
            body(0..tasks);
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let region = Region {
            body: &body,
            next: AtomicUsize::new(0),
            tasks,
            threads: self.threads(),
            panic: Mutex::new(None),
        };
        self.shared.open(&region);
        region.work();
        self.shared.close();
        let panic = region.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        self.shared.state.fetch_or(STOP, Ordering::SeqCst);
        self.shared.wake_sleepers();
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so it ends normally; there is nothing to do if it did not.
            let _ = worker.join();
        }
    }
}

thread_local! {
    static IN_REGION: Cell<bool> = const { Cell::new(false) };
}

/// One parallel region; lives on the caller's stack.
struct Region<'a> {
    body: &'a (dyn Fn(Range<usize>) + Sync),
    next: AtomicUsize,
    tasks: usize,
    threads: usize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Region<'_> {
    /// Claims and runs tasks until none is left. Never unwinds.
    fn work(&self) {
        IN_REGION.set(true);
        while let Some(range) = self.claim() {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.body)(range))) {
                self.next.store(self.tasks, Ordering::Relaxed);
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            }
        }
        IN_REGION.set(false);
    }

    fn claim(&self) -> Option<Range<usize>> {
        let mut start = self.next.load(Ordering::Relaxed);
        loop {
            let left = self.tasks.saturating_sub(start);
            if left == 0 {
                return None;
            }
            // A claim is half of a fair share of what is left.
            let end = start + (left / (2 * self.threads)).max(1);
            match self.next.compare_exchange_weak(start, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start..end),
                Err(now) => start = now,
            }
        }
    }
}

/// `state` is `epoch << 32 | OPEN? | STOP? | threads inside`; a region has its own epoch, so that a worker enters it
/// once at most.
const OPEN: u64 = 1 << 31;
const STOP: u64 = 1 << 30;
const INSIDE: u64 = STOP - 1;

#[derive(Default)]
struct Shared {
    state: AtomicU64,
    /// The region of the current epoch; valid for a thread counted in `state`.
    region: AtomicPtr<Region<'static>>,
    sleepers: AtomicUsize,
    gate: Mutex<()>,
    opened: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("state", &self.state)
            .field("sleepers", &self.sleepers)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn open(&self, region: &Region<'_>) {
        self.region.store(std::ptr::from_ref(region).cast_mut().cast(), Ordering::Relaxed);
        let state = self.state.load(Ordering::Relaxed);
        // Nobody is inside between two regions and `turn` is held, so nobody else writes (STOP comes with `drop`).
        self.state.store(((state >> 32) + 1) << 32 | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake_sleepers();
        }
    }

    /// Lets no further worker in and waits for those inside. After it returns no worker holds the region.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut spins = 0_u32;
        while self.state.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins < 4096 {
                std::hint::spin_loop();
            } else {
                // More runnable threads than cores: let the one inside have this core.
                std::thread::yield_now();
            }
        }
    }

    fn wake_sleepers(&self) {
        // A worker is either past its check (then it waits, and the notification finds it) or will see the new state.
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        self.opened.notify_all();
    }

    /// A worker's life.
    fn work(&self) {
        let mut seen = 0;
        loop {
            let state = self.wait(seen);
            if state & STOP != 0 {
                return;
            }
            if self.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                seen = state >> 32;
                // SAFETY: the exchange succeeded on an open state of this epoch, so `open` has published the region and
                // `close` does not return before this thread has left; the caller keeps the region alive until then.
                unsafe { &*self.region.load(Ordering::Relaxed) }.work();
                self.state.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Waits for an open region other than `seen`, or for the end.
    fn wait(&self, seen: u64) -> u64 {
        let news = |state: u64| state & STOP != 0 || (state & OPEN != 0 && state >> 32 != seen);
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                let state = self.state.load(Ordering::Acquire);
                if news(state) {
                    return state;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                break;
            }
        }
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let state = loop {
            let state = self.state.load(Ordering::SeqCst);
            if news(state) {
                break state;
            }
            gate = self.opened.wait(gate).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(gate);
        state
    }
}

#[cfg(test)]
mod tests;
