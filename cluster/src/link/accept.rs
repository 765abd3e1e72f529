//! Accepting: one task a handshake, so that no client makes another one wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::ActorRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::MAX_HANDSHAKES;
use super::keeper::{LinksMsg, Shaken, Shared, new_link};
use super::stream::Io;
use crate::handshake::{self, Budget, Failed, Refusal};

/// Wait after a failed `accept`, which mostly says that the process has no file descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// A handshake under way.
struct Guest {
    task: AbortHandle,
    proven: Arc<AtomicBool>,
}

/// Accepts until it is dropped.
pub(super) async fn run(listener: TcpListener, shared: Arc<Shared>, keeper: ActorRef<LinksMsg>) {
    let mut tasks = JoinSet::new();
    let mut guests: VecDeque<Guest> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((tcp, peer)) => {
                    guests.retain(|guest| !guest.task.is_finished());
                    if guests.len() >= MAX_HANDSHAKES && !evict(&mut guests) {
                        turn_away(&tcp, peer.to_string(), &shared, &keeper);
                        continue;
                    }
                    let proven = Arc::new(AtomicBool::new(false));
                    let work = welcome(tcp, peer.to_string(), shared.clone(), keeper.clone(), proven.clone());
                    guests.push_back(Guest { task: tasks.spawn(work), proven });
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection of a node");
                    sleep(PAUSE).await;
                }
            },
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
        }
    }
}

/// Ends the handshake that has been without a proof for longest: a node of ours needs milliseconds, a silent client stays.
fn evict(guests: &mut VecDeque<Guest>) -> bool {
    let Some(oldest) = guests.iter().position(|guest| !guest.proven.load(Ordering::Relaxed)) else {
        return false;
    };
    if let Some(guest) = guests.remove(oldest) {
        guest.task.abort();
    }
    true
}

fn turn_away(tcp: &TcpStream, peer: String, shared: &Shared, keeper: &ActorRef<LinksMsg>) {
    let refusal = Refusal::Busy(format!("{MAX_HANDSHAKES} nodes are joining"));
    if shared.tls.is_none() {
        // It fits into the socket's buffer, or the peer tries again without having heard why.
        let _ = tcp.try_write(&handshake::refusal_bytes(refusal.clone()));
    }
    let _ = keeper.send_message(LinksMsg::Refused { peer, name: None, refusal, by_peer: false });
}

async fn welcome(
    tcp: TcpStream,
    peer: String,
    shared: Arc<Shared>,
    keeper: ActorRef<LinksMsg>,
    proven: Arc<AtomicBool>,
) {
    let begun = Instant::now();
    let link = new_link();
    let mut budget = Budget::new(shared.handshake_timeout);
    let done = async {
        tcp.set_nodelay(true)?;
        let mut stream: Box<dyn Io> = match &shared.tls {
            None => Box::new(tcp),
            Some(tls) => Box::new(budget.run(Duration::ZERO, tls.acceptor().accept(tcp)).await?),
        };
        let agreed = handshake::accept(&mut stream, &shared.terms, link, &mut budget, &proven).await?;
        Ok::<_, Failed>((stream, agreed))
    };
    let report = match done.await {
        Ok((stream, agreed)) => {
            LinksMsg::Shaken(Box::new(Shaken { link, stream, agreed, peer, dialled: None, begun }))
        }
        Err(Failed::Refused { refusal, by_peer, name }) => LinksMsg::Refused { peer, name, refusal, by_peer },
        Err(Failed::Silent) => {
            debug!(peer, "a connection to the cluster's port was silent for too long");
            return;
        }
        Err(Failed::Broken(why)) => {
            debug!(peer, why, "a connection to the cluster's port broke before it was a link");
            return;
        }
    };
    let _ = keeper.send_message(report);
}
