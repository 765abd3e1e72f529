//! What comes to an end that takes pages in from the other end, and from the link to it.

use policies::invariant::Broken;
use policies::kv::handoff::{Receiver, ReceiverEvent, TransferKey};

use super::Receiving;
use crate::event::{KvMessage, PageBlock};
use crate::node::worker::transfers::Side;

impl Receiving {
    /// A message of the sender; says whether the transfer is over, as the others do.
    pub(in crate::node::worker) fn hear(
        &mut self,
        key: TransferKey,
        message: KvMessage,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        let event = match message {
            KvMessage::Accepted => ReceiverEvent::Accepted,
            KvMessage::Refused(code) => ReceiverEvent::Refused(code),
            KvMessage::Begun => ReceiverEvent::Begun,
            KvMessage::Pages(block) => {
                let PageBlock { first, count, .. } = block;
                let bytes = self.bytes(count);
                self.here = Some(block);
                ReceiverEvent::Pages { first, count, bytes }
            }
            KvMessage::Last { tokens, cached, drawn, block } => {
                let PageBlock { first, count, .. } = block;
                let (bytes, ran) = (self.bytes(count), self.takes.is_some());
                let (some, ends) = (self.wanted.fits(ran, tokens, &drawn), self.spec.ends_with(ran, &drawn));
                self.here = Some(block);
                self.last.get_or_insert((cached, drawn));
                ReceiverEvent::Last { tokens, first, count, bytes, drawn: some, ends }
            }
            KvMessage::Cancel => ReceiverEvent::PeerCancelled,
            KvMessage::LinkLost => return self.link_lost(side),
            // Of the other end.
            KvMessage::Ask { .. }
            | KvMessage::Open { .. }
            | KvMessage::Credit(_)
            | KvMessage::Ack
            | KvMessage::Sent { .. } => return Ok(false),
        };
        self.act(side, |end, now, fx| end.on(now, key, event, fx))
    }

    pub(in crate::node::worker) fn link_lost(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, Receiver::link_lost)
    }
}
