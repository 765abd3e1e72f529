//! A link between two workers of one process: pages change hands and nothing is copied.

use policies::kv::PageLayout;
use tokio::sync::mpsc;

use super::error::KvError;
use super::header::CheckedHeader;
use super::link::{Closer, EndOnDrop, Inbound, KvFuture, KvLink, KvRecv, KvSend, Outbound};
use super::proof::KvPeer;
use super::tcp::check_bodies;

/// One end of a link in this process.
#[derive(Debug)]
pub struct LocalLink {
    peer: KvPeer,
    layout: PageLayout,
    to: mpsc::Sender<Inbound>,
    from: mpsc::Receiver<Inbound>,
    closer: Closer,
}

/// The two ends of a link: the first one's peer is `second`, and the other way round. Each direction holds up to `depth`
/// messages (at least one) that have not been received.
#[must_use]
pub fn pair(first: KvPeer, second: KvPeer, layout: PageLayout, depth: usize) -> (LocalLink, LocalLink) {
    let (to_second, from_first) = mpsc::channel(depth.max(1));
    let (to_first, from_second) = mpsc::channel(depth.max(1));
    (
        LocalLink { peer: second, layout, to: to_second, from: from_second, closer: Closer::new() },
        LocalLink { peer: first, layout, to: to_first, from: from_first, closer: Closer::new() },
    )
}

impl KvLink for LocalLink {
    fn peer(&self) -> &KvPeer {
        &self.peer
    }

    fn closer(&self) -> Closer {
        self.closer.clone()
    }

    fn split(self: Box<Self>) -> (Box<dyn KvSend>, Box<dyn KvRecv>) {
        let Self { layout, to, from, closer, .. } = *self;
        (
            Box::new(LocalSend { layout, to, end: EndOnDrop(closer.clone()) }),
            Box::new(LocalRecv { from, end: EndOnDrop(closer) }),
        )
    }
}

#[derive(Debug)]
struct LocalSend {
    layout: PageLayout,
    to: mpsc::Sender<Inbound>,
    end: EndOnDrop,
}

impl KvSend for LocalSend {
    fn send(&mut self, message: Outbound) -> KvFuture<'_, ()> {
        Box::pin(async move {
            let Self { layout, to, end: EndOnDrop(closer) } = self;
            let work = async {
                let Outbound { mut header, pages } = message;
                header.set_checksums(Vec::new());
                // Encoded here as well: the receiver reads one form, and the limits are the same on both carriers.
                let header = CheckedHeader::encode(header)?;
                check_bodies(&pages, Some(layout))?;
                header.check_pages(pages.len(), false, Some(layout))?;
                to.send(Inbound::new(header, pages))
                    .await
                    .map_err(|_| KvError::Closed("the other end closed it".to_owned()))
            };
            closer.guard(KvError::is_of_message, work).await
        })
    }

    fn closer(&self) -> Closer {
        self.end.0.clone()
    }
}

#[derive(Debug)]
struct LocalRecv {
    from: mpsc::Receiver<Inbound>,
    end: EndOnDrop,
}

impl KvRecv for LocalRecv {
    fn recv(&mut self) -> KvFuture<'_, Option<Inbound>> {
        Box::pin(async move {
            let Self { from, end: EndOnDrop(closer) } = self;
            let message = closer.guard(|_| false, async { Ok(from.recv().await) }).await?;
            if message.is_none() {
                closer.close("the other end closed it");
            }
            Ok(message)
        })
    }
}
