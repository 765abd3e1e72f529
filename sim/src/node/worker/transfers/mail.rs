//! What comes from the other ends of transfers, from the link to them, and when their time is up.

use config::ids::NodeId;
use policies::invariant::Broken;

use super::{Entry, Id, Side, Transfers};
use crate::event::{KvMail, KvMessage};
use crate::node::worker::send::Sending;

impl Transfers {
    /// A message came from the other end of a transfer.
    pub(in crate::node::worker) fn mail(&mut self, mail: KvMail, side: &mut Side<'_>) -> Result<(), Broken> {
        let KvMail { id, key, from, message, .. } = mail;
        if let KvMessage::Ask { asked, spec, takes, held, prefix } = message {
            // One that is here already in another part (a placement never does that) is not computed twice.
            if self.entries.contains_key(&id) {
                side.send(&from, id, key, KvMessage::Cancel);
                return Ok(());
            }
            let mut end = Sending::new(self.limits, (key, takes), asked, spec, from);
            let over = if held {
                end.give(&self.chunking, side)?
            } else {
                let (holder, held) = self.holder(end.spec(), prefix);
                let over = end.start(&self.chunking, held, side)?;
                self.expect_held(id, holder, side.core);
                over
            };
            if !over {
                self.entries.insert(id, Entry::Sending(Box::new(end)));
            }
            return Ok(());
        }
        if let KvMessage::Sent { first, count, took } = message {
            self.carried(count, took);
            return self.at_sender(id, side, |end, side| end.sent(key, first, count, side));
        }
        self.at(id, side, |end, side| match end {
            Entry::Waiting { .. } => Ok(false),
            Entry::Receiving(end) => end.hear(key, message, side),
            Entry::Sending(end) => end.hear(key, &message, side),
        })
    }

    /// Time to look at the limits of a transfer.
    pub(in crate::node::worker) fn timer(&mut self, id: Id, side: &mut Side<'_>) -> Result<(), Broken> {
        self.at(id, side, |end, side| match end {
            Entry::Waiting { .. } => Ok(false),
            Entry::Receiving(end) => end.tick(side),
            Entry::Sending(end) => end.tick(side),
        })
    }

    /// The link to a node is broken.
    pub(in crate::node::worker) fn lost(&mut self, peer: &NodeId, side: &mut Side<'_>) -> Result<(), Broken> {
        let theirs: Vec<Id> =
            self.entries.iter().filter(|(_, entry)| entry.is_with(peer)).map(|(id, _)| *id).collect();
        for id in theirs {
            self.at(id, side, |end, side| match end {
                // It asks when it has its pages, and hears then.
                Entry::Waiting { .. } => Ok(false),
                Entry::Receiving(end) => end.link_lost(side),
                Entry::Sending(end) => end.link_lost(side),
            })?;
        }
        Ok(())
    }
}

impl Entry {
    fn is_with(&self, node: &NodeId) -> bool {
        match self {
            Self::Waiting { .. } => false,
            Self::Receiving(end) => end.peer().node == *node,
            Self::Sending(end) => end.peer().node == *node,
        }
    }
}
