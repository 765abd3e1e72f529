//! The one place that starts background work: every task has a name and a policy for its end, every supervised actor a
//! restart rule.

use std::future::Future;
use std::time::{Duration, Instant};

use ractor::thread_local::{ThreadLocalActor, ThreadLocalActorSpawner};
use ractor::{ActorCell, ActorRef, SpawnErr};
use tokio::task::JoinHandle;
use tracing::{Instrument, error, info_span};

/// What a background task is for, and with it what its panic means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// One client's connection or stream: a panic ends that client only.
    Client,
    /// A timer or a bridge of a role: a panic is logged, the role's supervisor sees the missing beats.
    Role,
    /// The node itself (signals, listeners).
    Node,
}

/// Starts `work` under a span that names it; a panic is logged with the name instead of vanishing with the handle.
pub fn spawn<F>(kind: TaskKind, name: &'static str, work: F) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "this is the helper that the ban points to")]
    tokio::spawn(async move {
        #[expect(
            clippy::disallowed_methods,
            reason = "the inner task is there to catch the outer one's panic"
        )]
        let inner = tokio::spawn(work.instrument(info_span!("task", name)));
        let abort = AbortOnDrop(inner.abort_handle());
        if let Err(e) = inner.await
            && e.is_panic()
        {
            error!(task = name, kind = ?kind, "background task panicked");
            metrics::counter!(crate::metrics::TASK_PANICS, "task" => name).increment(1);
        }
        drop(abort);
    })
}

/// Aborting the outer handle has to reach the work itself.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a supervised actor on an OS thread of its own, which ends with it: for code that may compute for long or for
/// ever, as a policy may. On a thread of the runtime it would hold up what else is queued there, and where no other
/// thread polls the timers (always so on a machine with one core) the deadline by which its answer is given up as well.
///
/// # Errors
/// It does not start.
pub async fn spawn_on_thread<A: ThreadLocalActor>(
    args: A::Arguments,
    supervisor: ActorCell,
) -> Result<ActorRef<A::Msg>, SpawnErr> {
    // The spawner's thread lives until the spawner is dropped, here, and the last actor on it has ended.
    Ok(A::spawn_linked(None, args, supervisor, ThreadLocalActorSpawner::new()).await?.0)
}

/// Delays between restarts of a failed actor: doubling from `first` to `longest`, and back to `first` after the actor
/// has lived for `reset`.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    reset: Duration,
    next: Duration,
    last: Option<Instant>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(5), Duration::from_secs(60))
    }
}

impl Backoff {
    /// A rule with the given delays.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration, reset: Duration) -> Self {
        Self { first, longest, reset, next: first, last: None }
    }

    /// How long to wait before the next restart, after a failure seen at `now`.
    pub fn next_delay(&mut self, now: Instant) -> Duration {
        if self.last.is_some_and(|last| now.duration_since(last) > self.reset) {
            self.next = self.first;
        }
        self.last = Some(now);
        let delay = self.next;
        self.next = (self.next * 2).min(self.longest);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_its_limit_and_starts_over_after_a_quiet_time() {
        let mut backoff =
            Backoff::new(Duration::from_millis(50), Duration::from_millis(150), Duration::from_secs(1));
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(backoff.next_delay(after(0)).as_millis(), 50);
        assert_eq!(backoff.next_delay(after(10)).as_millis(), 100);
        assert_eq!(backoff.next_delay(after(20)).as_millis(), 150);
        assert_eq!(backoff.next_delay(after(30)).as_millis(), 150);
        assert_eq!(backoff.next_delay(after(2000)).as_millis(), 50);
    }
}
