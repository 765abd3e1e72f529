//! The scheduler's end: takes events, never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use policies::kv::events::KvEvent;
use tokio::sync::mpsc;

/// Takes what a worker has to tell. Clones feed the same publisher; it runs until the last one is gone.
#[derive(Clone, Debug)]
pub struct Feed {
    pub(super) queue: mpsc::Sender<Batch>,
    pub(super) shared: Arc<Shared>,
}

/// Events of a step.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) page_tokens: u32,
    /// It can be applied to any state: it begins with `Cleared` and leaves nothing out.
    pub(super) whole: bool,
    pub(super) events: Vec<KvEvent>,
}

/// What both ends share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The next batch has to be a whole one.
    pub(super) whole_wanted: AtomicBool,
    /// A batch was dropped and no whole one has followed.
    dropping: AtomicBool,
    pub(super) batches: AtomicU64,
    pub(super) events: AtomicU64,
    dropped: AtomicU64,
}

/// Totals since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Batches handed to the PUB socket.
    pub batches: u64,
    /// Events in them.
    pub events: u64,
    /// Events dropped because too many batches waited.
    pub dropped: u64,
}

impl Feed {
    /// The next batch has to be a whole one: the set of pages that can be found has another beginning.
    pub fn begin(&self) {
        self.shared.whole_wanted.store(true, Ordering::Release);
    }

    /// Whether [`Feed::publish_whole`] has to be called now, with nothing published in between. Each request is told
    /// once; none is while the queue is full.
    #[must_use]
    pub fn take_whole_wanted(&self) -> bool {
        self.shared.whole_wanted.load(Ordering::Acquire)
            && self.queue.capacity() > 0
            && self.shared.whole_wanted.swap(false, Ordering::AcqRel)
    }

    /// Publishes what has changed since the last batch, in order and with tokens. Where the queue is full it is dropped,
    /// as is everything until the next whole batch.
    pub fn publish(&self, page_tokens: u32, events: Vec<KvEvent>) {
        if !events.is_empty() {
            self.send(Batch { page_tokens, whole: false, events });
        }
    }

    /// Publishes that nothing could be found but `stored`, each after what it follows.
    pub fn publish_whole(&self, page_tokens: u32, stored: Vec<KvEvent>) {
        let mut events = vec![KvEvent::Cleared];
        events.extend(stored);
        self.send(Batch { page_tokens, whole: true, events });
    }

    /// What has been published.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        Figures {
            batches: read(&self.shared.batches),
            events: read(&self.shared.events),
            dropped: read(&self.shared.dropped),
        }
    }

    fn send(&self, batch: Batch) {
        let (whole, events) = (batch.whole, batch.events.len() as u64);
        // Changes to a state that is not known any more are of no use to anybody.
        let known = whole || !self.shared.dropping.load(Ordering::Acquire);
        if known && self.queue.try_send(batch).is_ok() {
            self.shared.dropping.store(false, Ordering::Release);
        } else {
            self.shared.dropped.fetch_add(events, Ordering::Relaxed);
            self.shared.dropping.store(true, Ordering::Release);
            self.begin();
        }
    }
}
