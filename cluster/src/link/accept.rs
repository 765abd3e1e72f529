//! Accepting: one task a handshake, so that no client makes another one wait.

use std::collections::VecDeque;
use std::future::Future;
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
use super::stream::Stream;
use crate::handshake::{self, Budget, Failed, Refusal};
use crate::tls::Tls;

/// Wait after a failed `accept`, which mostly says that the process has no file descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// A handshake under way.
struct Guest {
    task: AbortHandle,
    proven: Arc<AtomicBool>,
}

/// Accepts until it is dropped.
pub(super) async fn run(listener: TcpListener, shared: Arc<Shared>, keeper: ActorRef<LinksMsg>) {
    let welcome = |tcp, peer: String, proven| welcome(tcp, peer, shared.clone(), keeper.clone(), proven);
    each(&listener, welcome, |tcp, peer| turn_away(tcp, peer, &shared, &keeper)).await;
}

/// Accepts until it is dropped, and runs `welcome` for each connection in a task of its own, up to [`MAX_HANDSHAKES`] at
/// once. One that has not set its flag (it has proven that it is of the cluster) makes room for the next; when all have, the
/// next is handed to `turn_away`.
pub(crate) async fn each<W>(
    listener: &TcpListener,
    welcome: impl Fn(TcpStream, String, Arc<AtomicBool>) -> W,
    turn_away: impl Fn(&TcpStream, String),
) where
    W: Future<Output = ()> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let mut guests: VecDeque<Guest> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((tcp, peer)) => {
                    guests.retain(|guest| !guest.task.is_finished());
                    if guests.len() >= MAX_HANDSHAKES && !evict(&mut guests) {
                        turn_away(&tcp, peer.to_string());
                        continue;
                    }
                    let proven = Arc::new(AtomicBool::new(false));
                    let work = welcome(tcp, peer.to_string(), proven.clone());
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

/// An accepted connection, secured where `tls` is given.
///
/// # Errors
/// TLS is not agreed on in time.
pub(crate) async fn secure(tcp: TcpStream, tls: Option<&Tls>, budget: &mut Budget) -> Result<Stream, Failed> {
    tcp.set_nodelay(true)?;
    Ok(match tls {
        None => Stream::Plain(tcp),
        Some(tls) => {
            let secured = budget.run(Duration::ZERO, tls.acceptor().accept(tcp)).await?;
            Stream::Secured(Box::new(secured.into()))
        }
    })
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
        let mut stream = secure(tcp, shared.tls.as_ref(), &mut budget).await?.boxed();
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
