//! What comes to an end at which pages come in from the worker, and from the link to it.

use policies::invariant::Broken;
use policies::kv::handoff::{Receiver, ReceiverEvent, TransferKey};

use super::Taking;
use crate::event::{KvMessage, PageBlock};
use crate::node::pool::Side;

impl Taking {
    /// A message of the worker; says whether the transfer is over, as the others do.
    pub(in crate::node::pool) fn hear(
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
                self.here = Some(block);
                ReceiverEvent::Pages { first, count, bytes: side.bytes(count) }
            }
            KvMessage::Last { tokens, block, .. } => {
                let PageBlock { first, count, .. } = block;
                let bytes = side.bytes(count);
                self.here = Some(block);
                ReceiverEvent::Last { tokens, first, count, bytes, drawn: false, ends: false }
            }
            KvMessage::Cancel => ReceiverEvent::PeerCancelled,
            KvMessage::LinkLost => return self.act(side, Receiver::link_lost),
            // Of the other end.
            KvMessage::Ask { .. }
            | KvMessage::Open { .. }
            | KvMessage::Credit(_)
            | KvMessage::Ack
            | KvMessage::Sent { .. } => return Ok(false),
        };
        self.act(side, |end, now, fx| end.on(now, key, event, fx))
    }
}
