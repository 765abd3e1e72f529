//! A connection that waits: ractor has another one to the same peer, and one of the two will be closed.

use ractor::ActorRef;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::oneshot;

use super::keeper::{LinksMsg, Shaken};

/// Until `back` tells that the other one is gone: then the keeper gets the connection again, with all that the peer has
/// said on it meanwhile. When the peer closes it, the keeper hears of that instead.
pub(super) async fn wait(mut shaken: Shaken, mut back: oneshot::Receiver<()>, keeper: ActorRef<LinksMsg>) {
    let link = shaken.link;
    let mut stream = BufReader::new(shaken.stream);
    let (open, called) = tokio::select! {
        said = stream.fill_buf() => (said.is_ok_and(|bytes| !bytes.is_empty()), false),
        _ = &mut back => (true, true),
    };
    if open && !called {
        // The peer talks on it, which it may do before the end of the other one is seen here. Nobody calls where the
        // keeper has stopped.
        let _ = back.await;
    }
    let message = if open {
        shaken.stream = Box::new(stream);
        LinksMsg::Shaken(Box::new(shaken))
    } else {
        LinksMsg::Forsaken { link, peer: shaken.agreed.member.id, dialled: shaken.dialled }
    };
    // A keeper that has stopped has no links.
    let _ = keeper.send_message(message);
}
