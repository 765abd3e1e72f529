//! Batches kept for subscribers that have missed some, and the socket that they ask at.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::debug;
use zeromq::{RouterSendHalf, RouterSocket, SocketRecv, SocketSend, ZmqMessage};

use crate::kv_events::feed::Shared;

/// Replays sent at once; who asks later waits.
const AT_ONCE: usize = 16;
/// How long one batch may take to fit into a client's queue before the client is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for a whole batch that a replay can begin with.
const WHOLE: Duration = Duration::from_secs(5);
/// The number after the last batch.
const END: [u8; 8] = (-1_i64).to_be_bytes();

/// The last batches.
#[derive(Debug)]
pub(super) struct Kept {
    recent: Mutex<Recent>,
    /// Counts whole batches.
    wholes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Recent {
    longest: usize,
    /// Numbers are consecutive; each message is `[number, payload]`.
    batches: VecDeque<ZmqMessage>,
    next: u64,
    /// The first of them can be applied to any state.
    begins_whole: bool,
}

impl Kept {
    /// Nothing yet, later at most `longest` batches.
    pub(super) fn new(longest: usize) -> Self {
        let recent = Recent { longest, batches: VecDeque::new(), next: 0, begins_whole: false };
        Self { recent: Mutex::new(recent), wholes: watch::Sender::new(0) }
    }

    /// Numbers a batch and keeps it. What came before a whole one is forgotten.
    pub(super) fn add(&self, payload: Vec<u8>, whole: bool) -> ZmqMessage {
        let mut recent = self.recent();
        let mut message = ZmqMessage::from(recent.next.to_be_bytes().to_vec());
        message.push_back(payload.into());
        recent.next += 1;
        if whole {
            recent.batches.clear();
            recent.begins_whole = true;
        } else if recent.batches.len() == recent.longest {
            recent.batches.pop_front();
            recent.begins_whole = false;
        }
        recent.batches.push_back(message.clone());
        drop(recent);
        if whole {
            self.wholes.send_modify(|n| *n += 1);
        }
        message
    }

    /// What a subscriber lacks that has everything before `start`; none where the batches kept do not reach back so far
    /// and do not begin whole.
    fn since(&self, start: u64) -> Option<Vec<ZmqMessage>> {
        let recent = self.recent();
        let oldest = recent.next - recent.batches.len() as u64;
        // A number that is still to come was counted in an earlier life of this process.
        let start = if start > recent.next { 0 } else { start };
        let skipped = match start.checked_sub(oldest) {
            Some(skipped) => usize::try_from(skipped).ok()?,
            None if recent.begins_whole => 0,
            None => return None,
        };
        Some(recent.batches.iter().skip(skipped).cloned().collect())
    }

    /// As [`Kept::since`]; where need be after a whole batch has come.
    async fn whole_since(&self, start: u64, shared: &Shared) -> Vec<ZmqMessage> {
        let mut wholes = self.wholes.subscribe();
        let enough = async {
            loop {
                if let Some(batches) = self.since(start) {
                    return batches;
                }
                shared.whole_wanted.store(true, Ordering::Release);
                // The sender is ours.
                let _ = wholes.changed().await;
            }
        };
        // While no engine is loaded nobody makes one; the next life begins with one.
        tokio::time::timeout(WHOLE, enough).await.unwrap_or_default()
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers requests for batches until it is dropped.
pub(super) async fn serve(socket: RouterSocket, kept: Arc<Kept>, shared: Arc<Shared>) {
    let (sender, mut requests) = socket.split();
    let mut answers = JoinSet::new();
    loop {
        match requests.recv().await {
            Ok(request) => {
                let Some((client, start)) = parse(request) else { continue };
                if answers.len() >= AT_ONCE {
                    answers.join_next().await;
                }
                answers.spawn(answer(sender.clone(), client, start, kept.clone(), shared.clone()));
            }
            Err(e) => {
                debug!(error = %e, "a request for a replay could not be received");
                tokio::task::yield_now().await;
            }
        }
        while answers.try_join_next().is_some() {}
    }
}

/// Where the answer goes (the client's name and an empty frame), and the first number that is asked for.
fn parse(mut request: ZmqMessage) -> Option<(ZmqMessage, u64)> {
    let start = (request.len() == 3)
        .then(|| request.get(2).and_then(|frame| <[u8; 8]>::try_from(&frame[..]).ok()))
        .flatten();
    if start.is_none() {
        debug!(frames = request.len(), "no request for a replay: it is an empty frame and 8 bytes");
    }
    let start = start?;
    let _ = request.split_off(2);
    Some((request, u64::from_be_bytes(start)))
}

async fn answer(
    mut sender: RouterSendHalf,
    client: ZmqMessage,
    start: u64,
    kept: Arc<Kept>,
    shared: Arc<Shared>,
) {
    let batches = kept.whole_since(start, &shared).await;
    debug!(start, batches = batches.len(), "batches are sent again");
    let mut end = ZmqMessage::from(END.to_vec());
    end.push_back(Vec::new().into());
    for mut message in batches.into_iter().chain([end]) {
        message.prepend(&client);
        match tokio::time::timeout(PATIENCE, sender.send(message)).await {
            Ok(Ok(())) => {}
            // It is gone or does not read; it will ask again.
            Ok(Err(e)) => return debug!(error = %e, "a replay ends early"),
            Err(_) => return debug!("a replay ends early: the client does not read"),
        }
    }
}

#[cfg(test)]
mod tests;
