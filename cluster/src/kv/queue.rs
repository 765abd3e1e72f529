//! Many senders before one sending half: a queue with a bound.

use std::future::Future;

use tokio::sync::mpsc;

use super::error::KvError;
use super::link::{KvSend, Outbound};

/// A place in front of a link's sending half. Clones are the same queue; the link's sending half is dropped, and so the
/// link ends, when the last one is.
#[derive(Clone, Debug)]
pub struct KvQueue(mpsc::Sender<Outbound>);

/// A message that was not queued, which comes back.
#[derive(Clone, Debug, thiserror::Error)]
pub enum QueueError {
    /// As many wait as may.
    #[error("the KV link's queue is full")]
    Full(Box<Outbound>),
    /// The link has ended.
    #[error("the KV link has ended")]
    Ended(Box<Outbound>),
}

impl KvQueue {
    /// A queue of up to `depth` messages (at least one) before `half`, and the work of sending them: somebody has to run
    /// it. The work ends with the link, and calls `refused` with each message's error that the link survives.
    ///
    /// Pages are references: what waits in the queue is bounded by `depth` and by the pool of the pages.
    pub fn before(
        mut half: Box<dyn KvSend>,
        depth: usize,
        refused: impl Fn(KvError) + Send,
    ) -> (Self, impl Future<Output = Result<(), KvError>> + Send) {
        let (to, mut from) = mpsc::channel(depth.max(1));
        let closer = half.closer();
        let work = async move {
            loop {
                let next = tokio::select! {
                    biased;
                    // The half has to be dropped for the connection to close, also when nobody sends any more.
                    why = closer.wait() => return Err(why),
                    next = from.recv() => next,
                };
                let Some(message) = next else { return Ok(()) };
                match half.send(message).await {
                    Err(error) if error.is_of_message() => refused(error),
                    done => done?,
                }
            }
        };
        (Self(to), work)
    }

    /// Queues `message`, or gives it back at once.
    ///
    /// # Errors
    /// The queue is full, or the link has ended.
    pub fn try_send(&self, message: Outbound) -> Result<(), QueueError> {
        self.0.try_send(message).map_err(|e| match e {
            mpsc::error::TrySendError::Full(message) => QueueError::Full(Box::new(message)),
            mpsc::error::TrySendError::Closed(message) => QueueError::Ended(Box::new(message)),
        })
    }

    /// Queues `message` as soon as there is room.
    ///
    /// # Errors
    /// The link has ended.
    pub async fn send(&self, message: Outbound) -> Result<(), QueueError> {
        self.0.send(message).await.map_err(|e| QueueError::Ended(Box::new(e.0)))
    }

    /// Messages that may be queued now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.0.capacity()
    }
}
