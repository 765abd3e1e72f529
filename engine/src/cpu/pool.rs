//! The engine's compute threads.

use super::{CpuError, SimdLevel};

/// The threads that compute: the calling thread and `threads - 1` workers. One for an engine.
#[derive(Debug)]
pub struct Compute {}

impl Compute {
    /// Starts `threads - 1` workers (`threads` is at least 1: the caller takes part) at the widest SIMD level of this
    /// machine.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn new(threads: usize) -> Result<Self, CpuError> {
        todo!()
    }

    /// [`new`](Self::new) at a narrower SIMD level, to compare levels; a level the machine lacks falls back to the
    /// widest it has.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_level(threads: usize, level: SimdLevel) -> Result<Self, CpuError> {
        todo!()
    }

    /// Threads that compute, the caller included.
    pub fn threads(&self) -> usize {
        todo!()
    }

    /// SIMD level in use.
    pub fn level(&self) -> SimdLevel {
        todo!()
    }

    /// Runs `task(0) … task(tasks - 1)`, each once, on all threads, and returns when all are done. Called from within a
    /// task it runs inline. A task's panic reaches the caller once every thread has left the region.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        todo!()
    }
}
