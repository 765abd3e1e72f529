//! What comes to an end at which a worker fetches pages from the worker, and from the link to it.

use policies::invariant::Broken;
use policies::kv::handoff::{SenderEvent, TransferKey};

use super::Giving;
use crate::event::KvMessage;
use crate::node::pool::Side;

impl Giving {
    /// A message of the worker; says whether the transfer is over, as the others do.
    pub(in crate::node::pool) fn hear(
        &mut self,
        key: TransferKey,
        message: &KvMessage,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        let event = match *message {
            KvMessage::Open { first_page, window } => SenderEvent::Opened { first_page, window },
            KvMessage::Credit(pages) => SenderEvent::Credit { pages },
            KvMessage::Ack => SenderEvent::Ack,
            KvMessage::Cancel => SenderEvent::PeerCancelled,
            KvMessage::Sent { first, count, .. } => SenderEvent::Sent { first, count },
            KvMessage::LinkLost => return self.link_lost(side),
            // Of the other end.
            KvMessage::Ask { .. }
            | KvMessage::Accepted
            | KvMessage::Begun
            | KvMessage::Refused(_)
            | KvMessage::Pages(_)
            | KvMessage::Last { .. } => return Ok(false),
        };
        self.act(side, |end, now, fx| end.on(now, key, event, fx))
    }
}
