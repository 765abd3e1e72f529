//! The sockets, and the task that writes to them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{KvEventsConfig, KvEventsEncoding};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::debug;
use zeromq::{PubSocket, RouterSocket, Socket, SocketEvent, SocketSend, ZmqError};

use crate::kv_events::feed::{Batch, Feed, Shared};
use crate::kv_events::replay::{self, Kept};
use crate::kv_events::{BindError, encode};

/// How often new subscribers are looked for.
const LOOK: Duration = Duration::from_millis(50);
/// A subscriber's connection is known before what it subscribes to; that follows in one network round trip.
const SETTLE: Duration = Duration::from_millis(200);

/// The sockets of a worker's KV events, bound; nothing is sent before [`Publisher::run`].
pub struct Publisher {
    socket: PubSocket,
    /// Whether somebody has connected since the last call.
    joined: Box<dyn FnMut() -> bool + Send>,
    router: Option<RouterSocket>,
    topic: String,
    encoding: KvEventsEncoding,
    queue: mpsc::Receiver<Batch>,
    kept: Arc<Kept>,
    shared: Arc<Shared>,
    endpoint: SocketAddr,
    replay_endpoint: Option<SocketAddr>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("endpoint", &self.endpoint)
            .field("replay_endpoint", &self.replay_endpoint)
            .finish_non_exhaustive()
    }
}

impl Publisher {
    /// Binds the sockets that `config` names; none where it names none. To be called in a tokio runtime.
    ///
    /// # Errors
    /// An address that cannot be bound, with its key.
    pub async fn bind(config: &KvEventsConfig) -> Result<Option<(Self, Feed)>, BindError> {
        let Some(endpoint) = &config.endpoint else { return Ok(None) };
        let mut socket = PubSocket::new();
        let mut monitor = socket.monitor();
        let joined = move || {
            let mut any = false;
            while let Ok(event) = monitor.try_recv() {
                any |= matches!(event, SocketEvent::Accepted(..));
            }
            any
        };
        let bound = open(&mut socket, "kv-events.endpoint", endpoint).await?;
        let mut router = None;
        let mut replay_endpoint = None;
        if let Some(endpoint) = &config.replay_endpoint {
            let mut socket = RouterSocket::new();
            replay_endpoint = Some(open(&mut socket, "kv-events.replay-endpoint", endpoint).await?);
            router = Some(socket);
        }
        let (sender, queue) = mpsc::channel(config.max_queue_size);
        let shared = Arc::new(Shared::default());
        let feed = Feed { queue: sender, shared: shared.clone() };
        let publisher = Self {
            socket,
            joined: Box::new(joined),
            router,
            topic: config.topic.clone(),
            encoding: config.encoding,
            queue,
            kept: Arc::new(Kept::new(config.buffer_steps)),
            shared,
            endpoint: bound,
            replay_endpoint,
        };
        Ok(Some((publisher, feed)))
    }

    /// Where subscribers connect to.
    #[must_use]
    pub const fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    /// Where replays are asked for, if anywhere.
    #[must_use]
    pub const fn replay_endpoint(&self) -> Option<SocketAddr> {
        self.replay_endpoint
    }

    /// Publishes until the last feed is gone and everything is sent.
    pub async fn run(mut self) {
        match self.router.take() {
            None => self.publish_all().await,
            Some(router) => {
                let replays = replay::serve(router, self.kept.clone(), self.shared.clone());
                tokio::select! {
                    () = self.publish_all() => {}
                    () = replays => {}
                }
            }
        }
    }

    async fn publish_all(&mut self) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut guests = Guests::default();
        loop {
            tokio::select! {
                batch = self.queue.recv() => match batch {
                    Some(batch) => self.publish(&batch).await,
                    None => return,
                },
                now = looks.tick() => {
                    if (self.joined)() {
                        guests.came(now);
                    }
                    if guests.settled(now) {
                        self.shared.whole_wanted.store(true, Ordering::Release);
                    }
                }
            }
        }
    }

    async fn publish(&mut self, batch: &Batch) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let payload = encode(now.as_secs_f64(), batch.page_tokens, &batch.events, self.encoding);
        let mut message = self.kept.add(payload, batch.whole);
        message.push_front(self.topic.clone().into_bytes().into());
        // The socket drops what a slow subscriber has no room for (100,000 messages), and that one sees the gap.
        if let Err(e) = self.socket.send(message).await {
            debug!(error = %e, "a batch of KV events was not sent");
        }
        self.shared.batches.fetch_add(1, Ordering::Relaxed);
        self.shared.events.fetch_add(batch.events.len() as u64, Ordering::Relaxed);
    }
}

/// Subscribers that have just come and know nothing yet.
#[derive(Debug, Default)]
struct Guests {
    /// When the first and the last of them connected.
    came: Option<(Instant, Instant)>,
}

impl Guests {
    fn came(&mut self, now: Instant) {
        let first = self.came.map_or(now, |(first, _)| first);
        self.came = Some((first, now));
    }

    /// Whether it is time to tell them everything: a moment after the first, and again for those that came meanwhile.
    fn settled(&mut self, now: Instant) -> bool {
        let Some((first, last)) = self.came else { return false };
        if now < first + SETTLE {
            return false;
        }
        self.came = (now < last + SETTLE).then_some((last, last));
        true
    }
}

/// Binds a socket, with an error that says what to change.
async fn open(socket: &mut impl Socket, key: &'static str, endpoint: &str) -> Result<SocketAddr, BindError> {
    let bind = async {
        let listener = TcpListener::bind(KvEventsConfig::address(endpoint)).await?.into_std()?;
        let address = listener.local_addr()?;
        socket.bind_listener(listener).await.map_err(|e| match e {
            ZmqError::Network(e) => e,
            other => std::io::Error::other(other),
        })?;
        Ok(address)
    };
    bind.await.map_err(|source| BindError { key, endpoint: endpoint.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_who_comes_is_told_a_moment_later_and_few_times() {
        let (mut guests, start) = (Guests::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!guests.settled(at(0)));
        guests.came(at(0));
        guests.came(at(150));
        assert!(!guests.settled(at(199)));
        assert!(guests.settled(at(200)));
        assert!(!guests.settled(at(349)), "the second has been told too early");
        assert!(guests.settled(at(350)));
        assert!(!guests.settled(at(1000)), "all have been told");
        guests.came(at(1000));
        assert!(guests.settled(at(1200)));
        assert!(!guests.settled(at(1400)));
    }
}
