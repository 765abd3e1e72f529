//! Dialling: look up, connect, secure, shake hands.

use std::sync::Arc;
use std::time::Duration;

use policies::membership::{DialError, LinkId};
use ractor::ActorRef;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::keeper::{LinksMsg, Shaken, Shared};
use super::stream::{Io, Stream};
use crate::handshake::{self, Agreed, Budget};
use crate::tls::Tls;

/// Time for the look-up and the connection, over all addresses of a name.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// `address` without the scheme that people put before it.
pub(crate) fn host_and_port(address: &str) -> &str {
    let address = address.trim();
    address.strip_prefix("tcp://").unwrap_or(address).trim_end_matches('/')
}

/// Dials `address` and tells the keeper what came of it, exactly once.
pub(super) async fn dial(address: String, link: LinkId, shared: Arc<Shared>, keeper: ActorRef<LinksMsg>) {
    let begun = Instant::now();
    let mut outcome = Outcome { address: Some(address.clone()), keeper };
    match connect(&address, link, &shared).await {
        Ok((stream, agreed, peer)) => {
            outcome.shaken(Shaken { link, stream, agreed, peer, dialled: Some(address), begun });
        }
        Err(error) => outcome.failed(error),
    }
}

async fn connect(
    address: &str,
    link: LinkId,
    shared: &Shared,
) -> Result<(Box<dyn Io>, Agreed, String), DialError> {
    let mut budget = Budget::new(shared.handshake_timeout);
    let (stream, peer) = reach(address, shared.tls.as_ref(), &mut budget).await?;
    let mut stream = stream.boxed();
    let agreed = handshake::dial(&mut stream, &shared.terms, link, &mut budget)
        .await
        .map_err(handshake::Failed::into_dial_error)?;
    Ok((stream, agreed, peer))
}

/// A connection to `address`, secured where `tls` is given, and the address of its other end.
///
/// # Errors
/// Nobody answers there in time, or TLS is not agreed on.
pub(crate) async fn reach(
    address: &str,
    tls: Option<&Tls>,
    budget: &mut Budget,
) -> Result<(Stream, String), DialError> {
    let target = host_and_port(address);
    let unreachable = |why: String| DialError::Unreachable(why);
    let tcp = match timeout(CONNECT_LIMIT, TcpStream::connect(target)).await {
        Ok(Ok(tcp)) => tcp,
        Ok(Err(e)) => return Err(unreachable(e.to_string())),
        Err(_) => return Err(unreachable("no connection in time".to_owned())),
    };
    let peer = tcp.peer_addr().map_or_else(|_| target.to_owned(), |address| address.to_string());
    tcp.set_nodelay(true).map_err(|e| unreachable(e.to_string()))?;
    let Some(tls) = tls else { return Ok((Stream::Plain(tcp), peer)) };

    let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
    let name = tls
        .name_for(host.trim_start_matches('[').trim_end_matches(']'))
        .map_err(|e| unreachable(e.to_string()))?;
    match budget.run(Duration::ZERO, tls.connector().connect(name, tcp)).await {
        Ok(secured) => Ok((Stream::Secured(Box::new(secured.into())), peer)),
        Err(failed) => Err(match failed.into_dial_error() {
            DialError::Unreachable(why) => unreachable(format!("tls: {why}")),
            other => other,
        }),
    }
}

/// A dial that is dropped halfway has failed too.
struct Outcome {
    address: Option<String>,
    keeper: ActorRef<LinksMsg>,
}

impl Outcome {
    fn shaken(&mut self, shaken: Shaken) {
        self.address = None;
        let _ = self.keeper.send_message(LinksMsg::Shaken(Box::new(shaken)));
    }

    fn failed(&mut self, error: DialError) {
        if let Some(address) = self.address.take() {
            let _ = self.keeper.send_message(LinksMsg::DialFailed { address, error });
        }
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        self.failed(DialError::Unreachable("the attempt was given up".to_owned()));
    }
}
