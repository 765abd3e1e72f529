//! What comes to an end that gives pages out from the other end, and from the link to it.

use policies::invariant::Broken;
use policies::kv::handoff::{SenderEvent, TransferKey};

use super::Sending;
use crate::event::KvMessage;
use crate::node::worker::transfers::Side;

impl Sending {
    /// A message of the receiver; says whether the transfer is over, as the others do.
    pub(in crate::node::worker) fn hear(
        &mut self,
        key: TransferKey,
        message: &KvMessage,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        let event = match message {
            KvMessage::Open { first_page, window } => {
                SenderEvent::Opened { first_page: *first_page, window: *window }
            }
            KvMessage::Credit(pages) => SenderEvent::Credit { pages: *pages },
            KvMessage::Ack => SenderEvent::Ack,
            KvMessage::Cancel => SenderEvent::PeerCancelled,
            KvMessage::LinkLost => return self.link_lost(side),
            // Of the other end.
            KvMessage::Ask { .. }
            | KvMessage::Accepted
            | KvMessage::Begun
            | KvMessage::Refused(_)
            | KvMessage::Pages(_)
            | KvMessage::Last { .. }
            | KvMessage::Sent { .. } => return Ok(false),
        };
        self.act(side, |end, now, fx| end.on(now, key, event, fx))
    }

    /// The link has carried a message of pages.
    pub(in crate::node::worker) fn sent(
        &mut self,
        key: TransferKey,
        first: u32,
        count: u32,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        self.act(side, |end, now, fx| end.on(now, key, SenderEvent::Sent { first, count }, fx))
    }

    pub(in crate::node::worker) fn link_lost(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, |end, _, fx| end.link_lost(fx))
    }
}
