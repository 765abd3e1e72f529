//! Carries out what an end wants at which a worker fetches pages.

use policies::kv::handoff::{Outcome, SenderEffect, SenderEvent};

use super::Giving;
use crate::event::{KvMessage, PageBlock};
use crate::node::pool::Side;

impl Giving {
    /// Carries out an effect; what its end has to hear of that at once.
    pub(super) fn effect(&mut self, effect: SenderEffect, side: &mut Side<'_>) -> Option<SenderEvent> {
        let (id, key) = (self.id, self.key);
        let message = match effect {
            SenderEffect::Accept => KvMessage::Accepted,
            SenderEffect::Announce => KvMessage::Begun,
            SenderEffect::Refuse(code) => KvMessage::Refused(code),
            SenderEffect::CancelPeer(_) => KvMessage::Cancel,
            SenderEffect::Export { first, count } => return self.export(first, count, side),
            SenderEffect::SendPages { first, count } => {
                let message = KvMessage::Pages(self.take(first, count));
                side.send_pages(&self.to, id, key, count, message);
                return None;
            }
            SenderEffect::SendLast { first, count, tokens } => {
                let block = self.take(first, count);
                let message = KvMessage::Last { tokens, cached: tokens, drawn: Vec::new(), block };
                side.send_pages(&self.to, id, key, count, message);
                return None;
            }
            SenderEffect::Done(report) => {
                *side.tally.gives.entry(report.outcome.as_str()).or_default() += 1;
                if report.outcome == Outcome::Committed {
                    side.tally.fetched_pages += u64::from(report.pages);
                }
                if let Some(reader) = self.reader.take_if(|reader| side.readers.remove(reader).is_some()) {
                    side.store(|store, now, fx| store.release(now, reader, fx));
                }
                return None;
            }
            // It looked when it was asked, and lets go when that is over.
            SenderEffect::Submit | SenderEffect::Open { .. } | SenderEffect::Release => return None,
        };
        side.send(&self.to, id, key, message);
        None
    }

    /// Asks the store for pages, as far as they are (still) there.
    fn export(&mut self, first: u32, count: u32, side: &mut Side<'_>) -> Option<SenderEvent> {
        let reader = self.reader.filter(|reader| side.readers.contains_key(reader));
        let Some(reader) = reader.filter(|_| first + count <= self.pages) else {
            return Some(SenderEvent::ExportFailed { first, count });
        };
        self.wants = Some((first, count));
        side.store(|store, now, fx| store.grant(now, reader, count as usize, fx));
        None
    }

    fn take(&mut self, first: u32, count: u32) -> PageBlock {
        let here = self.here.take_if(|block| block.first == first && block.count == count);
        here.unwrap_or(PageBlock { first, count, slots: Vec::new() })
    }
}
